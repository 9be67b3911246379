"""The one core: who is admitted, preempted, batched, routed, cancelled; when a stage starts."""
