"""What came out for one measured figure, and the table of all of them that is kept.

The table that ships has no measured figure in it, but what the simulator said and how far off that was: it is what
the project ships of a comparison with tables that it does not own. What is written of a user's table has both.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from clustersim import inputs
from clustersim.accuracy.compare import Point
from clustersim.accuracy.row import Row
from clustersim.accuracy.systems import profile
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass

INEXPRESSIBLE: Final = 1.0
"""The relative error of a figure that cannot be predicted: as if nothing had been predicted."""
_QUANTITIES: Final = (("TTFT", "TTFT"), ("first_token", "TTFT"), ("TPOT", "TPOT"), ("ITL", "ITL"))
_NUMBERS: Final = ("devices", "predicted", "ratio", "held_out")
_AS_IN_ROW: Final = (
    "id", "family", "model", "precision", "parallel", "workload", "metric", "unit", "source",
)  # fmt: skip
_DIGITS: Final = ".4g"
"""As results are kept: a tenth of a percent, below what two measurements differ by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure: what it is of, what was predicted, and its ratio to what was measured.

    Parameters
    ----------
    id, family, engine, device, model, precision, parallel, workload, metric, unit, source : str
        As in the row; ``engine`` is the row's framework, ``device`` its hardware.
    given : float or None
        What was measured, in ``unit``; None of results that were read: their table does not have it.
    devices : float
        How many.
    predicted : float or None
        In ``unit``; None where it can't be expressed.
    ratio : float or None
        Predicted over measured.
    held_out : float or None
        The ratio without constants that were found with this family; as ``ratio`` where none were.
    reason : str
        Why they are None.
    """

    id: str
    family: str
    engine: str
    device: str
    devices: float
    model: str
    precision: str
    parallel: str
    workload: str
    metric: str
    unit: str
    source: str
    predicted: float | None
    ratio: float | None
    held_out: float | None
    reason: str
    given: float | None = None

    @property
    def profile(self) -> str:
        """The profile of ``scenarios/engines`` that stands for the engine; empty where there is none."""
        return profile(self.engine)

    @property
    def row(self) -> Row:
        """The row that it is of, without what was measured where that is not known, and without its note."""
        texts = {name: getattr(self, name) for name in _AS_IN_ROW}
        texts |= {"hardware": self.device, "framework": self.engine, "note": ""}
        return Row(**texts, num_gpus=self.devices, value=self.given or 0.0)

    @property
    def error(self) -> float:
        """|predicted / measured − 1|; 1 where there is no prediction."""
        return INEXPRESSIBLE if self.ratio is None else abs(self.ratio - 1.0)

    @property
    def held_out_error(self) -> float:
        """The same, without constants that were found with this family."""
        return INEXPRESSIBLE if self.held_out is None else abs(self.held_out - 1.0)

    @property
    def measured(self) -> float | None:
        """What was measured, in ``unit``; of results that were read as far as the digits of the ratio tell."""
        if self.given is not None:
            return self.given
        return None if self.ratio is None or self.predicted is None else self.predicted / self.ratio

    @property
    def quantity(self) -> str:
        """The metric without its statistic: TTFT, TPOT, latency, throughput, makespan, bandwidth."""
        for start, name in _QUANTITIES:
            if self.metric.startswith(start):
                return name
        return "throughput" if "throughput" in self.metric else self.metric.partition(" ")[0]


COLUMNS: Final = tuple(field.name for field in fields(Result) if field.name != "given")
_GIVEN: Final = ("measured", "error")
"""What follows them where the measured figures are known."""


def result_of(point: Point) -> Result:
    """Return what is kept of a point, in as many digits as are kept."""
    row = point.row
    held_out = point.held_out if point.in_sample else point.predicted
    return Result(
        id=row.id,
        family=row.family,
        engine=row.framework or "-",
        device=row.hardware or "-",
        devices=row.num_gpus,
        model=row.model,
        precision=row.precision,
        parallel=row.parallel,
        workload=row.workload,
        metric=row.metric,
        unit=row.unit,
        source=row.source,
        predicted=_kept(point.predicted),
        ratio=_kept(point.ratio),
        held_out=_kept(None if held_out is None else held_out / row.value),
        reason=point.reason or "",
        given=float(row.value),
    )


def written(results: Iterable[Result]) -> str:
    """Return results as CSV, with the measured figures where they were given."""
    rows, text = list(results), io.StringIO(newline="")
    columns = COLUMNS + (_GIVEN if all(result.given is not None for result in rows) else ())
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(getattr(result, name)) for name in columns] for result in rows)
    return text.getvalue()


def read_results(path: Path) -> tuple[Result, ...]:
    """Read what :func:`written` wrote.

    Raises
    ------
    InputError
        When it is no such table.
    """
    reader = csv.DictReader(io.StringIO(inputs.read_text(path, most=inputs.TEXT_BYTES), newline=""))
    if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS + _GIVEN):
        raise InputError(Problem(message="is no table of results", file=str(path), line=1))
    return tuple(_result(line) for line in reader)


def by_id(results: Sequence[Result]) -> dict[str, Result]:
    """Return results by the id of their row."""
    return {result.id: result for result in results}


def _result(line: Mapping[str, str]) -> Result:
    texts = {name: line[name] for name in COLUMNS if name not in _NUMBERS}
    numbers = {name: float(line[name]) if line[name] else None for name in _NUMBERS[1:]}
    given = float(line["measured"]) if "measured" in line else None
    return Result(devices=float(line["devices"]), given=given, **numbers, **texts)  # type: ignore[arg-type]


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.10g}"


def _kept(value: float | None) -> float | None:
    return None if value is None else float(format(value, _DIGITS))
