"""From the command of a server to a scenario: what it asks for, and the engine's defaults where it is silent.

What engines have in common; what each makes of its own options is a :class:`Reader`: in :mod:`clustersim.interop.vllm`
and :mod:`clustersim.interop.sglang`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clustersim.cluster.device import Device
from clustersim.errors import InputError, did_you_mean
from clustersim.interop.command import Command, Grammar
from clustersim.interop.deployment import Degrees, deploy
from clustersim.interop.entries import Draft
from clustersim.interop.keys import DTYPES
from clustersim.interop.options import Options, choice_of
from clustersim.interop.served_model import ServedModel
from clustersim.model.architecture import ModelSpec
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An option whose value is a value of the scenario.

    Parameters
    ----------
    path : str
        Of the scenario.
    flag : str
    read : callable
        From text; raises ValueError.
    default : object
        The engine's; None when the scenario's key stays away without the option.
    """

    path: str
    flag: str
    read: Callable[[str], Any]
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How the command of one engine's server is read.

    Parameters
    ----------
    grammar : Grammar
    quantizations : Mapping of str to str
        ``--quantization`` → format of weights.
    by_checkpoint : frozenset of str
        Methods whose format only the checkpoint tells.
    kv_dtypes : Mapping of str to str
        ``--kv-cache-dtype`` → format.
    length : callable
        Reads the longest sequence; None: that of the model.
    settings : tuple of Setting
        A line for each option that needs nothing but its own value.
    degrees : callable
        Of options, model (None where none is known) and draft.
    batches : callable
        Writes scheduler, limits and graphs: of options, degrees, device, model and draft.
    """

    grammar: Grammar
    quantizations: Mapping[str, str]
    by_checkpoint: frozenset[str]
    kv_dtypes: Mapping[str, str]
    length: Callable[[str], int | None]
    settings: tuple[Setting, ...]
    degrees: Callable[[Options, ModelSpec | None, Draft], Degrees]
    batches: Callable[[Options, Degrees, Device, ServedModel, Draft], None]


def write_server(command: Command, reader: Reader, topology: str | None, model: str | None, draft: Draft) -> None:
    """Write what a server is into a draft.

    Parameters
    ----------
    command : Command
    reader : Reader
        Of its engine.
    topology : str or None
        A name or a path; ``dgx-h100`` without it.
    model : str or None
        What stands for the model that the command names: a name, or a ``config.json``.
    draft : Draft

    Raises
    ------
    InputError
        With every option that is wrong, or refused.
    """
    options = Options(command)
    options.fates(draft)
    served = ServedModel.of(options, model)
    spec = served.spec if served is not None else None
    degrees = reader.degrees(options, spec, draft)
    deployed = deploy(options, degrees, spec, topology)
    settings = [
        (setting.path, *options.value(setting.flag, setting.read, setting.default)) for setting in reader.settings
    ]
    if options.problems or served is None or deployed is None:
        raise InputError(options.problems)
    limit_origin = _limit(options, reader, served)
    draft.set("name", served.short_name)
    for path, value, origin in deployed.topology:
        draft.set(path, value, origin)
    served.write(draft, limit_origin)
    _precision(options, reader, served, draft)
    for path, value, origin in deployed.plan:
        draft.set(path, value, origin)
    reader.batches(options, degrees, deployed.device, served, draft)
    for path, value, origin in settings:
        if value is not None:
            draft.set(path, value, origin)
    if options.problems:
        raise InputError(options.problems)
    for path, value, origin in degrees.router:
        draft.set(path, value, origin)
    if options.given(options.keys["serving.prefix_caching"]) is not None:
        draft.set("serving.prefix_caching", *caching_of(options))
    reserves = options.keys.get("serving.admission", "")
    if options.given(reserves) is not None:
        on, origin = options.on(reserves, True)
        draft.set("serving.admission", "whole_prompt" if on else "first_chunk", origin)


def caching_of(options: Options) -> tuple[bool, str]:
    """Return whether prefixes are cached, as engines do by default, and the origin."""
    name = options.keys["serving.prefix_caching"]
    inverted = name.startswith("--disable-")
    on, origin = options.on(name, not inverted)
    return on != inverted, origin


def _limit(options: Options, reader: Reader, served: ServedModel) -> str:
    """Let the model know the longest sequence, and return the origin of that."""
    longest, origin = options.value(options.keys["model.config.max_position_embeddings"], reader.length, None)
    if longest is not None:
        served.limit(longest)
    return origin


def _precision(options: Options, reader: Reader, served: ServedModel, draft: Draft) -> None:
    keys, known = options.keys, (*reader.quantizations, *sorted(reader.by_checkpoint))
    plain = served.dtype if served.dtype in ("bf16", "fp16") else "bf16"
    activations = f"{options.default(keys['precision.activations'])}, auto"
    choice = options.given(keys["precision.activations"])
    if choice is not None and choice.text != "auto":
        name, activations = options.value(keys["precision.activations"], choice_of("auto", *DTYPES), "bfloat16")
        plain = DTYPES[name]
    weights, origin = served.dtype, f"as {served.origin} is published"
    if weights in ("bf16", "fp16", "fp32"):
        weights, origin = plain, activations
    if served.quantized is not None:
        weights, origin = served.quantized, "by the name of the model"
    method = options.given(keys["precision.weights"])
    if method is not None and method.text.lower() in reader.quantizations:
        named = reader.quantizations[method.text.lower()]
        weights = "int8" if named == "int4" and served.quantized == "int8" else named
        origin = f"--quantization {method.text}"
    elif method is not None and method.text.lower() not in reader.by_checkpoint:
        options.wrong(method, f"no method {method.text!r} that is simulated{did_you_mean(method.text, known)}")
    elif method is not None and weights == plain:
        options.wrong(method, "only the checkpoint tells its format; give a config.json that says it as --model")
    draft.set("precision.weights", weights, origin)
    draft.set("precision.activations", plain, activations)
    cache = options.given(keys["precision.kv_cache"])
    if cache is None or cache.text == "auto":
        for key in [one for one in served.spec.unused_keys if "kv_cache_" in one]:
            draft.note(f"{key} of the checkpoint is not read; --kv-cache-dtype fp8 gives K/V of 8 bit.")
        draft.set(
            "precision.kv_cache", plain, f"{options.default(keys['precision.kv_cache'])}, that of the activations"
        )
    else:
        name, origin = options.value(keys["precision.kv_cache"], choice_of("auto", *reader.kv_dtypes), "bfloat16")
        draft.set("precision.kv_cache", reader.kv_dtypes[name], origin)
