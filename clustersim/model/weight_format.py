"""Reads the number formats of a checkpoint's weights from its configuration.

Tools that quantise list what they leave as it was: ``modules_to_not_convert`` (fp8, fbgemm, AWQ, MXFP4), ``ignore``
(compressed-tensors, ModelOpt), ``exclude_modules`` (ModelOpt), ``ignored_layers`` (vLLM), ``llm_int8_skip_modules``
(bitsandbytes), ``dynamic`` with ``-:`` (GPTQ). An entry is a name or a part of one between dots, a glob, or ``re:`` and
a regular expression. Scales and zero points of groups and blocks are in the name of a format (``int4-g32z``). Those of
whole channels, of 128 × 128 blocks, and ``g_idx`` of GPTQ, are some 0.1 % of the weights and not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from itertools import accumulate
from typing import Any, Final

from clustersim.errors import did_you_mean
from clustersim.model.reading import ConfigReader
from clustersim.model.weight_parts import Formats
from clustersim.model.weight_shapes import DTYPE, IGNORED, KEYS, slips
from clustersim.values import dataclass

PLAIN: Final = {
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "fp16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8",
}
_CLASS: Final = "Linear"
"""Class of all linear maps; the LM head is of another one to engines."""
METHODS: Final = ("fp8", "fbgemm_fp8", "mxfp4", "awq", "gptq", "bitsandbytes", "modelopt", "compressed-tensors")
"""Known values of ``quant_method``."""
ALGORITHMS: Final = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "fp4",
    "NVFP4_AWQ": "fp4",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
}
"""``quant_algo`` of NVIDIA ModelOpt → format; MIXED_PRECISION names one of each layer."""
_CONTAINERS: Final = frozenset(("model", "language_model", "transformer", "decoder", "text_model", ""))
"""What may stand before ``layers.N`` in the name of a module of the language model."""
_BEFORE: Final = ("model.", "", "language_model.model.", "model.language_model.", "language_model.")
_SHARED: Final = (
    "mlp.shared_experts",
    "mlp.shared_expert",
    "feed_forward.shared_expert",
    "block_sparse_moe.shared_experts",
)
_EXPERTS: Final = ("mlp.experts.0", "mlp.experts", "block_sparse_moe.experts.0", "feed_forward.experts")
_DENSE: Final = ("mlp", "feed_forward")
_UP: Final = ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "fc1")
_DOWN: Final = ("down_proj", "w2", "fc2")
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": tuple(f"self_attn.{one}" for one in ("q_proj", "k_proj", "v_proj", "qkv_proj", "W_pack")),
    "o_proj": ("self_attn.o_proj", "self_attn.out_proj"),
    "q_a_proj": ("self_attn.q_a_proj", "self_attn.fused_qkv_a_proj_with_mqa"),
    "q_b_proj": ("self_attn.q_b_proj", "self_attn.q_proj"),
    "kv_a_proj": ("self_attn.kv_a_proj_with_mqa", "self_attn.fused_qkv_a_proj_with_mqa"),
    "kv_b_proj": ("self_attn.kv_b_proj",),
    "ffn_up": tuple(f"{part}.{one}" for part in _DENSE for one in _UP),
    "ffn_down": tuple(f"{part}.{one}" for part in _DENSE for one in _DOWN),
    "expert_up": tuple(f"{part}.{one}" for part in _EXPERTS for one in _UP),
    "expert_down": tuple(f"{part}.{one}" for part in _EXPERTS for one in _DOWN),
    "shared_up": tuple(f"{part}.{one}" for part in _SHARED for one in _UP),
    "shared_down": tuple(f"{part}.{one}" for part in _SHARED for one in _DOWN),
}
"""Linear map → what model repositories call it, below ``layers.N``. One that is listed under any name is left out:
engines run fused maps in one format."""
HEAD: Final = ("lm_head", "output", "embed_out")

Choice = Callable[[Sequence[str]], str | None]
"""Names → format of what has one of these; None: 16 bit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormats:
    """What a configuration says of its weights: the format of most, and of a linear map of a layer.

    Parameters
    ----------
    default : str
        Without groups: ``int4``.
    choice : callable or None
        None: nothing is quantised by name.
    unread : tuple of str
        Paths of what it says of the K/V cache, whose format ``precision.kv_cache`` has.
    """

    default: str = "bf16"
    choice: Choice | None = None
    unread: tuple[str, ...] = ()

    def _chosen(self, linear: str, layer: int) -> str | None:
        return None if self.choice is None else self.choice([f"layers.{layer}.{name}" for name in NAMES[linear]])

    def for_most(self, linear: str, layer: int) -> WeightFormats:
        """Return the same, where most weights are those of a linear map of a layer."""
        name = self._chosen(linear, layer)
        return self if name is None else replace(self, default=name.partition("-")[0])

    def of(self, linears: Iterable[str], layer: int) -> Formats:
        """Return the formats of the linear maps of a layer that have another one than most weights."""
        if self.choice is None:
            return ()
        each = [(one, self._chosen(one, layer)) for one in linears]
        return tuple((one, name or "bf16") for one, name in each if name != self.default)

    def of_head(self) -> Formats:
        """Return the format of the LM head where the configuration says that it is quantised."""
        name = None if self.choice is None else self.choice(HEAD)
        return () if name is None else (("lm_head", name),)


