"""The nearest legal scenario: what must change, why, and the file that is written."""
