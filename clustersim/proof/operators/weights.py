"""The parameters of a small model: random numbers under a seed, by layer and operator.

What a ``ModelSpec`` leaves open is fixed here and in the two programs that read it: gated blocks use SiLU, plain ones
GELU (tanh form); rotary embedding turns halves with base 10,000; a router picks the top-k of its logits and weighs them
by their softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.model.architecture import Attention, Layer, ModelSpec, Moe
from clustersim.model.weights import (
    Linear,
    attention_linears,
    expert_linears,
    ffn_linears,
    shared_expert_linears,
)
from clustersim.values import dataclass

EPSILON: Final = 1e-6
"""What norms add to a mean square (assumed; models have 1e-5 or 1e-6)."""

ROTARY_BASE: Final = 10_000.0
"""Su et al., arXiv:2104.09864, section 3.3."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """Parameters of a model.

    Parameters
    ----------
    embedding : float64 array of shape (vocab, hidden)
    positions : float64 array of shape (positions, hidden) or None
        The learned position table.
    head : float64 array of shape (hidden, vocab)
        The LM head; the embedding transposed where they are tied.
    ends : mapping
        ``final_norm`` and its bias.
    layers : tuple of mapping
        Per layer: operator → its matrix (inputs, outputs), with ``NAME_bias`` where it has one; experts have one
        more axis in front.
    """

    embedding: FloatArray
    positions: FloatArray | None
    head: FloatArray
    ends: Mapping[str, FloatArray]
    layers: tuple[Mapping[str, FloatArray], ...]


def random_weights(model: ModelSpec, seed: int) -> Weights:
    """Draw the parameters of ``model``; matrices keep the size of what they multiply.

    Parameters
    ----------
    model : ModelSpec
    seed : int
    """
    draw = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    embedding = draw.normal(size=(model.vocab, model.hidden))
    head = embedding.T if model.tied_embeddings else draw.normal(size=(model.hidden, model.vocab))
    rows = model.learned_positions
    return Weights(
        embedding=embedding,
        positions=draw.normal(size=(rows, model.hidden)) if rows else None,
        head=head / np.sqrt(model.hidden),
        ends=_norm(draw, model, "final_norm"),
        layers=tuple(_layer(draw, model, layer) for layer in model.layers),
    )


def _layer(draw: np.random.Generator, model: ModelSpec, layer: Layer) -> dict[str, FloatArray]:
    found = _norm(draw, model, "attention_norm") | _linears(draw, attention_linears(model, layer.attention))
    found |= _attention_vectors(draw, layer.attention)
    if layer.post_norms:
        behind = "moe_post_norm" if isinstance(layer.ffn, Moe) else "ffn_post_norm"
        found |= _norm(draw, model, "attention_post_norm") | _norm(draw, model, behind)
    if not isinstance(layer.ffn, Moe):
        return found | _norm(draw, model, "ffn_norm") | _linears(draw, ffn_linears(model, layer.ffn))
    moe = layer.ffn
    found |= _norm(draw, model, "moe_norm") | _linears(draw, expert_linears(model, moe), moe.num_experts)
    gate = Linear(name="gate", inputs=model.hidden, outputs=moe.num_experts, bias=moe.router_bias)
    return found | _linears(draw, [gate, *shared_expert_linears(model, moe)])


def _norm(draw: np.random.Generator, model: ModelSpec, name: str) -> dict[str, FloatArray]:
    found = {name: _around_one(draw, model.hidden)}
    if model.norm == "layer":
        found[f"{name}_bias"] = draw.normal(scale=0.1, size=model.hidden)
    return found


def _around_one(draw: np.random.Generator, size: int) -> FloatArray:
    return 1 + 0.1 * draw.normal(size=size)


def _linears(draw: np.random.Generator, maps: Iterable[Linear], copies: int | None = None) -> dict[str, FloatArray]:
    front = () if copies is None else (copies,)
    found = {}
    for one in maps:
        found[one.name] = draw.normal(size=(*front, one.inputs, one.outputs)) / np.sqrt(one.inputs)
        if one.bias:
            found[f"{one.name}_bias"] = draw.normal(scale=0.1, size=(*front, one.outputs))
    return found


def _attention_vectors(draw: np.random.Generator, attention: Attention) -> dict[str, FloatArray]:
    found = {}
    if attention.kind == "mla":
        found["kv_a_norm_rope"] = _around_one(draw, attention.kv_lora_rank or 0)
        if attention.q_lora_rank is not None:
            found["q_a_norm"] = _around_one(draw, attention.q_lora_rank)
    if attention.qk_norm:
        found["q_norm"] = _around_one(draw, attention.head_dim)
        found["k_norm"] = _around_one(draw, attention.head_dim)
    if attention.sinks:
        found["sinks"] = draw.normal(size=attention.num_heads)
    return found