def weight_formats(read: ConfigReader) -> WeightFormats:
    """Return the formats of a checkpoint's weights; ``bf16`` when the configuration names none, as engines assume."""
    key = read.present(KEYS)
    dtype = read.word(DTYPE)
    if key is not None:
        return _quantised(read, key)
    name = "bf16" if dtype is None else dtype.removeprefix("torch.")
    if name not in PLAIN:
        read.fail(read.present(DTYPE) or "dtype", f"unknown format {dtype!r}; expected one of {', '.join(PLAIN)}")
    return WeightFormats(default=PLAIN.get(name, "bf16"))


def _quantised(read: ConfigReader, key: str) -> WeightFormats:
    found = read.value(key)
    if not isinstance(found, Mapping):
        read.fail(key, f"expected a mapping with a quant_method, but found {found!r}")
        return WeightFormats()
    config: Mapping[str, Any] = found
    inner = config.get("quantization")
    if isinstance(inner, Mapping):  # hf_quant_config.json of ModelOpt, put in as it is
        config = {"quant_method": "modelopt", **config, **inner}
    method = str(config.get("quant_method") or ("modelopt" if "quant_algo" in config else ""))
    if method not in METHODS and not method.startswith("modelopt"):
        why = f"unknown method {method!r}" if method else "is missing"
        read.fail(f"{key}.quant_method", f"{why}{did_you_mean(method, METHODS)}")
        return WeightFormats()
    wrong = list(slips(config))
    for name, why in wrong:
        read.fail(f"{key}.{name}", why)
    if wrong:
        return WeightFormats()
    try:
        told = sorted(_rules(config, method), key=lambda rule: rule[0] == _CLASS)
    except ValueError as error:
        read.fail(key, str(error))
        return WeightFormats()
    rules = [(_matcher(entry), name) for entry, name in told]
    ignored = [_matcher(entry) for entry in dict.fromkeys(_ignored(config))]
    if not rules:
        return WeightFormats()
    heads = config.get("lm_head") is True

    def choice(names: Sequence[str]) -> str | None:
        if heads and names == HEAD:
            return rules[-1][1]
        if any(matches(name) for matches in ignored for name in names):
            return None
        return next((told for matches, told in rules for name in names if matches(name)), None)

    unread = tuple(f"{key}.{name}" for name in ("kv_cache_quant_algo", "kv_cache_scheme") if config.get(name))
    return WeightFormats(default=rules[-1][1].partition("-")[0], choice=choice, unread=unread)


