"""Whether ``full``, ``folded`` (by the core, compiled or not, where it can) and ``folded`` by events say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from unittest import mock

import numpy as np

from clustersim.replay import core_replicas
from clustersim.replay.by_core import core_obstacle
from clustersim.replay.core_replicas import MAX_RUN
from clustersim.replay.replay import Prepared, ReplayInput, ReplayResult, replay
from clustersim.report.files.run_directory import dashboard_of
from clustersim.report.files.summary import summary_of
from clustersim.report.layouts import overview
from clustersim.simulation.simulate import RunResult
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.spans import SPAN_COLUMNS, Spans
from clustersim.timeline.tokens import token_times
from clustersim.workload.requests import Requests
from tests.audit import audit
from tests.core_storage import Storage, core
from tests.laws.cases import by_events, ends_of
from tests.oracle.events import decode_run

SAME_IN_A_ROW = ("replica", "batch_requests", "prefill_tokens", "decode_tokens", "waiting", "running")
"""Columns of steps that are alike in all steps of a row."""
LEFT_BY: Final[tuple[Storage | None, ...]] = (None, "compiled", None, "interpreted")
"""How other requests were replayed with the same prices before; None: there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run that agreed was like.

    Parameters
    ----------
    how : str
        ``core``, or ``events``.
    preempted, contended : bool
    arrived_at_an_end : bool
        Whether a request arrived when a step, or a pass of the first stage, ended.
    ended_by_horizon : bool
    """

    how: str
    preempted: bool
    contended: bool
    arrived_at_an_end: bool
    ended_by_horizon: bool


def agree(given: ReplayInput, window: tuple[float, float] = (0.25, 0.5), most: int = MAX_RUN) -> Seen:
    """Replay an input in all three ways, and raise AssertionError where they differ.

    All but the replay of every operator may find prices that other requests left (:func:`on_kept_prices`).

    Parameters
    ----------
    given : ReplayInput
    window : (start, width)
        Shares of the run in which spans are compared one by one.
    most : int
        Most steps of one jump.
    """
    full = replay(replace(given, mode="full"))
    given = on_kept_prices(given)
    is_core = not core_obstacle(Prepared(replace(given, mode="folded")))
    with mock.patch.object(core_replicas, "MAX_RUN", most), mock.patch.object(decode_run, "MAX_RUN", most):
        with core("interpreted"):
            folded, third = replay(replace(given, mode="folded")), by_events(given)
        with core("compiled"):
            compiled = replay(replace(given, mode="folded")) if is_core else folded
    same(full, folded, "folded")
    same(full, third, "folded by events")
    same(full, compiled, "compiled")
    states_agree(full, (folded, third, compiled), given.entry.serving.kv_block_tokens)
    begin, end = int(window[0] * full.timeline.end_ns), int(sum(window) * full.timeline.end_ns) + 1
    theirs = table(full.timeline.unfold())
    expected = theirs[:, (theirs[0] < end) & (theirs[1] > begin)]
    assert np.array_equal(table(folded.timeline.unfold(begin, end)), expected), "spans of a window"
    leaves_early = given.entry.serving.queue_timeout_ns is not None or given.requests.cancel_after_ns is not None
    if not given.faults and not leaves_early:  # else it is for ``tests.laws.accounts``
        audit(replace(given, mode="folded"), folded)
    came = folded.arrived_ns >= 0
    return Seen(
        how="core" if is_core else "events",
        preempted=bool(folded.preemptions.sum()),
        contended=bool(folded.contention.stages or folded.contention.boundaries),
        arrived_at_an_end=not ends_of(full.timeline).isdisjoint(folded.arrived_ns[came].tolist()),
        ended_by_horizon=given.horizon_ns is not None,
    )


def on_kept_prices(given: ReplayInput) -> ReplayInput:
    """Return an input, half of all with new prices that other requests have left their programs and rows in.

    Whether there were any, and whether they were compiled, follows from how long the requests are.
    """
    storage = left_by(given.requests)
    if storage is None:
        return given
    pools = tuple(replace(pool, pricer=replace(pool.pricer, memory={}, groups={})) for pool in given.pools)
    kept = replace(given, pools=pools)
    with core(storage):
        replay(replace(kept, requests=others_than(given.requests), mode="folded"))
    return kept


def left_by(requests: Requests) -> Storage | None:
    """Return how others are to be replayed before some requests."""
    return LEFT_BY[int(requests.prompt_tokens.sum() + requests.output_tokens.sum()) % len(LEFT_BY)]


def others_than(requests: Requests) -> Requests:
    """Return requests that arrive alike, with the lengths of one another and a token of output more."""
    hashes = requests.prefix_hashes
    return replace(
        requests,
        prompt_tokens=requests.prompt_tokens[::-1].copy(),
        output_tokens=requests.output_tokens[::-1] + 1,
        prefix_hashes=None if hashes is None else tuple(hashes)[::-1],
    )


def same(ours: ReplayResult, theirs: ReplayResult, name: str) -> None:
    """Raise AssertionError where two replays of one input differ."""
    for (what, one), (_, other) in zip(_facets(ours), _facets(theirs), strict=True):
        equal = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        assert equal, f"{what} of full and of {name} differ: {one} and {other}"


def _facets(result: ReplayResult) -> Iterator[tuple[str, object]]:
    timeline = result.timeline
    times = token_times(timeline, len(result.arrived_ns))
    yield "num_steps", timeline.num_steps
    yield "num_spans", timeline.num_spans
    yield "replicas", result.replica
    yield "arrivals", result.arrived_ns
    yield "reasons", result.reasons
    yield "preemptions", result.preemptions
    yield "tokens", times.count
    yield "first tokens", times.first_ns
    yield "last tokens", times.last_ns
    yield "gaps", times.gaps[0]
    yield "how many gaps", times.gaps[1]
    yield "digest", timeline.digest


def states_agree(full: ReplayResult, others: Iterable[ReplayResult], block_tokens: int) -> None:
    """Raise AssertionError where what steps carry, who waits, or blocks in use differ from step to step."""
    singles = StepRows(full.timeline, block_tokens)
    expected = [singles.rows[name] for name in SAME_IN_A_ROW], changes(singles.kv_rows)
    for other in others:
        rows = StepRows(other.timeline, block_tokens)
        found = [np.repeat(rows.rows[name], rows.rows["count"]) for name in SAME_IN_A_ROW], changes(rows.kv_rows)
        for name, ours, theirs in zip(SAME_IN_A_ROW, expected[0], found[0], strict=True):
            assert np.array_equal(ours, theirs), f"{name} of steps differ: {ours} and {theirs}"
        assert expected[1] == found[1], "blocks in use differ"


def changes(kv_rows: Mapping[str, np.ndarray]) -> list[tuple[int, ...]]:
    """Return the rows in which the blocks in use of a replica are others than in the row before."""
    names = ("replica", "kv_blocks_used", "kv_blocks_total", "start_ns")
    found = list(zip(*(kv_rows[name].tolist() for name in names), strict=True))
    return [row for before, row in zip([(-1, -1, -1, -1), *found], found, strict=False) if row[:3] != before[:3]]


def figures_agree(folded: RunResult, full: RunResult, *, dashboard: bool = False) -> None:
    """Raise AssertionError where a summary, or all of a dashboard, tells which of the replays it is of."""
    ours, theirs = (
        {name: value for name, value in summary_of(one).items() if name not in ("digest", "scenario")}
        for one in (folded, full)
    )
    for name, value in ours.items():
        assert value == theirs[name], f"{name} of the summaries differ: {value} and {theirs[name]}"
    if dashboard:
        named = {"digest": folded.scenario.digest, "scenario": dict(folded.scenario.document)}
        pages = (
            dashboard_of(ours | named, one.columns, one.step_rows, one.timeline, one.token_gaps, overview())
            for one in (folded, full)
        )
        assert len(set(pages)) == 1, "dashboards differ"


def table(spans: Spans) -> np.ndarray:
    """Return the columns of spans as rows of one table."""
    return np.stack([getattr(spans, column).astype(np.int64) for column in SPAN_COLUMNS])
