"""What the nodes of step graphs cost: amounts, durations by class, and sums over steps."""
