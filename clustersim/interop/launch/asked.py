"""What one server is asked for, whoever wrote it: options, a file beside them, and what of the model they must fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from clustersim.interop.launch.server import Started
from clustersim.interop.options import whole
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.values import dataclass

KEYS: Final = {
    "--tp_size": "tensor_parallel_size",
    "--pp_size": "pipeline_parallel_size",
    "--cp_size": "context_parallel_size",
    "--ep_size": "moe_expert_parallel_size",
    "--kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "--kv_cache_dtype": "kv_cache_config.dtype",
}
"""Option of ``trtllm-serve`` → its key in the YAML file beside it, where that has another name."""


def in_file(config: Mapping[str, Any], name: str) -> Any:
    """Return what the YAML file of TensorRT-LLM has for an option; None where it has nothing."""
    found: Any = config
    for key in KEYS.get(name, name[2:].replace("-", "_")).split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one server is asked for.

    Parameters
    ----------
    engine : str
        ``vllm``, ``sglang``, ``trtllm`` or ``llm-d``.
    options : Mapping of str to str
        Long option → value; of a switch ``true`` or ``false``.
    config : Mapping
        A YAML file beside them: options of TensorRT-LLM, its pools, or values of the chart of llm-d.
    heads, kv_heads, experts, positions : int
        Of the model; 0 experts: it is dense, 0 positions: no limit is known.
    latent : bool
        Whether its attention is MLA.
    devices_per_node : int
    """

    engine: str
    options: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    heads: int = 32
    kv_heads: int = 8
    experts: int = 0
    positions: int = 0
    latent: bool = False
    devices_per_node: int = 8

    def number(self, name: str, default: int = 1) -> int:
        """Return an option as a number."""
        text = self.given(name)
        try:
            return int(text or default)
        except ValueError:
            raise ValueError(f"{name}: expected a whole number such as 8, but found {text!r:.60}") from None

    def given(self, name: str) -> str | None:
        """Return an option, also by its key in the YAML file of TensorRT-LLM."""
        value = self.options.get(name)
        if value is None and name.startswith("--"):
            value = in_file(self.config, name)
        return None if value is None else str(value)

    def on(self, name: str) -> bool:
        """Tell whether a switch is on."""
        return self.options.get(name) == "true"

    def whole_number(self, name: str) -> int | None:
        """Return a number as vLLM reads it; None where it is not given, or left to the engine."""
        value = self.options.get(name)
        try:
            return None if value is None or value in ("-1", "auto") else whole(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}, but found {value!r:.60}") from None


def asked_of_model(model: ModelSpec, *, engine: str, options: Mapping[str, str], **others: Any) -> Asked:
    """Return what is asked for with a model, whose sizes the rules of engines look at."""
    attention = model.layers[0].attention
    return Asked(
        engine=engine,
        options=options,
        heads=attention.num_heads,
        kv_heads=attention.num_kv_heads,
        experts=max((layer.ffn.num_experts for layer in model.layers if isinstance(layer.ffn, Moe)), default=0),
        positions=model.max_positions or 0,
        latent=attention.kind == "mla",
        **others,
    )


def asked_of(started: Started) -> Asked:
    """Return what a server is asked for, as the engine's rules see it."""
    server = started.server
    options: dict[str, str] = {}
    for name, value in {**started.options, **(started.per_node[0] if started.per_node else {})}.items():
        name, told, given = name.partition("=")
        off = value is None and (name.startswith("--no-") or (bool(told) and given.lower() == "false"))
        text = value if isinstance(value, str) else " ".join(value or ())
        options[f"--{name.removeprefix('--').removeprefix('no-')}" if off else name] = (
            "false" if off else text if value is not None else "true"
        )
    if "--enable-dp-attention" in options:  # what SGLang before 0.5.23 calls it
        options |= {"--attn-dp-size": options["--dp-size"], "--dp-size": "1"}
    if "--ntasks" in started.wrapped:
        options["--ntasks"] = started.wrapped[started.wrapped.index("--ntasks") + 1]
    return asked_of_model(
        server.model,
        engine=started.engine,
        options=options,
        config=started.config,
        devices_per_node=server.devices_per_node,
    )
