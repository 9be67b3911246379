"""Two pools, one behind the other, at the least times of their steps: a request comes to the second one as soon as the
first has computed its prompt, and each counts once that misses any target.

Where both are near their limits, fewer requests meet all targets than in either pool by itself. Not replayed: K/V on
its way, which takes no time here, and blocks that it keeps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from clustersim.clock import FloatArray
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.demand import Demand, may_miss
from clustersim.search.plans.grid import demand_at
from clustersim.search.plans.looks.alone import PoolAlone, lowest, times_of
from clustersim.search.plans.looks.lockstep import LockstepDecodes
from clustersim.search.plans.looks.times import DecodeTimes, PrefillTimes
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolTimes:
    """Two pools.

    Parameters
    ----------
    prefill, decode : PrefillTimes; DecodeTimes or LockstepDecodes
    replicas : (int, int)
        Of each that get requests in turn.
    """

    prefill: PrefillTimes
    decode: DecodeTimes | LockstepDecodes
    replicas: tuple[int, int]

    def does(self, demand: Demand, free: int, *, compiled: bool = False) -> bool:
        """Whether no more requests than may miss a target."""
        ends = self._ends(demand, compiled)
        late = ends > demand.prompt_by_ns
        missed = int(late.sum())
        behind = np.flatnonzero(demand.decodes > 0)
        behind = behind[np.argsort(ends[behind], kind="stable")]
        second = self.replicas[1]
        for first in range(second):
            if missed > free:
                return False
            at = behind[first::second]
            if len(at):
                come = replace(demand.only(at), arrived_ns=ends[at])
                missed += self.decode.replayed(come, free - missed, compiled=compiled, counts=~late[at])[0]
        return missed <= free

    def _ends(self, demand: Demand, compiled: bool) -> FloatArray:
        """Return when the prompt of each request is computed."""
        found, many = np.zeros(len(demand)), self.replicas[0]
        for first in range(min(many, len(demand))):
            found[first::many] = self.prefill.ends(demand.every(many, first), compiled=compiled)
        return found


def failing_both(
    pools: tuple[Scenario, Scenario],
    load: Load,
    share: float,
    asked: tuple[PoolAlone, PoolAlone, int],
    ends: tuple[int, int],
    compiled: bool = False,
) -> int | None:
    """Return the lowest step of the grid found at which two pools fail together; None where that is not known.

    Parameters
    ----------
    pools : (Scenario, Scenario)
        Each with one replica at sp 1, or those that share experts.
    load : Load
    share : float
    asked : (PoolAlone, PoolAlone, int)
        With how many parts of the plan one stands for.
    ends : (int, int)
        The lowest step that is of interest, and one at which they are known to fail.
    compiled : bool
        Whether replays are compiled, which changes none.
    """
    *both, every = asked
    first, second = (times_of(scenario, pool, load) for scenario, pool in zip(pools, both, strict=True))
    if not isinstance(first, PrefillTimes) or not isinstance(second, (DecodeTimes, LockstepDecodes)):
        return None
    each = both[0].replicas // every, both[1].replicas // every
    times = PoolTimes(prefill=first, decode=second, replicas=each)
    return lowest(partial(_do, pools[0], load, share, every, times, compiled), *ends)


def _do(scenario: Scenario, load: Load, share: float, every: int, times: PoolTimes, compiled: bool, step: int) -> bool:
    demand = demand_at(scenario, load, step, every)
    return times.does(demand, may_miss(len(demand), share), compiled=compiled)
