"""The step graph: one pass per primitive, expansion over ranks and layers, and its prices."""
