"""The comparison as a table: per group the number of points, and relative errors of those that have a prediction.

The relative error of a point is |predicted / measured − 1|. Bias is the geometric mean of predicted / measured,
less one: 0 when predictions are as often and as far too high as too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from clustersim.accuracy.compare import Point

HEADINGS: Final = ("points", "predicted", "median error", "p90 error", "bias", "over 2x off")


def statistics(points: Sequence[Point]) -> dict[str, float | int | None]:
    """Return counts and errors of points; errors are None where no point has a prediction."""
    ratios = [point.ratio for point in points if point.ratio is not None]
    found: dict[str, float | int | None] = {"points": len(points), "predicted": len(ratios)}
    if not ratios:
        return found | {"median_error": None, "p90_error": None, "bias": None, "over_2x": None}
    errors = np.abs(np.array(ratios) - 1.0)
    return found | {
        "median_error": float(np.median(errors)),
        "p90_error": float(np.percentile(errors, 90)),
        "bias": math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios)) - 1.0,
        "over_2x": sum(not 0.5 <= ratio <= 2.0 for ratio in ratios),
    }


def grouped(points: Sequence[Point], columns: Sequence[str]) -> dict[str, list[Point]]:
    """Return points by the values of some columns of their rows, then those of all."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(" | ".join(str(getattr(point.row, name)) for name in columns), []).append(point)
    return {name: groups[name] for name in sorted(groups)} | {"all": list(points)}


def reasons(points: Sequence[Point]) -> dict[tuple[str, str], int]:
    """Return how many points of a family have no prediction, by (family, reason)."""
    counts: dict[tuple[str, str], int] = {}
    for point in points:
        if point.reason is not None:
            key = (point.row.family, point.reason)
            counts[key] = counts.get(key, 0) + 1
    return counts


def text(points: Sequence[Point], columns: Sequence[str]) -> str:
    """Return the table, and below it the points without prediction with their reasons."""
    rows = [(name, statistics(members)) for name, members in grouped(points, columns).items()]
    width = max(len(name) for name, _ in rows)
    lines = ["".join((" " * width, *(f"{heading:>14}" for heading in HEADINGS)))]
    for name, found in rows:
        cells = (_cell(key, value) for key, value in found.items())
        lines.append("".join((f"{name:<{width}}", *(f"{cell:>14}" for cell in cells))))
    unpredicted = reasons(points)
    if unpredicted:
        lines += ["", "without prediction:"]
        lines += [f"{count:>5}  {family}: {why}" for (family, why), count in sorted(unpredicted.items())]
    return "\n".join(lines)


def plain(points: Sequence[Point]) -> dict[str, Any]:
    """Return the comparison as plain data for JSON."""
    families = grouped(points, ("family",))
    return {
        "families": {name: statistics(members) for name, members in families.items()},
        "points": [_plain(point) for point in sorted(points, key=lambda point: point.row.id)],
    }


def _plain(point: Point) -> Mapping[str, Any]:
    row = point.row
    return {
        "id": row.id,
        "metric": row.metric,
        "unit": row.unit,
        "measured": row.value,
        "predicted": point.predicted,
        "ratio": point.ratio,
        "reason": point.reason,
        "scenario": point.scenario,
    }


def _cell(key: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    return f"{value:+.1%}" if key == "bias" else f"{value:.1%}"
