"""The whole run as a page holds it: programs, passes, sends, moves, steps and requests: every operator follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.memory import give_back, let_go
from clustersim.replay.input import ReplayInput
from clustersim.report.figures.causes import COLOURS
from clustersim.report.folded.coarse import coarse
from clustersim.report.folded.links import link_part
from clustersim.report.folded.packed import packed
from clustersim.report.folded.passes import FoldedPasses, folded_passes
from clustersim.report.folded.programs import program_columns, program_words
from clustersim.report.folded.requests import WAITS, chunk_columns, fact_columns, request_columns
from clustersim.report.folded.shapes import Shapes
from clustersim.report.folded.transfers import move_columns, send_columns
from clustersim.report.folded.windows import overlapping
from clustersim.report.metrics.latencies import Columns
from clustersim.report.traces.spans import FAMILIES, family_of
from clustersim.report.words.diagnosis import WORDS
from clustersim.serving.decision import FACT_KINDS
from clustersim.timeline.parts import rows_of
from clustersim.timeline.rank_nodes import rank_nodes
from clustersim.timeline.spans import STREAMS
from clustersim.timeline.tables import HOST
from clustersim.timeline.timeline import MOVES, Timeline
from clustersim.values import dataclass

_POOL: Final = ("sp", "tp", "stages", "first_replica", "first_rank", "lockstep")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """What a page that can't hold all tells of: operators in windows, and some requests.

    Parameters
    ----------
    windows : int64 array of shape (windows, 2)
        Start and end, ns.
    requests : int64 array
        Their numbers.
    """

    windows: Int64Array
    requests: Int64Array


def whole_run(
    timeline: Timeline,
    steps: Columns,
    requests: Columns,
    devices: Sequence[str],
    kept: Kept | None = None,
    shapes: Sequence[Shapes] = (),
    inputs: ReplayInput | None = None,
    most_bytes: int | None = None,
    passes: FoldedPasses | None = None,
) -> dict[str, Any] | None:
    """Return a timeline as plain values and packed sections, the same for all replays of one run.

    None where passes, steps and requests alone take more than so many bytes, which is found before all else is told.

    Parameters
    ----------
    timeline : Timeline
    steps : Columns
        Rows of equal steps, in order of (replica, step), that both replays agree on.
    requests : Columns
        The table ``requests.parquet``.
    devices : sequence of str
        The device's name of each global rank.
    kept : Kept, optional
        Of what alone operators and requests are told; without it, of all.
    shapes : sequence of Shapes
        Those of the operators of each pool; none: they are not told.
    inputs : ReplayInput, optional
        What the replay was a function of; without it links are not told.
    most_bytes : int, optional
        Of the page that it is for.
    passes : FoldedPasses, optional
        Those of the timeline, where they are at hand.
    """
    passes, sections = folded_passes(timeline) if passes is None else passes, dict[str, dict[str, Any]]()
    if kept is None:
        for name, columns in chain(_sections(timeline, passes, steps), _tables(timeline, requests)):
            sections[name] = packed(columns)
            if most_bytes is not None and sum(len(one["data"]) for one in sections.values()) > most_bytes:
                return None
    give_back(len(requests["request"]))
    link_load = None if inputs is None else link_part(timeline, inputs, passes, None if kept is None else kept.windows)
    let_go()
    if kept is not None:
        passes = coarse(passes, timeline.templates, kept.windows)
        steps = rows_of(steps, np.flatnonzero(overlapping(steps["start_ns"], steps["end_ns"], kept.windows)))
        sections = {name: packed(columns) for name, columns in _sections(timeline, passes, steps)}
        for name, table in _tables(timeline, requests):
            sections[name] = packed(rows_of(table, np.flatnonzero(np.isin(table["request"], kept.requests))))
    names, ops = timeline.words
    families = list(FAMILIES)
    return {
        "end": timeline.end_ns,
        "streams": list(STREAMS),
        "names": list(names),
        "ops": list(ops),
        "families": families,
        "colours": list(FAMILIES.values()),
        "family_of_op": [families.index(family_of(op)) for op in ops],
        "moves_named": [names[word] for word in MOVES] if len(timeline.moves["request"]) else [],
        "pools": [{name: getattr(pool, name) for name in _POOL} for pool in timeline.layout.pools],
        "devices": list(devices),
        "rows": _rows(timeline, passes),
        "programs": _programs(timeline, passes, shapes),
        "facts": list(FACT_KINDS),
        "waits": [[WORDS[cause], COLOURS[cause]] for cause in WAITS],
        "arrived": len(requests["request"]),
        "link_load": link_load,
        "faults": [] if inputs is None else _faults(inputs),
        "windows": None if kept is None else kept.windows.tolist(),
        "sections": sections,
    }


def _faults(inputs: ReplayInput) -> list[list[list[Any]]]:
    """Return [devices, links] of each fault, as the scenario lists them."""
    return [[[inputs.topology.devices[device] for device in one.devices], list(one.links)] for one in inputs.faults]


def _programs(timeline: Timeline, passes: FoldedPasses, shapes: Sequence[Shapes]) -> list[dict[str, Any]]:
    _, first = np.unique(passes.runs["program"], return_index=True)
    pools = timeline.layout.of_replica(passes.runs["replica"][first]).tolist()
    return [
        program_words(timeline, number, shapes[pool] if shapes else {})
        for number, pool in zip(passes.programs, pools, strict=True)
    ]


def _tables(timeline: Timeline, requests: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "requests", request_columns(requests)
    yield "decided", fact_columns(timeline)
    yield "chunks", chunk_columns(timeline)


def _sections(timeline: Timeline, passes: FoldedPasses, steps: Columns) -> Iterator[tuple[str, dict[str, Any]]]:
    programs = {
        f"{name} {place}": column
        for place, number in enumerate(passes.programs)
        for name, column in program_columns(timeline.templates[number]).items()
    }
    durations = {
        f"{name} {place}": getattr(found, name)
        for place, found in enumerate(passes.durations)
        for name in ("fixed", "varying", "lengths")
    }
    yield "programs", programs
    yield "durations", durations
    yield "runs", _run_columns(passes.runs)
    yield "stretched", passes.stretched
    yield "sends", send_columns(timeline)
    yield "moves", move_columns(timeline)
    yield "steps", _step_columns(steps)


def _run_columns(runs: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of runs; for the first step of each, how many lie between it and the run before it there."""
    steps = runs["step"].copy()
    goes_on = (np.diff(runs["replica"]) == 0) & (np.diff(runs["stage"]) == 0)
    steps[1:] -= np.where(goes_on, (runs["step"] + runs["steps"])[:-1], 0)
    return {**runs, "step": steps}


