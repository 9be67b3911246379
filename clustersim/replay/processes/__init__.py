"""A run in several processes: replicas that nothing connects, each process with its part."""
