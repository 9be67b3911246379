"""Drawn workloads: how many requests, how they arrive, how long their prompts and outputs are."""

from __future__ import annotations

import numpy as np

from clustersim.values import dataclass
from clustersim.workload.arrivals import Arrivals, ClosedLoop
from clustersim.workload.clients import Patience, Priorities
from clustersim.workload.lengths import Lengths
from clustersim.workload.limits import MAX_NS, check_whole, raise_any
from clustersim.workload.requests import Requests
from clustersim.workload.shared_prefixes import SharedPrefixes
from clustersim.workload.streams import named_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnWorkload:
    """What to draw: ``requests`` of them, the arrival process, the lengths, equal starts, and who hurries.

    Without ``priority`` all are equally urgent, without ``cancel_after`` no client gives up.
    """

    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    requests: int
    shared_prefixes: SharedPrefixes | None = None
    priority: Priorities | None = None
    cancel_after: Patience | None = None

    def __post_init__(self) -> None:
        raise_any(check_whole("requests", self.requests, low=1, high=MAX_NS))


def generate(spec: DrawnWorkload, seed: np.random.SeedSequence) -> Requests:
    """Draw the requests of a workload.

    Arrivals, prompt lengths, output lengths, shared prefixes, priorities and cancellations have a stream each, so
    changing one leaves the others as they are; and more requests are the same ones with others after them (except with
    ``rescale``).

    Parameters
    ----------
    spec : DrawnWorkload
        What to draw.
    seed : numpy.random.SeedSequence
        The scenario's seed; it is not changed.

    Raises
    ------
    InputError
        When the last request would arrive after more than 292 years.
    """
    arrivals, shared = spec.arrivals, spec.shared_prefixes
    priority, cancel_after = spec.priority, spec.cancel_after
    return Requests(
        arrived_at_ns=arrivals.draw_ns(spec.requests, named_stream(seed, "arrivals")),
        prompt_tokens=spec.prompt_tokens.draw(spec.requests, named_stream(seed, "prompt_tokens")),
        output_tokens=spec.output_tokens.draw(spec.requests, named_stream(seed, "output_tokens")),
        prefix_hashes=None if shared is None else shared.draw(spec.requests, named_stream(seed, "shared_prefixes")),
        hash_block_tokens=None if shared is None else shared.tokens,
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None,
        priorities=None if priority is None else priority.draw(spec.requests, named_stream(seed, "priority")),
        cancel_after_ns=None
        if cancel_after is None
        else cancel_after.draw_ns(spec.requests, named_stream(seed, "cancel_after")),
        source="drawn",
    )
