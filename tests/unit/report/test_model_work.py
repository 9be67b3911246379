"""FLOPs and bytes of each module, on models of round numbers and against counts by brute force."""

from __future__ import annotations

import pytest
from model_configs import GPT_OSS, LATENT, LLAMA, OPT, QWEN_MOE

from clustersim.model import Ffn, model_from_config
from clustersim.model.weights import (
    attention_linears,
    expert_linears,
    ffn_linears,
    shared_expert_linears,
)
from clustersim.model.work import (
    attended_keys,
    attended_pairs,
    expected_active_experts,
    module_bytes,
    module_flops,
    step_flops,
)

UNITS = {"weight_bytes": 1.0, "activation_bytes": 1.0, "kv_bytes": 1.0}


STRUCTURES = [
    (LLAMA, {}, 0),
    (OPT, {}, 0),
    (QWEN_MOE, {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 40}, 0),
    (LATENT, {}, 0),
    (LATENT, {}, 1),
    (LATENT, {"q_lora_rank": None}, 1),
]
"""Configuration, changes and the layer to look at."""


def weights_of(model, layer, *, visited):
    """Count the weights of all matrices of a layer, or of those that one token visits, without biases."""
    attention, ffn = model.layers[layer].attention, model.layers[layer].ffn
    if isinstance(ffn, Ffn):
        linears = [*attention_linears(model, attention), *ffn_linears(model, ffn)]
    else:
        experts = ffn.top_k if visited else ffn.num_experts
        linears = [*attention_linears(model, attention), *shared_expert_linears(model, ffn)]
        linears += [*expert_linears(model, ffn)] * experts
    router = 0 if isinstance(ffn, Ffn) else model.hidden * ffn.num_experts
    return router + sum(linear.inputs * linear.outputs for linear in linears)


def read(config, **changes):
    return model_from_config(config | changes, "toy")


def flops(config, layer=0, tokens=3, pairs=6, **more):
    model = read(config)
    return module_flops(model, model.layers[layer], tokens, pairs, **more)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 100])
@pytest.mark.parametrize("context", [0, 1, 4, 9])
@pytest.mark.parametrize("new", [1, 2, 7])
def test_pairs_and_keys_equal_those_of_the_mask(new, context, window):
    mask = [
        (query, key)
        for query in range(context, context + new)
        for key in range(query + 1)
        if window is None or query - key < window
    ]
    assert attended_pairs(new, context, window) == len(mask)
    assert attended_keys(new, context, window) == len({key for _, key in mask})


def test_dense_layer():
    assert flops(LLAMA) == {
        "qkv_proj": 2 * 3 * 64 * 96,
        "attention": 2 * 6 * 8 * (8 + 8),
        "o_proj": 2 * 3 * 64 * 64,
        "ffn_up": 2 * 3 * 64 * 200,
        "ffn_down": 2 * 3 * 100 * 64,
    }


@pytest.mark.parametrize(("config", "changes", "layer"), STRUCTURES)
@pytest.mark.parametrize("absorbed", [False, True])
def test_linear_work_is_two_flops_per_visited_weight_and_token(config, changes, layer, absorbed):
    model = read(config, **changes)
    found = module_flops(model, model.layers[layer], 5, 0, absorbed=absorbed)
    assert sum(found.values()) == 2 * 5 * weights_of(model, layer, visited=True)


@pytest.mark.parametrize(("config", "changes", "layer"), STRUCTURES)
@pytest.mark.parametrize("absorbed", [False, True])
def test_bytes_of_weights_are_those_of_all_matrices_when_all_experts_are_visited(config, changes, layer, absorbed):
    model = read(config, **changes)
    units = {"weight_bytes": 0.5, "activation_bytes": 0, "kv_bytes": 0}
    experts = getattr(model.layers[layer].ffn, "num_experts", None)
    found = module_bytes(model, model.layers[layer], 5, 9, active_experts=experts, absorbed=absorbed, **units)
    assert sum(found.values()) == 0.5 * weights_of(model, layer, visited=False)


def test_experts_work_once_per_token_and_visit():
    found = flops(QWEN_MOE)
    assert found["gate"] == 2 * 3 * 64 * 16
    assert found["expert_up"] == 2 * (3 * 4) * 64 * 20
    assert found["expert_down"] == 2 * (3 * 4) * 10 * 64
    assert "shared_up" not in found


def test_shared_experts_work_once_per_token():
    found = flops(LATENT, layer=1)
    assert (found["shared_up"], found["shared_down"]) == (2 * 3 * 64 * 40, 2 * 3 * 20 * 64)


def test_expanded_latents_work_on_heads():
    found = flops(LATENT, keys=10)
    assert found["kv_b_proj"] == 2 * 10 * 20 * 4 * (8 + 6)
    assert found["attention"] == 2 * 6 * 4 * (12 + 6)


