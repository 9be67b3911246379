"""The model on one device: whole sequences, every layer after the other, plain causal attention. No plan, no cache.

Written apart from the interpreter of graphs: nothing but the parameters is shared. Formulas: RMS norm (Zhang and
Sennrich, arXiv:1910.07467), rotary embedding (Su et al., arXiv:2104.09864), grouped queries (Ainslie et al.,
arXiv:2305.13245), latent attention, expanded to heads (DeepSeek-AI, arXiv:2405.04434, section 2.1), gated FFN (Shazeer,
arXiv:2002.05202), attention sinks (one more logit per head that has no value), norms behind attention and FFN and soft
caps of scores and logits (Gemma Team, arXiv:2408.00118, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.model.architecture import Attention, ModelSpec, Moe
from clustersim.proof.operators.weights import EPSILON, ROTARY_BASE, Weights
from clustersim.values import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What one forward pass over a sequence computed.

    Parameters
    ----------
    values : dict
        (layer, operator) → float64 array of shape (tokens, width); layer −1 outside the layers. Of experts the shape
        is (tokens, top_k, width), in the order of ``choices``.
    choices : dict
        Layer → int64 array of shape (tokens, top_k): the experts of each token.
    keys : dict
        Layer → float64 array of shape (tokens, K/V heads, width of key and value): what a cache holds.
    """

    values: dict[tuple[int, str], FloatArray] = field(default_factory=dict)
    choices: dict[int, Int64Array] = field(default_factory=dict)
    keys: dict[int, FloatArray] = field(default_factory=dict)

    @property
    def logits(self) -> FloatArray:
        """Logits after every token, capped where the model caps them: float64 of shape (tokens, vocab)."""
        return self.values.get((-1, "logits_cap"), self.values[-1, "lm_head"])


def generate(model: ModelSpec, weights: Weights, prompt: Sequence[int], output_tokens: int) -> tuple[list[int], Trace]:
    """Return the greedy continuation of a prompt, and the trace of the last forward pass.

    Parameters
    ----------
    model : ModelSpec
    weights : Weights
    prompt : sequence of int
    output_tokens : int
        At least 1; the trace covers all tokens but the last generated one.
    """
    tokens, generated = list(prompt), list[int]()
    while True:
        trace = forward(model, weights, tokens)
        generated.append(int(np.argmax(trace.logits[-1])))
        if len(generated) == output_tokens:
            return generated, trace
        tokens.append(generated[-1])


def forward(model: ModelSpec, weights: Weights, tokens: Sequence[int]) -> Trace:
    """Return everything that the model computes for a sequence of tokens."""
    trace = Trace()
    values = trace.values
    x = weights.embedding[np.asarray(tokens)]
    if model.scaled_embedding:
        x = np.sqrt(model.hidden) * x
    if weights.positions is not None:
        x = x + weights.positions[: len(tokens)]
    values[-1, "embedding"] = x
    for index, layer in enumerate(model.layers):
        found = weights.layers[index]
        normed = _norm(model, found, "attention_norm", x)
        mixed = _attend(layer.attention, found, normed, trace, index)
        out = _linear(found, "o_proj", mixed)
        values |= {(index, "attention_norm"): normed, (index, "attention"): mixed, (index, "o_proj"): out}
        if layer.post_norms:
            out = values[index, "attention_post_norm"] = _norm(model, found, "attention_post_norm", out)
        x = values[index, "attention_add"] = x + out
        if isinstance(layer.ffn, Moe):
            normed = values[index, "moe_norm"] = _norm(model, found, "moe_norm", x)
            out = _experts(layer.ffn, found, normed, trace, index)
            if layer.post_norms:
                out = values[index, "moe_post_norm"] = _norm(model, found, "moe_post_norm", out)
            x = values[index, "moe_add"] = x + out
        else:
            normed = values[index, "ffn_norm"] = _norm(model, found, "ffn_norm", x)
            up = values[index, "ffn_up"] = _linear(found, "ffn_up", normed)
            act = values[index, "ffn_act"] = _activation(up, layer.ffn.gated)
            out = values[index, "ffn_down"] = _linear(found, "ffn_down", act)
            if layer.post_norms:
                out = values[index, "ffn_post_norm"] = _norm(model, found, "ffn_post_norm", out)
            x = values[index, "ffn_add"] = x + out
    last = values[-1, "final_norm"] = _norm(model, weights.ends, "final_norm", x)
    logits = values[-1, "lm_head"] = last @ weights.head
    if model.logit_cap is not None:
        values[-1, "logits_cap"] = _capped(logits, model.logit_cap)
    return trace


