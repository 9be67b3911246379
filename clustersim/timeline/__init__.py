"""What a replay recorded: folded passes, tokens, steps, facts; unfolded into spans on demand."""
