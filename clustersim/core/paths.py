"""How long a step takes whose operators overlap, or whose ranks do different work: terms by counts, and a longest path.

What a step carries is a list of *counts* (``p.counts``), which others fill in by their own coordinates: SP ranks
(:mod:`clustersim.core.ranks`), or replicas in lockstep. A :class:`PassTable` is one kind of step on one kind of stage.
Its classes of operators are of two sorts:

- *Parts* depend on up to three counts each. What they take is looked up by these (``p.value_keys``), and is 0 or more
  for each of their classes (``p.values``). :func:`add_parts` returns ``ASK_PART`` where a value is not known.
- What *attends* is worked out (``cost.attention``), or was asked for (``p.answer``, after ``ASK_STEP``).

What a class takes is added to the *terms* that have it, so many times (``p.uses``), and the pass ends with the longest
path through series of these terms (``graph.longest_path``). So there are two calls: :func:`add_parts` once a step or
run of steps, and :func:`walk_pass` for each step, whose contexts differ. ::

    counts ──► parts ──► values ─┐
        └────► attention ────────┴► terms ──► series ──► length, and when the output of each coordinate leaves

What is asked for is asked of the table ``p.asked[1]``. ``p.found`` keeps where the values of each part were found:
whoever records the step has its nanoseconds by class there.
"""

from __future__ import annotations

from typing import Any

from clustersim.compiled import Record
from clustersim.core.prices import place_of
from clustersim.core.state import ASK_PART, ASK_STEP
from clustersim.cost.attention import UNKNOWN, decode_ns, prefill_ns
from clustersim.graph.longest_path import STOP, TIMES, WIDTH, walk


class PassTable(Record):
    """A kind of step on a kind of stage: where its parts and all else begin in the lists, and how many there are.

    ``of`` is its table of attention, and ``graph`` whether it runs as a captured graph.
    """

    __slots__ = (
        "attends", "exits", "first_attends", "first_exit", "first_part", "first_stretch", "first_term", "graph", "of",
        "parts", "stretches", "terms",
    )  # fmt: skip


class PassPart(Record):
    """Classes of one coordinate that depend on the same counts; −1 stands for none.

    Parts that cost the same are of one ``kind``; ``radix`` are the values that the second and the third count may have.
    """

    __slots__ = ("classes", "first", "first_use", "kind", "radix", "second", "third", "third_radix")


class PassAttention(Record):
    """A class that attends: the counts of its pairs (−1 where it decodes), queries and keys, and where its uses are."""

    __slots__ = ("first_use", "keys", "pairs", "queries")


def add_uses(p: Any, one: int, ns: int, terms: Any) -> None:
    """Add what a class takes to the terms that have it."""
    for use in range(p.uses_first[one], p.uses_first[one + 1]):
        terms[p.uses[2 * use]] += p.uses[2 * use + 1] * ns


def add_parts(p: Any, number: int) -> int:
    """Add up what does not attend, in ``p.base_terms``; return what is to be asked for, 0 for nothing."""
    table, counts, keys, whole = p.pass_tables[number], p.counts, p.value_keys, p.whole[0]
    for term in range(table.first_term, table.first_term + table.terms):
        p.base_terms[term] = 0
    for one in range(table.first_part, table.first_part + table.parts):
        part = p.pass_parts[one]
        key = counts[part.first] if part.first >= 0 else 0
        if part.second >= 0:
            key = key * part.radix + counts[part.second]
        if part.third >= 0:
            key = key * part.third_radix + counts[part.third]
        key = key * whole.part_kinds + part.kind
        at = place_of(key, keys, whole.value_places)
        if keys[at] != key:
            p.asked[1] = number
            return ASK_PART
        first = p.value_at[at]
        p.found[one] = first
        for cls in range(part.classes):
            add_uses(p, part.first_use + cls, p.values[first + cls], p.base_terms)
    return 0


def attention_ns(p: Any, t: Any, one: Any, gap_s: float) -> int:
    """Return what a class takes that attends, or ``UNKNOWN``."""
    queries, keys = p.counts[one.queries], p.counts[one.keys]
    if one.pairs < 0:
        if t.curves > 0 and keys < 1:
            return UNKNOWN
        return decode_ns(t, p.curves, queries, keys, gap_s, p.whole[0].longest_s)
    pairs = p.counts[one.pairs]
    if t.curves > 0 and (pairs < 1 or queries < 1 or keys < 1):
        return UNKNOWN
    return prefill_ns(t, p.curves, pairs, queries, keys, gap_s, p.whole[0].longest_s)


def walk_pass(p: Any, number: int, kind: int, answered: int) -> int:
    """Work out how long a step takes whose parts were added up, and what its attention does.

    Returns
    -------
    int
        What is to be asked for, 0 for nothing. Then the length is in ``p.cost``, attention in ``p.varying``.
    """
    table, whole = p.pass_tables[number], p.whole[0]
    first, gap_s = kind * whole.classes, p.whole[kind].graph_gap_s if table.graph else p.whole[kind].gap_s
    for term in range(table.first_term, table.first_term + table.terms):
        p.pass_terms[term] = p.base_terms[term]
    for core in range(table.attends):
        one = p.attends[table.first_attends + core]
        ns = p.answer[first + core] if answered else attention_ns(p, p.terms[table.of][core], one, gap_s)
        if ns < 0:
            p.asked[1] = number
            return ASK_STEP
        p.varying[first + core] = ns
        add_uses(p, one.first_use, ns, p.pass_terms)
    p.cost[kind][0] = walk(p, table.first_stretch, table.first_stretch + table.stretches, p.pass_terms, p.series_ends)
    return 0


def note_exits(p: Any, number: int, into: Any, at: int) -> None:
    """Note when the output of each coordinate leaves a pass that was walked: all in its last stretch; −1 of none."""
    table, before = p.pass_tables[number], 0
    for stretch in range(table.first_stretch, table.first_stretch + table.stretches - 1):
        last = p.stretches[stretch * WIDTH + STOP] - 1
        before += p.stretches[stretch * WIDTH + TIMES] * p.series_ends[last]
    for place in range(table.exits):
        series = p.exits[table.first_exit + place]
        into[at + place] = before + p.series_ends[series] if series >= 0 else -1
