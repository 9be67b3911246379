"""What happens to requests when, as facts and steps tell it: the events that ``whereabouts`` follows in their order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    History,
)
from clustersim.legality.timeline_rules.requests.tally import UNKNOWN
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.columns import is_any

ENDS: Final = (REJECTED, FINISHED, CANCELLED, LOST)
COMPLETES, MOVES, LEAVES, COMES, CHANGES, GIVES_UP, IS_DECIDED, LEAVES_BY_LAYER, IS_TAKEN, GOES, IS_UNSURE = range(11)
IS_COMPUTED: Final = -1
"""What happens at one instant, in this order."""
PHASE: Final = {
    FINISHED: COMPLETES, HANDED_OVER: MOVES, RECEIVED: MOVES, ADMITTED: IS_DECIDED, PREEMPTED: IS_DECIDED,
    REJECTED: GOES, CANCELLED: GOES, LOST: GOES,
}  # fmt: skip
Event = tuple[int, int, int, int]
"""Instant, what happens, request, row of the fact."""


def given_up(history: History) -> dict[int, int]:
    """Return when the clients of requests that came give them up, where that was declared; ns."""
    requests, facts = history.requests, history.facts
    if requests is None or facts is None or "cancels_ns" not in requests:
        return {}
    rows = np.flatnonzero((facts["kind"] == ARRIVED) & (facts["request"] < len(requests["cancels_ns"])))
    after = requests["cancels_ns"][facts["request"][rows]]
    rows, after = rows[after >= 0], after[after >= 0]
    return dict(zip(facts["request"][rows].tolist(), (facts["time_ns"][rows] + after).tolist(), strict=True))


def gives_up(history: History, due: dict[int, int]) -> Iterator[Event]:
    """Yield when clients give up what then leaves its decode replica at once, before others leave layer by layer.

    What has no blocks in the other pool yet is on its way no more; its end is told when the step ends that computes it.
    """
    facts = history.facts
    assert facts is not None
    rows = np.flatnonzero(facts["kind"] == CANCELLED)
    first_decode = history.pools[1].first_replica
    for who, time, replica in zip(
        *(facts[name][rows].tolist() for name in ("request", "time_ns", "replica")), strict=True
    ):
        if who in due and (replica < first_decode or due[who] == time):
            yield due[who], GIVES_UP, who, UNKNOWN


def told(history: History, hand_overs: HandOvers) -> Iterator[Event]:
    """Yield what facts tell."""
    facts = history.facts
    assert facts is not None
    kind, request, time = (facts[name].tolist() for name in ("kind", "request", "time_ns"))
    comes, aside = is_any(facts["kind"], (ARRIVED, REJECTED)), set(hand_overs.reserved.tolist())
    for row in np.flatnonzero(comes & (hand_overs.residency.before(comes) < 0)).tolist():
        yield time[row], COMES, request[row], row
    kinds = [one for one in PHASE if one != PREEMPTED or history.declared.down or history.hands_over]
    for row in np.flatnonzero(is_any(facts["kind"], kinds)).tolist():
        yield time[row], IS_TAKEN if row in aside else PHASE[kind[row]], request[row], row


def leaving(history: History, pieces: Pieces, runs: Runs, outputs: Int64Array) -> Iterator[Event]:
    """Yield when prompts that are computed leave, and from when on steps may let some leave that are not recorded."""
    declared, first_decode = history.declared, history.pools[1].first_replica
    leaves = (pieces.replica < first_decode) & (pieces.gave > 0)
    leaves &= pieces.tokens + pieces.gave < outputs[pieces.request]
    early = leaves & pieces.is_chunk & history.layerwise
    ends = runs.recorded_end[pieces.last_run]
    moments = ((early, pieces.begin, LEAVES_BY_LAYER), (leaves & ~early, ends, LEAVES), (leaves, ends, IS_COMPUTED))
    for mine, times, what in moments:
        yield from (
            (time, what, who, UNKNOWN)
            for time, who in zip(times[mine].tolist(), pieces.request[mine].tolist(), strict=True)
        )
    if not history.layerwise:
        return
    cuts = [(failed, since) for failed, since, _ in declared.down if failed < first_decode]
    if declared.horizon_ns is not None:
        cuts = [cut for cut in cuts if cut[1] < declared.horizon_ns]
        cuts += [(replica, declared.horizon_ns) for replica in range(first_decode)]
    for failed, since in cuts:
        begun = runs.start[(runs.replica == failed) & (runs.start < since)]
        yield int(begun.max(initial=-1)), IS_UNSURE, UNKNOWN, UNKNOWN
