"""What a ``model_type`` fixes without saying it in its configuration, and what cannot be represented.

The facts are those of the families' modelling code in Hugging Face transformers (2025), by class:
``LlamaAttention`` takes biases from ``attention_bias``, ``Qwen2Attention`` always has them on q, k and v, and
so on. A feature that would change work, memory or communication, and that a ``ModelSpec`` cannot hold, is
refused by name: a wrong model is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from clustersim.model.architecture import NormKind
from clustersim.values import dataclass

Windows = Literal["all", "above_max_window_layers", "every_other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The traits of a model family where its configuration does not say otherwise; None: it must say.

    Parameters
    ----------
    norm : {"rms", "layer"} or None
        The kind of norm.
    gated : bool or None
        Whether FFN and experts are gated.
    qkv_bias, ffn_bias : bool
        Biases of the projections.
    out_bias : bool or None
        Bias of the projection out of the heads; None: as ``attention_bias`` says.
    qk_norm, sinks : bool or None
        See :class:`~clustersim.model.architecture.Attention`.
    moe : bool
        Whether the configuration must name experts.
    router_bias, shared_gate : bool
        See :class:`~clustersim.model.architecture.Moe`.
    tied : bool
        Whether the LM head is the embedding table when ``tie_word_embeddings`` is absent.
    learned_positions_offset : int or None
        Rows of the learned position table beyond the longest context; None: positions are rotary.
    windows : {"all", "above_max_window_layers", "every_other"}
        Which layers ``sliding_window`` holds for when no ``layer_types`` says so.
    post_norms : bool
        See :class:`~clustersim.model.architecture.Layer`.
    scaled_embedding : bool
        See :class:`~clustersim.model.architecture.ModelSpec`.
    defaults : mapping
        What the family's configuration class takes for keys that a published ``config.json`` leaves out.
    note : str
        In which respect it is simulated as something else than it is.
    """

    norm: NormKind | None = "rms"
    gated: bool | None = True
    qkv_bias: bool = False
    out_bias: bool | None = None
    ffn_bias: bool = False
    qk_norm: bool | None = False
    sinks: bool = False
    moe: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    tied: bool = False
    learned_positions_offset: int | None = None
    windows: Windows = "all"
    post_norms: bool = False
    scaled_embedding: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)
    note: str = ""


_QWEN2: Final = Family(qkv_bias=True, out_bias=False, windows="above_max_window_layers")
_QWEN2_MOE: Final = Family(qkv_bias=True, out_bias=False, moe=True, shared_gate=True, windows="above_max_window_layers")
_DEEPSEEK: Final = Family(moe=True)
_INDEXED: Final = Family(
    moe=True,
    router_bias=True,
    note="taken for dense attention: the learned index that picks the keys to attend to is not in this configuration",
)
_GLM4_MOE: Final = Family(out_bias=False, moe=True, router_bias=True)
_OPT: Final = Family(
    norm="layer",
    gated=False,
    qkv_bias=True,
    out_bias=True,
    ffn_bias=True,
    tied=True,
    learned_positions_offset=2,
)
_GPT_OSS: Final = Family(
    qkv_bias=True,
    out_bias=True,
    sinks=True,
    ffn_bias=True,
    moe=True,
    router_bias=True,
    windows="every_other",
)
_GEMMA2: Final = Family(
    tied=True,
    windows="every_other",
    post_norms=True,
    scaled_embedding=True,
    defaults={
        "vocab_size": 256_000, "head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096,
        "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
)  # fmt: skip
_GEMMA3: Final = Family(
    qk_norm=True,
    tied=True,
    post_norms=True,
    scaled_embedding=True,
    defaults={
        "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131_072, "sliding_window": 4096, "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
    },
)  # fmt: skip

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family(),
    "mistral": Family(),
    "opt": _OPT,
    "mixtral": Family(moe=True),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_moe": _QWEN2_MOE,
    "qwen3": Family(qk_norm=True, windows="above_max_window_layers"),
    "qwen3_moe": Family(qk_norm=True, moe=True),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _INDEXED,
    "kimi_k2": _DEEPSEEK,
    "gpt_oss": _GPT_OSS,
    "glm4": Family(out_bias=False, post_norms=True),
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": _DEEPSEEK,
    "glm_moe_dsa": _INDEXED,
    "minimax_m2": Family(qk_norm=True, moe=True),
    "gemma": Family(tied=True, scaled_embedding=True, defaults={"head_dim": 256}),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
}

