"""PH: the whole prompt first, then one token of a sequence per step, one step after the other."""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, judged, merged
from clustersim.legality.history import FINISHED
from clustersim.legality.timeline_rules.requests.batches import as_carried, carried
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading


def place(reading: Reading, at: int) -> str:
    """Return where a piece is."""
    pieces = reading.pieces
    assert pieces is not None
    return f"replica {pieces.replica[at]}, step {pieces.first_step[at]}, request {pieces.request[at]}"


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
        int(after_chunk.sum()),
        early,
        lambda i: place(reading, int(decodes[i])),
        lambda i: (
            f"decodes from {pieces.begin[decodes[i]]:,} ns, but its last prompt chunk ends on the last stage at "
            f"{pieces.end[before[i]]:,} ns"
        ),
        "start the first decode step when the last chunk has ended on every stage",
    )
    if known is None:
        return timely
    least = known[decodes] - 1
    lacking = pieces.computed[decodes] < least
    lacking &= ~resumed(reading)[decodes]  # what gave its entries back and decodes on is KV-7's
    whole = judged(
        len(decodes),
        lacking & ~gaps(reading)[decodes],
        lambda i: place(reading, int(decodes[i])),
        lambda i: (
            f"decodes when {pieces.computed[decodes[i]]:,} of the {least[i]:,} tokens before the new one are computed"
        ),
        "prefill the whole prompt first",
    )
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
    twice = judged(
        len(pieces),
        reading.twice,
        lambda i: place(reading, i),
        lambda i: f"step {pieces.first_step[i]} carries request {pieces.request[i]} twice",
        fix,
    )
    astray = judged(
        len(pieces.astray),
        np.ones(len(pieces.astray), bool),
        lambda i: "{} {}".format(*pieces.astray[i]),
        lambda i: f"names steps that the record does not have, or that do not carry it: {_row(reading, i)}",
        "record the steps that carried it",
    )
    tokens, whole = runs.column("decode_tokens"), as_carried(reading)
    if tokens is None:
        return merged(twice, astray, whole)
    decoded = carried(reading)[1]
    ambiguous = np.zeros(len(runs), bool)
    ambiguous[pieces.first_run[reading.twice]] = True
    counted = judged(
        len(runs),
        (decoded != tokens) & ~ambiguous,
        lambda i: f"replica {runs.replica[i]}, step {runs.step[i]}",
        lambda i: f"decodes {tokens[i]:,} tokens for {decoded[i]:,} sequences",
        fix,
    )
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
        len(at),
        pieces.begin[at] < pieces.end[at - 1],
        lambda i: place(reading, int(at[i])),
        lambda i: (
            f"starts at {pieces.begin[at[i]]:,} ns, but step {pieces.last_step[at[i] - 1]} of the same sequence ends "
            f"at {pieces.end[at[i] - 1]:,} ns"
        ),
        "start a step of a sequence when its last one has sampled its token",
    )
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
        len(first),
        early,
        lambda i: f"replica {runs.replica[second[i]]}, step {runs.step[second[i]]}",
        lambda i: (
            f"starts at {runs.start[second[i]]:,} ns with sequences of step "
            f"{runs.step[first[i]] + runs.count[first[i]] - 1}, which ends at {runs.end[first[i]]:,} ns"
        ),
        "start a step of a sequence when its last one has sampled its token",
    )
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
    counted = judged(
        len(request),
        broken,
        lambda i: f"request {request[i]}",
        lambda i: (
            f"got {got[i]:,} tokens in {got[i]:,} steps"
            + (
                f" and finished, but asked for {wanted[i]:,}"
                if done_here[i]
                else f", more than the {wanted[i]:,} asked"
            )
        ),
        "sample each output token in one step, and end with the last",
    )
    stepless = np.ones(len(outputs), bool)
    stepless[request] = False
    missing = np.flatnonzero(done & stepless)
    absent = judged(
        len(missing),
        np.ones(len(missing), bool),
        lambda i: f"request {missing[i]}",
        lambda i: "finished, but no step carried it",
        "carry every request through its steps",
    )
    if known is None:
        return merged(counted, absent)
    chunk = np.flatnonzero(pieces.is_chunk & reading.plain & ~gaps(reading))
    after = pieces.start[chunk] + pieces.count[chunk]
    reached = after == known[chunk]
    sampled = pieces.gave[chunk] > 0
    needs = outputs[pieces.request[chunk]] > pieces.tokens[chunk]
    wrong = judged(
        len(chunk),
        np.where(reached, needs & ~sampled, sampled & (after < known[chunk])),
        lambda i: place(reading, int(chunk[i])),
        lambda i: "sampled no token after the last prompt chunk" if reached[i] else "sampled a token in mid-prompt",
        "sample a token when all that is known is computed",
    )
    return merged(counted, absent, wrong)
