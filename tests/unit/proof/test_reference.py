"""The unsharded model that proofs compare with: causal, windowed, routed; latents absorbed or expanded are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.model import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.proof.operators.weights import random_weights
from clustersim.proof.reference import forward, generate

HEADS = Attention(kind="gqa", num_heads=4, num_kv_heads=2, head_dim=4, v_head_dim=4)
DENSE = Ffn(intermediate=8)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def model(attention=HEADS, ffn=DENSE, layers=1, post_norms=False, **changes):
    layer = Layer(attention=attention, ffn=ffn, post_norms=post_norms)
    return ModelSpec(name="by-hand", hidden=12, vocab=20, layers=(layer,) * layers, **changes)


def logits(spec, tokens=TOKENS, weights=None):
    return forward(spec, weights or random_weights(spec, 0), tokens).logits


def changed(tokens, at):
    return [*tokens[:at], (tokens[at] + 7) % 20, *tokens[at + 1 :]]


def test_tokens_depend_on_those_before_them_and_on_none_after():
    before, after = logits(model(layers=2)), logits(model(layers=2), changed(TOKENS, 4))
    assert np.array_equal(before[:4], after[:4])
    assert (np.abs(before[4:] - after[4:]).max(axis=1) > 1e-6).all()


def test_a_window_of_three_hides_what_is_three_tokens_back():
    spec = model(replace(HEADS, sliding_window=3))
    differs = np.abs(logits(spec) - logits(spec, changed(TOKENS, 2))).max(axis=1) > 1e-9
    assert differs.tolist() == [False, False, True, True, True, False, False, False]


def test_rotary_positions_tell_orders_apart_and_no_positions_do_not():
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:]]
    plain = model(replace(HEADS, rotary=False))
    assert np.allclose(logits(plain)[2:], logits(plain, swapped)[2:])
    assert not np.allclose(logits(model())[2:], logits(model(), swapped)[2:])


def test_learned_positions_tell_orders_apart():
    spec = model(replace(HEADS, rotary=False), learned_positions=16, norm="layer")
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:]]
    assert not np.allclose(logits(spec)[2:], logits(spec, swapped)[2:])


def test_a_sink_takes_attention_from_the_tokens():
    spec = model(replace(HEADS, sinks=True))
    weights = random_weights(spec, 0)
    silent = replace(weights, layers=({**weights.layers[0], "sinks": np.full(4, -1e9)},))
    assert np.allclose(logits(spec, weights=silent), logits(model(), weights=silent))
    loud = replace(weights, layers=({**weights.layers[0], "sinks": np.full(4, 1e9)},))
    assert np.abs(forward(spec, loud, TOKENS).values[0, "attention"]).max() == 0


def test_a_norm_behind_a_module_takes_what_the_module_puts_out():
    spec = model(post_norms=True)
    weights = random_weights(spec, 0)
    values = forward(spec, weights, TOKENS).values
    for module, made in (("attention", "o_proj"), ("ffn", "ffn_down")):
        x = values[0, made]
        normed = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * weights.layers[0][f"{module}_post_norm"]
        assert np.allclose(values[0, f"{module}_post_norm"], normed)
    assert np.allclose(
        values[0, "ffn_add"], values[-1, "embedding"] + values[0, "attention_post_norm"] + values[0, "ffn_post_norm"]
    )


def test_caps_bend_what_is_near_them_and_leave_what_is_far_below():
    plain = logits(model())
    assert np.allclose(logits(model(logit_cap=2.0)), 2 * np.tanh(plain / 2))
    assert np.allclose(logits(model(replace(HEADS, score_cap=1e6), logit_cap=1e6)), plain)
    assert not np.allclose(logits(model(replace(HEADS, score_cap=0.5))), plain)


def test_scores_are_divided_by_the_square_root_of_the_query_scalar():
    assert np.allclose(logits(model(replace(HEADS, query_scalar=HEADS.head_dim))), logits(model()))
    assert not np.allclose(logits(model(replace(HEADS, query_scalar=4 * HEADS.head_dim))), logits(model()))


def test_embeddings_are_scaled_by_the_square_root_of_the_width():
    values = [forward(spec, random_weights(spec, 0), TOKENS).values for spec in (model(scaled_embedding=True), model())]
    assert np.allclose(values[0][-1, "embedding"], np.sqrt(12) * values[1][-1, "embedding"])


def test_experts_that_are_all_alike_are_one_dense_ffn():
    moe = Moe(num_experts=4, top_k=2, expert_intermediate=8)
    weights = random_weights(model(ffn=moe), 0)
    found = weights.layers[0]
    same = {name: np.repeat(found[name][:1], 4, axis=0) for name in ("expert_up", "expert_down")}
    dense = {"ffn_up": found["expert_up"][0], "ffn_down": found["expert_down"][0], "ffn_norm": found["moe_norm"]}
    alike = replace(weights, layers=({**found, **same, **dense},))
    assert np.allclose(logits(model(ffn=moe), weights=alike), logits(model(), weights=alike))


def test_shared_experts_add_to_the_routed_ones():
    moe = Moe(num_experts=4, top_k=1, expert_intermediate=8, num_shared_experts=1, shared_intermediate=8)
    trace = forward(model(ffn=moe), random_weights(model(ffn=moe), 0), TOKENS)
    values = trace.values
    assert np.allclose(values[0, "shared_add"], values[0, "aggregate"] + values[0, "shared_down"])
    assert trace.choices[0].shape == (8, 1)


def test_tied_embeddings_are_the_lm_head():
    weights = random_weights(model(tied_embeddings=True), 0)
    assert np.allclose(weights.head * np.sqrt(12), weights.embedding.T)


@pytest.mark.parametrize("compressed", [None, 6])
def test_latents_absorbed_into_queries_attend_as_expanded_ones_do(compressed):
    latent = Attention(
        kind="mla", num_heads=4, num_kv_heads=1, head_dim=6, v_head_dim=4, q_lora_rank=compressed, kv_lora_rank=8,
        qk_nope_head_dim=4, qk_rope_head_dim=2,
    )  # fmt: skip
    spec = model(latent)
    weights = random_weights(spec, 0)
    trace = forward(spec, weights, TOKENS)
    cached = trace.keys[0][:, 0]
    expansion = weights.layers[0]["kv_b_proj"].reshape(8, 4, 8)
    for head in range(4):
        query = trace.values[0, "q_b_proj"][-1, head * 6 : head * 6 + 6]
        absorbed = np.concatenate((expansion[:, head, :4] @ query[:4], query[4:]))
        scores = np.exp(cached @ absorbed / np.sqrt(6))
        out = scores / scores.sum() @ cached[:, :8] @ expansion[:, head, 4:]
        assert np.allclose(out, trace.values[0, "attention"][-1, head * 4 : head * 4 + 4])


def test_generate_appends_the_most_likely_token_of_each_step():
    spec = model(layers=2)
    weights = random_weights(spec, 0)
    tokens, trace = generate(spec, weights, TOKENS, 3)
    assert tokens == np.argmax(trace.logits[-3:], axis=1).tolist()
    assert len(trace.logits) == len(TOKENS) + 2
    assert np.allclose(logits(spec, [*TOKENS, *tokens[:2]], weights), trace.logits)
