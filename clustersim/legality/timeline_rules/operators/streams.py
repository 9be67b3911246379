"""RUN-3: a stream runs one operator at a time, a stage one pass, and a rank sends one output (links: ``links``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, judged, lacking, merged
from clustersim.legality.history import ADMITTED, History
from clustersim.legality.timeline_rules.links.capacity import of_flows
from clustersim.legality.timeline_rules.requests.failing import leaves_what_fails
from clustersim.legality.timeline_rules.requests.routing import in_turn, in_vain, set_aside
from clustersim.legality.timeline_rules.requests.work import works
from clustersim.legality.timeline_rules.transfers.swaps import cut_off
from clustersim.legality.timeline_rules.views.ranges import Ask, asked_now
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet
from clustersim.timeline.passes import parts
from clustersim.timeline.tables import HOST


def one_at_a_time(sheet: Sheet) -> Finding:
    """RUN-3: a stream of a rank runs one operator at a time."""
    lane = sheet.global_ranks * 8 + sheet.stream
    order = np.lexsort((sheet.start, lane))
    first, second = order[:-1], order[1:]
    same = lane[first] == lane[second]
    return judged(
        len(sheet), same & (sheet.start[second] < sheet.end[first]), Rows(sheet, second),
        "starts at {start:,} ns on a stream that runs {first.of_step} until {first.end:,} ns",
        "run the operators of a stream one after the other", first=Rows(sheet, first),
    )  # fmt: skip


def stages_and_links(reading: Reading) -> Finding:
    """RUN-3: a stage runs one pass at a time, a rank sends one output at a time, a link carries what it can."""
    history = reading.history
    streams = links = NOTHING
    if history.folded is None or history.flows is not None:
        links = of_flows(history.flows)
    if history.folded is None and history.spans is None:
        streams = lacking("streams (no spans were recorded)")
    failures = merged(_out_of_order(reading), cut_off(reading), leaves_what_fails(reading))
    return merged(_stages(reading), _sends(reading), links, failures, streams)


def _out_of_order(reading: Reading) -> Finding:
    """No step runs, and nothing is admitted, on a replica while something that it needs has failed."""
    runs, facts = reading.runs, reading.history.facts
    findings = []
    fix = "begin no step before what failed is back, and record none that it cut off"
    for failed, since, until in reading.declared.down:
        if runs is not None:
            mine = np.flatnonzero(runs.replica == failed)
            findings.append(judged(
                len(mine), (runs.start[mine] < until) & (runs.end[mine] > since), "replica {failed}, step {run.step}",
                "runs from {run.start:,} to {run.end:,} ns, on something that failed at {since:,} ns", fix,
                failed=failed, run=Rows(runs, mine), since=since,
            ))  # fmt: skip
        if facts is not None:
            rows = reading.facts_of(ADMITTED)
            time = facts["time_ns"][rows]
            dead = (facts["replica"][rows] == failed) & (since <= time) & (time < until)
            findings.append(judged(
                0, dead, "request {fact.request}",
                "is admitted at {time:,} ns on replica {failed}, which failed at {since:,} ns", fix,
                fact=Rows(facts, rows), time=time, failed=failed, since=since,
            ))  # fmt: skip
    return merged(*findings)


def _stages(reading: Reading) -> Finding:
    passes = reading.passes
    if passes is None:
        return NOTHING
    same = (passes.replica[1:] == passes.replica[:-1]) & (passes.stage[1:] == passes.stage[:-1])
    return judged(
        len(passes.start), same & (passes.start[1:] < passes.end[:-1]), Rows(passes, range(1, len(passes.start))),
        "starts at {start:,} ns, but the stage is busy with step {before.last_step} until {before.end:,} ns",
        "let a stage run one pass at a time", before=Rows(passes),
    )  # fmt: skip


def _sends(reading: Reading) -> Finding:
    tables, passes = reading.history.folded, reading.passes
    if tables is None or passes is None or tables.stages == 1:
        return NOTHING
    sends = reading.sends
    assert sends is not None
    findings = []
    for rank in range(sends.times.shape[2]):
        judging, last = FindingOfParts("let a rank send one output at a time"), np.empty(0, np.int64)
        for some in parts(len(sends.at)):
            rows = some.start + np.flatnonzero(sends.times[sends.rows[some], 1, rank] > 0)
            each = np.concatenate((last, rows))
            last, at, (start, end) = each[-1:], sends.at[each], sends.times[sends.rows[each], :, rank].T
            same = (passes.replica[at[1:]] == passes.replica[at[:-1]]) & (passes.stage[at[1:]] == passes.stage[at[:-1]])
            judging.look(
                len(rows), same & (start[1:] < end[:-1]), "{later}, local rank {rank}",
                "sends from {start:,} ns, while it sends step {before.step} until {end:,} ns",
                later=Rows(passes, at[1:]), before=Rows(passes, at), rank=rank, start=start[1:], end=end,
            )  # fmt: skip
        findings.append(judging.finding)
    return merged(*findings)


def over_pools(reading: Reading, ask: Ask = asked_now) -> Finding:
    """RUN-3: requests go where it is their turn, who has work does it, and transfers follow each other.

    ``ask`` may know who works from the ranges of a history.
    """
    routes = merged(in_turn(reading), set_aside(reading), in_vain(reading))
    return merged(ask(works, reading), routes, _moves_in_turn(reading.history))


def _moves_in_turn(history: History) -> Finding:
    """A rank moves K/V entries of one transfer at a time away, and of one at a time towards itself."""
    moves = history.moves
    if moves is None or not len(moves["request"]):
        return NOTHING
    findings = []
    for side, word in (("from", "leave"), ("to", "reach")):
        rows = np.flatnonzero(moves[f"{side}_rank"] != HOST)
        rows = rows[np.lexsort((moves["end_ns"][rows], moves["start_ns"][rows], moves[f"{side}_rank"][rows]))]
        rank, start, end = (moves[name][rows] for name in (f"{side}_rank", "start_ns", "end_ns"))
        findings.append(judged(
            len(rows), (rank[1:] == rank[:-1]) & (start[1:] < end[:-1]), "rank {rank}, request {move.request}",
            "its entries {word} from {move.start_ns:,} ns on, while those of request {before.request} do until "
            "{before.end_ns:,} ns",
            "let one transfer at a time leave a rank, and one reach it", rank=rank[1:], move=Rows(moves, rows[1:]),
            before=Rows(moves, rows), word=word,
        ))  # fmt: skip
    return merged(*findings, *_of_what_failed(history))


def _of_what_failed(history: History) -> Iterator[Finding]:
    """Yield where entries leave or reach a replica while something that it needs has failed."""
    moves = history.moves
    assert moves is not None
    for failed, since, until in history.declared.down:
        touches = (moves["from_replica"] == failed) | (moves["to_replica"] == failed)
        yield judged(
            int(touches.sum()), touches & (moves["start_ns"] < until) & (moves["end_ns"] > since),
            "rank {move.from_rank} to {move.to_rank}, request {move.request}",
            "its entries move from {move.start_ns:,} to {move.end_ns:,} ns, and replica {failed} failed at {since:,} "
            "ns",
            "stop transfers when what they leave or reach fails", move=Rows(moves), failed=failed, since=since,
        )  # fmt: skip
