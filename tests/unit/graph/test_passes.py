"""What each primitive does to the graph of small models: shards, collectives, payloads, stages.

Numbers: hidden 10, 4 query and 2 K/V heads of 2, FFN 12, two bytes each (see ``graph_models``).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from graph_models import BF16, DENSE, GQA, LATENT, MIXTURE, WITH_SHARED, blueprint, body, edges, names, node, plan

from clustersim.cost.precision import Precision
from clustersim.graph.expand import blueprint_of
from clustersim.graph.operators import single_device
from clustersim.graph.passes.data import data_pass
from clustersim.model import Ffn, Layer
from clustersim.plan.parallel import Cut, ParallelPlan, TensorSplit


def collectives(found):
    return [(n.name, n.op, n.axis) for n in found.nodes if n.is_collective]


# --- one device -------------------------------------------------------------------------------------------------


def test_attention_of_one_device():
    found = body(blueprint(DENSE, "mixed"), "attention")
    assert edges(found) == {
        ("in", "attention_norm", "data"),
        ("attention_norm", "qkv_proj", "data"),
        ("qkv_proj", "rope", "data"),
        ("rope", "kv_write", "data"),
        ("rope", "attention_prefill", "data"),
        ("rope", "attention_decode", "data"),
        ("kv_write", "attention_prefill", "kv"),
        ("kv_write", "attention_decode", "kv"),
        ("kv_read", "attention_prefill", "kv"),
        ("kv_read", "attention_decode", "kv"),
        ("attention_prefill", "o_proj", "data"),
        ("attention_decode", "o_proj", "data"),
        ("o_proj", "attention_add", "data"),
        ("in", "attention_add", "data"),
    }
    assert (node(found, "qkv_proj").n, node(found, "qkv_proj").k) == (8 + 4 + 4, 10)
    assert (node(found, "o_proj").n, node(found, "o_proj").k) == (10, 8)


@pytest.mark.parametrize(
    ("kind", "cores"), [("prefill", {"prefill"}), ("decode", {"decode"}), ("mixed", {"prefill", "decode"})]
)
def test_a_step_has_the_attention_that_it_carries(kind, cores):
    found = names(body(blueprint(DENSE, kind), "attention"))
    assert {name.removeprefix("attention_") for name in found} & {"prefill", "decode"} == cores


@pytest.mark.parametrize(("kind", "present"), [("prefill", True), ("mixed", True), ("decode", False)])
def test_only_prefill_ends_in_a_boundary(kind, present):
    found = body(blueprint(DENSE, kind), "lm_head")
    assert (("sample", "boundary", "boundary") in edges(found)) is present


def test_latents_are_expanded_in_prefill_and_absorbed_in_decode():
    found = body(blueprint(LATENT, "mixed"), "attention")
    assert node(found, "kv_b_proj").amount == (("prefill_keys", 1.0),)
    assert (node(found, "kv_b_proj").n, node(found, "kv_b_proj").k) == (4 * (4 + 3), 7)
    prefill, decode = node(found, "attention_prefill"), node(found, "attention_decode")
    assert (prefill.kv_heads, prefill.qk_dim, prefill.v_dim, prefill.shared_kv) == (4, 5, 3, False)
    assert (decode.kv_heads, decode.qk_dim, decode.v_dim, decode.shared_kv) == (1, 8, 7, True)
    assert {("kv_b_proj", "attention_prefill", "data"), ("q_absorb", "attention_decode", "data")} <= edges(found)
    assert ("kv_b_proj", "attention_decode", "data") not in edges(found)
    readers = {"kv_b_proj", "attention_prefill", "attention_decode"}
    assert {edge for edge in edges(found) if edge[2] == "kv"} == {
        (source, reader, "kv") for source in ("kv_write", "kv_read") for reader in readers
    }


def test_experts_work_once_per_token_and_choice():
    found = body(blueprint(MIXTURE), "moe")
    assert names(found) == [
        "moe_norm", "gate", "dispatch", "expert_up", "expert_act", "expert_down", "combine", "aggregate", "moe_add",
    ]  # fmt: skip
    assert node(found, "expert_up").amount == (("tokens", 2.0),)
    assert (node(found, "expert_up").n, node(found, "expert_up").k, node(found, "expert_up").experts) == (12, 10, 4)


def test_shared_experts_run_beside_the_routed_ones():
    found = edges(body(blueprint(WITH_SHARED), "moe"))
    assert {
        ("moe_norm", "shared_up", "data"),
        ("aggregate", "shared_add", "data"),
        ("shared_down", "shared_add", "data"),
        ("shared_add", "moe_add", "data"),
    } <= found


def test_the_gate_of_shared_experts_scales_them():
    found = body(blueprint(WITH_SHARED), "moe")
    assert (node(found, "shared_gate").n, node(found, "shared_gate").k) == (1, 10)
    assert {("moe_norm", "shared_gate", "data"), ("shared_gate", "shared_act", "data")} <= edges(found)


def test_equal_layers_share_bodies():
    units = blueprint(DENSE, tp=2).stages[0]
    attention = [unit.body for unit in units if unit.body.name == "attention"]
    assert len(attention) == 2
    assert attention[0] is attention[1]


# --- tensor -----------------------------------------------------------------------------------------------------


def test_tp_splits_matrices_and_heads():
    found = body(blueprint(DENSE, tp=2), "attention")
    qkv, core, out = (node(found, name) for name in ("qkv_proj", "attention_prefill", "o_proj"))
    assert (qkv.n, qkv.k, qkv.copies) == (8, 10, 1)
    assert (core.heads, core.kv_heads) == (2, 1)
    assert (out.n, out.k) == (10, 4)
    assert node(found, "attention_norm").copies == 2


def test_the_usual_split_reduces_once_per_attention_and_once_per_ffn():
    found = blueprint(DENSE, tp=2)
    assert collectives(body(found, "attention")) == [("o_proj_all_reduce", "all_reduce", "tp")]
    assert collectives(body(found, "ffn")) == [("ffn_down_all_reduce", "all_reduce", "tp")]
    assert node(body(found, "attention"), "o_proj_all_reduce").amount == (("tokens", 20.0),)
    assert {("o_proj", "o_proj_all_reduce", "data"), ("o_proj_all_reduce", "attention_add", "data")} <= edges(
        body(found, "attention")
    )


@pytest.mark.parametrize(
    ("split", "module", "found"),
    [
        (TensorSplit(embedding="hidden"), "embedding", [("embedding_all_gather", "all_gather", "tp")]),
        (TensorSplit(), "embedding", [("embedding_all_reduce", "all_reduce", "tp")]),
        (TensorSplit(lm_head="hidden"), "lm_head", [("lm_head_all_reduce", "all_reduce", "tp")]),
        (TensorSplit(), "lm_head", [("lm_head_all_gather", "all_gather", "tp")]),
        (
            TensorSplit(attention_out="columns"),
            "attention",
            [("attention_prefill_all_gather", "all_gather", "tp"), ("o_proj_all_gather", "all_gather", "tp")],
        ),
        (
            TensorSplit(ffn_up="rows"),
            "ffn",
            [("ffn_up_reduce_scatter", "reduce_scatter", "tp"), ("ffn_down_all_reduce", "all_reduce", "tp")],
        ),
        (
            TensorSplit(ffn_down="columns"),
            "ffn",
            [("ffn_act_all_gather", "all_gather", "tp"), ("ffn_down_all_gather", "all_gather", "tp")],
        ),
    ],
)
def test_other_splits_put_values_together_where_they_must(split, module, found):
    assert collectives(body(blueprint(DENSE, tp=2, split=split), module)) == found


@pytest.mark.parametrize(
    ("split", "module", "name", "elements"),
    [
        (TensorSplit(attention_out="columns"), "attention", "attention_prefill_all_gather", 8),
        (TensorSplit(ffn_up="rows"), "ffn", "ffn_up_reduce_scatter", 24),
        (TensorSplit(ffn_down="columns"), "ffn", "ffn_act_all_gather", 12),
        (TensorSplit(lm_head="hidden"), "lm_head", "lm_head_all_reduce", 100),
    ],
)
def test_payloads_are_the_whole_value(split, module, name, elements):
    ((_, coefficient),) = node(body(blueprint(DENSE, tp=2, split=split), module), name).amount
    assert coefficient == elements * 2


def test_kv_heads_are_repeated_where_tp_exceeds_them():
    found = body(blueprint(DENSE, tp=4), "attention")
    write = node(found, "kv_write")
    assert (node(found, "qkv_proj").n, write.kv_heads, write.copies) == (2 + 2 + 2, 1, 2)
    assert node(body(blueprint(DENSE, tp=2), "attention"), "kv_write").copies == 1


def test_latents_are_on_every_tp_rank():
    found = body(blueprint(LATENT, tp=2), "attention")
    assert [node(found, name).copies for name in ("q_a_proj", "kv_a_proj", "kv_write")] == [2, 2, 2]
    assert node(found, "q_b_proj").n == 4 * 5 / 2
    assert collectives(found) == [("o_proj_all_reduce", "all_reduce", "tp")]


def test_tp_inside_experts_reduces_after_the_combine():
    found = body(blueprint(MIXTURE, tp=2), "moe")
    assert collectives(found) == [("aggregate_all_reduce", "all_reduce", "tp")]
    assert (node(found, "expert_up").n, node(found, "expert_down").k, node(found, "expert_up").experts) == (6, 3, 4)


def test_routed_and_shared_experts_share_one_reduction():
    found = body(blueprint(WITH_SHARED, tp=2), "moe")
    assert collectives(found) == [("shared_add_all_reduce", "all_reduce", "tp")]
    assert node(found, "shared_gate").copies == 2


# --- pipeline ---------------------------------------------------------------------------------------------------


def test_stages_are_joined_by_send_and_receive():
    found = blueprint(DENSE, pp=2, tp=2)
    assert [[unit.body.name for unit in stage] for stage in found.stages] == [
        ["schedule", "embedding", "attention", "ffn", "send"],
        ["recv", "attention", "ffn", "lm_head"],
    ]
    assert body(found, "send").nodes[0].amount == (("tokens", 20.0),)
    assert body(found, "send").nodes[0].stream == "send"


def test_a_cut_may_fall_between_attention_and_ffn():
    found = blueprint(DENSE, pp=2, stages=(Cut(layer=0, before="ffn"),))
    assert [(unit.layer, unit.body.name) for unit in found.stages[0]][-2:] == [(0, "attention"), (-1, "send")]
    assert [(unit.layer, unit.body.name) for unit in found.stages[1]][:2] == [(-1, "recv"), (0, "ffn")]


# --- sequence ---------------------------------------------------------------------------------------------------


def test_all_gather_exposes_keys_and_values_once():
    found = body(blueprint(DENSE, sp={"degree": 2}), "attention")
    assert collectives(found) == [("kv_all_gather", "all_gather", "sp")]
    assert node(found, "kv_all_gather").amount == (("exposed_tokens", (4 + 4) * 2.0),)
    assert {("rope", "kv_all_gather", "data"), ("kv_all_gather", "attention_prefill", "kv")} <= edges(found)
    assert ("kv_read", "kv_all_gather", "kv") in edges(found)


def test_a_ring_passes_segments_while_attention_works():
    found = body(blueprint(DENSE, sp={"degree": 3, "scheme": "ring"}), "attention")
    assert collectives(found) == [("kv_ring_1", "ring_shift", "sp"), ("kv_ring_2", "ring_shift", "sp")]
    assert [node(found, f"attention_prefill_{step}").variant.text for step in range(3)] == ["#0", "#1", "#2"]
    assert {
        ("kv_ring_1", "kv_ring_2", "kv"),
        ("kv_ring_1", "attention_prefill_1", "kv"),
        ("kv_ring_2", "attention_prefill_2", "kv"),
        ("attention_prefill_0", "attention_prefill_1", "data"),
        ("attention_prefill_2", "o_proj", "data"),
    } <= edges(found)
    assert ("kv_ring_1", "attention_prefill_0", "kv") not in edges(found)
    assert node(found, "kv_ring_2").amount == (("ring_tokens", 16.0),)


def test_all_to_all_turns_tokens_into_heads_and_back():
    found = body(blueprint(DENSE, sp={"degree": 2, "scheme": "all_to_all"}), "attention")
    assert collectives(found) == [("qkv_all_to_all", "all_to_all", "sp"), ("out_all_to_all", "all_to_all", "sp")]
    assert node(found, "qkv_all_to_all").amount == (("segment_tokens", (8 + 8) * 2.0), ("context_tokens", 8 * 2.0))
    assert node(found, "out_all_to_all").amount == (("segment_tokens", 16.0),)
    core = node(found, "attention_prefill")
    assert (core.heads, core.kv_heads, core.variant.text, core.amount) == (2, 1, "*", (("all_prefill_tokens", 1.0),))


def test_all_to_all_sends_a_key_to_every_rank_that_attends_with_it():
    found = body(blueprint(DENSE, sp={"degree": 4, "scheme": "all_to_all"}), "attention")
    # four ranks with a query head each: two for either K/V head
    assert node(found, "qkv_all_to_all").amount == (("segment_tokens", (8 + 4 * 4) * 2.0), ("context_tokens", 16 * 2.0))
    assert node(found, "attention_prefill").kv_heads == 1


def test_all_to_all_shares_keys_between_neighbours_whose_heads_need_them():
    wide = replace(
        DENSE, layers=(Layer(attention=replace(GQA, num_heads=12, num_kv_heads=4), ffn=Ffn(intermediate=12)),)
    )
    found = body(blueprint(wide, sp={"degree": 3, "scheme": "all_to_all"}), "attention")
    # query heads 0–3, 4–7, 8–11 attend with K/V heads 0–1, 1–2, 2–3
    assert node(found, "attention_prefill").kv_heads == 2
    assert node(found, "qkv_all_to_all").amount[0] == ("segment_tokens", (24 + 6 * 4) * 2.0)


def test_latents_are_gathered_before_they_are_expanded():
    found = body(blueprint(LATENT, sp={"degree": 2}), "attention")
    assert node(found, "kv_all_gather").amount == (("exposed_tokens", 16.0),)
    assert ("kv_all_gather", "kv_b_proj", "kv") in edges(found)


@pytest.mark.parametrize(
    ("decode", "op", "moved"), [("idle", "gather", "all_prefill_tokens"), ("dp", "all_to_all", "segment_tokens")]
)
def test_keys_and_values_move_to_where_decode_reads_them(decode, op, moved):
    head = body(blueprint(DENSE, sp={"degree": 2, "decode": decode}), "lm_head")
    move = node(head, "kv_move")
    assert (move.op, move.axis) == (op, "sp")
    assert move.amount == ((moved, 2 * 8 * 2.0),)  # two layers
    assert {("in", "kv_move", "kv"), ("kv_move", "boundary", "boundary"), ("sample", "boundary", "boundary")} <= edges(
        head
    )


def test_each_stage_moves_its_own_layers_up_to_a_boundary():
    found = blueprint(DENSE, pp=2, sp={"degree": 2})
    assert [unit.body.name for unit in found.stages[0]][-3:] == ["ffn", "kv_move", "send"]
    assert edges(body(found, "kv_move")) == {("in", "kv_move", "kv"), ("kv_move", "boundary", "boundary")}
    assert node(body(found, "kv_move"), "kv_move").amount == (("all_prefill_tokens", 16.0),)
    assert node(body(found, "lm_head", 1), "kv_move").amount == (("all_prefill_tokens", 16.0),)


def test_a_stage_without_attention_moves_nothing():
    cuts = (Cut(layer=0, before="ffn"), Cut(layer=1))
    found = blueprint(DENSE, pp=3, stages=cuts, sp={"degree": 2})
    assert [unit.body.name for unit in found.stages[1]] == ["recv", "ffn", "send"]


def test_decode_of_idle_ranks_is_on_the_first():
    found = blueprint(DENSE, "decode", sp={"degree": 2, "decode": "idle"})
    assert {n.where for unit in found.stages[0] for n in unit.body.nodes} == {"s0"}


def test_decode_of_spread_sequences_is_on_all():
    found = blueprint(DENSE, "decode", sp={"degree": 2, "decode": "dp"})
    assert {n.where for unit in found.stages[0] for n in unit.body.nodes} == {"all"}
    assert not [n for unit in found.stages[0] for n in unit.body.nodes if n.axis == "sp"]


def test_mixed_steps_decode_on_the_first_rank_and_prefill_on_all():
    found = body(blueprint(DENSE, "mixed", sp={"degree": 2, "decode": "idle"}), "attention")
    assert (node(found, "attention_decode").where, node(found, "attention_prefill").where) == ("s0", "all")


# --- experts ----------------------------------------------------------------------------------------------------


def test_experts_are_reached_by_all_to_all():
    found = body(blueprint(MIXTURE, tp=2, ep=2), "moe")
    assert collectives(found) == [
        ("dispatch", "all_to_all", "stage"),
        ("combine", "all_to_all", "stage"),
        ("aggregate_all_gather", "all_gather", "tp"),
    ]
    # each of two ranks sends its half of the tokens to two experts each, and has half of all visits
    assert node(found, "dispatch").amount == node(found, "combine").amount == (("peak_tokens", 2 * 10 * 2 / 2),)
    up = node(found, "expert_up")
    assert (up.amount, up.n, up.experts) == ((("stage_tokens", 1.0),), 12, 2)


def test_experts_that_ranks_share_are_reduced_among_them():
    found = body(blueprint(MIXTURE, tp=4, ep=2), "moe")
    assert ("expert_down_all_reduce", "all_reduce", "expert_tp") in collectives(found)
    assert node(found, "expert_up").n == 6
    assert node(found, "expert_down_all_reduce").amount == (("stage_tokens", 2 * 10 * 2 / 2),)
    # a token goes to both ranks that share its expert
    assert node(found, "dispatch").amount == (("peak_tokens", 2 * (2 * 10 * 2 / 4)),)


def test_experts_leave_attention_as_it_was():
    assert body(blueprint(MIXTURE, tp=2, ep=2), "attention") == body(blueprint(MIXTURE, tp=2), "attention")


def test_idle_ranks_of_decode_still_hold_experts():
    found = body(blueprint(MIXTURE, "decode", ep=2, sp={"degree": 2, "decode": "idle"}), "moe")
    assert [n.name for n in found.nodes if n.where == "all"] == [
        "dispatch", "expert_up", "expert_act", "expert_down", "combine",
    ]  # fmt: skip


def test_dense_models_ignore_the_expert_pass():
    mixed = blueprint(DENSE, tp=2, ep=2)
    assert body(mixed, "ffn") == body(blueprint(DENSE, tp=2), "ffn")


# --- data, precision --------------------------------------------------------------------------------------------


def test_replicas_repeat_the_graph():
    one = single_device(DENSE, BF16, "prefill")
    two = data_pass(one, ParallelPlan(dp=2))
    assert (two.replicas, two.stages) == (2, one.stages)


def test_axes_of_the_plan_are_noted():
    found = blueprint(MIXTURE, tp=2, dp=3, ep=2, sp={"degree": 2})
    assert (found.tp, found.sp, found.expert_tp, found.replicas) == (2, 2, 2, 3)


def test_bytes_follow_the_number_formats():
    narrow = blueprint_of(DENSE, plan(tp=2), Precision(activations="fp8", kv_cache="fp32"), "prefill")
    assert node(body(narrow, "attention"), "o_proj_all_reduce").amount == (("tokens", 10.0),)
    # of a rank's K/V head 2 + 2 elements: read as activations, written to the cache
    assert node(body(narrow, "attention"), "kv_write").amount == (("tokens", 4 * (1.0 + 4.0)),)
