"""Reads the attention of every layer from a configuration: heads, widths, biases, sliding windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clustersim.model.architecture import Attention, AttentionKind
from clustersim.model.families import Family
from clustersim.model.reading import ConfigReader
from clustersim.units import plural

HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS: Final = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
HEAD_DIM: Final = ("head_dim", "hidden_size_per_head", "kv_channels")
QKV_BIAS: Final = ("attention_bias", "qkv_bias", "add_qkv_bias", "use_qkv_bias")
OUT_BIAS: Final = ("attention_out_bias", "attention_output_bias", "o_bias")


def attention_layers(read: ConfigReader, family: Family, hidden: int, num_layers: int) -> tuple[Attention, ...]:
    """Return the attention of each layer; equal layers share one value.

    Parameters
    ----------
    read : ConfigReader
        Receives the problems.
    family : Family
    hidden, num_layers : int
        0 where they could not be read.
    """
    full = _latent(read, family) if read.present(("kv_lora_rank",)) else _grouped(read, family, hidden)
    _refuse_lightning(read, num_layers)
    spread = _windows(read, family, num_layers)
    made = {window: replace(full, sliding_window=window) for window in dict.fromkeys(spread)}
    return tuple(made[window] for window in spread)


def _refuse_lightning(read: ConfigReader, num_layers: int) -> None:
    """Refuse layers of MiniMax-M1 (arXiv:2506.13585) without a cache; 1 is softmax attention, in all layers of M2."""
    kinds = read.integers("attn_type_list", length=num_layers) or ()
    others = [kind for kind in kinds if kind != 1]
    if others:
        message = f"{len(others)} of {plural(num_layers, 'layer')} have lightning attention (0), which is not modelled"
        read.fail("attn_type_list", message if set(others) == {0} else f"expected 0 or 1, but found {max(others)}")


def _grouped(read: ConfigReader, family: Family, hidden: int) -> Attention:
    heads = read.integer(HEADS)
    kv_heads = read.optional_integer(KV_HEADS) or heads
    head_dim = _head_dim(read, hidden, heads)
    if heads and heads % kv_heads:
        key = read.present(KV_HEADS) or KV_HEADS[0]
        read.fail(key, f"{kv_heads} K/V heads do not divide {heads} query heads")
    qkv_bias, out_bias = _biases(read, family)
    qk_norm = read.flag(("use_qk_norm", "qk_norm"))
    return Attention(
        kind=_kind(heads, kv_heads),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=bool(family.qk_norm) if qk_norm is None else qk_norm,
        sinks=family.sinks,
        rotary=family.learned_positions_offset is None,
        score_cap=read.optional_number(("attn_logit_softcapping",)),
        query_scalar=read.optional_integer(("query_pre_attn_scalar",)),
    )


def _kind(heads: int, kv_heads: int) -> AttentionKind:
    if heads == kv_heads:
        return "mha"
    return "mqa" if kv_heads == 1 else "gqa"


def _head_dim(read: ConfigReader, hidden: int, heads: int) -> int:
    said = read.optional_integer(HEAD_DIM)
    if said is not None or not (hidden and heads):
        return said or 0
    if hidden % heads and not any(read.present((key,)) for key in HEAD_DIM):
        read.fail("head_dim", f"is missing, and {heads} heads do not divide the hidden size {hidden}; give head_dim")
    return hidden // heads


def _biases(read: ConfigReader, family: Family) -> tuple[bool, bool]:
    qkv, out = read.flag(QKV_BIAS), read.flag(OUT_BIAS)
    qkv_bias = family.qkv_bias if qkv is None else qkv
    if out is None:
        out = bool(read.flag(("attention_bias",))) if family.out_bias is None else family.out_bias
    return qkv_bias, out


def _latent(read: ConfigReader, family: Family) -> Attention:
    heads = read.integer(HEADS)
    read.optional_integer(KV_HEADS)  # as many as there are heads in every published model; the cache has one latent
    nope, rope = read.integer(("qk_nope_head_dim",)), read.integer(("qk_rope_head_dim",))
    qkv_bias, out_bias = _biases(read, family)
    return Attention(
        kind="mla",
        num_heads=heads,
        num_kv_heads=1,
        head_dim=nope + rope,
        v_head_dim=read.integer(("v_head_dim",)),
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        q_lora_rank=read.optional_integer(("q_lora_rank",)),
        kv_lora_rank=read.integer(("kv_lora_rank",)),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
    )


def _windows(read: ConfigReader, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, None for full attention."""
    types = read.words("layer_types", ("full_attention", "sliding_attention"), length=num_layers)
    window = read.optional_integer(("sliding_window",))
    period = read.optional_integer(("sliding_window_pattern", "_sliding_window_pattern"))
    first = read.optional_integer(("max_window_layers",), least=0) or 0
    if read.flag(("use_sliding_window",)) is False:
        return (None,) * num_layers
    if types is not None:
        slides = [kind == "sliding_attention" for kind in types]
    elif period is not None:
        slides = [(index + 1) % period != 0 for index in range(num_layers)]
    elif family.windows == "every_other":
        slides = [index % 2 == 0 for index in range(num_layers)]
    else:
        first = first if family.windows == "above_max_window_layers" else 0
        slides = [index >= first for index in range(num_layers)]
    needed = types is not None or family.windows == "every_other"
    if window is None and needed and any(slides) and not read.present(("sliding_window",)):
        read.fail("sliding_window", "is missing, but there are sliding_attention layers; expected their window")
    return tuple(window if slide else None for slide in slides)
