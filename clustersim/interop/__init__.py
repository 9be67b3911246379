"""Scenarios from what other programs are told: the command lines of vLLM."""
