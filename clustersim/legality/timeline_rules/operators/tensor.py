"""TP-5, TP-6, TP-7, TP-9: collectives take all ranks of their group, at one time, inside one layer and step."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import COLLECTIVE_OPS
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import Declared, Outcome
from clustersim.legality.timeline_rules.views.grouping import Groups, distinct
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet, of_structure

EXPOSURES = ("kv_all_gather", "kv_ring", "qkv_all_to_all", "out_all_to_all", "kv_move")
"""Collectives of SP, which the rules of SP look at."""
EXPERTS = ("dispatch", "combine")


def collectives(sheet: Sheet) -> BoolArray:
    """Return which spans are part of a collective that is not one of SP."""
    found: BoolArray = (sheet.group >= 0) & ~sheet.named(*EXPOSURES)
    return found


def everybody_once(sheet: Sheet) -> Finding:
    """TP-5: every rank of a group takes part in each of its collectives once, and all in the same order."""
    if not sheet.declared.mesh:
        return NOTHING
    if not len(_joined(sheet.one)):  # nobody says which operators are one collective
        return merged(_unequal(sheet), _left_out(sheet))
    at = np.flatnonzero(inverted(sheet))
    order = judged(
        0, np.ones(len(at), bool), Rows(sheet, at),
        "its ranks enter this collective and another one in different orders",
        "run collectives in the same order on every rank",
    )  # fmt: skip
    return merged(_all_take_part(sheet), order, _left_out(sheet))


def _joined(sheet: Sheet) -> Int64Array:
    """Return the spans of collectives inside one layer of one pass."""
    return np.flatnonzero(collectives(sheet) & ~_spread(sheet))


@of_structure
def _all_take_part(sheet: Sheet) -> Finding:
    rows, tp = _joined(sheet), sheet.declared.tp
    many = len(sheet.symbols) + 1
    key = sheet.site[rows] - sheet.rank[rows] * (int(sheet.layer.max(initial=0)) + 2)  # pass and layer, any rank
    key = (key * many + sheet.symbol[rows]) * sheet.declared.sp + sheet.s[rows]
    whole = Groups(key)
    present = Groups(key * tp + sheet.rank[rows] % tp)
    distinct = np.bincount(whole.find(present.keys // tp), minlength=len(whole))
    missing = judged(
        len(whole), distinct != tp, Rows(sheet, rows, whole.some),
        "{distinct} of the {tp} ranks of the TP group take part", "let every rank of the group take part",
        distinct=distinct, tp=tp,
    )  # fmt: skip
    together = Groups(key * (int(sheet.group.max()) + 1) + sheet.group[rows])
    named = sheet.named(
        *(name for name, _, _ in sheet.symbols if name.endswith(FIXED) and not name.startswith("expert"))
    )
    apart = judged(
        0, (together.counts < tp) & named[rows[together.some]] & (distinct == tp)[whole.find(key[together.some])],
        Rows(sheet, rows, together.some),
        "{together.counts} of the {tp} ranks of the TP group run it together, and the others apart",
        "let every rank of the group take part in one execution", together=Rows(together), tp=tp,
    )  # fmt: skip
    member = Groups((sheet.group[rows] << 24) | sheet.global_ranks[rows])
    repeated = judged(
        0, member.counts > 1, Rows(sheet, rows, member.some),
        "takes part {member.counts} times in one collective", "let every rank take part once", member=Rows(member),
    )  # fmt: skip
    return merged(missing, apart, repeated)


FIXED: Final = ("_all_reduce", "_all_gather", "_reduce_scatter")
"""What the name of a collective says behind that of the operator whose output it puts together."""


@of_structure
def _unequal(sheet: Sheet) -> Finding:
    """Find ranks that run fewer collectives of a kind in a layer than others of their TP group, which are there, too.

    What a horizon or a failure may have cut off is not looked at.
    """
    ops = [op in COLLECTIVE_OPS and name not in EXPOSURES for name, op, _ in sheet.symbols]
    rows = np.flatnonzero(np.array(ops, bool)[sheet.symbol])
    if sheet.declared.tp == 1 or sheet.declared.horizon_ns is not None or sheet.declared.down or not len(rows):
        return NOTHING
    kinds = list(dict.fromkeys(op for _, op, _ in sheet.symbols))
    kind = np.array([kinds.index(op) for _, op, _ in sheet.symbols], np.int64)[sheet.symbol]
    tp, layers = sheet.declared.tp, int(sheet.layer.max()) + 2
    part = ((sheet.pass_of * sheet.declared.sp + sheet.s) * layers + sheet.layer + 1) * len(kinds)
    own = Groups((part + kind)[rows] * tp + sheet.rank[rows] % tp)
    whole = Groups(own.keys // tp)
    most = whole.most(own.counts)
    present = distinct(part * tp + sheet.rank % tp)  # who runs anything at all in a layer
    where = whole.keys[:, None] // len(kinds) * len(kinds) * tp + np.arange(tp)
    there = np.isin(where, present)
    place = np.searchsorted(own.keys, keys := whole.keys[:, None] * tp + np.arange(tp))
    found = np.append(own.keys, -1)[place] == keys
    ran = np.where(found, np.append(own.counts, 0)[place], 0)
    fewer = there & (ran < most[:, None])
    ranks = fewer.sum(axis=1)
    return judged(
        0, ranks > 0, Rows(sheet, rows, own.some, whole.some),
        "{ranks} of the {tp} ranks of the TP group {run} fewer collectives of the kind {kind} in this layer than the "
        "others ({ran}, not {most})",
        "let every rank of the group take part", ranks=ranks, tp=tp, run=Rows(("run", "runs"), ranks == 1),
        kind=Rows(kinds, whole.keys % len(kinds)), ran=lambda i: ran[i][fewer[i]].min(), most=most,
    )  # fmt: skip


@of_structure
def _left_out(sheet: Sheet) -> Finding:
    """Find where an operator has no collective behind it in one layer, and has in others of its stage.

    Layers of which the operator itself was not recorded are not looked at; nor are the last ones of a step that a
    horizon or a failure may have cut off.
    """
    found = []
    numbers = {name: at for at, (name, _, _) in enumerate(sheet.symbols)}
    cut = sheet.declared.horizon_ns is not None or bool(sheet.declared.down)
    for name, symbol in numbers.items():
        maker = next((numbers.get(name.removesuffix(end)) for end in FIXED if name.endswith(end)), None)
        if maker is None or name.startswith(EXPOSURES):
            continue
        inside = sheet.layer >= 0
        met = distinct(sheet.site[(sheet.symbol == symbol) & inside])
        rows = np.flatnonzero((sheet.symbol == maker) & inside)
        stages = distinct(sheet.stage[(sheet.symbol == symbol) & inside])
        rows = rows[np.isin(sheet.stage[rows], stages)]
        alone = ~np.isin(sheet.site[rows], met)
        if cut:
            steps = Groups(sheet.place)
            last = steps.most(sheet.layer)[steps.find(sheet.place[rows])]
            alone &= sheet.layer[rows] < last
        found.append(_bare(sheet, rows, alone, name))
    return merged(*found)


def _bare(sheet: Sheet, rows: Int64Array, alone: BoolArray, name: str) -> Finding:
    return judged(
        0, alone, Rows(sheet, rows),
        "has no {name} behind it, which other layers have",
        "run the collectives of a layer at the same operators in every layer", name=name,
    )  # fmt: skip


def _spread(sheet: Sheet) -> BoolArray:
    """Return which spans belong to a collective over several layers, stages, steps or replicas (TP-7, DP-3)."""
    rows = np.flatnonzero(sheet.group >= 0)
    found = np.zeros(len(sheet), bool)
    groups = Groups(sheet.group[rows])
    for column in (sheet.layer, sheet.pass_of):
        differs = groups.least(column[rows]) != groups.most(column[rows])
        found[rows] |= differs[groups.find(sheet.group[rows])] if len(rows) else False
    return found


def inverted(sheet: Sheet) -> BoolArray:
    """Return which spans belong to two collectives that some ranks run in one order and others in the other."""
    if "inverted" not in sheet.made:
        sheet.made["inverted"] = _inverted(sheet)
    return sheet.made["inverted"]


def _inverted(sheet: Sheet) -> BoolArray:
    rows = np.flatnonzero(collectives(sheet))
    found = np.zeros(len(sheet), bool)
    if len(rows) < 2:
        return found
    order = rows[np.lexsort((sheet.start[rows], sheet.place[rows]))]
    first, second = order[:-1], order[1:]
    near = (sheet.place[first] == sheet.place[second]) & (sheet.group[first] != sheet.group[second])
    first, second = first[near], second[near]
    many = int(sheet.group.max()) + 1
    forth = sheet.group[first] * many + sheet.group[second]
    back = sheet.group[second] * many + sheet.group[first]
    bad = np.isin(forth, back)
    found[first[bad]] = True
    found[second[bad]] = True
    return found


def together(sheet: Sheet) -> Finding:
    """TP-6: a collective starts when its last rank has arrived, and nothing that needs it before all have left.

    Of a collective that nothing is said to wait for, only that its ranks leave together can be told: not enough to
    call it legal.
    """
    member = collectives(sheet)
    rows = np.flatnonzero(member & ~np.isin(sheet.group, sheet.group[inverted(sheet)]))
    if not len(rows):
        return NOTHING
    groups = Groups(sheet.group[rows])
    last, first, arrived = (groups.most(sheet.end[rows]), groups.least(sheet.end[rows]), groups.most(sheet.start[rows]))

    def leaver(i: int) -> int:
        own = rows[groups.order[groups.firsts[i] : groups.firsts[i] + groups.counts[i]]]
        return sheet.global_rank(int(own[np.argmin(sheet.end[own])]))

    words = (
        "ends at {last:,} ns, before its last rank arrives at {arrived:,} ns",
        "rank {leaver} leaves at {first:,} ns, its group at {last:,} ns",
    )
    synchronous = judged(
        len(groups), (last > first) | (arrived > first), Rows(sheet, rows, groups.some), Rows(words, last > first),
        "let all ranks of a group leave a collective together", last=last, first=first, arrived=arrived, leaver=leaver,
    )  # fmt: skip
    outside = ~sheet.named(*EXPERTS)
    sources, targets = sheet.sources, sheet.targets
    touches = (member[sources] & outside[sources]) | (member[targets] & outside[targets])
    sources, targets = sources[touches], targets[touches]
    waits = judged(
        len(sources), sheet.start[targets] < sheet.end[sources], Rows(sheet, targets),
        "starts at {start:,} ns, but {source.name} on its rank ends at {source.end:,} ns",
        "start a collective when its last rank has arrived, and what needs it when it is complete",
        source=Rows(sheet, sources),
    )  # fmt: skip
    if not len(sources):
        return Finding(looked_at=len(groups) if synchronous.faults else 0, faults=synchronous.faults)
    return merged(synchronous, waits)


@of_structure
def inside(sheet: Sheet) -> Finding:
    """TP-7: the ranks of a collective are in one layer of one step.

    Ranks of two stages have no module in common, so that what joins them spans a boundary of layers, whatever number
    they give it. That it is not the whole group of either rank (TP-5) only follows from it.
    """
    # Experts of all replicas, each at a step of its own, are DP-3's; without a mesh nobody knows which those are.
    rows = np.flatnonzero((sheet.group >= 0) & (sheet.declared.mesh | ~sheet.named(*EXPERTS)))
    if not len(rows) or not sheet.numbered:
        return NOTHING
    groups = Groups(sheet.group[rows])
    values = (sheet.step, sheet.layer, sheet.stage)
    one_replica = groups.least(sheet.replica[rows]) == groups.most(sheet.replica[rows])
    spread = [groups.most(column[rows]) != groups.least(column[rows]) for column in values]
    return judged(
        len(groups), one_replica & np.logical_or.reduce(spread), Rows(sheet, rows, groups.some),
        lambda i: " and ".join(
            f"joins {word}s {groups.least(column[rows])[i]} and {groups.most(column[rows])[i]}"
            for word, column, differs in zip(("step", "layer", "stage"), values, spread, strict=True)
            if differs[i]
        ),
        "synchronise inside one layer of one step",
    )  # fmt: skip


def same_as(other: Outcome | None, declared: Declared, reading: Reading, degree: str) -> Finding:
    """Compare tokens and entries with those of another run whose plan differs in a degree."""
    if other is None or getattr(other.declared, degree) == getattr(declared, degree):
        return NOTHING
    own = outcome_of(reading)
    if own is None:
        return NOTHING
    tokens, entries = own
    count = min(len(tokens), len(other.tokens))
    both = np.flatnonzero((tokens[:count] >= 0) & (other.tokens[:count] >= 0))
    now, then = (tokens[both], entries[both]), (other.tokens[both], other.entries[both])
    return judged(
        len(both), (now[0] != then[0]) | (now[1] != then[1]), "request {request}",
        "got {tokens:,} tokens and ended with {entries:,} entries under {degree} {here}, but {then[0]:,} and "
        "{then[1]:,} under {degree} {there}",
        f"let no degree of {degree.upper()} change what a sequence computes", request=both, degree=degree,
        tokens=now[0], entries=now[1], then=np.stack(then, axis=1), here=getattr(declared, degree),
        there=getattr(other.declared, degree),
    )  # fmt: skip


def outcome_of(reading: Reading) -> tuple[Int64Array, Int64Array] | None:
    """Return tokens and entries of each request at its end, −1 where it did not finish; None if not recorded."""
    pieces, outputs = reading.pieces, reading.outputs
    if pieces is None or outputs is None or reading.history.facts is None:
        return None
    tokens, entries = (np.full(len(outputs), -1, np.int64) for _ in range(2))
    last = pieces.closes
    request = pieces.request[last]
    done = np.isin(request, reading.finished[0])
    tokens[request[done]] = (pieces.tokens + pieces.gave)[last[done]]
    entries[request[done]] = (pieces.computed + pieces.count)[last[done]]
    return tokens, entries


def neutral(reading: Reading) -> Finding:
    """TP-9: under another degree of TP the same requests got the same tokens and the same cache."""
    return same_as(reading.history.other, reading.declared, reading, "tp")
