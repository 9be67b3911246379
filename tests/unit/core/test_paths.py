"""A step as a longest path: two ranks work, the slower one holds what both wait for; then the first sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clustersim.compiled import Objects
from clustersim.core.paths import PassAttention, PassPart, PassTable, add_parts, note_exits, walk_pass
from clustersim.core.prices import Whole
from clustersim.core.state import ASK_PART, ASK_STEP
from clustersim.cost.attention import UNKNOWN, Terms
from clustersim.graph.longest_path import LongestPath, paths_of

WORK, ATTENDS, JOIN = range(3)
"""Classes: work of each rank by its tokens, attention of the first one, and what both wait for, twice."""


@pytest.fixture
def p() -> Any:
    """Counts are tokens of each rank, then what the first one attends to; attention is never known here."""
    store = Objects()
    # 0: work of rank 0, 1: its attention, 2: work of rank 1, 3 and 4: what both wait for, one behind the other
    of = np.array([0, 1, 2, 3, 3])
    path = LongestPath([(), (0,), (), (1, 2), (3,)], of, 4, [1, 4])
    uses, firsts = [], [0]
    for cls in (0, 2, 3, 1):
        for term, times in enumerate(path.counts[:, cls].tolist()):
            uses += [term, times] if times else []
        firsts.append(len(uses) // 2)
    found = SimpleNamespace(
        whole=store.records(Whole, 1), pass_tables=store.records(PassTable, 1), pass_parts=store.records(PassPart, 3),
        attends=store.records(PassAttention, 1), terms=[store.records(Terms, 1)], curves=[0.0],
        uses=uses, uses_first=firsts,
        value_keys=[UNKNOWN] * 7, value_at=[0] * 7, values=[70, 90, 5], found=[0] * 3,
        **paths_of([path], store)._asdict(),
        series_ends=[0] * len(path.term), base_terms=[0] * len(path.counts), pass_terms=[0] * len(path.counts),
        exits=list(path.exits), counts=[7, 9, 1], answer=[25], varying=[0], cost=[[0, 0]], asked=[0, 0],
    )  # fmt: skip
    found.whole[0].part_kinds, found.whole[0].value_places = 2, 7
    table = found.pass_tables[0]
    table.parts, table.attends, table.terms, table.stretches, table.exits = 3, 1, len(path.counts), 1, 2
    for part, (kind, first) in zip(found.pass_parts, ((0, 0), (0, 1), (1, -1)), strict=True):
        part.kind, part.first, part.second, part.third, part.classes = kind, first, -1, -1, 1
    for number, part in enumerate(found.pass_parts):
        part.first_use = number
    found.attends[0].pairs, found.attends[0].queries, found.attends[0].keys, found.attends[0].first_use = -1, 0, 2, 3
    found.terms[0][0].most = -1
    # 7 tokens take 70 (key 7 · 2), 9 take 90, and what both wait for 5 (key 1)
    for key, at in ((14, 0), (18, 1), (1, 2)):
        place = key % 7
        while found.value_keys[place] != UNKNOWN:
            place = (place + 1) % 7
        found.value_keys[place], found.value_at[place] = key, at
    return found


def test_the_slower_rank_holds_what_both_wait_for(p):
    # Rank 0 ends at 70 + 25 = 95, rank 1 at 90; both wait for it, twice 5.
    assert add_parts(p, 0) == 0
    assert walk_pass(p, 0, 0, 1) == 0
    assert p.cost[0][0] == 105
    leaves = [0, 0]
    note_exits(p, 0, leaves, 0)
    assert leaves == [95, 105]


def test_another_step_of_a_run_differs_by_its_attention_alone(p):
    add_parts(p, 0)
    for took, length in ((25, 105), (19, 100), (40, 120)):
        p.answer[0] = took
        walk_pass(p, 0, 0, 1)
        assert (p.varying[0], p.cost[0][0]) == (took, length)


def test_what_is_not_known_is_asked_for(p):
    p.counts[1] = 8
    assert add_parts(p, 0) == ASK_PART
    p.counts[1] = 9
    assert add_parts(p, 0) == 0
    assert walk_pass(p, 0, 0, 0) == ASK_STEP


def test_it_is_known_where_the_values_of_each_part_were_found(p):
    add_parts(p, 0)
    assert p.found == [0, 1, 2]
