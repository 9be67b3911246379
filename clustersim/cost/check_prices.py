"""Whether measured points can be prices: each as it stands, since no fit makes nothing of those that are far off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from clustersim.cost.fit import above_peak, has_peak, multiplied_per_s, times_expected, unlike_seconds
from clustersim.cost.grid import read_grid
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


def check_grids(device: PricedDevice, grids: Mapping[str, str], section: str) -> list[Problem]:
    """Return the first point of each grid that is faster than the device can be, or slower than any kernel is.

    Parameters
    ----------
    device : PricedDevice
    grids : mapping
        Texts by group, which can be read (:func:`~clustersim.cost.grid.grid_problems`).
    section : str
        Of the file, for paths.
    """
    problems = []
    for group, text in grids.items():
        points = read_grid(group, text)
        if not has_peak(device, points):
            continue
        times = times_expected(device, points)
        rates = multiplied_per_s(points)
        told = [above_peak(device, points, float(rates.max()))] if len(rates) else []
        told += [
            f"a point lasts {one:.3g} times what {device.name} is expected to take"
            for one in (float(times.min()), float(times.max()))
            if not _FASTEST < one < _SLOWEST
        ]
        if why := next(filter(None, told), ""):
            problems.append(
                Problem(message=f"{why.partition(';')[0]}; expected microseconds", path=f"{section}.{group}.grid")
            )
    return problems


_FASTEST: Final = 0.02
_SLOWEST: Final = 1_000.0
"""Times what is assumed of a device. Of all that ship 0.16 is the least, and 130 the most: TensorRT-LLM's decodes over
latents on A100, which has no kernel for them."""


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
