"""PH: the whole prompt first, then one token of a sequence per step, one step after the other."""

from __future__ import annotations

from functools import partial

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import FINISHED
from clustersim.legality.timeline_rules.requests.batches import as_carried, carried
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading


def boundary(reading: Reading) -> Finding:
    """PH-1: a sequence decodes after all of its prompt was computed, and not before that step ended."""
    pieces, known = reading.pieces, reading.known
    if pieces is None:
        return NOTHING
    decodes = np.flatnonzero(~pieces.is_chunk & reading.plain)
    before = np.maximum(decodes - 1, 0)
    after_chunk = pieces.follows[decodes] & pieces.is_chunk[before]
    early = after_chunk & (pieces.begin[decodes] < pieces.end[before])
    timely = judged(
        int(after_chunk.sum()), early, Rows(pieces, decodes),
        "decodes from {begin:,} ns, but its last prompt chunk ends on the last stage at {before.end:,} ns",
        "start the first decode step when the last chunk has ended on every stage", before=Rows(pieces, before),
    )  # fmt: skip
    if known is None:
        return timely
    least = known[decodes] - 1
    lacking = pieces.computed[decodes] < least
    lacking &= ~resumed(reading)[decodes]  # what gave its entries back and decodes on is KV-7's
    whole = judged(
        len(decodes), lacking & ~gaps(reading)[decodes], Rows(pieces, decodes),
        "decodes when {computed:,} of the {least:,} tokens before the new one are computed",
        "prefill the whole prompt first", least=least,
    )  # fmt: skip
    return merged(timely, whole)


def gaps(reading: Reading) -> BoolArray:
    """Return whether a chunk of the request starts elsewhere than where the one before it ended (KV-1)."""
    pieces = reading.pieces
    assert pieces is not None
    broken: BoolArray = pieces.is_chunk & (pieces.start != pieces.computed)
    if not len(pieces):
        return broken
    found: BoolArray = np.repeat(
        np.logical_or.reduceat(broken, pieces.opens), np.diff(np.append(pieces.opens, len(pieces)))
    )
    return found


def resumed(reading: Reading) -> BoolArray:
    """Return which pieces go on, neither anew nor with entries that were moved, after a preemption (KV-7)."""
    pieces = reading.pieces
    assert pieces is not None
    if reading.history.facts is None:
        return np.zeros(len(pieces), bool)
    found: BoolArray = reading.count_before(reading.preempted, pieces.begin, also_at=True) > pieces.turn
    return found


def one_token(reading: Reading) -> Finding:
    """PH-2: a step has one new token of each sequence that decodes in it, and no sequence twice.

    A sequence whose last chunk and first decode share a step breaks this rule, not PH-1: before a step that carries a
    sequence twice is taken apart, nothing can be said of which of its two parts comes first.
    """
    pieces, runs = reading.pieces, reading.runs
    if pieces is None or runs is None:
        return NOTHING
    fix = "let each sequence decode once in a step"
    twice = judged(len(pieces), reading.twice, Rows(pieces), "step {first_step} carries request {request} twice", fix)
    astray = judged(
        len(pieces.astray), np.ones(len(pieces.astray), bool), "{row[0]} {row[1]}",
        "names steps that the record does not have, or that do not carry it: {told}",
        "record the steps that carried it", row=pieces.astray, told=partial(_row, reading),
    )  # fmt: skip
    tokens, whole = runs.column("decode_tokens"), as_carried(reading)
    if tokens is None:
        return merged(twice, astray, whole)
    decoded = carried(reading)[1]
    ambiguous = np.zeros(len(runs), bool)
    ambiguous[pieces.first_run[reading.twice]] = True
    counted = judged(
        len(runs), (decoded != tokens) & ~ambiguous, Rows(runs),
        "decodes {tokens:,} tokens for {decoded:,} sequences", fix, tokens=tokens, decoded=decoded,
    )  # fmt: skip
    return merged(twice, astray, counted, whole)


