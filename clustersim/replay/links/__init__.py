"""Links that transfers share: fair shares with a clock and without one, and which transfers can meet at all."""
