"""A run in words for people: on the terminal, in the dashboard's head, and in explanations."""
