"""Rates between warm-up and drain: while requests still arrive, and those of the beginning have been answered."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.report.metrics.latencies import Columns, e2e_ns, is_finished, of_finished

LEAST: Final = 0.25
"""Share of the time in which requests arrive that must be left for rates to be told."""
FEWEST: Final = 30
"""Requests that must finish in it."""


def steady_rates(requests: Columns) -> dict[str, float] | None:
    """Return what arrived and was served per second once the first requests were answered, and until the last arrives.

    That is from the first arrival and the median end-to-end latency on. Requests and tokens count where they finish.
    None where too little of the time is left, as when all requests arrive at once, or too few requests.
    """
    done, arrived = is_finished(requests), requests["arrived_ns"]
    if not done.any():
        return None
    first, last = int(arrived.min()), int(arrived.max())
    since = first + int(np.median(of_finished(requests, e2e_ns)[0]))
    if last - since <= LEAST * (last - first) or last == first:
        return None
    ends = requests["finished_ns"]
    inside = done & (ends > since) & (ends <= last)
    if inside.sum() < FEWEST:
        return None
    seconds = (last - since) / NS_PER_S
    asked = requests["output_tokens"] > 0  # who failed in its log comes at no rate
    return {
        "from_s": since / NS_PER_S,
        "to_s": last / NS_PER_S,
        "arrived_per_s": int((asked & (arrived > since) & (arrived <= last)).sum()) / seconds,
        "requests_per_s": int(inside.sum()) / seconds,
        "output_tokens_per_s": int(requests["generated_tokens"].sum(where=inside)) / seconds,
    }
