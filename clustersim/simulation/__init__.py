"""One scenario, start to end."""
