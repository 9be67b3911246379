"""Whether ``full``, ``folded`` and ``folded`` by events alone say the same of one input, and what the run was like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from clustersim.replay import run_under_way
from clustersim.replay.replay import ReplayInput, ReplayResult, replay
from clustersim.replay.run_under_way import MAX_RUN
from clustersim.timeline.spans import SPAN_COLUMNS, Spans
from clustersim.timeline.tokens import token_times
from tests.audit import audit
from tests.laws.lane_cases import by_events, ends_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a run that agreed was like.

    Parameters
    ----------
    how : str
        ``lane``, ``pipe lane``, ``shared lane`` (one whose sends meet its collectives) or ``events``.
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

    Parameters
    ----------
    given : ReplayInput
    window : (start, width)
        Shares of the run in which spans are compared one by one.
    most : int
        Most steps of one jump.
    """
    full = replay(replace(given, mode="full"))
    with mock.patch.object(run_under_way, "MAX_RUN", most):
        folded, third = replay(replace(given, mode="folded")), by_events(given)
    same(full, folded, "folded")
    same(full, third, "folded by events")
    begin, end = int(window[0] * full.timeline.end_ns), int(sum(window) * full.timeline.end_ns) + 1
    theirs = table(full.timeline.unfold())
    expected = theirs[:, (theirs[0] < end) & (theirs[1] > begin)]
    assert np.array_equal(table(folded.timeline.unfold(begin, end)), expected), "spans of a window"
    audit(replace(given, mode="folded"), folded)
    came = folded.arrived_ns >= 0
    kind = "shared lane" if folded.contention.boundaries else "pipe lane" if given.plan.pp > 1 else "lane"
    return Seen(
        how="events" if folded.obstacle else kind,
        preempted=bool(folded.preemptions.sum()),
        contended=bool(folded.contention.stages or folded.contention.boundaries),
        arrived_at_an_end=not ends_of(full.timeline).isdisjoint(folded.arrived_ns[came].tolist()),
        ended_by_horizon=given.horizon_ns is not None,
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


def table(spans: Spans) -> np.ndarray:
    """Return the columns of spans as rows of one table."""
    return np.stack([getattr(spans, column).astype(np.int64) for column in SPAN_COLUMNS])
