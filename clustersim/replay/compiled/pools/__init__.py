"""Two pools in one kernel: their lanes, hand-overs, and K/V on links, as arrays of integers."""
