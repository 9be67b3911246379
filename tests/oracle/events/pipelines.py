"""What replicas that are objects ask of a pipeline."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.events.pipeline import Pipeline


def is_free(pipeline: Pipeline) -> bool:
    """Whether the first stage can start a micro-batch now."""
    return pipeline.busy[0] is None and not pipeline.queues[0]


def steps_before_change(pipeline: Pipeline, starts: Int64Array) -> int:
    """Return how many of these starts come before passes get slower, or are again as they should be."""
    change = None if pipeline.slowdowns is None else pipeline.slowdowns.next_change(int(starts[0]))
    return len(starts) if change is None else int(np.searchsorted(starts, change))
