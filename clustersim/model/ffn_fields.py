"""Reads the FFN or the experts of every layer from a configuration, and which layers have experts."""

from __future__ import annotations

from typing import Final

from clustersim.model.architecture import Ffn, Moe
from clustersim.model.families import Family
from clustersim.model.reading import ConfigReader
from clustersim.units import plural

INTERMEDIATE: Final = ("intermediate_size", "ffn_dim", "ffn_embed_dim", "ffn_hidden_size", "n_inner")
EXPERTS: Final = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
TOP_K: Final = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
)
SHARED: Final = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_EACH: Final = ("moe_shared_expert_intermediate_size",)
SHARED_ALL: Final = ("shared_expert_intermediate_size",)


def ffn_layers(read: ConfigReader, family: Family, num_layers: int) -> tuple[Ffn | Moe, ...]:
    """Return the FFN or MoE of each layer; equal layers share one value.

    Parameters
    ----------
    read : ConfigReader
        Receives the problems.
    family : Family
    num_layers : int
        0 where it could not be read.
    """
    gated = _gated(read, family)
    bias = read.flag(("mlp_bias",))
    bias = family.ffn_bias if bias is None else bias
    if not family.moe and not read.optional_integer(EXPERTS, least=0):
        return (Ffn(intermediate=read.integer(INTERMEDIATE), gated=gated, bias=bias),) * num_layers
    moe = _moe(read, family, gated=gated, bias=bias)
    sparse = _sparse(read, num_layers)
    if all(sparse):
        read.present(INTERMEDIATE)
        return (moe,) * num_layers
    dense = Ffn(intermediate=read.integer(("intermediate_size_mlp", *INTERMEDIATE)), gated=gated, bias=bias)
    return tuple(moe if experts else dense for experts in sparse)


def _gated(read: ConfigReader, family: Family) -> bool:
    said = read.flag(("mlp_gated_linear_units",))
    if said is not None or family.gated is not None:
        return bool(family.gated) if said is None else said
    key = read.present(("hidden_act", "hidden_activation", "activation_function"))
    if key is not None and read.value(key) in ("silu", "swish", "swiglu", "geglu"):
        return True
    read.fail(
        "mlp_gated_linear_units",
        "is missing; expected true or false: neither model_type nor hidden_act tells if the FFN is gated",
    )
    return True


def _moe(read: ConfigReader, family: Family, *, gated: bool, bias: bool) -> Moe:
    experts, top_k = read.integer(EXPERTS), read.integer(TOP_K)
    if experts and top_k > experts:
        read.fail(read.present(TOP_K) or TOP_K[0], f"{top_k} experts per token, but there are only {experts}")
    width = read.integer(("moe_intermediate_size", *INTERMEDIATE))
    shared, shared_width = _shared(read, width)
    groups, visited = _groups(read, experts, top_k)
    return Moe(
        num_experts=experts,
        top_k=top_k,
        expert_intermediate=width,
        gated=gated,
        bias=bias,
        num_shared_experts=shared,
        shared_intermediate=shared_width,
        router_bias=family.router_bias
        or read.word(("topk_method",)) == "noaux_tc"
        or bool(read.flag(("use_routing_bias",))),
        shared_gate=family.shared_gate and shared > 0,
        groups=groups,
        groups_per_token=visited,
    )


def _groups(read: ConfigReader, experts: int, top_k: int) -> tuple[int, int]:
    """Return in how many groups experts are, and in how many of these those of a token: (1, 1) where in any."""
    groups = read.optional_integer(("n_group",)) or 1
    visited = read.optional_integer(("topk_group",)) or groups
    if read.word(("topk_method",)) == "greedy" or visited == groups:
        return 1, 1
    if visited > groups:
        read.fail("topk_group", f"{visited} groups of experts per token, but there are only {groups}")
    elif experts % groups:
        read.fail("n_group", f"{plural(experts, 'expert')} do not divide into {groups} groups")
    elif experts // groups * visited < top_k:
        read.fail("topk_group", f"{visited} groups have {experts // groups * visited} experts; a token visits {top_k}")
    return groups, visited


def _shared(read: ConfigReader, expert_intermediate: int) -> tuple[int, int]:
    """Return the number of shared experts and their inner width together.

    DeepSeek gives a number, each as wide as a routed expert; Qwen2-MoE a width, of one; others both.
    """
    count = read.optional_integer(SHARED, least=0)
    total = read.optional_integer(SHARED_ALL, least=0)
    each = read.optional_integer(SHARED_EACH)
    if count == 0 or (count is None and not total and each is None):
        return 0, 0
    if total:
        return count or 1, total
    return count or 1, (count or 1) * (each or expert_intermediate)


def _sparse(read: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts.

    ``moe_layer_freq`` n (DeepSeek) counts layers from 0, ``decoder_sparse_step`` n (Qwen) from 1.
    """
    kinds = read.words("mlp_layer_types", ("dense", "sparse"), length=num_layers)
    if kinds is not None:
        return tuple(kind == "sparse" for kind in kinds)
    first = read.optional_integer(("first_k_dense_replace",), least=0) or 0
    if isinstance(read.value("moe_layer_freq"), list | tuple):
        each = read.integers("moe_layer_freq", length=num_layers)
        return tuple(flag != 0 for flag in each or ())
    period = read.optional_integer(("moe_layer_freq",)) or 1
    step = read.optional_integer(("decoder_sparse_step", "interleave_moe_layer_step")) or 1
    dense = read.integers("mlp_only_layers") or ()
    outside = [index for index in dense if index >= num_layers > 0]
    if outside:
        read.fail("mlp_only_layers", f"layer {outside[0]} does not exist; the model has {plural(num_layers, 'layer')}")
    return tuple(
        index >= first and index % period == 0 and (index + 1) % step == 0 and index not in dense
        for index in range(num_layers)
    )
