"""RUN-2: what is ready starts: operators, outputs of stages and passes wait for what they need, and for nothing else.

::

    operator   when all that it needs has ended, and what its stream runs before it, on each of its ranks
    output     when it leaves its rank, and the rank has sent the one before it
    pass       of a later stage, when its input has arrived on every rank, and the stage has ended the pass before it

When the first stage begins a step is declared of serving (RUN-5), and that nobody starts sooner is told elsewhere.
Only timelines of this program promise that: other programs may wait for what they did not record.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, judged, merged
from clustersim.legality.timeline_rules.views.occupation import Occupation
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet
from clustersim.timeline.passes import parts

START: Final = "start what is ready at once"


def operators_start(sheet: Sheet) -> Finding:
    """Judge whether each operator starts when it is ready; a collective is when all of its ranks are."""
    if sheet.begins is None or sheet.before is None:
        return NOTHING
    ready = sheet.begins.copy()
    np.maximum.at(ready, sheet.targets, sheet.end[sheet.sources])
    follows = np.flatnonzero(sheet.before >= 0)
    ready[follows] = np.maximum(ready[follows], sheet.end[sheet.before[follows]])
    joins = np.flatnonzero(sheet.group >= 0)
    last = np.zeros(int(sheet.group.max(initial=-1)) + 1, np.int64)
    np.maximum.at(last, sheet.group[joins], ready[joins])
    ready[joins] = last[sheet.group[joins]]
    return judged(
        len(sheet), sheet.start > ready, Rows(sheet),
        "starts at {start:,} ns, and was ready at {ready:,} ns: what it needs had ended, and its stream was free",
        START, ready=ready,
    )  # fmt: skip


def stages_start(reading: Reading) -> Finding:
    """Judge whether outputs are sent, and later stages begin with them, when they are ready."""
    if reading.declared.pp == 1 or reading.history.folded is None or reading.passes is None or reading.sends is None:
        return NOTHING
    return merged(_sends(reading, reading.passes), _passes(reading))


def steps_follow(reading: Reading) -> Finding:
    """Judge whether steps that were recorded as a run follow each other at once."""
    passes, runs = reading.passes, reading.runs
    if passes is None or runs is None or len(passes) == len(runs) * reading.declared.pp:
        return NOTHING
    run = runs.at(passes.replica, passes.step)
    same = (run[1:] == run[:-1]) & (run[1:] >= 0) & (passes.stage[1:] == passes.stage[:-1])
    return judged(
        int(same.sum()), same & (passes.start[1:] > passes.end[:-1]), Rows(passes, range(1, len(passes))),
        "starts at {start:,} ns, and its run of steps has ended the one before at {ended:,} ns", START,
        ended=passes.end,
    )  # fmt: skip


def _sends(reading: Reading, passes: Occupation) -> Finding:
    sends, leaves, judging = reading.sends, passes.leaves, FindingOfParts(START)
    assert sends is not None
    assert leaves is not None
    for rank in range(sends.times.shape[2]):
        last = np.empty(0, np.int64)
        for some in parts(len(sends.at)):
            rows = some.start + np.flatnonzero(sends.times[sends.rows[some], 1, rank] > 0)
            each, skipped = np.concatenate((last, rows)), len(last)
            last, at, (start, end) = each[-1:], sends.at[each], sends.times[sends.rows[each], :, rank].T
            before = np.append(np.int64(0), end[:-1] * _follow(passes, at[:-1], at[1:]))[: len(at)]
            ready = np.maximum(leaves[at, rank], before)
            judging.look(
                len(rows), (start > ready)[skipped:], "{own}, local rank {rank}",
                "sends its output from {start:,} ns on, which could leave at {ready:,} ns",
                own=Rows(passes, at[skipped:]), rank=rank, start=start[skipped:], ready=ready[skipped:],
            )  # fmt: skip
    return judging.finding


def _passes(reading: Reading) -> Finding:
    arrivals, judging = reading.arrivals, FindingOfParts(START)
    assert arrivals is not None
    every = arrivals.passes
    for some, _, following in arrivals.parts():
        sends = arrivals.sends.of(some)
        known = np.flatnonzero((following >= 0) & (sends.has == 1))
        at = following[known]
        before = every.end[at - 1] * _follow(every, at - 1, at)
        ready = np.maximum(sends.ends.max(axis=1, initial=0)[known], before)
        judging.look(
            len(at), every.start[at] > ready, Rows(every, at),
            "starts at {start:,} ns, and could at {ready:,} ns, when its input was there and the stage was free",
            ready=ready,
        )  # fmt: skip
    return judging.finding


def _follow(passes: Occupation, before: Int64Array, at: Int64Array) -> BoolArray:
    """Return which passes follow others on a stage, where each is next to the other in their order."""
    found: BoolArray = (passes.replica[at] == passes.replica[before]) & (passes.stage[at] == passes.stage[before])
    return found
