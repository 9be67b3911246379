"""EP-2: in every layer that routes, a step dispatches the tokens that it carries, each of them and no other."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import Finding, Rows, judged, lacking, merged
from clustersim.legality.timeline_rules.requests.phases import gaps
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs

FIX = "dispatch every token of the step, and no other, in each layer that has experts"


def all_dispatched(
    reading: Reading, replica: Int64Array, step: Int64Array, layer: Int64Array, request: Int64Array, token: Int64Array
) -> Finding:
    """Judge what each step dispatched in each layer, against the tokens that it carries.

    Parameters
    ----------
    reading : Reading
    replica, step, layer, request, token : int64 arrays of shape (tokens,)
        Every token that was dispatched, once per step and layer.
    """
    runs = reading.runs
    carried = None if runs is None else _carried(reading, runs)
    if runs is None or carried is None:
        return lacking("whether every token was sent (whom steps carry, or how many tokens, was not recorded)")
    run = runs.at(replica, step)
    return merged(
        _each_layer(runs, carried, replica, step, layer, run), _own(reading, replica, step, layer, request, token, run)
    )


def _carried(reading: Reading, runs: Runs) -> Int64Array | None:
    """Return the tokens of a step of each run; −1 where the record contradicts itself, None where it says nothing."""
    prefills, decodes, pieces = runs.column("prefill_tokens"), runs.column("decode_tokens"), reading.pieces
    told = None if prefills is None or decodes is None else prefills + decodes
    if pieces is None:
        return told
    chunk = pieces.is_chunk
    found = np.zeros(len(runs), np.int64)
    np.add.at(found, pieces.first_run[chunk], pieces.count[chunk])
    change = np.zeros(len(runs.slotted) + 1, np.int64)
    np.add.at(change, runs.rank_in_slots[pieces.first_run[~chunk]], 1)
    np.add.at(change, runs.rank_in_slots[pieces.last_run[~chunk]] + 1, -1)
    found[runs.slotted] += np.cumsum(change[:-1])
    if told is not None:
        found[found != told] = -1
    return -np.ones(len(runs), np.int64) if pieces.astray else found


def _each_layer(
    runs: Runs, carried: Int64Array, replica: Int64Array, step: Int64Array, layer: Int64Array, run: Int64Array
) -> Finding:
    """Judge how many tokens were dispatched in each step and layer; a layer that never dispatches has no experts."""
    first = np.cumsum(runs.count) - runs.count
    wanted = np.repeat(carried, runs.count)
    many = len(wanted)
    layers, number = np.unique(layer, return_inverse=True)
    known = run >= 0
    at = np.where(known, first[run] + step - runs.step[run], many) if many else np.full(len(run), many)
    sites = Groups(number.reshape(-1) * (many + 1) + at)
    some = sites.some
    amount = np.append(wanted, 0)[at[some]]  # a step that is not in the record carries nothing

    counted = judged(
        len(sites), (amount >= 0) & (sites.counts != amount), "replica {replica}, step {step}, layer {layer}",
        "{counts} tokens are dispatched, the step has {amount}", FIX, replica=Rows(replica, some),
        step=Rows(step, some), layer=Rows(layer, some), counts=sites.counts, amount=amount,
    )  # fmt: skip
    due = np.flatnonzero(wanted > 0)
    met = np.bincount(sites.keys[amount > 0] // (many + 1), minlength=len(layers))

    def missing(i: int) -> int:
        mine = sites.keys[sites.keys // (many + 1) == i] % (many + 1)
        return int(np.setdiff1d(due, mine)[0])

    def silent(i: int) -> str:
        at_run = int(np.searchsorted(first, missing(i), side="right")) - 1
        number = int(runs.step[at_run]) + missing(i) - int(first[at_run])
        return f"replica {runs.replica[at_run]}, step {number}, layer {layers[i]}"

    absent = judged(
        len(layers), met < len(due), silent,
        "none of its {tokens} tokens is dispatched in this layer, which other steps route", FIX,
        tokens=lambda i: wanted[missing(i)],
    )  # fmt: skip
    return merged(counted, absent)


def _own(
    reading: Reading,
    replica: Int64Array,
    step: Int64Array,
    layer: Int64Array,
    request: Int64Array,
    token: Int64Array,
    run: Int64Array,
) -> Finding:
    """Judge whether each token that was dispatched is one that its step carries; tangled sequences aside."""
    pieces, runs = reading.pieces, reading.runs
    if pieces is None or runs is None:
        return lacking("which tokens a step carries (no chunks and decodes were recorded)")
    if not len(pieces):
        return merged()
    _, names = np.unique(np.concatenate((pieces.request, request)), return_inverse=True)
    scale = len(runs) + 1
    order_of = names.reshape(-1) * scale
    starts = order_of[: len(pieces)] + pieces.first_run
    at = np.searchsorted(starts, order_of[len(pieces) :] + run, side="right") - 1
    piece = np.maximum(at, 0)
    mine = (at >= 0) & (pieces.request[piece] == request) & (run >= 0)
    chunk = pieces.is_chunk[piece]
    in_chunk = (pieces.first_run[piece] == run) & (token >= pieces.start[piece])
    in_chunk &= token - pieces.start[piece] < pieces.count[piece]
    since = runs.place[run] + step - runs.step[run] - runs.place[pieces.first_run[piece]]
    decoded = (pieces.slot[piece] == runs.slot[run]) & (run <= pieces.last_run[piece])
    decoded &= token == pieces.computed[piece] + since
    foreign = ~(mine & np.where(chunk, in_chunk, decoded))
    judgeable = (run >= 0) & ~np.isin(request, pieces.request[_unclear(reading)])
    return judged(
        int(judgeable.sum()), judgeable & foreign,
        "replica {replica}, step {step}, layer {layer}, request {request}, token {token}",
        "is dispatched, but the step does not carry this token", FIX, replica=replica, step=step, layer=layer,
        request=request, token=token,
    )  # fmt: skip


def _unclear(reading: Reading) -> BoolArray:
    """Return the pieces whose tokens are not certain: of sequences that other rules find something wrong with."""
    pieces, known = reading.pieces, reading.known
    assert pieces is not None
    found: BoolArray = ~reading.plain | gaps(reading)
    if known is not None:
        found |= ~pieces.is_chunk & (pieces.computed != known - 1)
    return found
