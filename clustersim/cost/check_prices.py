"""Whether measured points can be prices: each as it stands, since no fit makes nothing of those that are far off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clustersim.cost.fit import above_peak, has_peak, multiplied_per_s, times_expected, unlike_seconds
from clustersim.cost.points import MeasuredPoints, problem_at
from clustersim.cost.roofline import PricedDevice
from clustersim.errors import InputError, Problem


def check_prices(path: Path, points: Sequence[MeasuredPoints], device: PricedDevice) -> None:
    """Raise where points of a file can't have been measured on a device, or contradict each other.

    Raises
    ------
    InputError
        With the first such point of each operator and format, how many others are like it, and each pair of points
        that are of one shape and last differently long.
    """
    problems = [problem for own in points for problem in _implausible(path, own, device)] or list(_twice(path, points))
    if problems:
        raise InputError(problems)


def _implausible(path: Path, points: MeasuredPoints, device: PricedDevice) -> Iterator[Problem]:
    if points.lines is None or not has_peak(device, points):
        return
    told = [unlike_seconds(device, float(times)) for times in times_expected(device, points)]
    above = [above_peak(device, points, float(rate)) for rate in multiplied_per_s(points)] or [""] * len(told)
    whys = [one or other for one, other in zip(told, above, strict=True)]
    wrong = [(int(line), why) for line, why in zip(points.lines, whys, strict=True) if why]
    if wrong:
        line, why = wrong[0]
        others = f" ({len(wrong)} of {len(told)} points of {points.op} are such)" if len(wrong) > 1 else ""
        yield problem_at(path, line, "seconds", f"{why}{others}")


def _twice(path: Path, points: Sequence[MeasuredPoints]) -> Iterator[Problem]:
    """Yield points of one shape with two times; a point that says no format is of every one."""
    seen: dict[tuple[object, ...], tuple[float, int]] = {}
    for own in sorted(points, key=lambda one: one.dtype is not None):
        rows = zip(*own.shape.values(), own.seconds, own.lines if own.lines is not None else (), strict=True)
        for *shape, seconds, line in rows:
            before = seen.get((own.op, None, *shape)) or seen.setdefault((own.op, own.dtype, *shape), (seconds, line))
            if before[0] != seconds:
                told = f"found {seconds:.6g} s, and {before[0]:.6g} s for the same shape in line {int(before[1])}"
                yield problem_at(path, int(line), "seconds", f"{told}; expected one time of each, such as their median")
