"""A replay of a replica that computes prompts and decodes, at the least times of its steps, without operators.

Steps are filled as chunked prefill fills them: of the sequences that decode an even share for each stage, then prompts
that are begun, then those that wait, in order of arrival, as far as sequences and K/V have room. Sequences that leave a
step together come to a next one together. With several stages the slowest one lets one step in after the other, and a
step ends when it has passed them all: no wait on the others.

Not replayed: K/V that runs out while sequences decode, a limit on chunks of long prompts, and SP ranks of their own.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import FloatArray
from clustersim.search.plans.bounds.columns import Columns
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.looks.kernels import Told
from clustersim.search.plans.looks.mixed_kernel import mixed_late
from clustersim.search.plans.looks.replays import handed, kernel
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedTimes:
    """A replica that does both.

    Parameters
    ----------
    stages, tokens, requests, kv_tokens : int
        Steps in flight, and most of a step and of its pool.
    tpot_ns : float
        Target; infinite where there is none.
    prompt_cell, decode_cell : list of int
        Prompt tokens, and sequences that decode → row and column of …
    slowest_ns, latency_ns : list of list of float
        … the least time on the slowest stage, and through all.
    key_ns, pair_ns : float
        What each key of decodes, and each pair of prompts, adds at least on a stage.
    """

    stages: int
    tokens: int
    requests: int
    kv_tokens: int
    tpot_ns: float
    prompt_cell: list[int]
    decode_cell: list[int]
    slowest_ns: list[list[float]]
    latency_ns: list[list[float]]
    key_ns: float
    pair_ns: float

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may miss a target."""
        return demand.shared or self.replayed(demand, free, compiled=compiled)[0] <= free

    def replayed(self, demand: Demand, free: int, *, compiled: bool = False) -> Told:
        """Return how many requests miss a target, and how long those that began in time wait."""
        cells = handed((np.array(self.prompt_cell), np.array(self.decode_cell)), compiled)
        ns = handed((np.array(self.slowest_ns).ravel(), np.array(self.latency_ns).ravel()), compiled)
        decodes = demand.decodes.astype(np.int64)
        asked = demand.arrived_ns, demand.prompt, decodes, demand.prompt_by_ns, demand.decodes_by_ns
        told: Told = kernel(mixed_late, compiled)(
            self.stages, self.tokens, self.requests, float(self.kv_tokens), *cells, len(self.latency_ns[0]), *ns,
            self.key_ns, self.pair_ns, self.tpot_ns, *handed(asked, compiled), free,
        )  # fmt: skip
        return told


def mixed_times(
    columns: Columns, *, stages: int, tokens: int, requests: int, kv_tokens: int, tpot_ns: float
) -> MixedTimes:
    """Return the least times of a replica that does both.

    Parameters
    ----------
    columns : Columns
        Of all its ranks together.
    stages, tokens, requests, kv_tokens, tpot_ns
        See :class:`MixedTimes`.
    """
    prompts, row = np.unique(columns.prompt, return_inverse=True)
    decodes, column = np.unique(columns.decodes, return_inverse=True)

    def table(values: FloatArray) -> list[list[float]]:
        cells = np.full((len(prompts), len(decodes)), np.inf)  # of more than fits in a step
        cells[row, column] = values
        found: list[list[float]] = cells.tolist()
        return found

    def cell(ends: FloatArray, most: int) -> list[int]:
        found: list[int] = np.minimum(np.searchsorted(ends, np.arange(most + 1)), len(ends) - 1).tolist()
        return found

    some = columns.decodes > 0
    return MixedTimes(
        stages=stages,
        tokens=tokens,
        requests=requests,
        kv_tokens=kv_tokens,
        tpot_ns=tpot_ns,
        prompt_cell=cell(prompts, tokens),
        decode_cell=cell(decodes, requests),
        slowest_ns=table(columns.stage_ns.max(axis=0)),
        latency_ns=table(columns.latency_ns),
        key_ns=float(columns.key_ns[:, some].min()) if some.any() else 0.0,
        pair_ns=float(columns.pair_ns.min()),
    )
