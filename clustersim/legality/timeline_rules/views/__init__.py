"""What rules of level T read: views of a history, each worked out once, from the record alone."""
