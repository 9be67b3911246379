"""RUN-2: a communication takes longer than it costs only by what others on its links can have made it lose.

While n are on a link, each has an n-th of it at least, so that one loses no more than 1 − 1/n of that time on each of
its links. When which others were there is told as widely as it may have been; what each had of the rest is not looked
at. One that had its links to itself takes what it costs, to the nearest nanosecond. Nothing is told of what may have
met something that was not recorded: what a failure or the horizon cut off, which began after what ended before it; nor
where a client gave up, sequences may have been on the way to their host when something was cut off, or links were weak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import LATEST_NS, FloatArray
from clustersim.legality.declared.slowness import windows
from clustersim.legality.finding import NOTHING, Finding, judged, lacking, merged
from clustersim.legality.history import CANCELLED, FINISHED, LOST, REJECTED, Declared
from clustersim.legality.timeline_rules.links.traffic import LOST_NS, Traffic
from clustersim.legality.timeline_rules.views.asked import Reserved
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs

ALONE: Final = "let a communication take what it costs, and longer only while others are on its links"
WIDER_NS: Final = 1.0
HALF_NS: Final = 0.501
"""Instants are whole nanoseconds, and so are durations."""


def lost_to_others(reading: Reading, traffic: Traffic | None) -> Finding:
    """RUN-2: judge what communications lost on links on which two may be at a time."""
    carriage = reading.history.declared.carriage
    if traffic is None or carriage is None:
        return NOTHING
    if why := _unknown(reading):
        return lacking(f"what communications lost to others on their links ({why})")
    if any(windows(carriage.setting)):
        return lacking("what communications lost to others on their links (some were weak)")
    flows = traffic.flows()
    lent = np.zeros(len(flows.way))
    for ways in set(_by_link(traffic).values()):
        mine = np.flatnonzero(np.isin(flows.way, ways))
        lent[mine] += _lent(flows.enter[mine] - WIDER_NS, flows.end[mine] + WIDER_NS)
    enter, end, lost = np.array(traffic.astray, np.float64).reshape(-1, 3).T
    cut = _cut_off(reading)
    strays = _judged(enter, end, lost, np.zeros(len(lost)), (lost > LOST_NS) & _apart(enter, end, cut))
    off = np.where(lent > 0.0, flows.lost > lent + LOST_NS, np.abs(flows.lost) > HALF_NS + 8 * np.spacing(flows.end))
    off &= _apart(flows.enter, flows.end, cut)
    lacks = lacking("what communications lost to others that something cut off (they are not recorded)")
    return merged(_judged(flows.enter, flows.end, flows.lost, lent, off), strays, lacks if cut else NOTHING)


def _cut_off(reading: Reading) -> list[tuple[int, int]]:
    """Return between which instants something was on links that was not recorded."""
    history, horizon, moves = reading.history, reading.declared.horizon_ns, reading.hand_overs.moves
    cuts = {(one.replica, one.since_ns) for one in reading.declared.down if horizon is None or one.since_ns <= horizon}
    if horizon is not None:
        cuts |= {(pool.first_replica + one, horizon) for pool in history.pools for one in range(pool.dp)}
    found: list[tuple[int, int]] = []
    for pool in history.pools:
        found += [] if reading.runs is None else _steps_cut_off(reading.runs, pool, cuts)
    if cuts and moves is not None and len(moves["request"]) and history.hands_over and reading.pieces is not None:
        if not len(reading.pieces):  # each step was cut off, and nothing tells what those transfers were that it let go
            return [(0, LATEST_NS)]
        reserved = Reserved(reading)
        lacks = np.unique(reserved.lacks(moves))
        found += zip(reserved.time[lacks].tolist(), reserved.until[lacks].tolist(), strict=True)
    return found


def _steps_cut_off(runs: Runs, pool: Declared, cuts: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield between which instants steps of a pool were under way that were not recorded."""
    replicas = range(pool.first_replica, pool.first_replica + pool.dp)
    for until in sorted({when for replica, when in cuts if replica in replicas}):
        for replica in replicas:
            if (replica, until) in cuts or pool.ep_scope == "global":
                ended = np.flatnonzero((runs.replica == replica) & (runs.recorded_end <= until))
                last = (runs.start if pool.pp > 1 else runs.recorded_end)[ended]
                yield int(last.max(initial=0)), until


def _apart(enter: FloatArray, end: FloatArray, cut: list[tuple[int, int]]) -> BoolArray:
    """Return which of some intervals have no instant in common with others."""
    found = np.ones(len(enter), bool)
    for since, until in cut:
        found &= (end + WIDER_NS < since) | (enter - WIDER_NS > until)
    return found


def _unknown(reading: Reading) -> str:
    """Return why something may have been on links that was not recorded; empty where nothing was."""
    history, ended = reading.history, reading.facts_of(REJECTED, FINISHED, CANCELLED, LOST)
    if history.facts is None or history.requests is None:
        return "when requests ended was not recorded"
    cut = any(pool.down for pool in history.pools)
    cut |= len(np.unique(history.facts["request"][ended])) < len(history.requests["prompt_tokens"])
    if cut and any(pool.host_blocks is not None for pool in history.pools):
        return "copies to host memory that were cut off are not recorded"
    moved = history.moves is not None and len(history.moves["request"]) > 0
    return "transfers that a client gave up are not recorded" if moved and len(reading.facts_of(CANCELLED)) else ""


def _by_link(traffic: Traffic) -> dict[int, tuple[int, ...]]:
    """Return which ways use each link; links that the same ones use are one to what is judged."""
    found: dict[int, list[int]] = {}
    for number, way in enumerate(traffic.ways):
        for link in way:
            found.setdefault(link, []).append(number)
    return {link: tuple(ways) for link, ways in found.items()}


def _lent(enter: FloatArray, end: FloatArray) -> FloatArray:
    """Return how much time of each of some intervals others on the same link may have had."""
    instants, place = np.unique(np.concatenate((enter, end)), return_inverse=True)
    first, last = place.reshape(2, -1)
    there = np.cumsum(np.bincount(first, minlength=len(instants)) - np.bincount(last, minlength=len(instants)))
    taken = np.diff(instants) * (1.0 - 1.0 / np.maximum(there[:-1], 1))
    until = np.concatenate((np.zeros(1), np.cumsum(taken)))
    found: FloatArray = until[last] - until[first]
    return found


def _judged(enter: FloatArray, end: FloatArray, lost: FloatArray, lent: FloatArray, off: BoolArray) -> Finding:
    return judged(
        len(lost), off, "links, from {enter:,.0f} to {end:,.0f} ns",
        "a communication takes {lost:,.0f} ns longer than it costs, and others can have had {lent:,.0f} ns of its "
        "links in that time",
        ALONE, enter=enter, end=end, lost=lost, lent=lent,
    )  # fmt: skip
