"""Graphs from outside that do the same with other operators, put into those that rules know, with the proof of it."""
