"""Shrunken models keep the structure of the original."""

from __future__ import annotations

import pytest
from model_configs import GPT_OSS, LATENT, LLAMA, OPT, QWEN_MOE

from clustersim.errors import InputError
from clustersim.model import Ffn, Moe, model_from_config, tiny
from clustersim.model.weights import total_parameters


def read(config, **changes):
    return model_from_config(config | changes, "toy")


def problems(model, **sizes):
    with pytest.raises(InputError) as caught:
        tiny(model, **sizes)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_tiny_has_the_sizes_that_were_asked_for():
    small = tiny(read(LLAMA), layers=3, hidden=48, head_dim=8, intermediate=24, vocab=50, positions=99)
    assert (small.hidden, small.vocab, len(small.layers), small.max_positions) == (48, 50, 3, 99)
    assert (small.layers[0].attention.head_dim, small.layers[0].ffn.intermediate) == (8, 24)
    assert small.name == "toy-tiny"


@pytest.mark.parametrize(("heads", "found"), [(None, (8, 2)), (4, (4, 1)), (16, (16, 4))])
def test_tiny_keeps_the_query_heads_per_kv_head(heads, found):
    attention = tiny(read(LLAMA), heads=heads).layers[0].attention
    assert (attention.num_heads, attention.num_kv_heads) == found


def test_tiny_keeps_one_kv_head():
    attention = tiny(read(LLAMA, num_key_value_heads=1), heads=6).layers[0].attention
    assert (attention.kind, attention.num_heads, attention.num_kv_heads) == ("mqa", 6, 1)


@pytest.mark.parametrize(
    ("experts", "top_k", "asked", "found"),
    [
        (8, 2, None, (8, 2)),
        (128, 8, None, (32, 2)),
        (64, 6, None, (32, 3)),
        (128, 8, 16, (16, 1)),
        (4, 4, None, (2, 2)),
    ],
)
def test_tiny_keeps_the_experts_per_token(experts, top_k, asked, found):
    moe = tiny(read(QWEN_MOE, num_experts=experts, num_experts_per_tok=top_k), experts=asked).layers[0].ffn
    assert (moe.num_experts, moe.top_k) == found


def test_tiny_keeps_dense_layers_before_experts_and_shared_ones():
    small = tiny(read(LATENT, num_hidden_layers=61, first_k_dense_replace=3))
    assert [type(layer.ffn) for layer in small.layers] == [Ffn, Moe]
    moe = small.layers[1].ffn
    assert (moe.num_shared_experts, moe.shared_intermediate, moe.expert_intermediate) == (2, 32, 16)


def test_tiny_gives_more_layers_to_longer_runs():
    small = tiny(read(LATENT, num_hidden_layers=61, first_k_dense_replace=3), layers=5)
    assert [type(layer.ffn) for layer in small.layers] == [Ffn, Moe, Moe, Moe, Moe]


def test_tiny_keeps_sliding_and_full_layers_in_turn():
    small = tiny(read(GPT_OSS), layers=3, sliding_window=5)
    assert [layer.attention.sliding_window for layer in small.layers] == [5, None, 5]


def test_tiny_keeps_latent_attention_and_its_unequal_widths():
    attention = tiny(read(LATENT)).layers[0].attention
    assert (attention.kind, attention.num_heads, attention.num_kv_heads) == ("mla", 4, 1)
    assert (attention.qk_nope_head_dim, attention.qk_rope_head_dim) == (4, 2)
    assert (attention.head_dim, attention.v_head_dim, attention.kv_lora_rank) == (6, 4, 8)
    assert attention.q_lora_rank == 16
    assert tiny(read(LATENT, q_lora_rank=None)).layers[0].attention.q_lora_rank is None


def test_tiny_keeps_learned_positions_norms_and_tying():
    small = tiny(read(OPT), positions=30)
    assert (small.learned_positions, small.norm, small.tied_embeddings) == (32, "layer", True)


@pytest.mark.parametrize("config", [LLAMA, QWEN_MOE, LATENT, GPT_OSS, OPT])
def test_tiny_of_tiny_is_itself(config):
    small = tiny(read(config))
    assert tiny(small).layers == small.layers


def test_tiny_is_tiny():
    assert total_parameters(tiny(read(QWEN_MOE))) < 100_000


def test_tiny_gives_layers_to_each_run_in_proportion_to_what_is_left():
    types = ["sliding_attention"] * 3 + ["full_attention"] * 4
    small = tiny(read(GPT_OSS, num_hidden_layers=7, layer_types=types), layers=5)
    assert [layer.attention.sliding_window for layer in small.layers] == [4, 4, None, None, None]


def test_tiny_cuts_alternating_layers_after_one_of_each_kind():
    assert [layer.attention.sliding_window for layer in tiny(read(GPT_OSS)).layers] == [4, None]


def test_tiny_of_few_kv_heads_keeps_mqa():
    assert tiny(read(LLAMA, num_key_value_heads=1)).layers[0].attention.num_heads == 4


def test_tiny_allows_sizes_of_one():
    small = tiny(read(LLAMA), hidden=1, intermediate=1, vocab=1, positions=1)
    assert (small.hidden, small.vocab) == (1, 1)


def test_tiny_without_learned_positions_has_none():
    assert tiny(read(LLAMA)).learned_positions == 0


def test_tiny_of_one_layer_has_one():
    assert len(tiny(read(LLAMA, num_hidden_layers=1)).layers) == 1


@pytest.mark.parametrize(
    ("sizes", "path", "part"),
    [
        ({"hidden": 0}, "hidden", "0 is not positive"),
        ({"head_dim": 6}, "head_dim", "6 is no multiple of 4"),
        ({"heads": 3}, "heads", "3 is no multiple of the 4 query heads"),
        ({"experts": 6}, "experts", "ratio 4 of 16; use a multiple of 4"),
        ({"layers": 9}, "layers", "9 is not between 1 (one of each kind) and 4"),
    ],
)
def test_tiny_refuses_what_would_change_the_structure(sizes, path, part):
    assert part in problems(read(QWEN_MOE), **sizes)[path]


def test_tiny_refuses_too_few_layers_for_each_kind():
    assert list(problems(read(LATENT), layers=1)) == ["layers"]
