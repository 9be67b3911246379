"""Rules on links: what was on which link when, and that no link carried more than it can."""
