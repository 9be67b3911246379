"""What a decoder-only transformer is made of: its layers, their attention, and their FFN or experts.

A :class:`ModelSpec` holds the shapes that decide work, memory and communication, and what tells whether a
graph computes the model (soft caps, scales). It does not hold what does neither: activation functions, rotary
bases and scaling, norm epsilons, router scoring. Layers for multi-token prediction
(``num_nextn_predict_layers``) are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from clustersim.model.weight_parts import Formats
from clustersim.values import dataclass

AttentionKind = Literal["mha", "gqa", "mqa", "mla"]
NormKind = Literal["rms", "layer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The attention of one layer.

    Parameters
    ----------
    kind : {"mha", "gqa", "mqa", "mla"}
        How query heads share K/V heads; ``mla`` is the multi-head latent attention of DeepSeek-V2 [1]_.
    num_heads : int
        Query heads.
    num_kv_heads : int
        K/V heads *as they are cached*: 1 for ``mla``, whose one latent vector serves every query head.
    head_dim : int
        Width of one query or key (``mla``: ``qk_nope_head_dim + qk_rope_head_dim``).
    v_head_dim : int
        Width of one value; equal to ``head_dim`` unless ``mla``.
    qkv_bias, out_bias : bool
        Whether the projections into and out of the heads have biases.
    qk_norm : bool
        Whether each query and key head is normalised by an RMS norm of ``head_dim`` weights (Qwen3).
    sinks : bool
        Whether each head has one learned attention sink (gpt-oss).
    rotary : bool
        Whether positions enter as rotations of queries and keys.
    sliding_window : int or None
        A query sees itself and the ``sliding_window - 1`` keys before it; None: all.
    score_cap : float or None
        Scores s are bent to ``cap · tanh(s / cap)`` before the softmax [2]_; None: they are not. It is done on
        chip, inside the kernel of attention, and moves no bytes.
    query_scalar : int or None
        Scores are divided by its square root; None: by that of ``head_dim``.
    q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim : int or None
        Latent widths of ``mla``, None for the other kinds; ``q_lora_rank`` is also None where queries are not
        compressed.
    formats : tuple of (str, str)
        Linear maps that a checkpoint keeps in another format than most weights, and which.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.
    .. [2] Gemma Team, "Gemma 2", arXiv:2408.00118, section 2, "Logit soft-capping".
    """

    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    rotary: bool = True
    sliding_window: int | None = None
    score_cap: float | None = None
    query_scalar: int | None = None
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    formats: Formats = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """A dense feed-forward block: up (and gate, if ``gated``) to ``intermediate``, and back down.

    ``formats`` is as in :class:`Attention`.
    """

    intermediate: int
    gated: bool = True
    bias: bool = False
    formats: Formats = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """A mixture of experts: each token goes to ``top_k`` of ``num_experts``, and to every shared expert.

    Parameters
    ----------
    num_experts, top_k : int
        Routed experts of the layer, and how many of them one token visits.
    expert_intermediate : int
        Inner width of one routed expert.
    gated, bias : bool
        As in :class:`Ffn`, for routed and shared experts alike.
    num_shared_experts : int
        Experts that every token visits; 0 if none.
    shared_intermediate : int
        Inner width of all shared experts together; 0 if none.
    router_bias : bool
        Whether the router has one bias per expert (gpt-oss; the correction bias of DeepSeek-V3).
    shared_gate : bool
        Whether the shared experts' output is scaled by a learned gate of ``hidden`` weights (Qwen2-MoE).
    groups, groups_per_token : int
        The routed experts, in order, are in so many groups, of so many of which the experts of one token are
        (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: node-limited routing). 1 and 1: of any.
    formats : tuple of (str, str)
        As in :class:`Attention`.
    """

    num_experts: int
    top_k: int
    expert_intermediate: int
    gated: bool = True
    bias: bool = False
    num_shared_experts: int = 0
    shared_intermediate: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    groups: int = 1
    groups_per_token: int = 1
    formats: Formats = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer: norm, attention, residual; norm, FFN or experts, residual.

    With ``post_norms`` what attention and FFN put out is normed as well, before the residual adds it ("Gemma 2",
    arXiv:2408.00118, section 2, "Post-norm and pre-norm with RMSNorm").
    """

    attention: Attention
    ffn: Ffn | Moe
    post_norms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One architecture, layer by layer.

    Parameters
    ----------
    name : str
        As people say it, such as ``llama-3.1-70b``.
    hidden, vocab : int
        Width of the residual stream, rows of the embedding table.
    layers : tuple of Layer
        The decoder layers in order; equal layers are equal values.
    tied_embeddings : bool
        Whether the LM head is the embedding table.
    scaled_embedding : bool
        Whether embeddings are multiplied by √hidden, in the operator that looks them up.
    logit_cap : float or None
        Logits x are bent to ``cap · tanh(x / cap)``, by an operator of its own; None: they are not.
    learned_positions : int
        Rows of a learned position table, 0 if there is none (OPT: 2,048 + 2).
    norm : {"rms", "layer"}
        ``rms`` has ``hidden`` weights, ``layer`` also ``hidden`` biases.
    max_positions : int or None
        Longest context the model was published for.
    default_weight_dtype : str
        Format of most weights of the published checkpoint: ``bf16``, ``fp16``, ``fp8``, ``mxfp4`` …
    formats : tuple of (str, str)
        That of the LM head where the checkpoint has it in another one than 16 bit.
    unused_keys : tuple of str
        Keys of the configuration that were not read and could matter: worth a look in an unknown family.
    source : str
        Where the dimensions are from.
    notes : tuple of str
        In which respects it is simulated as something else than it is.
    """

    name: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied_embeddings: bool = False
    scaled_embedding: bool = False
    logit_cap: float | None = None
    learned_positions: int = 0
    norm: NormKind = "rms"
    max_positions: int | None = None
    default_weight_dtype: str = "bf16"
    formats: Formats = ()
    unused_keys: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()

    def __hash__(self) -> int:
        """Return a number that equal models share, without looking at every layer."""
        return hash((self.name, self.hidden, self.vocab, len(self.layers), self.layers[:1]))

    def published_in(self, dtype: str) -> ModelSpec:
        """Return the same architecture of a checkpoint in another format, of which nothing else is known."""
        if dtype == self.default_weight_dtype:
            return self
        layers = tuple(
            replace(one, attention=replace(one.attention, formats=()), ffn=replace(one.ffn, formats=()))
            for one in self.layers
        )
        return replace(self, default_weight_dtype=dtype, formats=(), layers=layers)


WithFormats = Attention | Ffn | Moe | ModelSpec
"""What lists formats of its linear maps."""
FormatOf = Callable[[str, WithFormats], tuple[str, float]]
"""(linear map, what it is of) → name of the format of its weights, and bytes of one."""
