"""Options that a user adds to those of every server: read as its engine would, and held to its release."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.interop import sglang, vllm
from clustersim.interop.command import Choice, read_command
from clustersim.interop.keys import SGLANG, TRTLLM, VLLM
from clustersim.interop.launch.account import Account
from clustersim.interop.launch.asked import KEYS, in_file
from clustersim.interop.launch.server import ENGINES, Options, Started
from clustersim.interop.launch.versions import SPANS, numbers, outdated

GRAMMARS: Final = {"vllm": vllm.GRAMMAR, "sglang": sglang.GRAMMAR}
"""Engines whose options are known."""
_BESIDE: Final = {
    "vllm": {
        "--data-parallel-external-lb": "plan.dp",
        "--data-parallel-hybrid-lb": "plan.dp",
        "--data-parallel-rank": "plan.dp",
        "--hf-config-path": "model",
        "--nnodes": "topology.nodes",
        "--optimization-level": "serving.engine.graph_max_tokens",
        "--performance-mode": "serving.max_batch_requests",
    },
    "sglang": {
        "--attn-dp-size": "plan.dp",
        "--cuda-graph-backend-decode": "serving.engine.graph_max_tokens",
        "--cuda-graph-bs-decode": "serving.engine.graph_max_tokens",
        "--enable-dp-attention": "plan.dp",
        "--moe-a2a-backend": "plan.ep.exchange",
        "--nnodes": "topology.nodes",
        "--schedule-policy": "serving.order.by",
    },
    "trtllm": {},
}
"""Engine → option that a scenario is made of, and no key is written as → the key that says most of what it does."""
OPTIONS: Final = {
    engine: {option: key for key, option in table.items()} | _BESIDE[engine]
    for engine, table in {"vllm": VLLM, "sglang": SGLANG, "trtllm": TRTLLM}.items()
}
"""Engine → option → key of a scenario, which says it."""
MEANS: Final = {
    "vllm": {
        "--kv-cache-memory-bytes": "--num-gpu-blocks-override",
        "--enforce-eager": "--max-cudagraph-capture-size",
        "--cudagraph-capture-sizes": "--max-cudagraph-capture-size",
    },
    "sglang": {
        "--chunked-prefill-size": "--max-prefill-tokens",
        "--disable-cuda-graph": "--cuda-graph-max-bs-decode",
        "--disable-decode-cuda-graph": "--cuda-graph-max-bs-decode",
    },
    "trtllm": {
        "--config": "--extra_llm_api_options",
        "--free_gpu_memory_fraction": "--kv_cache_free_gpu_memory_fraction",
        "--tensor_parallel_size": "--tp_size",
        "--pipeline_parallel_size": "--pp_size",
        "--context_parallel_size": "--cp_size",
        "--moe_expert_parallel_size": "--ep_size",
    },
}
"""Engine → option → another one that decides the same."""


def add_options(started: Started, add: Sequence[str], engine: str, account: Account) -> None:
    """Add options to a server's, and refuse what its release does not take."""
    if add and started.before:
        message = "before 1.0 several commands start TensorRT-LLM; write it behind the one that takes it"
        raise InputError(Problem(path="--add", message=message))
    added = _read(add, engine)
    said = _said(started, added, engine)
    started.options |= added
    lacks: list[str] = []
    if engine in GRAMMARS:
        newest = list(SPANS[engine])[-1]
        if started.version > numbers(newest):
            account.note(f"options are those of {ENGINES[engine]} {newest}, the newest that was read.")
        words = f"{ENGINES[engine]} {'.'.join(map(str, started.version))}"
        written: Options = {**started.environment, **started.options}
        for own in started.per_node or ({},):
            lacks += outdated(engine, words, written | own, started.version)
    for line in lacks:
        account.refuse(line)
    if said and not lacks:
        raise InputError(said)


def _said(started: Started, added: Options, engine: str) -> list[Problem]:
    """Return what is wrong with options that the scenario says: which of both holds would be left to the engine."""
    there = {
        _plain(name, value, engine): _words(name, value)
        for own in (started.options, *started.per_node)
        for name, value in own.items()
    }
    problems = []
    for name, value in added.items():
        plain, words = _plain(name, value, engine), _words(name, value)
        other, key, written = there.get(plain), OPTIONS[engine].get(plain), in_file(started.config, plain)
        if other is None and written is not None:
            other = f"{KEYS.get(plain, plain[2:])}: {written}"
        if other is not None:
            problems.append(f"'{words}' is said already: '{other}', by the scenario; change that (--set)")
        elif key == "model":
            problems.append(f"'{words}' is what --model says; change that")
        elif key is not None:
            problems.append(f"'{words}' is what {key} of the scenario says; change that (--set {key}=…)")
    return [Problem(path="--add", message=message) for message in problems]


def _plain(name: str, value: str | tuple[str, ...] | None, engine: str) -> str:
    """Return the option that decides what another one does: its own name, of a switch that is off the opposite."""
    name = name.partition("=")[0]
    if engine == "trtllm":
        name = f"--{name[2:].replace('-', '_').removeprefix('no_')}"
    elif name.startswith("--compilation-config") and "capture_size" in _words(name, value):
        name = "--cudagraph-capture-sizes"
    else:
        name = f"--{name.removeprefix('--').removeprefix('no-')}"
    return MEANS[engine].get(name, name)


def _words(name: str, value: str | tuple[str, ...] | None) -> str:
    return " ".join([name, *([value] if isinstance(value, str) else value or ())])


def _read(add: Sequence[str], engine: str) -> Options:
    """Read options that are added: of vLLM and SGLang by their grammar, of others as they stand."""
    text = " ".join(add)
    if not add:
        return {}
    if engine in GRAMMARS:
        known = GRAMMARS[engine]
        earlier = {name: option.flag for name, option in known.gone.items()}
        grammar = replace(known, flags={**known.flags, **earlier}, gone={})
        command = read_command(f"{grammar.name} {text}", "--add", grammar)
        if command.positional:
            raise InputError(command.positional[0].problem("belongs to no option"))
        if command.twice:
            raise InputError([command.choices[name].word.problem(f"{name} is said twice") for name in command.twice])
        return {f"{one.name}{one.part}": _value(one) for one in command.choices.values()}
    found: Options = {}
    last = None
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(Problem(path="--add", message=f"a quote in {text!r:.60} is not closed")) from None
    for word in words:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            if last in found:
                raise InputError(Problem(path="--add", message=f"{last} is said twice"))
            found[last] = value or None
        elif last is None or found[last] is not None:
            raise InputError(
                Problem(path="--add", message=f"{word!r} belongs to no option; expected such as '--name value'")
            )
        else:
            found[last] = word
    return found


def _value(choice: Choice) -> str | tuple[str, ...] | None:
    if choice.flag.takes == "switch":
        return None
    return tuple(value.text for value in choice.values) if len(choice.values) > 1 else choice.text
