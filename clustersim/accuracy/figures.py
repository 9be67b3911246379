"""How many figures were measured of each kind of run, and their median error: the table that runs look it up in.

Kinds and their order are those of :mod:`clustersim.scenario.confidence`. Only figures of serving count that are
predicted: collectives on their own have neither engine nor model, and of what can't be expressed nothing is run.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable

from clustersim.accuracy.result import Result
from clustersim.accuracy.row import Inexpressible
from clustersim.accuracy.systems import model, topology
from clustersim.scenario.confidence import COLUMNS, kinds_of, model_class
from clustersim.scenario.parts import load_model, load_topology


def figures_table(results: Iterable[Result]) -> str:
    """Return the table as CSV: kinds in order, an empty column is any, errors as shares with four digits."""
    errors: dict[tuple[str, ...], list[float]] = {}
    for result in results:
        kind = _kind(result) if result.ratio is not None else None
        for key in kinds_of(kind) if kind else ():
            errors.setdefault(key, []).append(result.error)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([*key, len(found), f"{statistics.median(found):.4g}"] for key, found in sorted(errors.items()))
    return text.getvalue()


def _kind(result: Result) -> tuple[str, ...] | None:
    """Return device, family of engines and class of model; None of what is no serving of a model."""
    if not result.profile or not result.model:
        return None
    try:
        where, of = topology(result.row), model(result.row)
    except Inexpressible:
        return None
    name = where.pop("name")
    device = load_topology(name, [f"{key}={value}" for key, value in where.items()]).device.name
    return device, result.profile.partition("-")[0], model_class(load_model(of if isinstance(of, str) else of["name"]))
