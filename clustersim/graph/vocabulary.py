"""The names that operators have in step graphs, and of what kind each is.

*Parts* are operators that other programs have in place of one of these: three projections into heads, a gate and an up
projection, an activation and a product. Which of them make up which operator, and whether they do, is decided in
``clustersim.legality.merging``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from clustersim.graph.blueprint import COLLECTIVE_OPS, OPS, TRANSFER_OPS

_PRODUCTS: Final = (
    "qkv_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "q_absorb", "v_absorb", "ffn_up",
    "ffn_down", "gate", "shared_up", "shared_gate", "shared_down", "lm_head",
)  # fmt: skip
_MOVES: Final = (
    "embedding", "attention_norm", "rope", "qk_norm_rope", "kv_write", "q_a_norm", "kv_a_norm_rope", "attention_add",
    "ffn_norm", "ffn_act", "ffn_add", "moe_norm", "expert_act", "aggregate", "shared_act", "shared_add", "moe_add",
    "attention_post_norm", "ffn_post_norm", "moe_post_norm", "final_norm", "logits_cap", "dispatch", "combine",
)  # fmt: skip
_NAMED_BY_KIND: Final = (
    "schedule", "sample", "boundary", "kv_read", "send", "recv", "attention_prefill", "attention_decode",
)  # fmt: skip
_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "gemm"),
    **dict.fromkeys(("shared_gate_proj", "shared_up_proj"), "gemm"),
    **dict.fromkeys(("expert_gate_proj", "expert_up_proj"), "grouped_gemm"),
    **dict.fromkeys(("q_norm", "k_norm", "q_rope", "k_rope", "ffn_mul"), "memory"),
}
PARTS: Final = tuple(_PARTS)
"""Names of operators that are parts of others."""

KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_PRODUCTS, "gemm"),
    **dict.fromkeys(("expert_up", "expert_down"), "grouped_gemm"),
    **dict.fromkeys(_MOVES, "memory"),
    **{name: name for name in (*_NAMED_BY_KIND, *COLLECTIVE_OPS)},
    "kv_move": "all_gather",
    "kv_all_gather": "all_gather",
    **dict.fromkeys(("qkv_all_to_all", "out_all_to_all"), "all_to_all"),
    **_PARTS,
}
"""Name → kind of operator. ``dispatch`` and ``combine`` are collectives where experts are spread."""

_MODULES: Final = {
    "host": r"schedule|sample",
    "boundary": r"boundary",
    "pipeline": r"send|recv",
    "embedding": r"embedding",
    "lm_head": r"final_norm|lm_head|logits_cap",
    "moe": r"gate|dispatch|combine|aggregate|(expert|shared|moe)_\w+",
    "ffn": r"ffn_\w+",
    "attention": r"rope|(q|k|v|kv|qk|qkv|o|out|attention)_\w+",
}
MODULES: Final = frozenset(_MODULES)
"""Modules by the names that step graphs give them; other programs have some of their own."""

CORE: Final = "attention"
"""As a name: the prefill or the decode attention, whichever the step has."""

POST_ATTENTION: Final = "post_attention_norm"
"""As a name: the norm of what attention puts out, where the FFN behind it has a norm of its own, else that norm."""

NORM: Final = "norm"
"""As a name: whichever norm comes before what reads it, or behind what it reads."""

ADD: Final = "add"
"""As a name: the addition to the residual behind attention, or behind the FFN or the experts."""

OUTPUT: Final = "output"
"""As a name: the projection to logits where nothing else is, and what reads the final norm, else the sampler."""

FIRST: Final = "mlp_fc"
"""As a name: the first projection of an FFN, of a gated one that whose result is activated."""

GATE: Final = "mlp_gate"
"""As a name: the projection that an FFN's activated one is multiplied by, and the gate of experts elsewhere."""

UP: Final = "mlp_up"
"""As a name: the projection up of an FFN beside one that is activated, where the graph has such, else both in one."""

BESIDE: Final = frozenset((NORM, ADD, OUTPUT, FIRST, GATE, UP))
"""Names that mean something beside others only."""

_JOINED: Final = re.compile(rf"(?P<of>\w+?)_(?P<op>{'|'.join(COLLECTIVE_OPS)})")
_NUMBERED: Final = re.compile(r"(attention_prefill|kv_ring)_\d+")
PART_MARK: Final = "#"
"""Between the name of a collective and which of its parts a node is: ``o_proj_all_reduce#1``."""


def kind_of(name: str) -> str | None:
    """Return the kind of operator that a name stands for; None where nothing has that name."""
    name = name.partition(PART_MARK)[0]
    if name in KINDS:
        return KINDS[name]
    if (found := _NUMBERED.fullmatch(name)) is not None:
        return "ring_shift" if found[1] == "kv_ring" else "attention_prefill"
    joined = _JOINED.fullmatch(name)
    return joined["op"] if joined is not None and kind_of(joined["of"]) is not None else None


