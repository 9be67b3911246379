"""Lanes with pipeline stages: micro-batches, what is sent between stages, and what sends may meet on their links."""
