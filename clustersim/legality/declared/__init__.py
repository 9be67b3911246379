"""What rules of level T take as given, derived from plans, topology, faults and placement alone.

Nothing here knows of the code that replays or serves: what breaks when, who is slow, and what a transfer takes over
its route follow from what a scenario declares (``setting``), and a replay that does otherwise is found out. A test
holds this room, and all that a history takes from a scenario, to that (``tests/architecture``).
"""
