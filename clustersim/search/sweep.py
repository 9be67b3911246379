"""A sweep: a run for each combination of values, in one table and on one page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from clustersim.errors import InputError, Problem
from clustersim.files import written_whole
from clustersim.report.dashboard import write_dashboard
from clustersim.report.metrics.latencies import targets_ns
from clustersim.report.sweep.swept import Swept
from clustersim.scenario.document import parse_yaml
from clustersim.search.point import Row
from clustersim.search.runs import Variants
from clustersim.search.values import text_of
from clustersim.search.varied import Varied
from clustersim.units import plural
from clustersim.values import dataclass

POINTS: Final = "points.parquet"
PAGE: Final = "sweep.html"
_REJECTED: Final = "requests.rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What is swept: keys with their values, and the values of each run."""

    varied: tuple[Varied, ...]
    chosen: tuple[tuple[str, ...], ...]

    def changes(self, run: int) -> tuple[str, ...]:
        """Return what a run has in place of the scenario's values."""
        return tuple(f"{one.key}={value}" for one, value in zip(self.varied, self.chosen[run], strict=True))

    @property
    def all_changes(self) -> list[tuple[str, ...]]:
        """The changes of every run."""
        return [self.changes(run) for run in range(len(self.chosen))]


def command_of(variants: Variants, changes: Sequence[str]) -> str:
    """Return the command that simulates one run again."""
    settings = _decisive([*variants.overrides, *changes, "expect={}"])
    code = ["--allow-code"] if variants.allow_code else []
    return shlex.join(
        ["clustersim", "run", variants.text, *(part for one in settings for part in ("--set", one)), *code]
    )


def _decisive(settings: Sequence[str]) -> list[str]:
    """Leave out lone values that a later setting of the same path replaces, and settings that are there again."""
    found = []
    for place, setting in enumerate(settings):
        path, _, value = setting.partition("=")
        replaced = not value.startswith(("{", "[")) and any(one.startswith(f"{path}=") for one in settings[place + 1 :])
        if not replaced and setting not in settings[place + 1 :]:
            found.append(setting)
    return found


def refuse_texts(sweep: Sweep, variants: Variants) -> None:
    """Refuse a text among numbers of a key that takes none, before any run: no run that has it could be made.

    Raises
    ------
    InputError
        With every such text.
    """
    problems: list[Problem] = []
    for place, one in enumerate(sweep.varied):
        texts = [value for value in one.values if isinstance(_plain(value), str)]
        for value in texts if len(texts) < len(one.values) else ():
            runs = [run for run, chosen in enumerate(sweep.chosen) if chosen[place] == value]
            told = [_refusal(variants, sweep.changes(run), one.key) for run in {*runs[:1], *runs[-1:]}]
            problems += told[0] if all(told) else ()
    if problems:
        raise InputError(problems)


def _refusal(variants: Variants, changes: Sequence[str], key: str) -> list[Problem]:
    """Return what is wrong with the type of the value that a key has in a run."""
    try:
        variants.scenario(changes)
    except InputError as error:
        return [one for one in error.problems if one.path == key and "but found the text" in one.message]
    return []


def swept_of(sweep: Sweep, rows: Sequence[Row], variants: Variants) -> Swept:
    """Return what the page of a sweep shows."""
    name, targets = Path(variants.text).stem, {}
    for run, row in enumerate(rows):
        if row["numbers"]:
            scenario = variants.scenario(sweep.changes(run))
            name, targets = scenario.name, {key: ns / 1e6 for key, ns in targets_ns(scenario.targets).items()}
            break
    if any(one.key.startswith("targets") for one in sweep.varied):
        targets = {}
    return Swept(
        name=name,
        varied={one.key: one.values for one in sweep.varied},
        numbers=[row["numbers"] for row in rows],
        chosen=sweep.chosen,
        failed=[row["failed"] for row in rows],
        commands=[command_of(variants, changes) for changes in sweep.all_changes],
        targets=targets,
    )


def failures(swept: Swept, most: int = 5) -> list[str]:
    """Say why runs failed, and which: a line for each reason; and which are legal, but serve no request."""
    runs: dict[str, list[int]] = {}
    for run, reason in enumerate(swept.failed):
        if reason:
            runs.setdefault(reason, []).append(run)

    def named(some: list[int]) -> str:
        rest = f" and {len(some) - most:,} more" if len(some) > most else ""
        return f"({plural(len(some), 'run')}: {'; '.join(map(swept.words, some[:most]))}{rest})"

    lines = [f"failed: {reason} {named(failed)}" for reason, failed in list(runs.items())[:most]]
    others = sum(len(failed) for failed in list(runs.values())[most:])
    lines += [f"failed: {plural(others, 'run')} for other reasons"] if others else []
    rejected = [run for run, one in enumerate(swept.numbers) if one and one[_REJECTED] == one["requests.arrived"] > 0]
    return (
        [*lines, f"note: every request was rejected; `clustersim run` says why {named(rejected)}"]
        if rejected
        else lines
    )


def table_of(swept: Swept) -> pa.Table:
    """Return ``points.parquet``: a row per run with what varied, why it failed, its numbers, and its command."""
    columns: dict[str, Any] = {"point": pa.array(range(1, len(swept.chosen) + 1), pa.int64())}
    for place, key in enumerate(swept.varied):
        columns[key] = _column([_plain(values[place]) for values in swept.chosen])
    columns["failed"] = pa.array(swept.failed, pa.string())
    for key in dict.fromkeys(key for numbers in swept.numbers for key in numbers):
        columns.setdefault(key, _column([numbers.get(key) for numbers in swept.numbers]))
    columns["command"] = pa.array(swept.commands, pa.string())
    return pa.table(columns)


def write_points(folder: Path, table: pa.Table, html: str, above: int | None = None) -> None:
    """Write the table and the page; each is complete or absent. See ``write_dashboard`` for where the script is."""
    with written_whole(folder / POINTS) as beside:
        pq.write_table(table, beside)
    write_dashboard(folder / PAGE, html, above)


def _plain(text: str) -> Any:
    try:
        return parse_yaml(text, "value").data
    except InputError:
        return text


def _column(values: Sequence[Any]) -> pa.Array:
    """Return a column of numbers or truths where all are, else of texts."""
    there = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in there):
        return pa.array(values, pa.bool_())
    if all(isinstance(value, int) and not isinstance(value, bool) for value in there):
        return pa.array(values, pa.int64())
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in there):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array(
        [None if value is None else value if isinstance(value, str) else text_of(value) for value in values]
    )


def summary_of(rows: Sequence[Row], folder: Path, confidence: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a sweep prints with ``--json``; ``confidence`` is that of the run with the fewest figures."""
    failed = sum(row["failed"] is not None for row in rows)
    return {"points": len(rows), "failed": failed, "confidence": confidence, "out": str(folder)}
