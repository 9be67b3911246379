"""The scheduler of lanes: decisions of the plain one at the cost of what changes, over groups that decode together."""
