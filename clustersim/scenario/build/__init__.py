"""From the keys of a scenario to what they stand for: plan, serving, engine, model, topology, faults, workload."""
