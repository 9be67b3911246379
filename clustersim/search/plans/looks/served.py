"""What a pool that decodes serves at the least times of its steps: tokens per second, and how fast a user gets them.

It is no bound: prompts that wait for one another come to a decode pool more evenly than they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.clock import NS_PER_S
from clustersim.report.metrics.latencies import targets_ns
from clustersim.scenario.scenario import Scenario
from clustersim.search.load import Load
from clustersim.search.plans.grid import demand_at
from clustersim.search.plans.looks.alone import PoolAlone, times_of
from clustersim.search.plans.looks.times import PrefillTimes


def served_all(
    scenario: Scenario, load: Load, asked: Sequence[tuple[PoolAlone, int]], compiled: bool = False
) -> list[tuple[float, float] | None]:
    """Return what each of some pools that decode serves at a step of the grid: output tokens per second of all its
    replicas, and the mean seconds between two tokens of a request. None where that is not known.

    Parameters
    ----------
    scenario, load, compiled
        See :func:`~clustersim.search.plans.looks.alone.failing_all`.
    asked : sequence of (PoolAlone, int)
    """
    results: list[tuple[float, float] | None] = []
    for pool, step in asked:
        results.append(None)
        demand = demand_at(scenario, load, step, pool.replicas)
        if scenario.plan.is_two_batch or "tpot" not in targets_ns(scenario.targets) or demand.shared:
            continue
        times = times_of(scenario, pool, load)
        if not isinstance(times, PrefillTimes):
            _, waited, tokens, ended = times.replayed(demand, len(demand), compiled=compiled)
            lasted = ended - float(demand.arrived_ns[0])
            if tokens and lasted > 0.0:
                many = (float(demand.decodes.sum()) + len(demand)) * pool.replicas
                results[-1] = many * NS_PER_S / lasted, waited / tokens / NS_PER_S
    return results
