"""DP-2, DP-3, DP-4: a sequence stays on its replica, and replicas do not talk."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, PREEMPTED, RECEIVED
from clustersim.legality.timeline_rules.operators.tensor import EXPERTS, same_as
from clustersim.legality.timeline_rules.transfers.hand_overs import whole_cache
from clustersim.legality.timeline_rules.transfers.owners import kept_where_it_moves
from clustersim.legality.timeline_rules.transfers.resharded import resharded
from clustersim.legality.timeline_rules.views.grouping import Groups, without
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet, of_structure
from clustersim.timeline.columns import is_any


def stays(reading: Reading) -> Finding:
    """DP-2: a request stays on one replica, or on two after a hand-over, until that one fails."""
    pieces, facts = reading.pieces, reading.history.facts
    hand_overs = reading.hand_overs
    findings = [whole_cache(hand_overs, pieces), resharded(hand_overs), kept_where_it_moves(reading.history)]
    fix = "keep a sequence on its replica, or declare a hand-over of its whole cache"
    if pieces is not None:
        findings.append(judged(
            len(pieces.opens), reading.moved & ~reading.declared_moves,
            "request {piece.request}, step {piece.first_step}",
            "goes on at replica {piece.replica}, after replica {before.replica}", fix, piece=Rows(pieces),
            before=Rows(pieces, range(-1, len(pieces))),
        ))  # fmt: skip
    if facts is not None:
        rows = without(np.arange(len(facts["request"])), _set_aside(reading))
        at = reading.hand_overs.of(facts["request"].astype(np.int64)[rows])
        replica = facts["replica"].astype(np.int64)[rows]
        if len(reading.hand_overs):  # what is decided on the replica that receives counts as decided where it arrived
            came = (at >= 0) & (replica == reading.hand_overs.target[at])
            came &= facts["time_ns"][rows] >= reading.hand_overs.came_ns[at]
            replica = np.where(came, reading.hand_overs.source[at], replica)
        requests = Groups(facts["request"].astype(np.int64)[rows])
        lowest, highest = requests.least(replica), requests.most(replica)
        astray = lowest != highest
        if reading.declared.down or reading.may_have_failed:
            findings.append(_after_failures(reading, fix))
            astray &= ~np.isin(requests.keys, _moved_by_failures(reading))
        findings.append(judged(
            len(requests), astray, "request {request.keys}",
            "has facts on replica {lowest} and on replica {highest}", fix, request=Rows(requests), lowest=lowest,
            highest=highest,
        ))  # fmt: skip
        if pieces is not None:
            first = pieces.opens
            at = requests.find(pieces.request[first])
            known = np.flatnonzero(at >= 0)
            told = lowest[at[known]] if len(requests) else known
            one = told == (highest[at[known]] if len(requests) else known)
            runs_on = pieces.replica[first[known]]
            findings.append(judged(
                len(known), one & (told != runs_on) & reading.plain[first[known]], "request {piece.request}",
                "was routed to replica {told}, but runs on replica {runs_on}", fix, piece=Rows(pieces, first, known),
                told=told, runs_on=runs_on,
            ))  # fmt: skip
    return merged(*findings)


def _set_aside(reading: Reading) -> Int64Array:
    """Return the facts that only set blocks aside for what is elsewhere, or give them back as it does not come."""
    found, reservations = reading.hand_overs.reserved, reading.hand_overs.reservations
    return found if reservations is None else np.concatenate((found, reservations.vain))


def _moved_by_failures(reading: Reading) -> Int64Array:
    """Return the requests whose facts go from a replica to another one only while the former is out of order.

    Or with a hand-over.
    """
    facts, hand_overs = reading.history.facts, reading.hand_overs
    assert facts is not None
    order = without(reading.residency.rows, _set_aside(reading))
    request, replica, time = (facts[name][order].astype(np.int64) for name in ("request", "replica", "time_ns"))
    moves = np.flatnonzero((request[1:] == request[:-1]) & (replica[1:] != replica[:-1]))
    legal = reading.failed_between(replica[moves], time[moves], time[moves + 1])
    if reading.may_have_failed:  # what was given up there is done again
        legal |= facts["kind"][order[moves]] == PREEMPTED
    if len(hand_overs):
        at = hand_overs.of(request[moves], time[moves + 1])
        handed = (at >= 0) & (facts["kind"][order[moves + 1]] == RECEIVED) & (hand_overs.came_ns[at] == time[moves + 1])
        legal |= handed & (hand_overs.source[at] == replica[moves]) & (hand_overs.target[at] == replica[moves + 1])
    found: Int64Array = np.setdiff1d(request[moves[legal]], request[moves[~legal]])
    return found


def _after_failures(reading: Reading, fix: str) -> Finding:
    """Judge whether what was moved runs where it was admitted last."""
    facts, pieces = reading.history.facts, reading.pieces
    if pieces is None or facts is None:
        return NOTHING
    came = reading.residency.among(is_any(facts["kind"], (ADMITTED, RECEIVED)))
    rows = without(came, reading.hand_overs.reserved)
    request, time, replica = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns", "replica"))
    mine = np.flatnonzero(np.isin(pieces.request, _moved_by_failures(reading)))
    home = np.full(len(mine), -1, np.int64)
    for at, piece in enumerate(mine.tolist()):
        low, high = np.searchsorted(request, pieces.request[piece] + np.arange(2)).tolist()
        last = low + int(np.searchsorted(time[low:high], pieces.begin[piece], side="right")) - 1
        if last >= low:
            home[at] = replica[last]
    return judged(
        len(mine), (home >= 0) & (home != pieces.replica[mine]), "request {piece.request}, step {piece.first_step}",
        "runs on replica {piece.replica}, and was admitted on replica {home}", fix, piece=Rows(pieces, mine), home=home,
    )  # fmt: skip


@of_structure
def apart(sheet: Sheet) -> Finding:
    """DP-3: nothing joins replicas, but dispatch and combine of experts that all replicas share."""
    if not sheet.declared.mesh:
        return NOTHING
    fix = "keep communication inside a replica (of experts, or declare ep_scope: global)"
    experts = sheet.named(*EXPERTS)
    told = sheet.declared.ep_scope is not None
    rows = np.flatnonzero((sheet.group >= 0) & (told | ~experts))
    groups = Groups(sheet.group[rows])
    low, high = groups.least(sheet.replica[rows]), groups.most(sheet.replica[rows])
    allowed = experts[rows[groups.some]] & (sheet.declared.ep_scope == "global")
    joined = judged(
        len(groups), (low != high) & ~allowed, Rows(sheet, rows, groups.some),
        "joins replicas {low} and {high}", fix, low=low, high=high,
    )  # fmt: skip
    sources, targets = sheet.sources, sheet.targets
    if not told or sheet.declared.ep_scope == "global":
        inside = ~experts[sources] & ~experts[targets]
        sources, targets = sources[inside], targets[inside]
    replica = sheet.replica
    needed = judged(
        len(sources), replica[sources] != replica[targets], Rows(sheet, targets),
        "needs {source.name} of replica {replica}", fix, source=Rows(sheet, sources), replica=Rows(replica, sources),
    )  # fmt: skip
    return merged(joined, needed)


def neutral(reading: Reading) -> Finding:
    """DP-4: under another number of replicas the same requests got the same tokens and the same cache."""
    return same_as(reading.history.other, reading.declared, reading, "dp")