def test_absorbed_latents_work_on_latents():
    found = flops(LATENT, absorbed=True)
    assert found["q_absorb"] == 2 * 3 * 4 * 8 * 20
    assert found["v_absorb"] == 2 * 3 * 4 * 20 * 6
    assert found["attention"] == 2 * 6 * 4 * (24 + 20)
    assert "kv_b_proj" not in found


def test_absorbing_costs_as_much_as_expanding_the_new_tokens():
    absorbed, expanded = flops(LATENT, absorbed=True), flops(LATENT)
    assert absorbed["q_absorb"] + absorbed["v_absorb"] == expanded["kv_b_proj"]


def test_step_counts_each_layer_within_its_window():
    model = read(GPT_OSS, sliding_window=2)
    whole = read(GPT_OSS, layer_types=["full_attention"] * 4)
    # 4 new tokens see 10 pairs, 7 within a window of 2, in two of four layers; heads of 10 + 10, 8 of them
    assert step_flops(whole, [(4, 0)], 1) - step_flops(model, [(4, 0)], 1) == 2 * 2 * (10 - 7) * 8 * 20


def test_step_counts_the_head_for_the_sampled_rows_only():
    model = read(LLAMA)
    assert step_flops(model, [(4, 0)], 4) - step_flops(model, [(4, 0)], 1) == 3 * 2 * 64 * 1000


def test_chunk_expands_the_latents_of_its_context_again():
    model = read(LATENT)
    behind, alone = step_flops(model, [(4, 6)], 0), step_flops(model, [(4, 0)], 0)
    # 6 more latents in each of 4 layers, and 6 more keys for each of 4 queries
    assert behind - alone == 4 * (2 * 6 * 20 * 4 * 14 + 2 * 4 * 6 * 4 * 18)


def test_absorbed_step_expands_nothing():
    model = read(LATENT)
    behind, alone = (step_flops(model, [(1, context)], 0, absorbed=True) for context in (6, 0))
    assert behind - alone == 4 * 2 * 6 * 4 * (24 + 20)


def test_chunks_of_a_prompt_do_the_work_of_the_whole():
    model = read(LLAMA)
    chunks = step_flops(model, [(4, 0)], 0) + step_flops(model, [(6, 4)], 0)
    assert chunks == step_flops(model, [(10, 0)], 0)


def test_bytes_are_weights_inputs_and_outputs():
    model = read(LLAMA)
    found = module_bytes(model, model.layers[0], 3, 7, **UNITS)
    assert found["qkv_proj"] == 64 * 96 + 3 * (64 + 96)
    assert found["attention"] == 3 * 8 * (8 + 8) + 7 * 32
    assert found["kv_write"] == 3 * 32 * 2


def test_bytes_of_each_format_are_separate():
    model = read(LLAMA)
    found = module_bytes(model, model.layers[0], 3, 7, weight_bytes=0.5, activation_bytes=2, kv_bytes=4)
    assert found["qkv_proj"] == 0.5 * 64 * 96 + 2 * 3 * (64 + 96)
    assert found["attention"] == 2 * 3 * 8 * 16 + 4 * 7 * 32
    assert found["kv_write"] == 3 * 32 * (2 + 4)


def test_bytes_of_experts_are_those_of_the_visited_ones():
    model = read(QWEN_MOE)
    found = module_bytes(model, model.layers[0], 3, 7, active_experts=5, **UNITS)
    assert found["expert_up"] == 5 * 64 * 20 + 12 * (64 + 20)


def test_bytes_of_experts_are_those_of_the_expected_ones():
    model = read(QWEN_MOE)  # one token visits 4
    found = module_bytes(model, model.layers[0], 1, 7, **UNITS)
    assert found["expert_up"] == pytest.approx(4 * 64 * 20 + 4 * (64 + 20))
    assert found["gate"] == 64 * 16 + 64 + 16


def test_absorbed_latents_are_read_once_for_all_heads():
    model = read(LATENT)
    units = {"weight_bytes": 0, "activation_bytes": 2, "kv_bytes": 4}
    absorbed = module_bytes(model, model.layers[0], 1, 100, absorbed=True, **units)
    expanded = module_bytes(model, model.layers[0], 1, 100, **units)
    assert absorbed["attention"] == 2 * 4 * (24 + 20) + 4 * 100 * 24
    assert expanded["attention"] == 2 * 101 * 4 * (12 + 6)


def test_expected_experts_start_at_top_k_and_approach_all():
    moe = read(QWEN_MOE).layers[0].ffn
    assert expected_active_experts(moe, 0) == 0
    assert expected_active_experts(moe, 1) == pytest.approx(4)
    assert expected_active_experts(moe, 2) == pytest.approx(4 + 4 * 12 / 16)
    assert expected_active_experts(moe, 1000) == pytest.approx(16)
