"""Looks at plans before they are simulated: replays of a pool at the least times of its steps, without operators"""
