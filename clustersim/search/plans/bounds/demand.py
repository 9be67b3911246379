"""What requests ask of a replica, and until when: the other half of a bound on capacity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.values import dataclass
from clustersim.workload.requests import Requests

_LATE_NS: Final = 1_000.0
"""Instants are rounded to nanoseconds; a deadline is taken so much later."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demand:
    """Work of each request, float arrays of shape (n,), and its deadlines.

    Parameters
    ----------
    arrived_ns : array
    prompt, decodes, keys, pairs : array
        Prompt tokens; tokens behind the first one; keys that these attend to, and pairs that the prompt attends to.
    prompt_by_ns, decodes_by_ns : array
        When prompt and decodes are done at the latest of a request that meets its targets.
    tokens : array
        Most tokens that are cached of it.
    shared : bool
        Whether prompts may begin with what is cached of others: what has to be computed of them is not known then, and
        sequences attend to more keys than the pool has.
    """

    arrived_ns: FloatArray
    prompt: FloatArray
    decodes: FloatArray
    keys: FloatArray
    pairs: FloatArray
    prompt_by_ns: FloatArray
    decodes_by_ns: FloatArray
    tokens: FloatArray
    shared: bool

    def __len__(self) -> int:
        return len(self.arrived_ns)

    def every(self, many: int, first: int = 0) -> Demand:
        """Return every so many-th request, from one on."""
        return self if many == 1 else self.only(slice(first, None, many))

    def only(self, at: slice | Int64Array) -> Demand:
        """Return some requests."""
        each = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "shared"}
        return replace(self, **{name: values[at] for name, values in each.items()})


def demand_of(requests: Requests, targets_ns: Mapping[str, float], front_end_ns: float, *, cached: bool) -> Demand:
    """Return what requests ask for.

    Parameters
    ----------
    requests : Requests
    targets_ns : mapping
        ``ttft``, ``tpot`` and ``e2e``, as far as they are told.
    front_end_ns : float
        What is in their latencies and takes no time of a replica.
    cached : bool
        Whether prefixes are cached: it matters where the requests say what their prompts share.
    """
    output = requests.output_tokens.astype(np.float64)
    prompt = np.where(output > 0.0, requests.prompt_tokens, 0.0)  # who asks for no token is rejected, and costs nothing
    decodes = np.maximum(output - 1.0, 0.0)
    if "tpot" not in targets_ns and "e2e" not in targets_ns:
        decodes = np.zeros_like(decodes)  # whenever they are done
    arrived = requests.arrived_at_ns.astype(np.float64)
    ttft, tpot, e2e = (targets_ns.get(name, math.inf) for name in ("ttft", "tpot", "e2e"))
    end = arrived + e2e - front_end_ns + _LATE_NS
    first = np.minimum(arrived + ttft - front_end_ns + _LATE_NS, end)
    shared = cached and requests.prefix_hashes is not None
    gaps = np.where(decodes > 0, decodes * tpot, 0.0) if math.isfinite(tpot) else np.where(decodes > 0, math.inf, 0.0)
    return Demand(
        arrived_ns=arrived,
        prompt=np.zeros_like(prompt) if shared else prompt,
        decodes=decodes,
        keys=decodes * prompt + decodes * (decodes + 1.0) / 2.0,
        pairs=np.zeros_like(prompt) if shared else prompt * (prompt + 1.0) / 2.0,
        prompt_by_ns=first,
        decodes_by_ns=np.minimum(first + gaps, end),
        tokens=prompt + np.maximum(output - 1.0, 0.0),
        shared=shared,
    )


def may_miss(count: int, share: float) -> int:
    """Return how many of so many requests may miss their targets where a share of them has to meet them."""
    missed = math.floor(count * (1.0 - share)) + 1
    while missed > 0 and (count - missed) / count < share:
        missed -= 1
    return missed
