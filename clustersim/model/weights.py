"""How many parameters each module has, before any sharding: matrices, biases and norms, counted exactly.

A module is a short list of :class:`Linear` maps and loose vectors. Fused projections are one map, as engines
run them (q, k and v; gate and up): the counts are the same. Quantisation scales are not counted.

The modules follow the papers: grouped-query attention [1]_, multi-head latent attention [2]_ (down- and
up-projections of queries and of the K/V latent, a norm on each latent), gated FFN [3]_.

References
----------
.. [1] Ainslie et al., "GQA", arXiv:2305.13245.
.. [2] DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1 and appendix C.
.. [3] Shazeer, "GLU variants improve transformer", arXiv:2002.05202.
"""

from __future__ import annotations

from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """One linear map from ``inputs`` to ``outputs`` features; ``name`` is its module's, as ``qkv_proj``."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.inputs * self.outputs + (self.outputs if self.bias else 0)


def attention_linears(model: ModelSpec, attention: Attention) -> tuple[Linear, ...]:
    """Return the linear maps of an attention module in the order in which they run."""
    heads, hidden = attention.num_heads, model.hidden
    out = Linear(name="o_proj", inputs=heads * attention.v_head_dim, outputs=hidden, bias=attention.out_bias)
    if attention.kind == "mla":
        return (*_latent_linears(model, attention), out)
    qkv = heads * attention.head_dim + attention.num_kv_heads * (attention.head_dim + attention.v_head_dim)
    return Linear(name="qkv_proj", inputs=hidden, outputs=qkv, bias=attention.qkv_bias), out


def _latent_linears(model: ModelSpec, attention: Attention) -> tuple[Linear, ...]:
    heads, hidden, bias = attention.num_heads, model.hidden, attention.qkv_bias
    q_rank, kv_rank = attention.q_lora_rank, attention.kv_lora_rank or 0
    nope, rope = attention.qk_nope_head_dim or 0, attention.qk_rope_head_dim or 0
    queries = heads * attention.head_dim
    q = (
        (Linear(name="q_b_proj", inputs=hidden, outputs=queries),)
        if q_rank is None
        else (
            Linear(name="q_a_proj", inputs=hidden, outputs=q_rank, bias=bias),
            Linear(name="q_b_proj", inputs=q_rank, outputs=queries),
        )
    )
    return (
        *q,
        Linear(name="kv_a_proj", inputs=hidden, outputs=kv_rank + rope, bias=bias),
        Linear(name="kv_b_proj", inputs=kv_rank, outputs=heads * (nope + attention.v_head_dim)),
    )


def _up_and_down(hidden: int, intermediate: int, module: Ffn | Moe, prefix: str) -> tuple[Linear, ...]:
    up = 2 * intermediate if module.gated else intermediate
    return (
        Linear(name=f"{prefix}_up", inputs=hidden, outputs=up, bias=module.bias),
        Linear(name=f"{prefix}_down", inputs=intermediate, outputs=hidden, bias=module.bias),
    )


def ffn_linears(model: ModelSpec, ffn: Ffn) -> tuple[Linear, ...]:
    """Return the maps of a dense FFN: gate and up as one (up alone if not gated), then down."""
    return _up_and_down(model.hidden, ffn.intermediate, ffn, "ffn")


def expert_linears(model: ModelSpec, moe: Moe) -> tuple[Linear, ...]:
    """Return the maps of one routed expert."""
    return _up_and_down(model.hidden, moe.expert_intermediate, moe, "expert")


def shared_expert_linears(model: ModelSpec, moe: Moe) -> tuple[Linear, ...]:
    """Return the maps of a layer's shared experts, which run as one wide expert; empty if there are none."""
    if not moe.num_shared_experts:
        return ()
    maps = _up_and_down(model.hidden, moe.shared_intermediate, moe, "shared")
    gate = (Linear(name="shared_gate", inputs=model.hidden, outputs=1),) if moe.shared_gate else ()
    return maps + gate


def attention_parameters(model: ModelSpec, attention: Attention) -> int:
    """Return the parameters of one attention module: maps, latent norms, query/key norms, sinks."""
    linears = sum(linear.parameters for linear in attention_linears(model, attention))
    return linears + attention_vector_parameters(attention)


