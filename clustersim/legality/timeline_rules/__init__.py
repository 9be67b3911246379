"""The rules of level T, a module per family; each is a function of a reading of a history."""