UNKNOWN: Final = Family(norm=None, gated=None, qk_norm=None)
"""A family that is not in the table: its configuration must say everything."""

_PARALLEL: Final = "runs attention and FFN side by side, which is not modelled"
_POST_ALONE: Final = "norms the outputs of attention and FFN and not their inputs, which is not modelled"
_OLD: Final = "has positions and projections of its own, which are not modelled"

REFUSED_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("falcon", "gptj", "gpt_neox", "phi", "cohere", "cohere2", "codegen"), _PARALLEL),
    **dict.fromkeys(("olmo2", "olmo3"), _POST_ALONE),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "has embeddings per layer, which are not modelled"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "has head sizes that differ between layers, which is not modelled"),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "gpt_neo", "bloom", "mpt"), _OLD),
    **dict.fromkeys(("t5", "bart", "whisper", "mllama"), "is no plain decoder: cross-attention is not modelled"),
    **dict.fromkeys(
        ("mamba", "mamba2", "jamba", "rwkv", "falcon_h1"), "keeps a recurrent state, which is not modelled"
    ),
}
"""``model_type`` → why it cannot be represented."""

_STATE: Final = "layers with a recurrent state (linear attention, state spaces) are not modelled"
_SPARSE: Final = (
    "a learned index that picks the keys to attend to is not modelled, nor is its cache; as dense attention, "
    "the work would be overestimated beyond {index_topk} tokens of context; to simulate it as dense anyway, "
    "remove the index_* keys"
)

REFUSED_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "mamba_", "ssm_", "linear_attn_config", "linear_attention", "linear_conv_kernel_dim",
            "linear_key_head_dim", "linear_num_", "linear_value_head_dim", "full_attention_interval",
            "hybrid_override_pattern", "layers_block_type", "conv_L_cache",
        ),
        _STATE,
    ),
    "index_topk": _SPARSE,
    "compress_ratios": "K/V entries that stand for several tokens are not modelled",
    "attention_chunk_size": "attention within chunks of the context is not modelled",
    "global_head_dim": "head sizes that differ between layers are not modelled",
    "num_global_key_value_heads": "K/V heads that differ between layers are not modelled",
    "num_kv_shared_layers": "layers that share one K/V cache are not modelled",
    "block_configs": "layers that each have a shape of their own are not modelled",
    "is_encoder_decoder": "encoders are not modelled",
    "cross_attention_layers": "cross-attention is not modelled",
    "parallel_attn": _PARALLEL,
    "use_parallel_residual": _PARALLEL,
    "hidden_size_per_layer_input": "embeddings per layer are not modelled",
}  # fmt: skip
"""Key, or start of a key when it ends in ``_``, → why it cannot be represented when its value is set."""

REQUIRED_VALUES: Final[Mapping[str, tuple[bool, str]]] = {
    "do_layer_norm_before": (True, "norms after the residual are not modelled"),
    "layer_norm_elementwise_affine": (True, "norms without weights are not modelled"),
    "enable_bias": (True, "OPT without biases is not modelled"),
    "_remove_final_layer_norm": (False, "a model without a final norm is not modelled"),
    "use_bidirectional_attention": (False, "attention to later tokens is not modelled"),
}
"""Key → the only value that can be represented, and why."""

HARMLESS: Final = (
    "activation_dropout", "activation_function", "architectures", "attention_dropout", "attn_pdrop",
    "auto_map", "aux_loss_alpha", "bos_token_id", "cache_implementation", "decoder_start_token_id", "dropout",
    "embd_pdrop", "eos_token_id", "ep_size", "hidden_act", "hidden_activation", "hidden_dropout", "id2label",
    "init_std", "initial_context_length", "initializer_range", "label2id", "layer_norm_eps",
    "layer_norm_epsilon", "layerdrop", "name", "_name_or_path", "norm_topk_prob", "output_router_logits",
    "pad_token_id", "partial_rotary_factor", "prefix", "pretraining_tp", "resid_pdrop", "rms_norm_eps",
    "rope_parameters", "rope_local_base_freq", "rope_scaling", "rope_theta", "rotary_dim", "routed_scaling_factor",
    "router_aux_loss_coef", "router_jitter_noise", "scoring_func", "sep_token_id", "seq_aux", "swiglu_limit",
    "tokenizer_class",
    "transformers_version", "use_cache",
)  # fmt: skip
"""Keys that change neither work, nor memory, nor communication."""