def _row(reading: Reading, at: int) -> str:
    assert reading.pieces is not None
    kind, row = reading.pieces.astray[at]
    table = reading.history.chunks if kind == "chunk" else reading.history.decodes
    assert table is not None
    return ", ".join(f"{name} {values[row]}" for name, values in table.items())


def in_turn(reading: Reading) -> Finding:
    """PH-3: a step of a sequence starts when the one before it has ended on every stage."""
    pieces, runs = reading.pieces, reading.runs
    if pieces is None or runs is None:
        return NOTHING
    at = np.flatnonzero(pieces.follows & reading.plain)
    boundary_pair = ~pieces.is_chunk[at] & pieces.is_chunk[at - 1]
    at = at[~boundary_pair]
    between = judged(
        len(at), pieces.begin[at] < pieces.end[at - 1], Rows(pieces, at),
        "starts at {begin:,} ns, but step {before.last_step} of the same sequence ends at {before.end:,} ns",
        "start a step of a sequence when its last one has sampled its token", before=Rows(pieces, at - 1),
    )  # fmt: skip
    # Inside an episode: neighbours in a slot that some sequence goes through.
    slotted = runs.slotted
    through = np.zeros(len(slotted) + 1, np.int64)
    decodes = ~pieces.is_chunk & reading.plain
    np.add.at(through, runs.rank_in_slots[pieces.first_run[decodes]], 1)
    np.add.at(through, runs.rank_in_slots[pieces.last_run[decodes]], -1)
    goes_on = np.cumsum(through[:-1])[:-1] > 0
    first, second = slotted[:-1][goes_on], slotted[1:][goes_on]
    early = runs.start[second] < runs.end[first]
    inside = judged(
        len(first), early, Rows(runs, second),
        "starts at {start:,} ns with sequences of step {before.last_step}, which ends at {before.end:,} ns",
        "start a step of a sequence when its last one has sampled its token", before=Rows(runs, first),
    )  # fmt: skip
    return merged(between, inside)


def own_steps(reading: Reading) -> Finding:
    """PH-4: a finished request got its output tokens, each after the first in a step of its own."""
    pieces, outputs, known, facts = reading.pieces, reading.outputs, reading.known, reading.history.facts
    if pieces is None or outputs is None:
        return NOTHING
    first, last = pieces.opens, pieces.closes
    request = pieces.request[first]
    got = pieces.tokens[last] + pieces.gave[last]
    wanted = outputs[request]
    done = np.zeros(len(outputs), bool)
    if facts is not None:
        done[facts["request"][facts["kind"] == FINISHED]] = True
    done_here = done[request]
    broken = np.where(done_here, got != wanted, got > wanted) & reading.plain[first]
    words = (
        "got {got:,} tokens in {got:,} steps, more than the {wanted:,} asked",
        "got {got:,} tokens in {got:,} steps and finished, but asked for {wanted:,}",
    )
    counted = judged(
        len(request), broken, "request {request}", Rows(words, done_here),
        "sample each output token in one step, and end with the last", request=request, got=got, wanted=wanted,
    )  # fmt: skip
    stepless = np.ones(len(outputs), bool)
    stepless[request] = False
    missing = np.flatnonzero(done & stepless)
    absent = judged(
        len(missing), np.ones(len(missing), bool), "request {missing}",
        "finished, but no step carried it", "carry every request through its steps", missing=missing,
    )  # fmt: skip
    if known is None:
        return merged(counted, absent)
    chunk = np.flatnonzero(pieces.is_chunk & reading.plain & ~gaps(reading))
    after = pieces.start[chunk] + pieces.count[chunk]
    reached = after == known[chunk]
    sampled = pieces.gave[chunk] > 0
    needs = outputs[pieces.request[chunk]] > pieces.tokens[chunk]
    words = ("sampled a token in mid-prompt", "sampled no token after the last prompt chunk")
    wrong = judged(
        len(chunk), np.where(reached, needs & ~sampled, sampled & (after < known[chunk])), Rows(pieces, chunk),
        Rows(words, reached), "sample a token when all that is known is computed",
    )  # fmt: skip
    return merged(counted, absent, wrong)
