"""A run on disk: resolved scenario, summary, tables, folded timeline, verdict, dashboard.

A run directory is complete or absent: it is written beside its place and then renamed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.engine import FirstToken
from clustersim.errors import InputError, Problem
from clustersim.files import folder_written_whole, refuse_unwritable
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.inputs import missing
from clustersim.legality.rule import Verdict
from clustersim.memory import give_back
from clustersim.replay.input import ReplayInput
from clustersim.report.dashboard import dashboard_html, write_dashboard
from clustersim.report.figures.layout import read_layout
from clustersim.report.figures.series import run_edges
from clustersim.report.files.summary import legality_of
from clustersim.report.folded.asked import EVERYTHING, Asked, kept_of, refuse_impossible, unfolds
from clustersim.report.folded.passes import folded_passes
from clustersim.report.folded.shapes import Shapes, shapes_of
from clustersim.report.folded.whole import Kept, whole_run
from clustersim.report.metrics.latencies import Columns
from clustersim.report.page_files import with_script_beside, write_script
from clustersim.report.traces.busiest import busiest
from clustersim.scenario.resolve import INPUTS, to_yaml
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.simulation.first_tokens import delivery_of
from clustersim.simulation.legality import verdict_json
from clustersim.simulation.simulate import RunResult
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.files import load_timeline, save_timeline
from clustersim.timeline.head import read_object
from clustersim.timeline.parquet import Words, read_columns, write_table
from clustersim.timeline.tables import STEP_COLUMNS
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import Delivery, token_times
from clustersim.values import dataclass

FILES: Final = ("scenario.yaml", "summary.json", "requests.parquet", "steps.parquet", "verdict.json")
_REPLACED: Final = frozenset((*FILES, INPUTS, "timeline", "dashboard.html", "trace.pftrace", "trace.pftrace.gz"))
"""What may be lost when a run directory is written anew: the program wrote it."""

REQUEST_TYPES: Final = {
    "request": "int64", "replica": "int32",
    **dict.fromkeys(("arrived_ns", "admitted_ns", "first_token_ns", "finished_ns"), "int64"),
    **dict.fromkeys(("queueing_ns", "prefill_ns", "front_end_ns"), "int64"),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "generated_tokens"), "int64"),
    "preemptions": "int32", "cached_tokens": "int64", "outcome": "string", "reason": "string",
    **dict.fromkeys(COLUMNS, "int64"),
}  # fmt: skip
"""The columns of ``requests.parquet``, and their types."""
MAY_LACK: Final = (
    "admitted_ns", "first_token_ns", "finished_ns", "queueing_ns", "prefill_ns", "reason", *COLUMNS,
)  # fmt: skip
STEP_TYPES: Final = {name: "string" if name == "kind" else of for name, of in STEP_COLUMNS.items() if name != "slot"}
"""The columns of ``steps.parquet``, and their types; slots belong to the episodes in the timeline."""
SUMMARY_TYPES: Final = {
    "name": str, "digest": str, "seed": int, "requests": dict, "throughput": dict, "steps": int, "spans": int,
    "timeline_digest": str, "preemptions": int, "kv_blocks": int, "targets": dict, "scenario": dict, "devices": list,
}  # fmt: skip
VERDICT_TYPES: Final = {"verdict": str, "levels": dict, "violations": list, "rules": list}
_MOST_REQUESTS: Final = 1 << 28


@dataclass(frozen=True, kw_only=True, eq=False)
class RunDirectory:
    """What a run directory holds, read again."""

    path: Path
    summary: Mapping[str, Any]
    requests: Columns
    steps: Columns
    timeline: Timeline

    @cached_property
    def step_rows(self) -> StepRows:
        """The steps of the timeline, as rows that are the same figures in both replays.

        Raises
        ------
        InputError
            When the summary does not say how many tokens a K/V block holds.
        """
        serving = self.summary["scenario"].get("serving")
        tokens = serving.get("kv_block_tokens") if isinstance(serving, dict) else None
        if not isinstance(tokens, int) or tokens < 1:
            message = f"found {tokens!r}; expected a whole number from 1"
            file = str(self.path / "summary.json")
            raise InputError(Problem(file=file, path="scenario.serving.kv_block_tokens", message=message))
        return StepRows(self.timeline, tokens)

    @cached_property
    def token_gaps(self) -> tuple[Int64Array, Int64Array]:
        """Times between consecutive tokens of a request, as (values, weights) in ns.

        Raises
        ------
        InputError
            When a request got a token that is not in the table of requests.
        """
        known = int(self.requests["request"].max(initial=-1)) + 1
        for table in ("chunks", "decodes"):
            request = getattr(self.timeline, table)["request"]
            odd = np.flatnonzero(request >= known)
            if len(odd):
                message = f"{request[odd[0]]:,} in row {odd[0] + 1} can't be; requests.parquet has no such request"
                file = self.path / "timeline" / f"{table}.parquet"
                raise InputError(Problem(file=str(file), path="request", message=message))
        return token_times(self.timeline, known, delivery=self.delivery).gaps

    @cached_property
    def delivery(self) -> Delivery | None:
        """When tokens reached clients, as the engine in the summary says; None where they did as they were sampled."""
        engine = self.summary["scenario"].get("serving", {}).get("engine", {})
        said = engine.get("first_token") if isinstance(engine, dict) and len(self.timeline.layout.pools) > 1 else None
        known: tuple[FirstToken, ...] = get_args(FirstToken)
        first_token = known[known.index(said)] if said in known else "prefill"
        return delivery_of(self.timeline, first_token, int(self.requests["request"].max(initial=-1)) + 1)


def check_writable(target: Path) -> None:
    """Refuse, before anything is simulated, a place where a run directory cannot be written.

    Raises
    ------
    InputError
        When the place is a file, holds something that no run wrote, or cannot be written or replaced.
    """
    message: str | None
    if any("\ud800" <= letter <= "\udfff" for letter in str(_place(target))):
        message = "its name is not UTF-8, under which no table can be written; name a folder that is"
    else:
        refuse_unwritable(target, "--out", "replaced")
        message = _in_the_way(_place(target))
    if message is not None:
        raise InputError(Problem(path="--out", message=f"{target}: {message}"))


def _place(target: Path) -> Path:
    """Return where a run directory goes: links are followed, so that what they point to is replaced and not they."""
    return Path(os.path.realpath(target))


def _in_the_way(place: Path) -> str | None:
    if not place.exists():
        return None
    found = {path.name for path in place.iterdir()}
    if found and "summary.json" not in found:
        return "is not empty and holds no run, so nothing in it is overwritten; name a new folder"
    if found - _REPLACED:
        return f"holds {min(found - _REPLACED)!r}, which no run wrote and which would be lost; name a new folder"
    if os.path.ismount(place) or Path.cwd().is_relative_to(place):
        return "cannot be replaced as a whole (it is in use); name a new folder in it"
    return None


def write_run(
    target: Path,
    result: RunResult,
    summary: Mapping[str, Any],
    verdict: Callable[[], Verdict],
    layout: Mapping[str, Any] | None,
    above: int | None = None,
) -> None:
    """Write a run directory; an earlier run in the same place is replaced as a whole.

    Parameters
    ----------
    target : Path
    result : RunResult
    summary : mapping
        The object of ``summary.json``; what it says of legality is the verdict's.
    verdict : callable
        Returns what the rules say; it is asked when all that needs no answer is done.
    layout : mapping or None
        The parsed dashboard file; None writes no dashboard.
    above : int or None
        In which folder above the run directory (1: the one that it is in) plotly's script is, which this writes; None:
        the dashboard holds it.
    """
    with folder_written_whole(target) as folder:
        _write_scenario(folder, result.scenario)
        many = len(result.times.count)
        give_back(many)
        write_table(folder / "requests.parquet", result.table)
        write_table(folder / "steps.parquet", step_columns(result.timeline))
        (folder / "timeline").mkdir()
        save_timeline(result.timeline, folder / "timeline")
        give_back(many)
        if layout is not None:
            figures = (summary, result.table_columns, result.step_rows, result.timeline, result.token_gaps, layout)
            html = dashboard_of(
                *figures, shapes=shapes_of(result.scenario), inputs=result.input, judged=lambda: legality_of(verdict())
            )
            html = html if above is None else with_script_beside(html, above)
            write_dashboard(folder / "dashboard.html", html)
        _write_json(folder / "summary.json", {**summary, **legality_of(verdict())})
        _write_json(folder / "verdict.json", verdict_json(result.scenario, verdict()))
    if layout is not None and above is not None:
        write_script(_place(target).parents[above - 1])


def _write_scenario(folder: Path, scenario: Scenario) -> None:
    """Write the resolved scenario and, beside it, the files that it names and that don't ship."""
    (folder / "scenario.yaml").write_text(to_yaml(scenario.portable), encoding="utf-8")
    for file in scenario.files.values():
        if file.copy is not None:
            (folder / INPUTS).mkdir(exist_ok=True)
            shutil.copyfile(file.path, folder / file.copy)


