"""Rules on requests: where each goes, what becomes of it, and what a step does with it."""
