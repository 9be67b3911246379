"""One pass per primitive: each splits the graph of one device along its axis and inserts what must be exchanged."""
