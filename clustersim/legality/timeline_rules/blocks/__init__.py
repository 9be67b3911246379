"""Rules on K/V blocks: who holds which, when it is lent, read, shared, and given back."""
