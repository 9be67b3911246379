"""The keys of scenarios in words, and as a JSON schema for editors."""