def _linear(found: Mapping[str, FloatArray], name: str, x: FloatArray) -> FloatArray:
    return x @ found[name] + found.get(f"{name}_bias", 0.0)


def _rms(x: FloatArray, weight: FloatArray) -> FloatArray:
    scaled: FloatArray = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON) * weight
    return scaled


def _norm(model: ModelSpec, found: Mapping[str, FloatArray], name: str, x: FloatArray) -> FloatArray:
    if model.norm == "rms":
        return _rms(x, found[name])
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
    normed: FloatArray = centred / spread * found[name] + found[f"{name}_bias"]
    return normed


def _capped(x: FloatArray, cap: float) -> FloatArray:
    soft: FloatArray = cap * np.tanh(x / cap)
    return soft


def _activation(x: FloatArray, gated: bool) -> FloatArray:
    if gated:
        gate, up = np.split(x, 2, axis=-1)
        opened: FloatArray = gate / (1 + np.exp(-gate)) * up
        return opened
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    bent: FloatArray = 0.5 * x * (1 + np.tanh(inner))
    return bent


def _rotate(x: FloatArray) -> FloatArray:
    """Turn vectors of shape (tokens, width), token i by i times the angle of each pair of halves."""
    half = x.shape[1] // 2
    frequency = ROTARY_BASE ** (-np.arange(half) / half)
    angle = np.arange(len(x))[:, None] * frequency[None, :]
    first, second = x[:, :half], x[:, half:]
    turned = [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)]
    return np.concatenate(turned, axis=1)


def _attend(a: Attention, found: Mapping[str, FloatArray], x: FloatArray, trace: Trace, layer: int) -> FloatArray:
    heads = _latent_heads(a, found, x, trace, layer) if a.kind == "mla" else _heads(a, found, x, trace, layer)
    tokens = len(x)
    i, j = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    visible = j <= i
    if a.sliding_window is not None:
        visible &= j > i - a.sliding_window
    outputs = []
    for head, (query, key, value) in enumerate(heads):
        scores = query @ key.T / np.sqrt(a.head_dim if a.query_scalar is None else a.query_scalar)
        if a.score_cap is not None:
            scores = _capped(scores, a.score_cap)
        scores = np.where(visible, scores, -np.inf)
        if a.sinks:
            scores = np.concatenate((scores, np.full((tokens, 1), found["sinks"][head])), axis=1)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        outputs.append(shares[:, :tokens] @ value)
    return np.concatenate(outputs, axis=1)