def step_columns(timeline: Timeline) -> dict[str, Any]:
    """Return the columns of ``steps.parquet``."""
    kinds = np.array(STEP_KINDS, object)
    columns: dict[str, Any] = {}
    for name, values in timeline.steps.items():
        if name in STEP_TYPES:
            columns[name] = Words(kinds, values) if name == "kind" else values
    return columns


def dashboard_of(
    summary: Mapping[str, Any],
    requests: Columns,
    step_rows: StepRows,
    timeline: Timeline,
    token_gaps: tuple[Int64Array, Int64Array],
    layout: Mapping[str, Any],
    wanted: Asked = EVERYTHING,
    shapes: Sequence[Shapes] = (),
    inputs: ReplayInput | None = None,
    judged: Callable[[], Mapping[str, Any]] | None = None,
) -> str:
    """Return the dashboard page of a run.

    Parameters
    ----------
    summary, requests, step_rows, timeline, token_gaps
        What the run is.
    layout : mapping
        A parsed dashboard file.
    wanted : Asked
        What the page shows first, and how large it may be: beyond that it holds the operators of some windows alone.
    shapes : sequence of Shapes
        Those of the operators of each pool (:func:`clustersim.report.folded.shapes.shapes_of`).
    inputs : ReplayInput, optional
        What the replay was a function of; without it links are not told.
    judged : callable, optional
        Returns what the summary says of legality, which is asked last; by default the summary does.

    Raises
    ------
    InputError
        For a layout that can't be read, an instant outside the run, and a request that there is not.
    """
    checked = read_layout(layout)
    refuse_impossible(wanted, checked, requests, timeline.end_ns)
    bins = {panel.options["bins"] for panel in checked.panels if panel.figure == "batch"}
    passes = folded_passes(timeline) if unfolds(checked) and wanted.may_hold(len(timeline.passes["steps"])) else None

    def page(kept: Kept | None) -> str | None:
        whole, most = None, wanted.most_bytes if kept is None else None
        if passes is not None:
            whole = whole_run(
                timeline, step_rows.rows, requests, summary["devices"], kept, shapes, inputs, most, passes
            )
            if whole is None:
                return None
        steps = shown_rows(step_rows, 0, bins)
        return dashboard_html(
            summary, requests, steps, whole, layout,
            token_gaps=token_gaps, kv_rows=step_rows.kv_rows, wanted=wanted, judged=judged,
        )  # fmt: skip

    html = page(None)
    if html is None or wanted.bytes_of(html) > wanted.most_bytes:
        html = page(kept_of(summary, requests, step_rows.rows, wanted))
    assert html is not None
    return html


