"""Replicas in lockstep, replayed at the least times of their steps: a step takes what the busiest of them does, and
what experts do with the tokens of all.

Each fills its own steps with its own prompts, as chunked prefill does, so that a prompt on one of them keeps all the
others waiting: what is spread evenly over all is far from that. Where they only decode, the one that happens to have
most sequences, or keys, keeps the others waiting.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.looks.kernels import Told
from clustersim.search.plans.looks.lockstep_kernels import lockstep_decodes_late, lockstep_late
from clustersim.search.plans.looks.mixed import MixedTimes
from clustersim.search.plans.looks.replays import handed, kernel
from clustersim.search.plans.looks.times import limits_ns
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LockstepTimes:
    """Replicas that share experts.

    Parameters
    ----------
    ranks : int
    alone : MixedTimes
        Of one of them: what a step takes at least in which it has most to do, without experts.
    shared_ns : array of shape (tokens of all + 1,)
        What experts take at least, by the tokens of all.
    decodes : bool
        Whether they decode, too.
    """

    ranks: int
    alone: MixedTimes
    shared_ns: FloatArray
    decodes: bool

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may miss a target."""
        return demand.shared or self.replayed(demand, free, compiled=compiled)[0] <= free

    def replayed(self, demand: Demand, free: int, *, compiled: bool = False) -> Told:
        """Return how many requests miss a target, and how long those that began in time wait."""
        one = self.alone
        decodes = demand.decodes.astype(np.int64) if self.decodes else np.zeros(len(demand), np.int64)
        table = np.array(list(chain.from_iterable(one.latency_ns)))
        cells = handed((np.array(one.prompt_cell), np.array(one.decode_cell)), compiled)
        arrays = (
            table, self.shared_ns, demand.arrived_ns, demand.prompt, decodes, demand.prompt_by_ns, demand.decodes_by_ns,
        )  # fmt: skip
        ns, shared, arrived, prompt, many, by, decodes_by = handed(arrays, compiled)
        told: Told = kernel(lockstep_late, compiled)(
            self.ranks, one.tokens, one.requests, float(one.kv_tokens), *cells, len(one.latency_ns[0]), ns, shared,
            one.key_ns, one.pair_ns, one.tpot_ns, arrived, prompt, many, by, decodes_by,
            int(decodes.max(initial=0)), free,
        )  # fmt: skip
        return told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LockstepDecodes:
    """Replicas that share experts, and only decode.

    Parameters
    ----------
    ranks, requests, kv_tokens : int
        How many there are; most sequences, and tokens of the K/V pool, of each.
    own_ns, key_ns : array of shape (sequences + 1,)
        By the sequences of one: what a step takes at least without experts, and what each of their keys adds.
    shared_ns : array of shape (sequences of all + 1,)
        What experts take at least, by the sequences that all compute.
    padded : array of shape (sequences + 1,)
        By the sequences of the fullest one: how many each of them computes; 0 where that is what it has.
    tpot_ns : float
        Target.
    waits, streams : bool
        See :class:`~clustersim.search.plans.looks.times.DecodeTimes`.
    """

    ranks: int
    requests: int
    kv_tokens: int
    own_ns: FloatArray
    key_ns: FloatArray
    shared_ns: FloatArray
    padded: Int64Array
    tpot_ns: float
    waits: bool = False
    streams: bool = False

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may get their tokens too slowly."""
        return self.replayed(demand, free, compiled=compiled)[0] <= free

    def replayed(
        self, demand: Demand, free: int, *, compiled: bool = False, counts: npt.NDArray[np.bool_] | None = None
    ) -> Told:
        """Return how many requests get their tokens too slowly (of those that count: all), and how long all wait."""
        some = demand.decodes > 0  # the others are not handed over
        decodes = demand.decodes[some].astype(np.int64)
        if not len(decodes):
            return 0, 0.0, 0, float(demand.arrived_ns[-1])
        room = float("inf") if demand.shared else float(self.kv_tokens)
        own, key, shared, padded = handed((self.own_ns, self.key_ns, self.shared_ns, self.padded), compiled)
        within, by = (limit[some] for limit in limits_ns(demand, self.tpot_ns, counts))
        context = (demand.tokens - demand.decodes)[some]
        asked = handed((demand.arrived_ns[some], decodes, context, within, by), compiled)
        told: Told = kernel(lockstep_decodes_late, compiled)(
            self.ranks, self.requests, room, self.waits, self.streams, own, key, shared, padded, *asked,
            int(decodes.max()), free,
        )  # fmt: skip
        return told
