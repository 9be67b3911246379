"""Expansion over ranks and layers, groups of collectives, and the order of streams."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from graph_models import DENSE, MIXTURE, blueprint, plan

from clustersim.graph.blueprint import EDGE_KINDS, INPUT, STREAMS, BodyBuilder, Node
from clustersim.graph.stepgraph import StepGraph, axis_groups, expand, place
from tests.acyclic import is_acyclic


def node(name="x", **facts):
    return Node(name=name, op=facts.pop("op", "memory"), module="test", **facts)


def graph(edges, streams=(0, 0, 0), groups=((0,),), group=None):
    count = len(streams)
    zeros = np.zeros(count, np.int64)
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    return StepGraph(
        symbols=(node(),), groups=groups, symbol=zeros, group=zeros if group is None else np.array(group), layer=zeros,
        stage=zeros, unit=zeros, stream=np.array(streams), source=source, target=target, kind=0 * source,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "where", "groups"),
    [
        ("tp", "all", [(0, 1), (2, 3)]),
        ("tp", "s0", [(0, 1)]),
        ("sp", "all", [(0, 2), (1, 3)]),
        ("stage", "all", [(0, 1, 2, 3)]),
        ("expert_tp", "all", [(0, 1), (2, 3)]),
    ],
)
def test_groups_of_an_axis(axis, where, groups):
    assert axis_groups(plan(tp=2, sp={"degree": 2}, ep=2), axis, where) == groups


@pytest.mark.parametrize(
    ("ep", "groups"), [(1, [(0, 1)]), (2, [(0, 1, 2, 3), (4, 5, 6, 7)]), (8, [(r,) for r in range(8)])]
)
def test_groups_that_share_an_expert(ep, groups):
    found = axis_groups(plan(tp=2, sp={"degree": 4}, ep=ep), "expert_tp", "all")
    assert found[: len(groups)] == groups
    assert sorted(rank for group in found for rank in group) == list(range(8))


def test_nodes_are_placed_in_program_order_rank_by_rank():
    build = BodyBuilder("test")
    first = build.add(node("one"), INPUT)
    build.add(node("two", axis="sp", op="all_gather"), first)
    build.add(node("three", where="s0"), first)
    placed = place(build.build(first), plan(tp=2, sp={"degree": 2}))
    assert [(item.node.name, item.members, item.s) for item in placed] == [
        ("one", (0,), (0,)),
        ("one", (1,), (0,)),
        ("one", (2,), (1,)),
        ("one", (3,), (1,)),
        ("two", (0, 2), (0, 1)),
        ("two", (1, 3), (0, 1)),
        ("three", (0,), (0,)),
        ("three", (1,), (0,)),
    ]


def test_a_graph_has_every_operator_once_per_rank():
    found = expand(blueprint(DENSE), plan())
    one = [found.symbols[symbol].name for symbol in found.symbol]
    assert one == [
        "schedule", "embedding",
        *["attention_norm", "qkv_proj", "rope", "kv_write", "kv_read", "attention_prefill", "o_proj", "attention_add",
          "ffn_norm", "ffn_up", "ffn_act", "ffn_down", "ffn_add"] * 2,
        "final_norm", "lm_head", "sample", "boundary",
    ]  # fmt: skip
    four = expand(blueprint(DENSE, tp=4), plan(tp=4))
    assert len(four) == 4 * len(one) + 6  # and all-reduces behind embedding, attention and FFN, and the logits' gather
    assert four.layer.tolist()[:9] == [-1] * 9
    assert sorted(dict.fromkeys(four.layer.tolist())) == [-1, 0, 1]


def test_layers_share_symbols_and_groups():
    found = expand(blueprint(DENSE, tp=2), plan(tp=2))
    assert found.groups == ((0,), (1,), (0, 1))
    first, second = (found.symbol[found.layer == layer] for layer in (0, 1))
    assert first.tolist() == second.tolist()


def test_a_layer_continues_on_what_the_one_before_left():
    found = expand(blueprint(DENSE, tp=2), plan(tp=2))
    names = [found.symbols[symbol].name for symbol in found.symbol]
    crossing = [
        (names[s], found.ranks_of(s), names[t], found.ranks_of(t))
        for s, t in zip(found.source.tolist(), found.target.tolist(), strict=True)
        if found.layer[s] == 0 and found.layer[t] == 1
    ]
    assert crossing == [
        ("ffn_add", (0,), "attention_norm", (0,)),
        ("ffn_add", (0,), "attention_add", (0,)),
        ("ffn_add", (1,), "attention_norm", (1,)),
        ("ffn_add", (1,), "attention_add", (1,)),
    ]


def test_stages_meet_at_sends_and_receives():
    both = plan(pp=2, tp=2)
    found = expand(blueprint(DENSE, pp=2, tp=2), both)
    sync = found.kind == EDGE_KINDS.index("sync")
    pairs = [
        (found.ranks_of(s), found.ranks_of(t)) for s, t in zip(found.source[sync], found.target[sync], strict=True)
    ]
    assert pairs == [((0,), (2,)), ((1,), (3,))]
    assert found.stream[found.source[sync]].tolist() == [STREAMS.index("send")] * 2
    assert found.stream[found.target[sync]].tolist() == [STREAMS.index("recv")] * 2


def test_one_stage_alone_has_its_own_ranks_and_no_rendezvous():
    both = plan(pp=2, tp=2)
    found = expand(blueprint(DENSE, pp=2, tp=2), both, [1])
    assert sorted({rank for group in found.groups for rank in group}) == [2, 3]
    assert EDGE_KINDS.index("sync") not in found.kind
    assert found.stage.tolist() == [1] * len(found)


def test_structural_nodes_have_no_stream():
    found = expand(blueprint(DENSE), plan())
    free = [found.symbols[found.symbol[n]].name for n in np.flatnonzero(found.stream < 0)]
    assert free == ["kv_read", "kv_read", "boundary"]


def test_streams_of_a_rank_are_in_program_order():
    found = graph([(0, 2)], streams=(0, 1, 0, 0, -1), groups=((0,), (1,), (0, 1)), group=(0, 0, 2, 1, 0))
    # stream 0 of rank 0 runs nodes 0 and 2, that of rank 1 nodes 2 and 3
    sources, targets = found.stream_order()
    assert list(zip(sources.tolist(), targets.tolist(), strict=True)) == [(0, 2), (2, 3)]


def test_in_edges_are_grouped_by_target():
    offsets, sources = graph([(0, 2), (0, 1), (1, 2)]).in_edges
    assert [sources[a:b].tolist() for a, b in pairwise(offsets)] == [[], [0], [0, 1]]


@pytest.mark.parametrize(
    ("edges", "extra", "acyclic"),
    [
        ([(0, 1), (1, 2)], None, True),
        ([(2, 1), (1, 0)], None, True),
        ([(0, 1), (1, 0)], None, False),
        ([(2, 1), (1, 0)], (0, 2), False),
        ([(1, 1)], None, False),
        ([], None, True),
    ],
)
def test_cycles_are_found(edges, extra, acyclic):
    added = None if extra is None else (np.array([extra[0]]), np.array([extra[1]]))
    assert is_acyclic(graph(edges), added) is acyclic


def test_replicas_have_the_same_graph_and_no_edge_between_them():
    one, two = expand(blueprint(MIXTURE), plan()), expand(blueprint(MIXTURE, dp=2), plan(dp=2))
    assert one.source.tolist() == two.source.tolist()
    assert one.groups == two.groups == ((0,),)
