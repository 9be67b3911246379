"""The nearest legal plan: which changes mend a broken rule, how far each leads away, and a search over them."""
