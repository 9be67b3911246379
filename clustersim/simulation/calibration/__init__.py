"""Constants of an engine, fitted to what a server logged: logs, what they can tell, and the search."""