def shown_rows(step_rows: StepRows, window: int, bins: Iterable[int] = ()) -> Columns:
    """Return the rows of steps to be shown: those in a window of so many steps around the busiest one are single steps.

    No row reaches over an edge of so many bins of time each.
    """
    rows = step_rows.rows
    if not len(rows["start_ns"]):
        return rows
    edges = np.unique(np.concatenate([np.empty(0, np.int64), *(run_edges(rows, number) for number in bins)]))
    at = busiest(rows)
    first = int(rows["step"][at]) - 1
    return step_rows.cut(edges, (int(rows["replica"][at]), first, first + window))


def read_run(path: Path) -> RunDirectory:
    """Read a run directory.

    Raises
    ------
    InputError
        When a file is missing, cannot be read, or can't be what a run wrote.
    """
    if not path.is_dir():
        message = "is a file; expected a run directory" if path.exists() else missing(path, "run directory")
        writes = "" if "did you mean" in message else "; `clustersim run` writes one"
        raise InputError(Problem(file=str(path), message=f"{message}{writes}"))
    lacks = [name for name in FILES if not (path / name).is_file()]
    if lacks:
        message = f"is no run directory: {', '.join(lacks)} missing; expected what `clustersim run` wrote"
        raise InputError(Problem(file=str(path), message=message))
    requests = read_columns(path / "requests.parquet", REQUEST_TYPES, MAY_LACK)
    odd = np.flatnonzero((requests["request"] < 0) | (requests["request"] >= _MOST_REQUESTS))
    if len(odd):
        message = f"{requests['request'][odd[0]]:,} in row {odd[0] + 1} can't be; expected 0 to {_MOST_REQUESTS - 1:,}"
        raise InputError(Problem(file=str(path / "requests.parquet"), path="request", message=message))
    return RunDirectory(
        path=path,
        summary=read_object(path / "summary.json", SUMMARY_TYPES),
        requests=requests,
        steps=read_columns(path / "steps.parquet", STEP_TYPES),
        timeline=load_timeline(path),
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
