"""Step graphs of other programs, and those that clustersim wrote: formats, names, and what they declare."""
