"""Links that transfers share: by events and by lanes, at which rates, and which transfers can meet at all.

- ``sharing_by_events`` works out on the clock of a run who shares with whom, and until when; ``sharing_by_lanes`` does
  the same for one replica in scalars, with what ``uses`` remembers of its communications.
- ``fair_rates`` is the arithmetic of both: the rates of those that share, and what is left of each.
- ``contention`` finds before a run what can meet; ``within_replica``, where that stays within a replica.
"""
