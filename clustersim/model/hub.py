"""Names on the Hugging Face hub → the architectures that ship with clustersim.

A name is taken without its owner and in lower case. What is a variant of one architecture (instructed, newer
weights, quantised) is that architecture; a quantised one tells the format of its weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from clustersim.errors import nearest
from clustersim.model.families import REFUSED_TYPES
from clustersim.values import dataclass

VARIANT: Final = (
    r"(-(instruct|chat|base|hf|it|thinking|reasoning|v0\.\d|2[45]\d\d|0\d\d\d|bf16|quantized\.\w+|fp8|fp8-\w+|fp4|nvfp4|"
    r"nvfp4-v\d|mxfp4|awq|awq-\w+|gptq|gptq-\w+|int4|int8|w4a16|w8a16|w8a8|bnb-4bit|bnb-8bit|bnb-nf4|unsloth))*"
)
OTHER_FORMATS: Final = (
    r"-(gguf|exl2|exl3|mlx|[3-8]bit|q\d\w*|hqq|aqlm|auto-?round|spqr|w\da\d+|nvfp4a16|int\d|\d(\.\d+)?bpw)\b.*"
)
"""Formats of quantised checkpoints that are not simulated, or that say no width, as names end."""
ARCHITECTURES: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    (r"deepseek-(v3|v3\.1|v3\.1-terminus|r1)", "deepseek-v3", {}),
    (r"deepseek-(v2|coder-v2)-lite", "deepseek-v2-lite", {}),
    (r"deepseek-r1-distill-llama-8b", "llama-3.1-8b", {}),
    (r"deepseek-r1-distill-llama-70b", "llama-3.3-70b", {}),
    (r"gemma-2-(9b|27b)", r"gemma-2-\1", {}),
    (r"gemma-3-(12b|27b)(?:-pt)?", r"gemma-3-\1", {}),
    (r"glm-(4\.5|4\.6)", r"glm-\1", {}),
    (r"gpt-oss-(20b|120b)", r"gpt-oss-\1", {}),
    (r"kimi-k2", "kimi-k2", {}),
    (r"minimax-m2(?:\.[15])?", "minimax-m2", {}),
    (r"(?:meta-)?llama-2-(7b|70b)", r"llama-2-\1", {}),
    (r"(?:meta-)?llama-3-(8b|70b)", r"llama-3-\1", {}),
    (r"(?:meta-)?llama-3\.1-(8b|70b|405b)", r"llama-3.1-\1", {}),
    (r"llama-3\.3-70b", "llama-3.3-70b", {}),
    (r"mistral-large", "mistral-large-123b", {}),
    (r"mistral-7b(?=.*-v0\.1)", "mistral-7b", {}),
    (r"mistral-7b(?=.*-v0\.2)", "mistral-7b", {"sliding_window": None}),
    (r"mistral-7b(?=.*-v0\.3)", "mistral-7b", {"sliding_window": None, "vocab_size": 32768}),
    (r"mixtral-(8x7b|8x22b)(?=.*-v0\.1)", r"mixtral-\1", {}),
    (r"opt-13b", "opt-13b", {}),
    (r"qwen3-(8b|14b|32b|30b-a3b|235b-a22b)", r"qwen3-\1", {}),
    (r"qwen3-coder-30b-a3b", "qwen3-30b-a3b", {}),
)
"""Name without variants → architecture, and what of its configuration is another."""
META_FP8: Final = {
    "quant_method": "fbgemm_fp8",
    "modules_to_not_convert": ["lm_head", "model.layers.*.self_attn", "model.layers.0.mlp", "model.layers.125.mlp"],
}
KIMI_INT4: Final = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["re:.*mlp.experts.*"], "weights": {
        "num_bits": 4, "type": "int", "group_size": 32, "symmetric": True}}},
}  # fmt: skip
LISTED: Final[tuple[tuple[str, Mapping[str, Any]], ...]] = (
    (r"moonshotai/kimi-k2-thinking", {"quantization_config": KIMI_INT4, "max_position_embeddings": 262144}),
    (r"meta-llama/(meta-)?llama-3\.1-405b(-instruct)?-fp8", {"quantization_config": META_FP8}),
)
"""Name with its owner → what its configuration says of its weights: "The Llama 3 Herd of Models", arXiv:2407.21783,
section 6.2, has FFNs in fp8, and neither attention nor the first and last layer; the model card of Kimi-K2-Thinking has
routed experts in int4, trained so, and 256K positions."""
ON_THE_HUB: Final[Mapping[str, str]] = {
    "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gemma-2-27b": "google/gemma-2-27b",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-12b": "google/gemma-3-12b-it",
    "gemma-3-27b": "google/gemma-3-27b-it",
    "glm-4.5": "zai-org/GLM-4.5",
    "glm-4.6": "zai-org/GLM-4.6",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "kimi-k2": "moonshotai/Kimi-K2-Instruct",
    "llama-2-70b": "meta-llama/Llama-2-70b-hf",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B",
    "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.3-70b": "meta-llama/Llama-3.3-70B-Instruct",
    "minimax-m2": "MiniMaxAI/MiniMax-M2",
    "mistral-7b": "mistralai/Mistral-7B-v0.1",
    "mistral-large-123b": "mistralai/Mistral-Large-Instruct-2407",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "opt-13b": "facebook/opt-13b",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
}
"""Architecture that ships → the checkpoint that was published with it, as a server is told of it."""
REFUSED: Final = ((r"gemma-3n-", "gemma3n"), (r"gemma-4-", "gemma4"), (r"olmo-2-", "olmo2"))
"""Start of a name → a ``model_type`` that can't be represented."""
WEIGHTS: Final = (
    (r"nvfp4|-fp4", "fp4"),
    (r"mxfp4", "mxfp4"),
    (r"fp8", "fp8"),
    (r"gptq-int8|int8|w8a16|w8a8|bnb-8bit", "int8"),
    (r"awq|gptq|int4|w4a16|bnb", "int4"),
)
"""Part of a quantised checkpoint's name → format of its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """An architecture that ships, what of its configuration changes, and the format of quantised weights."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


