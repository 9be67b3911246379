"""Errors by group: how many figures, how many of them can be expressed, and how far off predictions are.

The error of a figure is |predicted / measured − 1|, and 1 where it can't be expressed: leaving out what is hard
makes no score better. Bias is the geometric mean of predicted / measured over what is expressed, less one: 0 when
predictions are as often and as far too high as too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from clustersim.accuracy.order import Order, orders
from clustersim.accuracy.result import Result
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The errors of a group.

    Parameters
    ----------
    family, engine, device, metric : str
        What its figures share; empty: any.
    rows, expressed : int
        Figures, and those with a prediction.
    median, p90 : float
        Quantiles of the error.
    held_out : float
        The median error without constants that were found with the family.
    bias : float or None
        None where nothing is expressed.
    """

    family: str = ""
    engine: str = ""
    device: str = ""
    metric: str = ""
    rows: int
    expressed: int
    median: float
    p90: float
    held_out: float
    bias: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """All that is said of a table.

    Parameters
    ----------
    results : tuple of Result
        Figure by figure.
    overall : Score
        Of all.
    metrics, totals, families, devices : tuple of Score
        By metric; by family, too; by engine, too; by device, too.
    order : tuple of Order
        Of plans.
    """

    results: tuple[Result, ...]
    overall: Score
    metrics: tuple[Score, ...]
    totals: tuple[Score, ...]
    families: tuple[Score, ...]
    devices: tuple[Score, ...]
    order: tuple[Order, ...]


def scoreboard(results: Sequence[Result]) -> Scoreboard:
    """Return the scores of results.

    Parameters
    ----------
    results : sequence of Result
        At least one.
    """
    return Scoreboard(
        results=tuple(results),
        overall=score(results),
        metrics=_by(results, "metric"),
        totals=_by(results, "family", "metric"),
        families=_by(results, "family", "engine", "metric"),
        devices=_by(results, "family", "engine", "device", "metric"),
        order=orders(results),
    )


def score(results: Sequence[Result], **shared: str) -> Score:
    """Return the errors of some results, which share these values."""
    errors = np.array([result.error for result in results])
    ratios = [result.ratio for result in results if result.ratio is not None]
    bias = math.exp(math.fsum(math.log(ratio) for ratio in ratios) / len(ratios)) - 1.0 if ratios else None
    return Score(
        rows=len(results),
        expressed=len(ratios),
        median=round(float(np.quantile(errors, 0.5)), 6),
        p90=round(float(np.quantile(errors, 0.9)), 6),
        held_out=round(float(np.quantile([result.held_out_error for result in results], 0.5)), 6),
        bias=None if bias is None else round(bias, 6),
        **shared,
    )


def reasons(results: Sequence[Result]) -> dict[tuple[str, str], list[str]]:
    """Return the ids of figures of a family that can't be expressed, by (family, reason)."""
    found: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.ratio is None:
            found.setdefault((result.family, result.reason), []).append(result.id)
    return dict(sorted(found.items()))


def family_order(family: str) -> tuple[int, str]:
    """Return what sorts families as people count them: F2 before F10."""
    head = family.partition("-")[0]
    return (int(head[1:]) if head[1:].isdecimal() else 0, family)


def _by(results: Sequence[Result], *names: str) -> tuple[Score, ...]:
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        values = {"family": result.family, "engine": result.engine, "device": result.device, "metric": result.quantity}
        groups.setdefault(tuple(values[name] for name in names), []).append(result)
    ordered = sorted(groups, key=lambda key: (family_order(key[0]), key))
    return tuple(score(groups[key], **dict(zip(names, key, strict=True))) for key in ordered)
