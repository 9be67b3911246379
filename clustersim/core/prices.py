"""What a step costs, from the table of prices: parts that depend on one count each, and attention.

``p`` is :class:`Prices`. Stages that cost the same are of one *kind*. A step that prefills is priced by row
``2 × kind`` of its tables, a mixed one by ``2 × kind + 1``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record
from clustersim.core.state import ASK_DECODE, ASK_PART, ASK_ROW, ASK_STEP, WIDEN
from clustersim.cost.attention import UNKNOWN, decode_ns, prefill_ns

OF_PREFILL, OF_MIXED, OF_DECODE = range(3)
"""Tables of attention of a kind of stage."""
COUNTS: Final = 7
"""What describes a step without SP (``graph.prices.counts.ALIASES``)."""


class Whole(Record):
    """Launch gaps of a kind of stage, and (in the first one) what all prices have in common.

    ``classes`` is the most that attend in a step, ``ranks`` how many send apart, ``columns`` the most classes of all.
    """

    floats = ("gap_s", "graph_gap_s", "longest_s")
    __slots__ = (
        *floats, "kinds", "classes", "width", "ranks", "size", "columns",
        # where steps are longest paths
        "chunk_width", "degree", "graph_most", "part_kinds", "sums", "value_places",
    )  # fmt: skip


class Prices(NamedTuple):
    """The table of prices of a replica's stages."""

    whole: Any
    of_stage: Any
    """The kind of each replica's stages."""
    priced: Any
    """The last step for which each kind was priced."""
    weights: Any
    """What each count is worth in the key of a row; 0 of those that do not count."""
    keys: Any
    """Those numbers, −1 where there is none, in a table with open addresses …"""
    row_ns: Any
    """… nanoseconds without attention …"""
    row_number: Any
    """… and the number of the row."""
    made: Any
    """The number of the next row, and rows in the table."""
    part_count: Any
    """Into how many parts a row falls; 0 where they can't be added up here."""
    part_place: Any
    """The count that each depends on, −1 for none."""
    part_ns: Any
    """Nanoseconds of each: ``part × width + count``, −1 where unknown."""
    send_place: Any
    """The count that sends depend on, −1 for none."""
    send_ns: Any
    """What they take: ``count × ranks + rank``."""
    decode_ns: Any
    """By sequences that decode: nanoseconds without attention, −1 where unknown …"""
    decode_row: Any
    """… the row …"""
    decode_graph: Any
    """… whether a graph is captured …"""
    decode_send: Any
    """… and what sends take: ``sequences × ranks + rank``."""
    attending: Any
    """How many classes attend, by ``3 × kind + table``."""
    terms: Any
    """Of each."""
    layers: Any
    """How many layers each kind passes; this and the following are for who waits for single layers."""
    class_place: Any
    """The count that each class depends on, −1 for none."""
    class_ns: Any
    """Nanoseconds of each: ``class × width + count``."""
    layer_classes: Any
    """How often a layer has each class, from where the one before was passed: ``layer × columns + class``."""
    layer_attention: Any
    """The same of what attends: ``layer × classes + class``."""
    curves: Any
    """Measured points of all terms."""
    cost: Any
    """Of the step that is priced, by kind: nanoseconds of the pass, and the number of its row."""
    sent: Any
    """What its sends take: ``kind × ranks + rank``."""
    leaves: Any
    """When the output of each rank leaves, where prompts are split: ``kind × ranks + rank``, −1 for never."""
    varying: Any
    """What its attention takes: ``kind × classes + class``."""
    answer: Any
    """The same, where it was asked for."""
    pass_tables: Any
    """This and all that follows is for steps that are longest paths (``core.paths``); empty where none are."""
    pass_parts: Any
    attends: Any
    uses: Any
    """Which term has a class, and how often, one after the other …"""
    uses_first: Any
    """… and where those of each class begin."""
    value_keys: Any
    """Values of counts of a kind of part, in a table with open addresses …"""
    value_at: Any
    """… where what its classes take begins …"""
    values: Any
    """… and that, with the bytes that it sends behind it."""
    found: Any
    """Where the values of each part are in the step that is priced."""
    stretches: Any
    """This and the next three are ``graph.longest_path.Path``'s."""
    series: Any
    waits_first: Any
    waits: Any
    series_ends: Any
    base_terms: Any
    """Terms without attention …"""
    pass_terms: Any
    """… and with it."""
    exits: Any
    """The series with which the output of each coordinate leaves, −1 for none."""
    leaves_of: Any
    """When it does."""
    path_sends: Any
    """By table and rank the part that its send is of, −1 for none, and which of its classes it is."""
    counts: Any
    """What the step carries, by coordinate."""
    sums: Any
    """What its prompt chunks add to counts of SP ranks (``core.ranks``)."""
    chunk_at: Any
    """Where what a chunk adds begins, by its tokens; −1 where unknown …"""
    chunk_sums: Any
    """… and that."""
    padded: Any
    """Tokens that a captured graph computes for so many."""
    asked: Any
    """Whether sums were answered, and the table of which something is asked."""
    groups: Any
    """Groups of replicas that take their steps together, by the kind of their stages (``core.group_prices``)."""


