"""Rules on operators: what runs where, when, after what, and for how long."""