def _heads(
    a: Attention, found: Mapping[str, FloatArray], x: FloatArray, trace: Trace, layer: int
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Return query, key and value of each query head."""
    qkv = trace.values[layer, "qkv_proj"] = _linear(found, "qkv_proj", x)
    q, k, v = np.split(qkv, np.cumsum([a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim]), axis=1)
    queries, keys = np.split(q, a.num_heads, axis=1), np.split(k, a.num_kv_heads, axis=1)
    values = np.split(v, a.num_kv_heads, axis=1)
    if a.qk_norm:
        queries = [_rms(one, found["q_norm"]) for one in queries]
        keys = [_rms(one, found["k_norm"]) for one in keys]
    if a.rotary:
        queries, keys = [_rotate(one) for one in queries], [_rotate(one) for one in keys]
    trace.values[layer, "rope"] = np.concatenate((*queries, *keys, v), axis=1)
    trace.keys[layer] = np.stack([np.concatenate(pair, axis=1) for pair in zip(keys, values, strict=True)], axis=1)
    share = a.num_heads // a.num_kv_heads
    return [(queries[head], keys[head // share], values[head // share]) for head in range(a.num_heads)]


def _latent_heads(
    a: Attention, found: Mapping[str, FloatArray], x: FloatArray, trace: Trace, layer: int
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    nope, latent = a.qk_nope_head_dim or 0, a.kv_lora_rank or 0
    values = trace.values
    if a.q_lora_rank is not None:
        values[layer, "q_a_proj"] = _linear(found, "q_a_proj", x)
        values[layer, "q_a_norm"] = _rms(values[layer, "q_a_proj"], found["q_a_norm"])
    source = x if a.q_lora_rank is None else values[layer, "q_a_norm"]
    queries = np.split(_linear(found, "q_b_proj", source), a.num_heads, axis=1)
    queries = [np.concatenate((one[:, :nope], _rotate(one[:, nope:])), axis=1) for one in queries]
    compressed = values[layer, "kv_a_proj"] = _linear(found, "kv_a_proj", x)
    latents = _rms(compressed[:, :latent], found["kv_a_norm_rope"])
    turned = _rotate(compressed[:, latent:])
    values[layer, "q_b_proj"] = np.concatenate(queries, axis=1)
    values[layer, "kv_a_norm_rope"] = np.concatenate((latents, turned), axis=1)
    trace.keys[layer] = values[layer, "kv_a_norm_rope"][:, None, :]
    expanded = np.split(latents @ found["kv_b_proj"], a.num_heads, axis=1)
    return [
        (query, np.concatenate((both[:, :nope], turned), axis=1), both[:, nope:])
        for query, both in zip(queries, expanded, strict=True)
    ]


def _choice(moe: Moe, logits: FloatArray) -> list[int]:
    """Return the experts of one token, the best first: of those groups whose two best are best together."""
    size = moe.num_experts // moe.groups
    groups = [range(first, first + size) for first in range(0, moe.num_experts, size)]
    groups.sort(key=lambda group: -sum(sorted((float(logits[expert]) for expert in group), reverse=True)[:2]))
    open_to = [expert for group in groups[: moe.groups_per_token] for expert in sorted(group)]
    return sorted(sorted(open_to), key=lambda expert: -float(logits[expert]))[: moe.top_k]


def _experts(moe: Moe, found: Mapping[str, FloatArray], x: FloatArray, trace: Trace, layer: int) -> FloatArray:
    values = trace.values
    logits = values[layer, "gate"] = _linear(found, "gate", x)
    choice = trace.choices[layer] = np.array([_choice(moe, row) for row in logits], np.int64).reshape(-1, moe.top_k)
    shares = np.exp(np.take_along_axis(logits, choice, axis=1))
    shares /= shares.sum(axis=1, keepdims=True)
    steps: dict[str, list[list[FloatArray]]] = {"expert_up": [], "expert_act": [], "expert_down": []}
    total = np.zeros_like(x)
    for token, experts in enumerate(choice):
        for stack in steps.values():
            stack.append([])
        for place, expert in enumerate(experts):
            own = {name: array[expert] for name, array in found.items() if name.startswith("expert_")}
            up = _linear(own, "expert_up", x[token])
            act = _activation(up, moe.gated)
            down = _linear(own, "expert_down", act)
            total[token] += shares[token, place] * down
            for stack, value in zip(steps.values(), (up, act, down), strict=True):
                stack[-1].append(value)
    values |= {(layer, name): np.array(stack) for name, stack in steps.items()}
    values[layer, "aggregate"] = total
    if not moe.num_shared_experts:
        return total
    up = values[layer, "shared_up"] = _linear(found, "shared_up", x)
    inner = _activation(up, moe.gated)
    if moe.shared_gate:
        gate = values[layer, "shared_gate"] = _linear(found, "shared_gate", x)
        inner = inner / (1 + np.exp(-gate))
    values[layer, "shared_act"] = inner
    shared = values[layer, "shared_down"] = _linear(found, "shared_down", inner)
    both = values[layer, "shared_add"] = total + shared
    return both
