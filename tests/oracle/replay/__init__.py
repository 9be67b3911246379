"""Replicas, what is between them, and who waits how long."""