def _rules(config: Mapping[str, Any], method: str) -> Iterator[tuple[str, str]]:
    """Yield what is quantised and its format, the first of which counts, names before the class; raise if unknown."""
    said = {key: value for key, value in config.items() if value is not None}
    bits, group = said.get("bits", said.get("w_bit", 4)), said.get("group_size", said.get("q_group_size"))
    match method:
        case "fp8":
            yield _CLASS, _blocks("fp8", config.get("weight_block_size"))
        case "fbgemm_fp8":
            yield _CLASS, "fp8"
        case "mxfp4":  # attention stays as it was, whatever is listed: vllm's Mxfp4Config knows FusedMoE alone
            yield "experts", "mxfp4"
        case "bitsandbytes":
            if config.get("load_in_4bit") or config.get("load_in_8bit"):
                blocks = "int4" if config.get("bnb_4bit_use_double_quant") else "int4-g32"  # 4.127 and 4.5 bit
                yield _CLASS, blocks if config.get("load_in_4bit") else "int8"
            else:
                raise ValueError("expected load_in_4bit or load_in_8bit of bitsandbytes")
        case "awq" | "gptq":
            if bits not in ((4,) if method == "awq" else (4, 8)):
                raise ValueError(f"expected bits of {method} to be 4{' or 8' * (method == 'gptq')}, but found {bits!r}")
            zeros, group = config.get("zero_point", True), 128 if group is None else group
            for regex, own in (config.get("dynamic") or {}).items():
                if not regex.startswith("-:"):
                    width, among = own.get("bits", bits), own.get("group_size", group)
                    yield f"re:{regex.removeprefix('+:')}", _grouped(f"int{width}", among, zeros=zeros)
            name = _grouped(f"int{bits}", group, zeros=zeros)
            inside = [one for some in config.get("modules_in_block_to_quantize") or () for one in some]
            yield from ((entry, name) for entry in inside or [_CLASS])
        case "compressed-tensors":
            yield from _compressed(config)
        case _:
            yield from _modelopt(config)


def _compressed(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    groups = config.get("config_groups")
    if not groups:
        raise ValueError("expected config_groups of compressed-tensors")
    for name, one in groups.items():
        weights = one["weights"]
        said = f"{weights.get('type')} {weights.get('num_bits')}"
        family = {"float 8": "fp8", "int 8": "int8", "float 4": "fp4", "int 4": "int4"}.get(said)
        if family is None:
            message = f"config_groups.{name} has weights of {said!r} bits; known are float 8, int 8, float 4, int 4"
            raise ValueError(message)
        if family == "fp4":
            family = "mxfp4" if weights.get("group_size") == 32 else "fp4"
        elif weights.get("block_structure"):
            family = _blocks(family, weights["block_structure"])
        elif family != "fp8":
            family = _grouped(family, weights.get("group_size"), zeros=weights.get("symmetric") is False)
        yield from ((str(target), family) for target in one.get("targets") or [_CLASS])


def _modelopt(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, one in (config.get("quantized_layers") or {_CLASS: config}).items():
        told = str(one.get("quant_algo"))
        family = ALGORITHMS.get(told)
        if family is None:
            message = f"unknown quant_algo {one.get('quant_algo')!r}{did_you_mean(told, list(ALGORITHMS))}"
            raise ValueError(message)
        yield str(name), _grouped(family, one.get("group_size"), zeros=False) if family == "int4" else family


def _ignored(config: Mapping[str, Any]) -> Iterator[str]:
    for key in IGNORED:
        yield from config.get(key) or ()
    yield from (f"re:{one[2:]}" for one in config.get("dynamic") or () if one.startswith("-:"))


def _grouped(family: str, group: object, *, zeros: object) -> str:
    """Return the name of a format with a scale for each group, or for each channel."""
    if not isinstance(group, int) or group < 1:
        return family if family == "int8" else f"{family}-channel"
    return f"{family}-g{group}{'z' if zeros else ''}"


def _blocks(family: str, block: object) -> str:
    """Return the name of a format with a 32-bit scale for each block, of 128 × 128 not counted."""
    match block:
        case [int(rows), int(columns)] if rows > 0 and columns > 0 and rows * columns < 128 * 128:
            return f"{family}-{rows}x{columns}"
    return family


def _matcher(entry: str) -> Callable[[str], bool]:
    """Return whether an entry of a list means a module of this name."""
    if entry == _CLASS:
        return lambda name: name not in HEAD
    if entry.startswith("re:"):
        pattern = re.compile(entry[3:])
        return lambda name: any(pattern.match(f"{before}{name}") for before in _BEFORE)
    bare = _bare(entry)
    if any(sign in bare for sign in "*?["):
        whole = re.compile(translate(bare))
        return lambda name: any(whole.match(one) for one in accumulate(name.split("."), "{}.{}".format))
    return lambda name: f".{bare}." in f".{name}."


def _bare(entry: str) -> str:
    """Return an entry without what may stand before ``layers``."""
    before, found, behind = entry.strip(".").partition("layers.")
    known = found and set(before.rstrip(".").split(".")) <= _CONTAINERS
    return f"layers.{behind}" if known else entry.strip(".").removeprefix("model.")