def shipped_model(name: str) -> Shipped | None:
    """Return what a name on the hub stands for; None when it is not known.

    Examples
    --------
    >>> shipped_model("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8")
    Shipped(name='llama-3.1-70b', changes={}, weights='fp8')
    """
    bare = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for pattern, architecture, changes in ARCHITECTURES:
        found = re.fullmatch(pattern + VARIANT, bare)
        if found is not None:
            weights = next((dtype for part, dtype in WEIGHTS if re.search(part, bare)), None)
            listed = (more for full, more in LISTED if re.fullmatch(full, name.lower()))
            changes = {**changes, **next(listed, {})}
            return Shipped(name=found.expand(architecture), changes=changes, weights=weights)
    return None


def nearest_shipped(name: str) -> str | None:
    """Return the architecture that ships whose name is most like another one; None where none is.

    What is left of a name without its last words comes first: a variant that is not known.

    Examples
    --------
    >>> nearest_shipped("meta-llama/Llama-3.3-70B-Instruct-Turbo"), nearest_shipped("me/mixtrall-8x7b")
    ('llama-3.3-70b', 'mixtral-8x7b')
    """
    bare = name.rstrip("/").rsplit("/", 1)[-1].lower()
    words = bare.split("-")
    for count in range(len(words) - 1, 0, -1):
        known = shipped_model("-".join(words[:count]))
        if known is not None:
            return known.name
    return nearest(bare, ON_THE_HUB)


def why_unknown(name: str) -> str | None:
    """Say why a checkpoint is none of those that are known; None where nothing is known of it.

    It is in another format, of an architecture that ships; or its family can't be represented.

    Examples
    --------
    >>> why_unknown("bartowski/Llama-3.3-70B-Instruct-GGUF")
    "the architecture ships as llama-3.3-70b; the format 'gguf' is not known: name it, and say precision.weights"
    """
    bare = name.rstrip("/").rsplit("/", 1)[-1].lower()
    if bare.endswith((".json", ".yaml", ".yml")):
        return None
    for pattern, family in REFUSED:
        if re.match(pattern, bare) is not None:
            return f"{bare} {REFUSED_TYPES[family]}"
    for pattern, _, _ in ARCHITECTURES:
        found = re.fullmatch(f"(?P<known>{pattern}{VARIANT}){OTHER_FORMATS}", bare)
        known = shipped_model(found["known"]) if found is not None else None
        if found is not None and known is not None:
            rest = bare[found.end("known") + 1 :]
            return (
                f"the architecture ships as {known.name}; the format {rest!r} is not known: "
                "name it, and say precision.weights"
            )
    return None
