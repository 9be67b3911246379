"""Links that transfers share, and which transfers can meet at all; core.flows says at which rates.

- ``sharing_by_events`` has transfers on the clock of a run; ``paths`` makes paths over the links of a topology.
- ``contention`` finds before a run what can meet; ``sends``, whether one rank's sends stand for all of its stage.
"""
