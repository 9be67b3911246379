"""The front of a search: its points, what it can be at most, and the runs that fill it."""
