"""What declared hand-overs are held to: the whole cache moves, is read when it is there, and frees blocks behind it.

That each rank gets what it is to hold is judged in ``resharded``.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED
from clustersim.legality.timeline_rules.views.hand_overs import NONE, HandOvers, numbered
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.written import written_at
from clustersim.timeline.tables import Table


def whole_cache(found: HandOvers, pieces: Pieces | None) -> Finding:
    """DP-2: a hand-over is told on both sides, and moves all entries, none before it was computed."""
    return merged(_told_on_both(found), _complete(found, pieces))


def _told_on_both(found: HandOvers) -> Finding:
    findings = []
    cut = found.history.declared.horizon_ns is not None
    for one, other, words in (
        (found.left, found.came, "is handed over by replica {replica}, but no replica received it"),
        (found.came, found.left, "is received by replica {replica}, but none handed it over"),
    ):
        request, partner = one["request"], other["request"]
        if found.again:
            twice = np.zeros(len(request), bool)
            alone = ~np.isin(numbered(request), numbered(partner))
        else:
            twice = np.concatenate((np.zeros(1, bool), request[1:] == request[:-1]))[: len(request)]
            alone = ~np.isin(request, partner)
        alone &= not cut or one is found.came
        findings.append(judged(
            len(request), twice | alone, "request {request}", Rows((words, "changes replicas twice"), twice),
            "declare each hand-over once, on both replicas", request=request, replica=one["replica"],
        ))  # fmt: skip
    moves = found.moves
    if moves is not None and not cut:
        silent = (moves["from_replica"] != moves["to_replica"]) & (found.of_moves(moves) < 0)
        silent &= ~_broken_off(found, moves)
        findings.append(judged(
            len(silent), silent, "request {move.request}",
            "moves from replica {move.from_replica} to {move.to_replica} undeclared", "declare a hand-over",
            move=Rows(moves),
        ))  # fmt: skip
    return merged(*findings)


def _broken_off(found: HandOvers, moves: Table) -> BoolArray:
    """Return which transfers had ended when what their request left or reached failed, and its blocks came back."""
    broken = np.zeros(len(moves["request"]), bool)
    facts, reservations = found.history.facts, found.reservations
    if facts is None or reservations is None:
        return broken
    names = ("request", "replica", "time_ns")
    given_back = set(zip(*(facts[name][reservations.vain].tolist() for name in names), strict=True))
    for failed, since, _ in found.history.declared.down:
        hit = (moves["from_replica"] == failed) | (moves["to_replica"] == failed)
        for row in np.flatnonzero(hit & (moves["end_ns"] <= since)).tolist():
            broken[row] |= (int(moves["request"][row]), int(moves["to_replica"][row]), since) in given_back
    return broken


def _complete(found: HandOvers, pieces: Pieces | None) -> Finding:
    """Judge the number of entries, and whether they were there to be moved and are there when they are told to be."""
    if not len(found):
        return NOTHING
    findings = [
        judged(
            len(found),
            (found.entries != found.reached) | (found.source == found.target),
            "request {hand_over.request}",
            "leaves with {hand_over.entries:,} entries, and {hand_over.reached:,} are received",
            "hand over all entries of a sequence",
            hand_over=Rows(found),
        )
    ]
    if pieces is not None and len(pieces):
        last = found.last_piece(pieces)
        at = np.flatnonzero(last >= 0)
        last = last[at]
        had = (pieces.computed + pieces.count)[last]
        findings.append(judged(
            len(last), (had != found.entries[at]) | (pieces.end[last] > found.left_ns[at]), "request {piece.request}",
            "is handed over with {hand_over.entries:,} entries at {hand_over.left_ns:,} ns, but its prompt has "
            "{had:,} and ends at {piece.end:,} ns",
            "hand over a sequence with all that was computed of it, when it is", piece=Rows(pieces, last),
            hand_over=Rows(found, at), had=had,
        ))  # fmt: skip
        findings.append(_started(found, pieces))
        findings.append(_survived(found, pieces.begin[last], at))
    return merged(*findings)


def _survived(found: HandOvers, begun: Int64Array, at: Int64Array) -> Finding:
    """Judge whether nothing that a hand-over leaves has failed since the last of what it hands over was computed."""
    lost = np.zeros(len(at), bool)
    for failed, since, _ in found.history.declared.down:
        lost |= (found.source[at] == failed) & (begun < since) & (since < found.left_ns[at])
    return judged(
        0, lost, "request {hand_over.request}",
        "is handed over by replica {hand_over.source} at {hand_over.left_ns:,} ns, which has failed since it computed "
        "the prompt, and lost its entries",
        "compute anew what was lost with the replica that had it", hand_over=Rows(found, at),
    )  # fmt: skip


def _started(found: HandOvers, pieces: Pieces) -> Finding:
    """Judge whether entries leave after they were computed.

    Those of one layer may leave when they were written on the rank that they leave, those of all layers when the step
    that computed the last of them has ended; those taken over from a prefix cache are there from the start.
    """
    moves = found.moves
    if moves is None:
        return NOTHING
    piece_of = found.last_piece(pieces)
    at = found.of_moves(moves)
    some = np.flatnonzero((at >= 0) & (piece_of[at] >= 0))
    mine = {name: values[some] for name, values in moves.items()}
    end = piece_of[at[some]]
    turn, scale = pieces.turn_of, int(pieces.computed.max()) + 2
    token = np.clip(mine["first"] + mine["tokens"] - 1, 0, scale - 1)
    piece = np.searchsorted(turn * scale + pieces.computed, turn[end] * scale + token, side="right") - 1
    opens = np.searchsorted(turn, turn[end])
    cached = piece < opens
    piece = np.where(cached, opens, np.minimum(piece, end))
    ready = np.where(cached, pieces.begin[piece], pieces.end[piece])
    single = np.flatnonzero((mine["layer"] >= 0) & ~cached)
    if len(single):
        ready[single] = _written(found, pieces, piece[single], {name: values[single] for name, values in mine.items()})
    words = (
        "its entries leave at {move.start_ns:,} ns, but are computed at {ready:,} ns",
        "its entries of layer {move.layer} leave at {move.start_ns:,} ns, but are computed at {ready:,} ns",
    )
    return judged(
        len(some), mine["start_ns"] < ready, "request {move.request}, rank {move.from_rank}",
        Rows(words, mine["layer"] >= 0), "move entries that have been computed", move=Rows(mine), ready=ready,
    )  # fmt: skip


def _written(found: HandOvers, pieces: Pieces, piece: Int64Array, moves: Table) -> Int64Array:
    """Return when the entries of moves of one layer were written by a piece; −1 where the record does not tell."""
    tables, declared = found.history.folded, found.history.declared
    if tables is None:
        return np.full(len(piece), NONE)
    place = (moves["from_rank"] - declared.first_rank) % (declared.pp * declared.stage_ranks)
    stage, rank = np.divmod(place, declared.stage_ranks)
    return written_at(tables, pieces.replica[piece], stage, pieces.first_step[piece], moves["layer"], rank)


def reads_moved(found: HandOvers, pieces: Pieces | None) -> Finding:
    """KV-2: a sequence decodes when its last entry has arrived."""
    moves = found.moves
    if moves is None or pieces is None or not len(found) or not len(pieces):
        return NOTHING
    until = np.zeros(len(found), np.int64)
    at = found.of_moves(moves)
    np.maximum.at(until, at[at >= 0], moves["end_ns"][at >= 0])
    first = np.flatnonzero(found.declares(pieces))
    of = found.of(pieces.request[first], pieces.begin[first])
    arrived = np.maximum(until, found.came_ns)[of]
    return judged(
        len(first), pieces.begin[first] < arrived, Rows(pieces, first),
        "starts at {begin:,} ns to read entries that arrive until {arrived:,} ns",
        "let entries that another replica wrote arrive before attention reads them", arrived=arrived,
    )  # fmt: skip


def freed_when_moved(found: HandOvers, pieces: Pieces) -> Finding:
    """KV-7: blocks of a sequence that is handed over come back when its last byte has left, and are taken before.

    Where layers leave while the prompt is computed the last byte may have left before the step has ended, which
    samples the first token: then they come back with that.
    """
    moves, facts = found.moves, found.history.facts
    if moves is None or facts is None or not len(found):
        return NOTHING
    first, until = np.full(len(found), np.iinfo(np.int64).max), np.zeros(len(found), np.int64)
    at = found.of_moves(moves)
    np.maximum.at(until, at[at >= 0], moves["end_ns"][at >= 0])
    np.minimum.at(first, at[at >= 0], moves["start_ns"][at >= 0])
    last = found.last_piece(pieces)
    until[last >= 0] = np.maximum(until, pieces.end[last] if len(pieces) else 0)[last >= 0]
    reserved = np.full(len(found), np.iinfo(np.int64).max)
    rows = np.flatnonzero(facts["kind"] == ADMITTED)
    who, time, replica = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns", "replica"))
    of = found.following(who, time, np.full(len(rows), NONE), replica)
    there = (of >= 0) & (facts["replica"][rows] == found.target[of])
    np.minimum.at(reserved, of[there], facts["time_ns"][rows[there]])
    return merged(
        judged(
            len(found),
            (until != found.left_ns) | (until != found.came_ns),
            "request {hand_over.request}",
            "is handed over at {hand_over.left_ns:,} ns and received at {hand_over.came_ns:,} ns, but its last entry "
            "moves, or its prompt is computed, until {until:,} ns",
            "free the blocks of a sequence that moves when its last entry has arrived",
            hand_over=Rows(found),
            until=until,
        ),
        judged(
            len(found),
            reserved > first,
            "request {hand_over.request}",
            "its entries move from {first:,} ns on, before there are blocks for them",
            "set blocks aside before entries move there",
            hand_over=Rows(found),
            first=first,
        ),
    )
