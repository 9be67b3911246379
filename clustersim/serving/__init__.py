"""What a serving engine decides: schedulers, the K/V block pool, routers; without a clock of their own."""
