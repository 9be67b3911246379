"""In which order the steps of lanes are taken: each lane alone, all on one clock, or all in lockstep."""
