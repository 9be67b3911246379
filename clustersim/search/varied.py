"""Which runs a sweep has: keys of a scenario that vary, every combination of their values or the n-th of each.

From ``--vary KEY=VALUES``, or from a file::

    scenario: quickstart           # a path, from this file on, or the name of one that ships
    set: [workload.trace.requests=200]
    vary:
      plan.tp: [1, 2, 4, 8]
      workload.trace.rate_scale: 1..4:1
    zip: false
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.scenario.document import read_mapping
from clustersim.scenario.overrides import split_override
from clustersim.search.values import MOST, text_of, values_of
from clustersim.units import plural
from clustersim.values import dataclass

FILE_KEYS: Final = ("scenario", "set", "vary", "zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Varied:
    """A key that varies, and its values, each as ``--set`` takes it."""

    key: str
    values: tuple[str, ...]

    @property
    def changes(self) -> list[str]:
        """Each of its values as ``--set`` takes it."""
        return [f"{self.key}={value}" for value in self.values]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFile:
    """What a file of a sweep says."""

    scenario: str
    overrides: tuple[str, ...]
    varied: tuple[Varied, ...]
    zipped: bool


def varied_of(text: str, option: str = "--vary") -> Varied:
    """Read ``KEY=VALUES`` of an option.

    Raises
    ------
    InputError
        When the text is none, or its values are none.
    """
    try:
        parts, values = split_override(text)
    except ValueError as error:
        message = str(error).replace("KEY.KEY=VALUE, such as plan.tp=8", "KEY=VALUES, such as plan.tp=1,2,4,8")
        raise InputError(Problem(message=message, file=option)) from None
    key = text[: len(text) - len(values) - 1]
    del parts
    try:
        return Varied(key=key, values=values_of(values))
    except ValueError as error:
        raise InputError(Problem(message=str(error), file=option, path=key)) from None


def combinations(varied: Sequence[Varied], *, zipped: bool, option: str = "--vary") -> list[tuple[str, ...]]:
    """Return the values of every run, in order of the keys; the last one moves first.

    Raises
    ------
    InputError
        When nothing varies, a key varies twice or is replaced by one behind it, keys to be zipped differ in length, or
        there are too many runs.
    """
    if not varied:
        raise InputError(Problem(message="nothing varies; add --vary KEY=VALUES, such as --vary plan.tp=1,2,4,8"))
    keys = [one.key for one in varied]
    if held := [key for key in keys if key.partition(".")[0] == "expect"]:
        message = "varies nothing: many runs are not held to what a scenario expects"
        raise InputError(Problem(message=message, file="--vary", path=held[0]))
    if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
        raise InputError(Problem(message="varies twice; list all of its values once", file=option, path=twice[0]))
    for place, key in enumerate(keys):
        if over := next((one for one in keys[place + 1 :] if key.startswith(f"{one}.")), None):
            message = f"is replaced by each value of {over}, which varies behind it; name {over} first"
            raise InputError(Problem(message=message, file=option, path=key))
    if zipped:
        if len({len(one.values) for one in varied}) > 1:
            counts = ", ".join(f"{one.key} has {plural(len(one.values), 'value')}" for one in varied)
            raise InputError(Problem(message=f"--zip takes the n-th value of each key, but {counts}"))
        return list(zip(*(one.values for one in varied), strict=True))
    count = math.prod(len(one.values) for one in varied)
    if count > MOST:
        message = f"{count:,} combinations; expected at most {MOST:,}: list fewer values, or use --zip"
        raise InputError(Problem(message=message, file=option))
    return list(product(*(one.values for one in varied)))


def read_sweep(path: Path) -> SweepFile | None:
    """Read a file of a sweep; None where it has no ``vary``, so that it is a scenario's.

    Raises
    ------
    InputError
        With every mistake.
    """
    document = read_mapping(
        path, "scenario or sweep", ("vary", "name", "topology", "model", "plan", "workload", "serving")
    )
    if "vary" not in document.data:
        return None
    problems = [
        document.problem((key,), f"unknown key {key!r} of a sweep{did_you_mean(str(key), FILE_KEYS)}", key=True)
        for key in document.data
        if key not in FILE_KEYS
    ]
    scenario, vary = document.data.get("scenario"), document.data["vary"]
    overrides, zipped = document.data.get("set") or [], document.data.get("zip", False)
    if not isinstance(scenario, str):
        problems.append(document.problem(("scenario",), f"expected a name or a path, but found {scenario!r}"))
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        problems.append(document.problem(("set",), "expected a list such as [plan.tp=8]"))
    if not isinstance(zipped, bool):
        problems.append(document.problem(("zip",), f"expected true or false, but found {zipped!r}"))
    varied = []
    if not isinstance(vary, dict) or not vary:
        problems.append(document.problem(("vary",), "expected keys and their values, such as {plan.tp: [1, 2, 4, 8]}"))
    else:
        for key, values in vary.items():
            try:
                varied.append(Varied(key=str(key), values=_listed(values)))
            except ValueError as error:
                problems.append(document.problem(("vary", key), str(error)))
    if problems:
        raise InputError(problems)
    found = str(scenario)
    beside = path.parent / found
    return SweepFile(
        scenario=str(beside) if beside.is_file() else found,
        overrides=tuple(overrides),
        varied=tuple(varied),
        zipped=zipped,
    )


def _listed(values: Any) -> tuple[str, ...]:
    """Return the values that a file lists."""
    if isinstance(values, list):
        if not values:
            raise ValueError("lists no value")
        found = tuple(text_of(value) for value in values)
        if twice := next((one for place, one in enumerate(found) if one in found[:place]), None):
            raise ValueError(f"lists {twice} twice")
        return found
    if isinstance(values, dict):
        raise ValueError("expected a list of values, or a range such as 1..10/s:1, but found a mapping")
    return values_of(values) if isinstance(values, str) else (text_of(values),)
