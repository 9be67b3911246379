"""What rows of each family of measured points are turned into: scenarios, and collectives on their own."""
