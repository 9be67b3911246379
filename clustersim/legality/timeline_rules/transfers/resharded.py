"""KV-4 across a hand-over (rule DP-2): each rank that is reached gets the entries that it is to hold, each once.

Worked out anew from both plans. A transfer says which layers, K/V heads and tokens of a request it carries; it may
carry what both of its ranks are to hold, in as many bytes. Of each layer and head that a rank of the target is to
hold, the transfers that reach it bring tokens 0 to the last one: none is missing, none comes twice.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import Declared
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.hand_overs import HandOvers
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, Table
from clustersim.values import dataclass

TOLERANCE: Final = 0.501
"""Bytes by which a transfer may differ from what follows: they are rounded to whole ones."""
FIX: Final = "send each rank the layers, heads and tokens that it is to hold, each once, from one that has them"

Entry = tuple[int, int, int]
"""Of one token: rank of the target (stage and TP rank), layer, head."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kinds:
    """Kinds of transfers, told by their ranks, layer and heads: what each carries of a token.

    Parameters
    ----------
    of : int64 array of shape (transfers,)
    entries : list of set of Entry
        What both ranks are to hold of what it names.
    foreign : list of str
        What it names that one of them is not to hold; empty where there is nothing.
    token_bytes : float64 array of shape (kinds,)
        Of ``entries``.
    """

    of: Int64Array
    entries: list[set[Entry]]
    foreign: list[str]
    token_bytes: FloatArray


def resharded(found: HandOvers) -> Finding:
    """Judge whether each rank of the target gets its share of every entry once, from ranks that have it (KV-4)."""
    moves, pools = found.moves, found.history.pools
    if moves is None or not found.history.hands_over or not len(found):
        return NOTHING
    source, target = pools
    at = found.of_moves(moves)
    some = np.flatnonzero(at >= 0)
    mine, at = {name: values[some] for name, values in moves.items()}, at[some]
    place, to_place = (
        (mine[f"{side}_rank"] - declared.first_rank) % (declared.pp * declared.stage_ranks)
        for side, declared in (("from", source), ("to", target))
    )
    kinds = _kinds(
        source, target, place // source.stage_ranks * source.tp + place % source.tp,
        to_place // target.stage_ranks * target.tp + to_place % target.tp, mine,
    )  # fmt: skip
    due = kinds.token_bytes[kinds.of] * np.maximum(mine["tokens"], 0)
    right = (mine["from_replica"] == found.source[at]) & (mine["to_replica"] == found.target[at])
    for side, declared in (("from", source), ("to", target)):
        number = (mine[f"{side}_rank"] - declared.first_rank) // (declared.pp * declared.stage_ranks)
        right &= number + declared.first_replica == mine[f"{side}_replica"]
    foreign = np.array([bool(words) for words in kinds.foreign], bool)[kinds.of]

    def where(i: int) -> str:
        return f"request {mine['request'][i]}, rank {mine['from_rank'][i]} to {mine['to_rank'][i]}"

    def astray(i: int) -> str:
        if not right[i]:
            return f"leads from replica {mine['from_replica'][i]} to {mine['to_replica'][i]}, which is another way"
        return kinds.foreign[int(kinds.of[i])]

    return merged(
        judged(len(some), ~right | foreign, where, astray, FIX),
        judged(
            0,
            np.abs(mine["bytes"] - due) > TOLERANCE,
            where,
            "moves {move.bytes:,} bytes of {move.tokens:,} tokens, where what it carries of them has {due:,.0f}",
            FIX,
            move=Rows(mine),
            due=due,
        ),
        _each_once(found, _to_hold(target), kinds, at, mine),
        *(
            _one_owner(found, declared, at, one, side)
            for declared, one, side in ((source, place, "leave"), (target, to_place, "reach"))
        ),
    )


def _kinds(source: Declared, target: Declared, row: Int64Array, column: Int64Array, moves: Table) -> Kinds:
    """Return what each kind of transfer carries, by the TP ranks of all stages that it leaves and reaches."""
    told, of = np.unique(
        np.stack((row, column, moves["layer"], moves["head"], moves["heads"]), axis=1), axis=0, return_inverse=True
    )
    entries, foreign, sizes = [], [], []
    for one, other, layer, head, heads in told.tolist():
        mine, theirs = _held(source, one), _held(target, other)
        common = {(at, which) for at, which in mine & theirs if layer in (ALL_LAYERS, at)}
        words = "" if common else f"carries nothing{_of(layer)} that both ranks are to hold"
        if common and (head, heads) != (ALL_HEADS, ALL_HEADS):
            asked = {(at, which) for at in {at for at, _ in common} for which in range(head, head + heads)}
            alien = sorted(asked - mine) or sorted(asked - theirs)
            if alien:
                who = "leaves" if asked - mine else "reaches"
                words = f"carries head {alien[0][1]} of layer {alien[0][0]}, which the rank that it {who} does not have"
            common &= asked
            words = words or ("" if common else "carries no head")
        entries.append({(other, at, which) for at, which in common})
        foreign.append(words)
        sizes.append(math.fsum(source.kv_head_bytes[at] for at, _ in common))
    return Kinds(of=of.ravel(), entries=entries, foreign=foreign, token_bytes=np.array(sizes, np.float64))


