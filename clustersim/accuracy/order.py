"""Whether plans are ranked as measurements rank them: Spearman's correlation of ranks.

Plans are compared where several of them served one workload: rows that differ in nothing but the plan and the
number of devices. A plan without a prediction has no rank: where one is missing, the order counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.accuracy.result import Result
from clustersim.clock import FloatArray
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The plans of one workload in order of one metric.

    Parameters
    ----------
    family, engine, device, model, workload, metric : str
        What they share.
    plans : tuple of str
        The plans, from the lowest measured figure to the highest; those without a prediction last.
    expressed : int
        How many have a prediction.
    spearman : float or None
        Correlation of the ranks, −1 to 1; 0 where a plan has no prediction; None where all were measured alike.
    """

    family: str
    engine: str
    device: str
    model: str
    workload: str
    metric: str
    plans: tuple[str, ...]
    expressed: int
    spearman: float | None


def orders(results: Sequence[Result]) -> tuple[Order, ...]:
    """Return the order of plans wherever several served one workload, in the order of the table."""
    groups: dict[tuple[str, ...], dict[str, Result]] = {}
    for one in results:
        if one.model:
            key = (one.family, one.engine, one.device, one.model, one.precision, one.workload, one.metric)
            groups.setdefault(key, {}).setdefault(f"{one.parallel} on {one.devices:g}", one)
    return tuple(_order(key, plans) for key, plans in groups.items() if len(plans) > 1)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the correlation of the ranks of two series; 0 where one of them is constant."""
    first, second = _ranks(one), _ranks(other)
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt(np.sum(first * first) * np.sum(second * second)))
    return round(float(np.sum(first * second)) / scale, 6) if scale else 0.0


def _order(key: tuple[str, ...], plans: dict[str, Result]) -> Order:
    known = [(one.measured, one.predicted, plan) for plan, one in plans.items()]
    pairs = sorted((measured, predicted, plan) for measured, predicted, plan in known if measured and predicted)
    names = [plan for _, _, plan in pairs] + [plan for plan, one in plans.items() if one.predicted is None]
    alike = len({measured for measured, _, _ in known}) == 1 and known[0][0] is not None
    told = 0.0 if len(pairs) < len(plans) else spearman([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    family, engine, device, model, _, workload, metric = key
    return Order(
        family=family,
        engine=engine,
        device=device,
        model=model,
        workload=workload,
        metric=metric,
        plans=tuple(names),
        expressed=len(pairs),
        spearman=None if alike else told,
    )


def _ranks(values: Sequence[float]) -> FloatArray:
    """Return ranks from 1; equal values share the mean of theirs."""
    array = np.asarray(values, dtype=np.float64)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    equal = (array[:, None] == array[None, :]).sum(axis=1)
    return np.asarray(below + (equal + 1) / 2.0)
