"""A fuzzer over all commands."""
