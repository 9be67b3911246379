"""What comes from other programs: step graphs and tables, read and held against what they declare."""