def module_of(name: str) -> str | None:
    """Return the module of the operator that a name stands for; None where nothing has that name, or it tells none."""
    if kind_of(name) is None:
        return None
    plain = name.partition(PART_MARK)[0]
    joined = None if plain in KINDS else _JOINED.fullmatch(plain)
    own = plain if joined is None else joined["of"]
    return next((module for module, names in _MODULES.items() if re.fullmatch(names, own)), None)


def is_known(node: Mapping[str, Any]) -> bool:
    """Whether a node of a document has a name of step graphs."""
    name = node.get("name")
    return isinstance(name, str) and kind_of(name) is not None


def is_told(node: Mapping[str, Any]) -> bool:
    """Whether rules can tell what a node of a document is although its name is none: a collective or transfer."""
    return node.get("op") in (*COLLECTIVE_OPS, *TRANSFER_OPS)


_SAME: Final[Mapping[str, str]] = {
    "query": "q", "key": "k", "value": "v", "wq": "q proj", "wk": "k proj", "wv": "v proj",
    **dict.fromkeys(("out", "output"), "o proj down"), "wo": "o proj", "fc": "proj", "in": "up",
    **dict.fromkeys(("linear", "dense", "lin", "projection"), "proj"), "fc1": "ffn up", "fc2": "ffn down",
    **dict.fromkeys(("mlp", "feedforward"), "ffn"), **dict.fromkeys(("attn", "sdpa", "mha", "self"), "attention"),
    **dict.fromkeys(("softmax", "score", "scores", "matmul", "qk", "av"), "attention"),
    **dict.fromkeys(("ln", "layernorm", "rmsnorm"), "norm"), **dict.fromkeys(("resid", "residual", "skip"), "add"),
    **dict.fromkeys(("emb", "embed", "embeddings", "wte"), "embedding"), **dict.fromkeys(("rotary", "rot"), "rope"),
    **dict.fromkeys(("append", "store", "update"), "write"), **dict.fromkeys(("load", "fetch"), "read"),
    **dict.fromkeys(("router", "gating", "topk"), "gate"), **dict.fromkeys(("experts", "moe"), "expert"),
    **dict.fromkeys(("head", "logits", "unembed", "vocab"), "lm head"), "cache": "kv", "argmax": "sample",
    **dict.fromkeys(("activation", "silu", "gelu", "relu", "swiglu"), "act"), "multiply": "mul", "a2a": "all to",
    "allreduce": "all reduce", "allgather": "all gather", "alltoall": "all to", "p2p": "send", "receive": "recv",
}  # fmt: skip
"""Words of other programs → the words that the names of step graphs have for them."""
_OWN_WORDS: Final = tuple(dict.fromkeys(word for name in (CORE, *KINDS) for word in name.split("_")))


def nearest_name(name: str) -> str | None:
    """Return the known name that has most words in common with another one; None where nothing is alike.

    Examples
    --------
    >>> [nearest_name(name) for name in ("QueryLinear", "mlp_out", "KVCacheAppend", "q_projj", "banana")]
    ['q_proj', 'ffn_down', 'kv_write', 'q_proj', None]
    """
    parts = re.sub(r"([a-z])(?=[A-Z])|([A-Z]+)(?=[A-Z][a-z])", r"\1\2_", name).lower()
    words = [word for word in re.split(r"[\W_]+", parts) if word]
    told = list(dict.fromkeys(" ".join(map(_own_word, words)).split()))
    found: tuple[float, float, str] = (0.0, 0.0, "")
    for known in (CORE, *KINDS):
        have = set(known.split("_"))
        share = 2 * len(have.intersection(told)) / (len(have) + len(told))
        if share >= 0.5:
            found = max(found, (share, difflib.SequenceMatcher(None, "_".join(told), known).ratio(), known))
    ends = ["_".join(words[-count:]) for count in range(1, min(len(words), 4) + 1)] if found[0] < 1 else []
    alike = [like for end in ends for like in difflib.get_close_matches(end, KINDS, n=1, cutoff=0.8)]
    return (alike or [found[2]])[0] or None


def _own_word(word: str) -> str:
    """Return the words that names of step graphs have for a word: ``proj`` for ``projection`` and ``linear2``."""
    plain = word if word in _SAME else word.rstrip("0123456789")
    if plain in _SAME:
        return _SAME[plain]
    begins = (known for known in (*_OWN_WORDS, *_SAME) if len(known) > 3 and plain.startswith(known))
    return next((_SAME.get(known, known) for known in begins), plain)


assert set(KINDS.values()) <= set(OPS)