def _of(layer: int) -> str:
    return "" if layer == ALL_LAYERS else f" of layer {layer}"


def _held(declared: Declared, rank: int) -> set[tuple[int, int]]:
    """Return the (layer, head) that a TP rank of some stage is to hold."""
    return {(layer, head) for layer, heads in declared.kv_held[rank].items() for head in heads}


def _to_hold(target: Declared) -> set[Entry]:
    return {(rank, layer, head) for rank in range(len(target.kv_held)) for layer, head in _held(target, rank)}


def _each_once(found: HandOvers, wanted: set[Entry], kinds: Kinds, at: Int64Array, moves: Table) -> Finding:
    """Judge whether the transfers of each hand-over bring every token of all entries, none of them twice.

    Entries that the same kinds of transfers carry are looked at together, as one *part*.
    """
    carriers: dict[Entry, list[int]] = {entry: [] for entry in sorted(wanted)}
    for kind, entries in enumerate(kinds.entries):
        for entry in entries & wanted:
            carriers[entry].append(kind)
    examples: dict[tuple[int, ...], Entry] = {}
    for entry, carrying in carriers.items():
        examples.setdefault(tuple(carrying), entry)
    parts = list(examples)
    pairs = np.array([(kind, part) for part, carrying in enumerate(parts) for kind in carrying], np.int64)
    pairs = pairs.reshape(-1, 2)[np.argsort(pairs.reshape(-1, 2)[:, 0], kind="stable")]
    opens = np.searchsorted(pairs[:, 0], np.arange(len(kinds.entries) + 1))
    many = np.diff(opens)[kinds.of]
    row = np.repeat(np.arange(len(at)), many)
    part = pairs[np.repeat(opens[kinds.of] - np.cumsum(many) + many, many) + np.arange(len(row)), 1]
    order = np.lexsort((moves["first"][row], part, at[row]))
    row, part = row[order], part[order]
    cell = at[row] * len(parts) + part
    first, until = moves["first"][row], (moves["first"] + moves["tokens"])[row]
    opens_cell = np.append(True, cell[1:] != cell[:-1])[: len(cell)]
    before = np.where(opens_cell, 0, np.append(0, until[:-1])[: len(cell)])
    closes = np.append(opens_cell[1:], True)[: len(cell)]
    short = closes & (until != found.entries[at[row]])
    reached = np.zeros(len(found) * len(parts), bool)
    reached[cell] = True
    lost = np.flatnonzero(~reached)

    def where(hand_over: int, number: int) -> str:
        rank, layer, head = examples[parts[number]]
        return f"request {found.request[hand_over]}, layer {layer}, head {head}, TP rank {rank} of all stages"

    def said(i: int) -> str:
        if first[i] > before[i]:
            return f"tokens {before[i]:,} to {first[i] - 1:,} never reach replica {found.target[at[row[i]]]}"
        if first[i] < before[i]:
            return f"tokens from {first[i]:,} on move to rank {moves['to_rank'][row[i]]} twice"
        return f"tokens up to {until[i] - 1:,} arrive, where it has {found.entries[at[row[i]]]:,}"

    return merged(
        judged(len(reached), (first != before) | short, lambda i: where(int(at[row[i]]), int(part[i])), said, FIX),
        judged(
            0,
            np.ones(len(lost), bool),
            lambda i: where(*divmod(int(lost[i]), len(parts))),
            "nothing of it reaches replica {hand_over.target}",
            FIX,
            hand_over=Rows(found, lost // len(parts)),
        ),
    )


def _one_owner(found: HandOvers, declared: Declared, at: Int64Array, place: Int64Array, side: str) -> Finding:
    """Judge whether a sequence is with one SP rank, the first one where the others idle in decode."""
    if declared.sp == 1:
        return NOTHING
    owner = place % declared.stage_ranks // declared.tp
    groups = Groups(at)
    low, high = groups.least(owner), groups.most(owner)
    wrong: BoolArray = (low != high) | ((declared.sp_decode == "idle") & (high > 0))
    words = (
        "its entries {side} SP rank {low}, which idles in decode, and keeps none",
        "its entries {side} SP ranks {low} to {high} of one replica",
    )
    return judged(
        len(groups), wrong, "request {hand_over.request}", Rows(words, low != high), "keep a sequence with one SP rank",
        hand_over=Rows(found, groups.keys), side=side, low=low, high=high,
    )  # fmt: skip


__all__ = ["resharded"]
