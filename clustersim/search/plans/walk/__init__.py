"""The walk through the plans of a search: in which order they are taken, how far up each climbs, what is reached."""
