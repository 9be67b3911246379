"""What people see of a run: metrics, dashboard, terminal, traces, pictures of graphs, the run directory."""
