"""Makes a :class:`~clustersim.model.architecture.ModelSpec` of a Hugging Face ``config.json``.

Fields are looked up under the names that model repositories use, as vLLM does
(``vllm/transformers_utils/model_arch_config_convertor.py``, 2025). A ``model_type`` that is not in the
table of families is accepted when its fields resolve; ``ModelSpec.unused_keys`` says what was not looked
at. What cannot be represented is refused by name. Layers for multi-token prediction
(``num_nextn_predict_layers``) and encoders of other modalities are not part of the model: their keys are
unused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe, NormKind
from clustersim.model.attention_fields import attention_layers
from clustersim.model.families import (
    FAMILIES,
    HARMLESS,
    REFUSED_KEYS,
    REFUSED_TYPES,
    REQUIRED_VALUES,
    UNKNOWN,
    Family,
)
from clustersim.model.ffn_fields import ffn_layers
from clustersim.model.reading import ConfigReader
from clustersim.model.weight_format import NAMES, WeightFormats, weight_formats
from clustersim.model.weight_shapes import KEYS
from clustersim.model.weights import Linear, attention_linears, expert_linears, ffn_linears, shared_expert_linears

HIDDEN: Final = ("hidden_size", "hidden_dim", "n_embd", "d_model")
LAYERS: Final = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
VOCAB: Final = ("vocab_size", "padded_vocab_size")
POSITIONS: Final = (
    "max_position_embeddings",
    "max_seq_len",
    "max_sequence_length",
    "n_positions",
    "seq_length",
)
MOST_LAYERS: Final = 10_000
"""More layers than this are taken for a mistake (assumed: far beyond the deepest published model)."""


def model_from_config(config: Mapping[str, object], name: str, source: str = "") -> ModelSpec:
    """Read an architecture from the parsed ``config.json`` of a model repository.

    Parameters
    ----------
    config : mapping
        The parsed file; a nested ``text_config`` is found.
    name : str
        The name that the model is to have.
    source : str
        Where the configuration is from.

    Returns
    -------
    ModelSpec

    Raises
    ------
    InputError
        With one problem per field that is missing, ill-typed or impossible, and per feature that cannot be
        represented; ``Problem.path`` is the key.

    Examples
    --------
    >>> config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    ...           "intermediate_size": 16, "vocab_size": 10}
    >>> model_from_config(config, "toy").layers[0].attention.head_dim
    4
    """
    read = ConfigReader(config)
    family = FAMILIES.get(_model_type(read), UNKNOWN)
    read.assume(family.defaults)
    _refuse(read)
    read.raise_problems()
    hidden, vocab = read.integer(HIDDEN), read.integer(VOCAB)
    num_layers = read.integer(LAYERS, most=MOST_LAYERS)
    learned = family.learned_positions_offset
    positions = read.optional_integer(POSITIONS) if learned is None else read.integer(POSITIONS)
    tied = read.flag(("tie_word_embeddings",))
    attention = attention_layers(read, family, hidden, num_layers)
    ffn = ffn_layers(read, family, num_layers)
    norm, formats = _norm(read, family), weight_formats(read)
    logit_cap = read.optional_number(("final_logit_softcapping",))
    read.raise_problems()
    layers = _layers(attention, ffn, post_norms=family.post_norms)
    formats = formats.for_most("expert_up" if isinstance(ffn[-1], Moe) else "ffn_up", num_layers - 1)
    model = ModelSpec(
        name=name,
        hidden=hidden,
        vocab=vocab,
        layers=layers,
        tied_embeddings=family.tied if tied is None else tied,
        scaled_embedding=family.scaled_embedding,
        logit_cap=logit_cap,
        learned_positions=0 if learned is None else (positions or 0) + learned,
        norm=norm,
        max_positions=positions,
        default_weight_dtype=formats.default,
        formats=formats.of_head(),
        unused_keys=(*read.unused(HARMLESS), *formats.unread),
        notes=(family.note,) if family.note else (),
        source=source,
    )
    if formats.choice is None:
        return model
    model, narrow = _formatted(model, formats)
    if not narrow:
        key = read.present(KEYS) or KEYS[0]
        read.fail(key, "quantises nothing of this model: its targets and lists leave every layer as it was")
    read.raise_problems()
    return model


def _formatted(model: ModelSpec, formats: WeightFormats) -> tuple[ModelSpec, bool]:
    """Return the model with the formats of its linear maps, and whether any is quantised; equal layers are shared."""
    made: dict[Layer, Layer] = {}
    found, narrow = [], False
    for index, layer in enumerate(model.layers):
        halves = attention_linears(model, layer.attention), _second_half(model, layer.ffn)
        names = [[one.name for one in linears if one.name in NAMES] for linears in halves]
        of_attention, of_ffn = (formats.of(some, index) for some in names)
        kept = [name for _, name in (*of_attention, *of_ffn) if name == "bf16"]
        narrow |= len(kept) < sum(map(len, names))
        own = replace(
            layer,
            attention=replace(layer.attention, formats=of_attention),
            ffn=replace(layer.ffn, formats=of_ffn),
        )
        found.append(made.setdefault(own, own))
    return replace(model, layers=tuple(found)), narrow


def _second_half(model: ModelSpec, ffn: Ffn | Moe) -> tuple[Linear, ...]:
    if isinstance(ffn, Moe):
        return (*expert_linears(model, ffn), *shared_expert_linears(model, ffn))
    return ffn_linears(model, ffn)


def _layers(attention: tuple[Attention, ...], ffn: tuple[Ffn | Moe, ...], *, post_norms: bool) -> tuple[Layer, ...]:
    """Pair them up; equal layers share one value."""
    pairs = tuple(zip(attention, ffn, strict=True))
    made = {pair: Layer(attention=pair[0], ffn=pair[1], post_norms=post_norms) for pair in pairs}
    return tuple(made[pair] for pair in pairs)


def _model_type(read: ConfigReader) -> str:
    found = read.word(("model_type",)) or ""
    if not found and not read.problems:
        read.fail("model_type", f"is missing; expected {', '.join(FAMILIES)}, or the name of another family")
    if found in REFUSED_TYPES:
        read.fail("model_type", f"{found!r} {REFUSED_TYPES[found]}")
    return found


def _refuse(read: ConfigReader) -> None:
    """Record the features that cannot be represented."""
    for key in read.set_keys():
        for name, reason in REFUSED_KEYS.items():
            if (key == name or (name.endswith("_") and key.startswith(name))) and read.value(key):
                read.fail(key, reason.format_map({name: read.value(key)}))
    for key, (wanted, reason) in REQUIRED_VALUES.items():
        if read.present((key,)) and read.value(key) is not wanted:
            read.fail(key, f"{reason}: expected {str(wanted).lower()}, but found {read.value(key)!r}")
    width = read.optional_integer(("word_embed_proj_dim",))
    if width is not None and width != read.value("hidden_size"):
        read.fail("word_embed_proj_dim", f"{width} is not hidden_size: such a projection is not modelled")


def _norm(read: ConfigReader, family: Family) -> NormKind:
    if family.norm is not None:
        return family.norm
    if read.present(("rms_norm_eps",)):
        return "rms"
    if read.present(("layer_norm_eps", "layer_norm_epsilon")):
        return "layer"
    read.fail("rms_norm_eps", "is missing, and the kind of norm is not known (layer_norm_eps would also do)")
    return "rms"
