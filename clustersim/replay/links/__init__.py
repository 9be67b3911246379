"""Links that transfers share, and which transfers can meet at all; core.flows says at which rates.

- ``sharing_by_events`` has transfers on the clock of a run, ``sharing_by_lanes`` those of one replica without one;
  ``uses`` remembers what communications of lanes put on links.
- ``paths`` makes paths over the links of a topology.
- ``contention`` finds before a run what can meet; ``within_replica``, where that stays within a replica.
"""
