"""Runs a scenario on a SimPy clock: arrivals, replicas, stages, links; every operator an event, or folded."""
