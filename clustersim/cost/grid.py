"""Measured points of one group of a device's ``kernels:``, where its formula errs too much: their text, and a choice.

A group with a key ``grid`` is interpolated between these points, as a scenario's own table is
(:mod:`clustersim.cost.table`); its constants are the shape between and beyond them. The fixed parts of a shape come
before its curves, in lines of any length::

    heads 32 kv_heads 8 qk_dim 128 v_dim 128 shared_kv 0
    16: 128=23.4 1024=61.2 32: 128=25.1 1024=105

=========================== ============================== =============================================
group                       before the colon               before each ``=``; behind it microseconds
=========================== ============================== =============================================
``gemm_…``                  1                              rows
``grouped_gemm_…``          active experts                 rows per active expert
``attention_prefill_…``     queries                        attended keys per query, over queries
``…_decode_…``              sequences                      keys per sequence
``memory``                  1                              bytes
=========================== ============================== =============================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost import kernels
from clustersim.cost.points import LONGEST_S, MOST, MeasuredPoints
from clustersim.cost.precision import DTYPE_BYTES
from clustersim.cost.roofline import RooflineCost, group_of
from clustersim.cost.table import FIXED, TableCost
from clustersim.errors import InputError, Problem

Place = tuple[float, float]
"""Outer and inner axis."""
_OPERATORS: Final[Mapping[str, str]] = {"multihead_decode": "attention_decode", "latent_decode": "attention_decode"}


def operator_of(group: str) -> tuple[str, str | None]:
    """Return the operator of a group of ``kernels:``, and its number format; None where it has none."""
    family = next((name for name in kernels.ASSUMED if group == name or group.startswith(f"{name}_")), group)
    return _OPERATORS.get(family, family), group[len(family) + 1 :] or None


@lru_cache(maxsize=64)  # a device is checked, and priced, by each scenario that names it
def read_grid(group: str, text: str) -> MeasuredPoints:
    """Read the points of a group, which nobody changes.

    Parameters
    ----------
    group : str
        Such as ``attention_decode_bf16``.
    text : str

    Raises
    ------
    InputError
        With the line of the text that cannot be read.
    """
    op, dtype = operator_of(group)
    rows = list(_rows(op, text))
    fixed, places, seconds = (np.array([row[part] for row in rows], np.float64) for part in range(3))
    shape = dict(zip(FIXED[op], fixed.T, strict=True)) | _shape(op, places[:, 0], places[:, 1])
    return MeasuredPoints(op=op, dtype=dtype if dtype in DTYPE_BYTES else None, shape=shape, seconds=seconds)


def _rows(op: str, text: str) -> Iterator[tuple[tuple[float, ...], Place, float]]:
    fixed: dict[str, float] = {}
    name, outer, found = "", None, False
    for number, word in ((n, word) for n, line in enumerate(text.splitlines(), start=1) for word in line.split()):
        try:
            if name:
                fixed[name], name = _number(word), ""
            elif word in FIXED[op]:
                fixed, name, outer = ({} if outer is not None else fixed), word, None
            elif word.endswith(":"):
                outer = _positive(word[:-1])
            elif outer is None or tuple(fixed) != FIXED[op]:
                raise ValueError(word)
            else:
                inner, _, microseconds = word.partition("=")
                yield tuple(fixed.values()), (outer, _positive(inner)), _positive(microseconds, LONGEST_S * 1e6) * 1e-6
                found = True
        except ValueError:
            wanted = " ".join((*(f"{key} N" for key in FIXED[op]), "OUTER: INNER=MICROSECONDS …"))
            message = f"line {number}: expected {wanted}, but found {word[:40]!r}"
            raise InputError(Problem(message=message)) from None
    if not found:
        raise InputError(Problem(message="has no points"))


def _number(text: str, most: float = MOST) -> float:
    number = float(text)
    if not 0.0 <= number <= most:
        raise ValueError(text)
    return number


def _positive(text: str, most: float = MOST) -> float:
    number = _number(text, most)
    if number == 0.0:
        raise ValueError(text)
    return number


def _shape(op: str, outer: FloatArray, inner: FloatArray) -> dict[str, FloatArray]:
    """Return the rest of the shape at places of the axes; a prompt's keys are its queries."""
    match op:
        case "gemm":
            return {"m": inner}
        case "grouped_gemm":
            return {"active": outer, "rows": outer * inner}
        case "attention_prefill":
            return {"queries": outer, "keys": outer, "pairs": (inner * outer + 1.0) * outer / 2.0}
        case "attention_decode":
            return {"batch": outer, "keys": outer * inner}
    return {"bytes": inner}


def measured_by(cost: RooflineCost) -> tuple[MeasuredPoints, ...]:
    """Return the measured points that the groups have from which a roofline takes its constants."""
    found = []
    for family in kernels.ASSUMED:
        group = group_of(cost.device, family, cost.format_of(family))
        if group in (family, f"{family}_{cost.format_of(family)}") and group in cost.device.grids:
            found.append(read_grid(group, cost.device.grids[group]))
    return tuple(found)


def with_grids(roofline: RooflineCost) -> RooflineCost | TableCost:
    """Return what prices operators on a device as its file has it: the roofline, and measured points before it."""
    return TableCost((), roofline, measured_by(roofline)) if roofline.device.grids else roofline


def grid_problems(grids: Mapping[str, str], section: str) -> list[Problem]:
    """Return what cannot be read in grids of groups, with paths below ``section``."""
    problems = []
    for group, text in grids.items():
        try:
            read_grid(group, text)
        except InputError as error:
            problems += [Problem(message=one.message, path=f"{section}.{group}.grid") for one in error.problems]
    return problems
