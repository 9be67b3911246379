"""RUN-3: a stream runs one operator at a time, a stage one pass, and a rank sends one output (links: ``links``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, judged, lacking, merged
from clustersim.legality.history import ADMITTED, History
from clustersim.legality.timeline_rules.links.capacity import of_flows
from clustersim.legality.timeline_rules.requests.failing import leaves_what_fails, works
from clustersim.legality.timeline_rules.requests.routing import in_turn, in_vain, set_aside
from clustersim.legality.timeline_rules.transfers.swaps import cut_off
from clustersim.legality.timeline_rules.views.occupation import place_of
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet
from clustersim.timeline.tables import HOST


def one_at_a_time(sheet: Sheet) -> Finding:
    """RUN-3: a stream of a rank runs one operator at a time."""
    lane = sheet.global_ranks * 8 + sheet.stream
    order = np.lexsort((sheet.start, lane))
    first, second = order[:-1], order[1:]
    same = lane[first] == lane[second]
    return judged(
        len(sheet),
        same & (sheet.start[second] < sheet.end[first]),
        lambda i: sheet.where(int(second[i])),
        lambda i: (
            f"starts at {sheet.start[second[i]]:,} ns on a stream that runs {sheet.of_step(int(first[i]))} until "
            f"{sheet.end[first[i]]:,} ns"
        ),
        "run the operators of a stream one after the other",
    )


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
            findings.append(
                judged(
                    len(mine),
                    (runs.start[mine] < until) & (runs.end[mine] > since),
                    lambda i, mine=mine: f"replica {failed}, step {runs.step[mine[i]]}",  # type: ignore[misc]  # noqa: B023
                    lambda i, mine=mine: (  # type: ignore[misc]
                        f"runs from {runs.start[mine[i]]:,} to {runs.end[mine[i]]:,} ns, on something that failed at "
                        f"{since:,} ns"  # noqa: B023  # called before the loop goes on
                    ),
                    fix,
                )
            )
        if facts is not None:
            rows = reading.facts_of(ADMITTED)
            time = facts["time_ns"][rows]
            dead = (facts["replica"][rows] == failed) & (since <= time) & (time < until)
            findings.append(
                judged(
                    0,
                    dead,
                    lambda i, rows=rows: f"request {facts['request'][rows[i]]}",  # type: ignore[misc]
                    lambda i, time=time: (  # type: ignore[misc]
                        f"is admitted at {time[i]:,} ns on replica {failed}, which failed at {since:,} ns"  # noqa: B023
                    ),
                    fix,
                )
            )
    return merged(*findings)


def _stages(reading: Reading) -> Finding:
    passes = reading.passes
    if passes is None:
        return NOTHING
    same = (passes.replica[1:] == passes.replica[:-1]) & (passes.stage[1:] == passes.stage[:-1])
    return judged(
        len(passes.start),
        same & (passes.start[1:] < passes.end[:-1]),
        lambda i: place_of(passes, i + 1),
        lambda i: (
            f"starts at {passes.start[i + 1]:,} ns, but the stage is busy with step "
            f"{passes.step[i] + passes.count[i] - 1} until {passes.end[i]:,} ns"
        ),
        "let a stage run one pass at a time",
    )


def _sends(reading: Reading) -> Finding:
    tables, passes = reading.history.folded, reading.passes
    if tables is None or passes is None or tables.stages == 1:
        return NOTHING
    assert reading.sends is not None
    starts, ends = reading.sends.starts, reading.sends.ends
    findings = []
    for rank in range(starts.shape[1]):
        rows = np.flatnonzero(ends[:, rank] > 0)
        same = (passes.replica[rows][1:] == passes.replica[rows][:-1]) & (
            passes.stage[rows][1:] == passes.stage[rows][:-1]
        )
        overlap = same & (starts[rows, rank][1:] < ends[rows, rank][:-1])
        findings.append(
            judged(
                len(rows),
                overlap,
                lambda i, rows=rows, rank=rank: f"{place_of(passes, int(rows[i + 1]))}, local rank {rank}",  # type: ignore[misc]
                lambda i, rows=rows, rank=rank: (  # type: ignore[misc]
                    f"sends from {starts[rows[i + 1], rank]:,} ns, while it sends step {passes.step[rows[i]]} until "
                    f"{ends[rows[i], rank]:,} ns"
                ),
                "let a rank send one output at a time",
            )
        )
    return merged(*findings)


def over_pools(reading: Reading) -> Finding:
    """RUN-3: requests go where it is their turn, who has work does it, and transfers follow each other."""
    routes = merged(in_turn(reading), set_aside(reading), in_vain(reading))
    return merged(works(reading), routes, _moves_in_turn(reading.history))


def _moves_in_turn(history: History) -> Finding:
    """A rank moves K/V entries of one transfer at a time away, and of one at a time towards itself."""
    moves = history.moves
    if moves is None or not len(moves["request"]):
        return NOTHING
    findings = []
    for side, word in (("from", "leave"), ("to", "reach")):
        rows = np.flatnonzero(moves[f"{side}_rank"] != HOST)
        rows = rows[np.lexsort((moves["end_ns"][rows], moves["start_ns"][rows], moves[f"{side}_rank"][rows]))]
        rank, start, end, request = (moves[name][rows] for name in (f"{side}_rank", "start_ns", "end_ns", "request"))
        findings.append(
            judged(
                len(rows),
                (rank[1:] == rank[:-1]) & (start[1:] < end[:-1]),
                lambda i, rank=rank, request=request: f"rank {rank[i + 1]}, request {request[i + 1]}",  # type: ignore[misc]
                lambda i, start=start, end=end, request=request, word=word: (  # type: ignore[misc]
                    f"its entries {word} from {start[i + 1]:,} ns on, while those of request {request[i]} do until "
                    f"{end[i]:,} ns"
                ),
                "let one transfer at a time leave a rank, and one reach it",
            )
        )
    return merged(*findings, *_of_what_failed(history))


def _of_what_failed(history: History) -> Iterator[Finding]:
    """Yield where entries leave or reach a replica while something that it needs has failed."""
    moves = history.moves
    assert moves is not None
    for failed, since, until in history.declared.down:
        touches = (moves["from_replica"] == failed) | (moves["to_replica"] == failed)
        yield judged(
            int(touches.sum()),
            touches & (moves["start_ns"] < until) & (moves["end_ns"] > since),
            lambda i: f"rank {moves['from_rank'][i]} to {moves['to_rank'][i]}, request {moves['request'][i]}",
            lambda i, failed=failed, since=since: (  # type: ignore[misc]  # a default of a lambda
                f"its entries move from {moves['start_ns'][i]:,} to {moves['end_ns'][i]:,} ns, and replica {failed} "
                f"failed at {since:,} ns"
            ),
            "stop transfers when what they leave or reach fails",
        )
