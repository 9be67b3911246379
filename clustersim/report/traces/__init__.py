"""Traces for trace viewers: Perfetto's own format and that of Chrome."""
