"""KV-4 across a hand-over (rule DP-2): each rank that is reached gets the heads and layers that it is to hold.

Worked out anew from both plans: a rank gets as many bytes as it is to hold of that many tokens, and from no other
rank more than both have; layer by layer, where layers travel alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.history import Given
from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.grouping import Groups
from clustersim.legality.timeline_rules.hand_over import HandOvers
from clustersim.timeline.tables import Table

TOLERANCE: Final = 1.0
"""Bytes by which a transfer may differ from what follows: each is rounded to whole ones."""
FIX: Final = "send each rank the heads and layers that it is to hold, from one that has them"


def resharded(found: HandOvers) -> Finding:
    """Judge whether each rank of the target gets its share of every entry, from ranks that have it (KV-4)."""
    moves, pools = found.moves, found.history.pools
    if moves is None or len(pools) != 2 or not len(found):
        return NOTHING
    source, target = pools
    at = found.of_moves(moves)
    some = np.flatnonzero(at >= 0)
    mine, at = {name: values[some] for name, values in moves.items()}, at[some]
    place, to_place = (
        (mine[f"{side}_rank"] - given.first_rank) % (given.pp * given.stage_ranks)
        for side, given in (("from", source), ("to", target))
    )
    row, column = (
        place // given.stage_ranks * given.tp + place % given.tp
        for place, given in ((place, source), (to_place, target))
    )
    common = _common(source, target)
    layers = common.shape[2]
    layer = np.where(mine["layer"] < layers, mine["layer"], -1)
    least = np.where(
        mine["layer"] < 0,
        common.sum(axis=2)[row, column],
        np.where(layer >= 0, common[row, column, layer], 0.0),
    ) * np.maximum(mine["tokens"], 0)  # fmt: skip
    right = (mine["from_replica"] == found.source[at]) & (mine["to_replica"] == found.target[at])
    for side, given in (("from", source), ("to", target)):
        number = (mine[f"{side}_rank"] - given.first_rank) // (given.pp * given.stage_ranks)
        right &= number + given.first_replica == mine[f"{side}_replica"]
    findings = [
        judged(
            len(some),
            ~right | (mine["bytes"] > least + TOLERANCE),
            lambda i: f"request {mine['request'][i]}, rank {mine['from_rank'][i]} to {mine['to_rank'][i]}",
            lambda i: (
                f"moves {mine['bytes'][i]:,} bytes of {mine['tokens'][i]:,} tokens, where both ranks have "
                f"{least[i]:,.0f} in common"
            ),
            FIX,
        ),
        _whole(found, target, at, column, mine),
        _one_owner(found, target, at, to_place, mine),
    ]
    if (mine["layer"] >= 0).any():
        findings.append(_by_layer(found, target, at, column, mine, common[row, column], least))
    return merged(*findings)


def _whole(found: HandOvers, target: Given, at: Int64Array, column: Int64Array, moves: Table) -> Finding:
    """Judge whether each TP rank of each stage of the target has got all bytes that it is to hold."""
    got, pieces = np.zeros((2, len(found), target.pp * target.tp))
    np.add.at(got, (at, column), moves["bytes"])
    np.add.at(pieces, (at, column), 1)
    due = found.entries[:, None] * _held(target).sum(axis=1)[None, :]
    wrong = np.abs(got - due) > TOLERANCE * np.maximum(pieces, 1)
    worst = wrong.argmax(axis=1)
    return judged(
        got.size,
        wrong.any(axis=1),
        lambda i: f"request {found.request[i]}",
        lambda i: (
            f"stage {worst[i] // target.tp}, TP rank {worst[i] % target.tp} of replica {found.target[i]} gets "
            f"{got[i, worst[i]]:,.0f} bytes of {found.entries[i]:,} entries, and is to hold "
            f"{due[i, worst[i]]:,.0f}"
        ),
        FIX,
    )


def _one_owner(found: HandOvers, target: Given, at: Int64Array, to_place: Int64Array, moves: Table) -> Finding:
    groups = Groups(at * (1 << 32) + moves["to_rank"])
    owners = Groups(at * (1 << 32) + (to_place % target.stage_ranks) // target.tp)
    per_request = np.bincount(at[owners.some], minlength=len(found))
    return judged(
        len(groups),
        per_request > 1,
        lambda i: f"request {found.request[i]}",
        lambda i: "its entries reach several SP ranks of one replica",
        "keep a sequence with one SP rank",
    )


def _by_layer(
    found: HandOvers, target: Given, at: Int64Array, column: Int64Array, moves: Table, common: FloatArray,
    least: FloatArray,
) -> Finding:  # fmt: skip
    """Judge whether each rank has got each layer of each entry, once, where layers travel alone."""
    layers = common.shape[1]
    single = np.flatnonzero((moves["layer"] >= 0) & (moves["layer"] < layers))
    rows, of = np.nonzero((moves["layer"] < 0)[:, None] & (common > 0))
    share = moves["bytes"][rows] / np.maximum(least[rows], 1.0)
    row = np.concatenate((single, rows))
    layer = np.concatenate((moves["layer"][single], of))
    amount = np.concatenate((moves["bytes"][single], common[rows, of] * moves["tokens"][rows] * share))
    got, pieces = np.zeros((2, len(found), target.pp * target.tp, layers))
    np.add.at(got, (at[row], column[row], layer), amount)
    np.add.at(pieces, (at[row], column[row], layer), 1)
    due = found.entries[:, None, None] * _held(target)[None]
    wrong = (np.abs(got - due) > TOLERANCE * np.maximum(pieces, 1)).reshape(len(found), -1)
    worst = [np.unravel_index(place, got.shape[1:]) for place in wrong.argmax(axis=1).tolist()]
    order = np.lexsort((moves["first"][row], layer, moves["to_rank"][row], moves["from_rank"][row], at[row]))
    row, layer = row[order], layer[order]
    key = np.stack((at[row], moves["from_rank"][row], moves["to_rank"][row], layer))
    same = (key[:, 1:] == key[:, :-1]).all(axis=0)
    until = (moves["first"] + moves["tokens"])[row]
    twice = np.append(False, same & (moves["first"][row][1:] < until[:-1]))[: len(row)]
    return merged(
        judged(
            got.size,
            wrong.any(axis=1),
            lambda i: f"request {found.request[i]}, layer {worst[i][1]}",
            lambda i: (
                f"rank {worst[i][0]} of replica {found.target[i]} gets {got[i][worst[i]]:,.0f} bytes of "
                f"{found.entries[i]:,} entries, and is to hold {due[i][worst[i]]:,.0f}"
            ),
            FIX,
        ),
        judged(
            len(row),
            twice,
            lambda i: f"request {moves['request'][row[i]]}, layer {layer[i]}",
            lambda i: f"entries from {moves['first'][row[i]]:,} on move to rank {moves['to_rank'][row[i]]} twice",
            "move each entry of a layer once",
        ),
    )


def _common(source: Given, target: Given) -> FloatArray:
    """Return the bytes of a token that a rank of one plan and one of the other both hold, (ranks, ranks, layers)."""
    sizes = np.zeros((len(source.kv_held), len(target.kv_held), len(source.kv_head_bytes)))
    for row, mine in enumerate(source.kv_held):
        for column, theirs in enumerate(target.kv_held):
            for layer in mine.keys() & theirs.keys():
                sizes[row, column, layer] = len(mine[layer] & theirs[layer]) * source.kv_head_bytes[layer]
    return sizes


def _held(given: Given) -> FloatArray:
    """Return the bytes of a token that each rank holds of each layer, (ranks, layers)."""
    sizes = np.zeros((len(given.kv_held), len(given.kv_head_bytes)))
    for row, held in enumerate(given.kv_held):
        for layer, heads in held.items():
            sizes[row, layer] = len(heads) * given.kv_head_bytes[layer]
    return sizes