def attention_vector_parameters(attention: Attention) -> int:
    """Return the parameters of an attention module that are no matrix: latent and query/key norms, sinks."""
    latent_norms = (attention.q_lora_rank or 0) + (attention.kv_lora_rank or 0)
    qk_norms = 2 * attention.head_dim if attention.qk_norm else 0
    return latent_norms + qk_norms + (attention.num_heads if attention.sinks else 0)


def ffn_parameters(model: ModelSpec, ffn: Ffn) -> int:
    """Return the parameters of one dense FFN."""
    return sum(linear.parameters for linear in ffn_linears(model, ffn))


def expert_parameters(model: ModelSpec, moe: Moe) -> int:
    """Return the parameters of one routed expert."""
    return sum(linear.parameters for linear in expert_linears(model, moe))


def shared_expert_parameters(model: ModelSpec, moe: Moe) -> int:
    """Return the parameters of all shared experts of a layer together, their gate included; 0 if none."""
    return sum(linear.parameters for linear in shared_expert_linears(model, moe))


def router_parameters(model: ModelSpec, moe: Moe) -> int:
    """Return the parameters of the router (the gate that picks experts)."""
    return model.hidden * moe.num_experts + (moe.num_experts if moe.router_bias else 0)


def moe_parameters(model: ModelSpec, moe: Moe) -> int:
    """Return all parameters of one MoE module: router, routed experts, shared experts."""
    routed = moe.num_experts * expert_parameters(model, moe)
    return router_parameters(model, moe) + routed + shared_expert_parameters(model, moe)


def norm_parameters(model: ModelSpec) -> int:
    """Return the parameters of one norm over the residual stream: weights, and biases for layer norm."""
    return model.hidden * (2 if model.norm == "layer" else 1)


def module_norm_parameters(model: ModelSpec, layer: Layer) -> int:
    """Return the parameters of the norms around one module of a layer: before it, and behind it where that is."""
    return norm_parameters(model) * (2 if layer.post_norms else 1)


def layer_parameters(model: ModelSpec, layer: Layer) -> int:
    """Return all parameters of one layer, its norms included."""
    ffn = moe_parameters(model, layer.ffn) if isinstance(layer.ffn, Moe) else ffn_parameters(model, layer.ffn)
    return attention_parameters(model, layer.attention) + ffn + 2 * module_norm_parameters(model, layer)


def embedding_parameters(model: ModelSpec) -> int:
    """Return the parameters of the token embedding and of learned positions, if any."""
    return (model.vocab + model.learned_positions) * model.hidden


def lm_head_parameters(model: ModelSpec) -> int:
    """Return the parameters that the LM head adds: 0 when it is tied to the embedding."""
    return 0 if model.tied_embeddings else model.vocab * model.hidden


def absent_modules(model: ModelSpec) -> dict[str, str]:
    """Return the modules of :data:`clustersim.model.weight_parts.MODULES` that a model lacks, and words for it."""
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    lacks = {
        "ffn": len(moes) == len(model.layers),
        "experts": not moes,
        "router": not moes,
        "shared_experts": not any(one.num_shared_experts for one in moes),
    }
    tied = {"lm_head": f"{model.name} has none of its own: it is the embedding; name that"}
    absent = {module: f"{model.name} has none" for module, lacking in lacks.items() if lacking}
    return absent | (tied if model.tied_embeddings else {})


def total_parameters(model: ModelSpec) -> int:
    """Return every parameter of the model: embeddings, layers, final norm, LM head."""
    layers = sum(layer_parameters(model, layer) for layer in model.layers)
    return embedding_parameters(model) + layers + norm_parameters(model) + lm_head_parameters(model)


def active_parameters(model: ModelSpec, *, input_embedding: bool = True) -> int:
    """Return the parameters that one token visits: all but the routed experts that it does not go to.

    Parameters
    ----------
    model : ModelSpec
    input_embedding : bool
        Whether the embedding table counts. Mixtral's and Qwen's cards count it; gpt-oss's does not.
    """
    idle = sum(
        (layer.ffn.num_experts - layer.ffn.top_k) * expert_parameters(model, layer.ffn)
        for layer in model.layers
        if isinstance(layer.ffn, Moe)
    )
    table = 0 if input_embedding or model.tied_embeddings else embedding_parameters(model)
    return total_parameters(model) - idle - table
