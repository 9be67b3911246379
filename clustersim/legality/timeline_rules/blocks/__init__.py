"""Rules on K/V blocks: who holds which, when it is allocated, read, shared, and freed."""
