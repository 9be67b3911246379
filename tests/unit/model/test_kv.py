"""Size of the K/V cache per token and per sequence."""

from __future__ import annotations

import pytest
from model_configs import GPT_OSS, LATENT, LLAMA

from clustersim.model import model_from_config
from clustersim.model.kv import kv_bytes, kv_bytes_per_token, kv_elements, kv_elements_per_token


def read(config, **changes):
    return model_from_config(config | changes, "toy")


def test_grouped_attention_caches_a_key_and_a_value_per_kv_head():
    assert kv_elements_per_token(read(LLAMA).layers[0].attention) == 2 * 2 * 8


def test_latent_attention_caches_the_latent_and_one_rotary_key():
    assert kv_elements_per_token(read(LATENT).layers[0].attention) == 20 + 4


def test_bytes_per_token_add_over_layers():
    assert kv_bytes_per_token(read(LLAMA), 2) == 4 * 32 * 2


@pytest.mark.parametrize(("context", "held"), [(0, 0), (100, 100), (128, 128), (1000, 128)])
def test_sliding_layer_holds_at_most_its_window(context, held):
    attention = read(GPT_OSS).layers[0].attention
    assert kv_elements(attention, context) == held * 40


def test_sequence_holds_windows_and_whole_contexts():
    assert kv_bytes(read(GPT_OSS), 1000, 2) == 2 * (128 + 1000) * 40 * 2
