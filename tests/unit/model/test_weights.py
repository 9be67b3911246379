"""Parameters of each module of models of round numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_configs import GPT_OSS, LATENT, LLAMA, OPT, QWEN_MOE

from clustersim.model import model_from_config
from clustersim.model.weights import (
    active_parameters,
    attention_linears,
    attention_parameters,
    embedding_parameters,
    expert_parameters,
    ffn_parameters,
    layer_parameters,
    lm_head_parameters,
    moe_parameters,
    norm_parameters,
    router_parameters,
    shared_expert_parameters,
    total_parameters,
)


def read(config, **changes):
    return model_from_config(config | changes, "toy")


def shapes(model, layer=0):
    linears = attention_linears(model, model.layers[layer].attention)
    return {linear.name: (linear.inputs, linear.outputs) for linear in linears}


def of_attention(model, layer=0):
    return attention_parameters(model, model.layers[layer].attention)


def test_grouped_attention_fuses_q_k_and_v():
    model = read(LLAMA)  # 8 query heads, 2 keys, 2 values of 8
    assert shapes(model) == {"qkv_proj": (64, 96), "o_proj": (64, 64)}
    assert of_attention(model) == 64 * 96 + 64 * 64


def test_biases_count_one_per_output():
    plain, biased = read(LLAMA), read(LLAMA, attention_bias=True)
    assert of_attention(biased) - of_attention(plain) == 96 + 64


def test_query_and_key_norms_count_one_head_each():
    plain, normed = read(LLAMA), read(LLAMA, model_type="qwen3")
    assert of_attention(normed) - of_attention(plain) == 8 + 8


def test_sinks_count_one_per_head():
    model = read(GPT_OSS)  # heads of 10: q 80, k 20, v 20; biases 120 and 64
    assert of_attention(model) == 64 * 120 + 120 + 80 * 64 + 64 + 8


def test_latent_attention_has_down_and_up_projections_and_norms():
    model = read(LATENT)  # heads of 8 + 4 and values of 6; latents of 30 and 20
    assert shapes(model) == {
        "q_a_proj": (64, 30),
        "q_b_proj": (30, 48),
        "kv_a_proj": (64, 24),
        "kv_b_proj": (20, 56),
        "o_proj": (24, 64),
    }
    assert of_attention(model) == 64 * 30 + 30 * 48 + 64 * 24 + 20 * 56 + 24 * 64 + 30 + 20


def test_latent_attention_without_compressed_queries():
    assert shapes(read(LATENT, q_lora_rank=None))["q_b_proj"] == (64, 48)


def test_gated_ffn_has_three_matrices_and_a_plain_one_two():
    gated, plain = read(LLAMA), read(OPT)
    assert ffn_parameters(gated, gated.layers[0].ffn) == 3 * 64 * 100
    assert ffn_parameters(plain, plain.layers[0].ffn) == 2 * 64 * 256 + 256 + 64


def test_moe_is_router_experts_and_shared_experts():
    model = read(LATENT)
    moe = model.layers[1].ffn
    assert router_parameters(model, moe) == 64 * 16 + 16
    assert expert_parameters(model, moe) == 3 * 64 * 10
    assert shared_expert_parameters(model, moe) == 3 * 64 * 20
    assert moe_parameters(model, moe) == 1040 + 16 * 1920 + 3840


def test_shared_gate_counts_one_weight_per_hidden():
    model = read(QWEN_MOE, model_type="qwen2_moe", shared_expert_intermediate_size=40)
    assert shared_expert_parameters(model, model.layers[0].ffn) == 3 * 64 * 40 + 64


def test_moe_without_shared_experts_counts_none():
    model = read(QWEN_MOE)
    assert shared_expert_parameters(model, model.layers[0].ffn) == 0


def test_layer_norm_has_biases():
    assert (norm_parameters(read(LLAMA)), norm_parameters(read(OPT))) == (64, 128)


def test_layer_has_two_norms():
    model = read(LLAMA)
    assert layer_parameters(model, model.layers[0]) == 64 * 160 + 3 * 6400 + 2 * 64


def test_layer_with_norms_behind_its_modules_has_four():
    model = read(LLAMA)
    layer = replace(model.layers[0], post_norms=True)
    assert layer_parameters(model, layer) == layer_parameters(model, model.layers[0]) + 2 * 64


def test_total_adds_embedding_final_norm_and_head():
    model = read(LLAMA)
    assert total_parameters(model) == 4 * 29_568 + 2 * 64_000 + 64


def test_tied_head_counts_once():
    model = read(OPT)
    assert (embedding_parameters(model), lm_head_parameters(model)) == ((1000 + 2050) * 64, 0)


def test_active_leaves_out_the_experts_that_a_token_does_not_visit():
    model = read(QWEN_MOE)
    assert total_parameters(model) - active_parameters(model) == 4 * 12 * 1920


@pytest.mark.parametrize(("tied", "left_out"), [(False, 64_000), (True, 0)])
def test_input_embedding_is_active_when_it_is_the_head(tied, left_out):
    model = read(LLAMA, tie_word_embeddings=tied)
    assert active_parameters(model) - active_parameters(model, input_embedding=False) == left_out


def test_dense_model_is_all_active():
    model = read(LLAMA)
    assert active_parameters(model) == total_parameters(model)
