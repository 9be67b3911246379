"""Segments of prompts, stages of layers, the mesh of ranks, and what a rank keeps in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graph_models import DENSE, GQA, LATENT, MIXTURE, MLA, WITH_SHARED, plan

from clustersim.model import Ffn, Layer
from clustersim.model.kv import kv_elements_per_token
from clustersim.model.weights import total_parameters
from clustersim.plan.memory import RankMemory, kv_elements_per_rank, kv_pool_blocks, stage_memory
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan
from clustersim.plan.pool import PoolRule
from clustersim.plan.segments import causal_pairs, count_between, segments
from clustersim.plan.stages import balanced_cuts, stage_cuts, stage_layers


def test_contiguous_segments_put_the_longer_ones_first():
    assert segments(7, 3, "contiguous") == [((0, 3),), ((3, 5),), ((5, 7),)]


def test_zigzag_pairs_an_early_run_with_a_late_one():
    assert segments(6, 3, "zigzag") == [((0, 1), (5, 6)), ((1, 2), (4, 5)), ((2, 3), (3, 4))]


@pytest.mark.parametrize("partition", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 31])
def test_segments_hold_every_token_once(count, partition):
    for sp in (1, 2, 3, 4):
        held = [token for rank in segments(count, sp, partition) for run in rank for token in range(*run)]
        assert sorted(held) == list(range(count))


def test_stripes_deal_tokens_out_in_turn():
    assert segments(5, 3, "striped") == [((0, 5, 3),), ((1, 5, 3),), ((2, 5, 3),)]


@pytest.mark.parametrize("window", [None, 1, 2, 5])
@pytest.mark.parametrize("keys", [(0, 4), (2, 5), (3, 3), (6, 9), (0, 9, 3), (2, 11, 3), (4, 4, 3)])
@pytest.mark.parametrize("queries", [(0, 9, 3), (1, 12, 3), (7, 20, 3), (5, 5, 3)])
def test_pairs_of_stripes_equal_those_of_the_mask(queries, keys, window):
    mask = [(q, k) for q in range(*queries) for k in range(*keys) if k <= q and (window is None or q - k < window)]
    assert causal_pairs(queries, keys, window) == len(mask)
    for low, high in ((0, 5), (3, 3), (4, 30), (9, 2)):
        assert count_between(queries, low, high) == sum(low <= q < high for q in range(*queries))


@pytest.mark.parametrize("sp", [2, 4])
def test_stripes_give_every_step_of_a_ring_nearly_as_many_pairs(sp):
    whole = sp * 5
    held = [part for (part,) in segments(whole, sp, "striped")]
    counts = [causal_pairs(mine, theirs) for mine in held for theirs in held]
    assert max(counts) - min(counts) == 5  # with the diagonal, or without it


@pytest.mark.parametrize("window", [None, 1, 2, 5])
@pytest.mark.parametrize("keys", [(0, 4), (2, 5), (3, 3), (6, 9)])
@pytest.mark.parametrize("queries", [(0, 4), (3, 7), (5, 5)])
def test_pairs_equal_those_of_the_mask(queries, keys, window):
    mask = [
        (q, k) for q in range(*queries) for k in range(*keys) if k <= q and (window is None or q - k < window)
    ]  # fmt: skip
    assert causal_pairs(queries, keys, window) == len(mask)


@pytest.mark.parametrize("sp", [2, 4])
def test_zigzag_gives_every_rank_as_many_pairs(sp):
    whole = 2 * sp * 5
    held = segments(whole, sp, "zigzag")
    counts = [sum(causal_pairs(part, (0, whole)) for part in parts) for parts in held]
    assert counts == [whole * (whole + 1) // 2 // sp] * sp


def test_contiguous_segments_give_the_last_rank_most_pairs():
    counts = [causal_pairs(part, (0, 8)) for (part,) in segments(8, 2, "contiguous")]
    assert counts == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8]


@pytest.mark.parametrize(("layers", "pp", "starts"), [(10, 4, [3, 6, 8]), (4, 1, []), (3, 3, [1, 2])])
def test_balanced_stages_differ_by_one_layer(layers, pp, starts):
    assert [(cut.layer, cut.before) for cut in balanced_cuts(layers, pp)] == [(start, "attention") for start in starts]


@pytest.mark.parametrize(("layers", "pp", "places"), [(2, 3, [2, 3]), (3, 5, [2, 3, 4, 5]), (2, 4, [1, 2, 3])])
def test_more_stages_than_layers_differ_by_one_module(layers, pp, places):
    assert [2 * cut.layer + (cut.before == "ffn") for cut in balanced_cuts(layers, pp)] == places


def test_stages_hold_every_module_once_in_order():
    cut = plan(pp=3, stages=(Cut(layer=0, before="ffn"), Cut(layer=1)))
    assert stage_cuts(DENSE, cut) == cut.stages
    assert stage_layers(DENSE, cut) == (
        ((0, "attention"),),
        ((0, "ffn"),),
        ((1, "attention"), (1, "ffn")),
    )


def test_cuts_sort_by_layer_and_print_as_scenarios_write_them():
    assert str(Cut(layer=12, before="ffn")) == "12.ffn"
    assert Cut(layer=3, before="ffn") < Cut(layer=4)


def test_ranks_count_tp_first_then_sp_stage_and_replica():
    mesh = Mesh(plan=plan(dp=2, pp=3, tp=2, sp={"degree": 2}))
    assert mesh.plan.world == 24
    assert (mesh.rank(t=1), mesh.rank(s=1), mesh.rank(stage=1), mesh.rank(replica=1)) == (1, 2, 4, 12)
    assert mesh.coordinates(23) == (1, 2, 1, 1)
    assert [
        mesh.rank(**dict(zip(("replica", "stage", "s", "t"), mesh.coordinates(r), strict=True))) for r in range(24)
    ] == [*range(24)]


def test_a_stage_is_placed_where_the_plan_says():
    packed = Mesh(plan=plan(pp=2, tp=2))
    assert packed.stage_devices(0, 1) == (2, 3)
    placed = Mesh(plan=plan(pp=2, tp=2, placement=(7, 5, 3, 1)))
    assert (placed.stage_devices(0, 0), placed.stage_devices(0, 1)) == ((7, 5), (3, 1))
    assert placed.stage_base(0, 1) == 2


@pytest.mark.parametrize(
    ("degrees", "share"),
    [
        ({}, 1),
        ({"tp": 4}, 4),
        ({"tp": 4, "ep": 2}, 2),
        ({"tp": 2, "sp": {"degree": 2}, "ep": 4}, 1),
        ({"tp": 2, "sp": {"degree": 2}, "ep": 1}, 2),
    ],
)
def test_ranks_that_share_an_expert(degrees, share):
    assert plan(**degrees).expert_tp == share


def memory(model, **degrees):
    """Return what a rank of each stage keeps, at one byte per number."""
    return memory_of(model, plan(**degrees))


def memory_of(model, of_plan, expert_tokens=None):
    return stage_memory(
        model,
        of_plan,
        format_of=lambda linear, part: ("fp8", 1.0),
        activation_bytes=1.0,
        kv_bytes=1.0,
        max_batch_tokens=4,
        max_batch_requests=3,
        rule=PoolRule(expert_tokens=expert_tokens),
    )


@pytest.mark.parametrize("model", [DENSE, MIXTURE, WITH_SHARED, LATENT, replace(DENSE, tied_embeddings=True)])
def test_one_rank_keeps_all_weights_and_all_of_the_cache(model):
    (rank,) = memory(model)
    assert rank.weights_bytes == total_parameters(model)
    assert rank.kv_bytes_per_token == sum(kv_elements_per_token(layer.attention) for layer in model.layers)


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_stages_keep_all_weights_between_them(model):
    stages = memory(model, pp=2, stages=(Cut(layer=0, before="ffn"),))
    assert sum(rank.weights_bytes for rank in stages) == total_parameters(model)
    assert [rank.kv_bytes_per_token for rank in stages] == [8, 8]


def test_a_tied_head_on_another_stage_needs_the_embedding_there_too():
    tied = replace(DENSE, tied_embeddings=True)
    stages = memory(tied, pp=2)
    assert sum(rank.weights_bytes for rank in stages) == total_parameters(tied) + 10 * 100


def test_tp_divides_matrices_and_leaves_norms_whole():
    # embedding and head 1000 each; a layer: norms 2 × 10, q 80, k and v 40 each, o 80, three of 120
    (rank,) = memory(DENSE, tp=2)
    assert rank.weights_bytes == (2000 + 2 * (80 + 80 + 80 + 360)) / 2 + 5 * 10


def test_tp_beyond_the_kv_heads_repeats_them():
    # per rank one of 2 K/V heads: k and v of 10 × 2 each
    (rank,) = memory(DENSE, tp=4)
    assert rank.weights_bytes == (2000 + 2 * (80 + 80 + 360)) / 4 + 2 * (20 + 20) + 5 * 10
    assert rank.kv_bytes_per_token == 2 * (2 + 2)


def test_sp_divides_neither_weights_nor_cache():
    (whole,), (divided,) = memory(DENSE), memory(DENSE, sp={"degree": 4})
    assert divided.weights_bytes == whole.weights_bytes
    assert divided.kv_bytes_per_token == whole.kv_bytes_per_token


def test_ep_divides_experts_only():
    # a layer's experts: 4 × 3 × 60; half of them leave each rank
    (dense,), (mixture,) = memory(MIXTURE, tp=2), memory(MIXTURE, tp=2, ep=2)
    assert dense.weights_bytes == mixture.weights_bytes  # half of all four experts, or two whole ones
    (one,), (two,) = (memory(MIXTURE, sp={"degree": 2}, ep=ep) for ep in (1, 2))
    assert one.weights_bytes - two.weights_bytes == 2 * (4 * 3 * 60) / 2


def test_the_gate_of_shared_experts_is_on_every_rank():
    (rank,) = memory(WITH_SHARED, tp=2)
    # embedding, head, attention; experts 4 × 180 and shared 240; router 40 and gate 10 and norms 3 × 10 whole
    assert rank.weights_bytes == (2000 + 240 + 720 + 240) / 2 + 40 + 10 + 30


@pytest.mark.parametrize(("attention", "tp", "elements"), [(GQA, 1, 8), (GQA, 2, 4), (GQA, 4, 4), (MLA, 4, 8)])
def test_cache_elements_of_one_rank(attention, tp, elements):
    assert kv_elements_per_rank(attention, tp) == elements


def test_buffers_are_for_the_largest_batch():
    (rank,) = memory(DENSE)
    # of 4 tokens five vectors of the hidden size and the widest result, three times 12; of 3 requests 100 logits
    assert rank.buffers_bytes == 4 * (5 * 10 + 36) + 3 * 100 * 4
    narrow = replace(DENSE, layers=(Layer(attention=GQA, ffn=Ffn(intermediate=2)),))
    # the widest is attention: queries and result of 4 heads, keys and values of 2, of 2 elements each
    assert memory(narrow)[0].buffers_bytes == 4 * (5 * 10 + (4 + 2) * (2 + 2)) + 3 * 100 * 4


def test_only_the_last_stage_has_logits_and_only_sp_exposes_the_cache():
    first, last = memory(DENSE, pp=2)
    assert (first.buffers_bytes, last.buffers_bytes) == (4 * (50 + 36), 4 * (50 + 36) + 1200)
    (exposed,) = memory(DENSE, sp={"degree": 2})
    assert exposed.buffers_bytes == 4 * (50 + 36 + 8) + 1200  # K and V of 2 heads of 2


def test_experts_may_all_be_sent_to_one_rank():
    (rank,) = memory(MIXTURE, tp=2, ep=2)
    # each token with 2 of 4 experts of 6: what came in and three results
    assert rank.buffers_bytes == 4 * (50 + 2 * (10 + 3 * 6)) + 1200


def test_replicas_that_gather_tokens_have_room_for_those_of_all():
    shared = ParallelPlan(dp=2, ep=ExpertPlan(degree=2, scope="global", exchange="all_gather"))
    (rank,) = memory_of(MIXTURE, shared)
    # 2 × 4 tokens are gathered, and as many results summed; with 2 of 4 experts each
    assert rank.buffers_bytes == 4 * 50 + 2 * 8 * 10 + 8 * 2 * (10 + 3 * 6) + 1200
    (rank,) = memory_of(MIXTURE, shared, expert_tokens=5)  # experts take 5 of them at once
    assert rank.buffers_bytes == 4 * 50 + 2 * 8 * 10 + 5 * 2 * (10 + 3 * 6) + 1200


def rank(weights, kv):
    return RankMemory(weights_bytes=weights, buffers_bytes=10.0, kv_bytes_per_token=kv)


def test_the_pool_is_what_the_fullest_rank_leaves():
    # 0.5 × 200 − 50 − 10 = 40 bytes at 2 × 4 a block, or 100 − 60 − 10 = 30 at 1 × 4
    ranks = (rank(50.0, 2.0), rank(60.0, 1.0), rank(60.0, 0.0))
    assert kv_pool_blocks(ranks, device_bytes=200, utilization=0.5, block_tokens=4, rule=PoolRule()) == 5
    assert kv_pool_blocks(ranks[1:], device_bytes=200, utilization=0.5, block_tokens=4, rule=PoolRule()) == 7


def test_the_pool_is_negative_when_weights_do_not_fit():
    assert kv_pool_blocks((rank(200.0, 1.0),), device_bytes=200, utilization=0.5, block_tokens=4, rule=PoolRule()) < 0
