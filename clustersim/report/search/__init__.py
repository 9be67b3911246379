"""The page of a search: the front, bounds against what was reached, and why each plan lost."""