def count_of(rep: Any, place: int) -> int:
    """Return one of the counts that describe a step."""
    if place == 0:
        return rep.new + rep.decodes
    if place == 1:
        return rep.chunks + rep.decodes
    if place == 2:
        return rep.new
    if place == 3:
        return rep.decodes
    if place == 4:
        return rep.context
    if place == 5:
        return rep.context + rep.new
    return rep.keys


def key_of(rep: Any, weights: Any) -> int:
    """Return the key of the row of a step."""
    found = 0
    for place in range(COUNTS):
        if weights[place] > 0:
            found += weights[place] * count_of(rep, place)
    return found


def place_of(key: int, keys: Any, size: int) -> int:
    """Return where a row is in a table of so many places, or the free place where it would be."""
    at = key % size
    while keys[at] != key and keys[at] != UNKNOWN:
        at = at + 1 if at + 1 < size else 0
    return at


def make_row(rep: Any, p: Any, table: int, at: int, key: int) -> int:
    """Add up a row from its parts, and give it the next number; return what is to be asked for, 0 for nothing."""
    whole, made = p.whole[0], p.made[table]
    if p.part_count[table] == 0:
        return ASK_ROW
    if 2 * (made[1] + 1) > whole.size:
        return WIDEN
    total = 0
    for part in range(p.part_count[table]):
        place = p.part_place[table][part]
        ns = p.part_ns[table][part * whole.width + (count_of(rep, place) if place >= 0 else 0)]
        if ns < 0:
            return ASK_PART
        total += ns
    p.keys[table][at] = key
    p.row_ns[table][at] = total
    p.row_number[table][at] = made[0]
    made[0] += 1
    made[1] += 1
    return 0


def price_prompts(rep: Any, p: Any, kind: int, answered: int) -> int:
    """Price a step with prompts on one kind of stage; return what is to be asked for, 0 for nothing."""
    whole = p.whole[0]
    mixed = 1 if rep.decodes > 0 else 0
    table, of = 2 * kind + mixed, 3 * kind + mixed
    keys = p.keys[table]
    key = key_of(rep, p.weights[table])
    at = place_of(key, keys, whole.size)
    if keys[at] != key:
        asked = make_row(rep, p, table, at, key)
        if asked:
            return asked
    total, first = p.row_ns[table][at], kind * whole.classes
    for core in range(p.attending[of]):
        t = p.terms[of][core]
        if answered:
            ns = p.answer[first + core]
        elif t.prefills:
            pairs, seen = (rep.near_pairs, rep.near_keys) if t.near else (rep.pairs, rep.keys)
            ns = prefill_ns(t, p.curves, pairs, rep.new, seen, p.whole[kind].gap_s, whole.longest_s)
        else:
            seen = rep.near_attended if t.near else rep.attended
            ns = decode_ns(t, p.curves, rep.decodes, seen, p.whole[kind].gap_s, whole.longest_s)
        if ns < 0:
            return ASK_STEP
        p.varying[first + core] = ns
        total += t.instances * ns
    p.cost[kind][0], p.cost[kind][1] = total, p.row_number[table][at]
    place = p.send_place[table]
    sends = whole.ranks * (count_of(rep, place) if place >= 0 else 0)
    for rank in range(whole.ranks):
        p.sent[kind * whole.ranks + rank] = p.send_ns[table][sends + rank]
    return 0


def price_decodes(rep: Any, p: Any, kind: int, answered: int) -> int:
    """Price one step that only decodes on one kind of stage; return what is to be asked for, 0 for nothing."""
    whole, count = p.whole[0], rep.decodes
    total = p.decode_ns[kind][count]
    if total < 0:
        return ASK_DECODE
    gap_s = p.whole[kind].graph_gap_s if p.decode_graph[kind][count] else p.whole[kind].gap_s
    of, first = 3 * kind + OF_DECODE, kind * whole.classes
    for core in range(p.attending[of]):
        t = p.terms[of][core]
        seen = rep.near_attended if t.near else rep.attended
        ns = p.answer[first + core] if answered else decode_ns(t, p.curves, count, seen, gap_s, whole.longest_s)
        if ns < 0:
            return ASK_STEP
        p.varying[first + core] = ns
        total += t.instances * ns
    p.cost[kind][0], p.cost[kind][1] = total, p.decode_row[kind][count]
    for rank in range(whole.ranks):
        p.sent[kind * whole.ranks + rank] = p.decode_send[kind][count * whole.ranks + rank]
    return 0


def price_step(s: Any, p: Any, r: int) -> int:
    """Price the step that was decided, on each kind of stage of a replica; return what to ask for, 0 for nothing."""
    rep, clock = s.replicas[r], s.clock[0]
    clock.serial += 1
    for stage in range(rep.stages):
        kind = p.of_stage[r][stage]
        if p.priced[kind] == clock.serial:
            continue
        if rep.chunks > 0:
            asked = price_prompts(rep, p, kind, clock.answered)
        else:
            asked = price_decodes(rep, p, kind, clock.answered)
        if asked:
            return asked
        p.priced[kind] = clock.serial
    return 0
