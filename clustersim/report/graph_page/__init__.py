"""The picture of a step graph: one HTML page."""
