"""The files of a run directory, written and read back."""