def _step_columns(steps: Columns) -> dict[str, npt.NDArray[Any]]:
    """Return what steps carried: a row for as many of a replica as carried the same."""
    told = ("batch_requests", "prefill_tokens", "decode_tokens")
    same = np.append(False, np.diff(steps["replica"]) == 0)[: len(steps["replica"])]
    for name in told:
        same[1:] &= steps[name][1:] == steps[name][:-1]
    opens = np.flatnonzero(~same)
    return {name: steps[name][opens] for name in ("replica", "step", *told)}


def _rows(timeline: Timeline, passes: FoldedPasses) -> list[list[int]]:
    """Return the streams that any rank has something on, as [rank, stream], ranks from top to bottom."""
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *_pass_rows(timeline, passes), *_transfer_rows(timeline)]))
    return [list(divmod(row, len(STREAMS))) for row in rows.tolist()]


def _pass_rows(timeline: Timeline, passes: FoldedPasses) -> Iterator[Int64Array]:
    """Yield rank × streams + stream of what passes run, program by program."""
    stages, programs = int(passes.runs["stage"].max(initial=0)) + 1, len(passes.programs)
    places = passes.runs["replica"] * stages + passes.runs["stage"]
    place, program = np.divmod(np.unique(places * programs + passes.runs["program"]), max(1, programs))
    replica, stage = np.divmod(place, stages)
    base = timeline.layout.stage_base(replica, stage)
    for number in np.unique(program).tolist():
        nodes = rank_nodes(timeline.templates[passes.programs[number]])
        used = np.unique(nodes.local * len(STREAMS) + nodes.stream)
        yield (base[program == number, None] * len(STREAMS) + used).ravel()


def _transfer_rows(timeline: Timeline) -> Iterator[Int64Array]:
    """Yield rank × streams + stream of sends, receives and moves."""
    for rows, times in timeline.sends():
        replica, stage = (timeline.transfers[name][rows].astype(np.int64) for name in ("replica", "stage"))
        base = timeline.layout.stage_base(replica, stage)
        of, local = np.nonzero(times[:, 1] > times[:, 0])
        for stream, side in (("send", 0), ("recv", 1)):
            yield np.unique(base[of] + local + side * times.shape[2]) * len(STREAMS) + STREAMS.index(stream)
    for stream, end in (("kv_out", "from_rank"), ("kv_in", "to_rank")):
        rank = timeline.moves[end].astype(np.int64)
        yield np.unique(rank[rank != HOST]) * len(STREAMS) + STREAMS.index(stream)
