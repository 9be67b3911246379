"""Lanes: replicas that nothing outside can disturb, replayed by recurrences that give what events would."""
