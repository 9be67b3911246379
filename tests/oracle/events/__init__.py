"""The replay on SimPy's clock."""
