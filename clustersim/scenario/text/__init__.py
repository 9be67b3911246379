"""YAML texts: trees with positions, plain scalars, values in one line, and changes that keep what lies beside them."""
