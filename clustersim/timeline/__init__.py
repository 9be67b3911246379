"""What a replay recorded: folded passes, steps, prompt chunks, episodes of decoding, facts; unfolded on demand."""
