"""What the core is compared with: schedulers, routers and replicas that are objects on SimPy's clock."""
