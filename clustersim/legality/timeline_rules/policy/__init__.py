"""Rules on what serving declares: who is served when, by which replica, with what of the cache, and who gives way."""
