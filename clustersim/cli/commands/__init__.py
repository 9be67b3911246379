"""The commands, a module each: options, the call that does the work, and what is printed of it."""
