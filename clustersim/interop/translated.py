"""A scenario from the command line of a server, of vLLM or SGLang, and that of its benchmark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.interop import bench, sglang, vllm
from clustersim.interop.command import Command, mentions, read_command
from clustersim.interop.deployment import TOPOLOGY
from clustersim.interop.entries import Draft
from clustersim.interop.options import Options, left_out_by
from clustersim.interop.serve import Reader, caching_of, write_server
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.lookup import is_path, referred
from clustersim.simulation.legality import check_scenario_plan
from clustersim.simulation.legality import problem as placed
from clustersim.values import dataclass

READERS: Final = (vllm.READER, sglang.READER)
"""Servers that are understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """A scenario as YAML, and what of the command lines it leaves out."""

    text: str
    notes: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    """What the command lines don't say, and what stands for it; at the head of the text, too."""
    illegal: tuple[Problem, ...] = ()
    """Which rules its plan breaks, with the nearest legal choice, at the options that say so."""


def scenario_from_command(
    serve: str,
    benchmark: str | None = None,
    *,
    topology: str | None = None,
    model: str | None = None,
    folder: Path = Path(),
) -> Translated:
    """Translate the command line of a server into a scenario.

    Parameters
    ----------
    serve : str
        ``vllm serve …`` or ``python -m sglang.launch_server …`` as it would be typed; a ``vllm bench serve …`` or
        ``python -m sglang.bench_serving …`` beside it is the workload.
    benchmark : str or None
        The benchmark's command; without any, the workload is what ``vllm bench serve`` does by default.
    topology : str or None
        What the server runs on: a name or a path. By default ``dgx-h100``.
    model : str or None
        What stands for the model that the server is given: a name of one that ships, or a ``config.json``.
    folder : Path
        Where the scenario will be written: files are named from there.

    Raises
    ------
    InputError
        With every option that is unknown, wrong or refused, at its place in ``command`` or ``--bench``.
    """
    draft = Draft()
    problems: list[Problem] = []
    server = driver = None
    try:
        reader = _reader(serve)
        server = read_command(serve, "command", reader.grammar)
    except InputError as error:
        problems += error.problems
    try:
        if benchmark is not None or server is not None:
            driver = _driver(serve, benchmark)
    except InputError as error:
        problems += error.problems
    if server is None or problems:
        raise InputError(problems)
    try:
        write_server(server, reader, topology, model, draft)
    except InputError as error:
        problems += error.problems
    try:
        bench.write_workload(driver or bench.SILENT, draft, caching=caching_of(Options(server)))
        draft.settle()
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(sorted(dict.fromkeys(problems), key=_place))
    head = _head(server, driver, topology)
    commands = [command for command in (server, driver) if command is not None]
    try:
        scenario = build_scenario(parse_yaml(draft.text(head), "the scenario"))
    except InputError as error:
        raise InputError(_of_option(problem, draft, commands) for problem in error.problems) from None
    broken = [placed(scenario, one) for one in check_scenario_plan(scenario).violations]
    for path in ("model", "model.name", "topology", "topology.name"):
        entry = draft.entries.get(path)
        if entry is not None and is_path(entry.value) and Path(entry.value).exists():
            draft.set(path, referred(Path(entry.value), folder), entry.origin)
    return Translated(
        text=draft.text(head),
        notes=tuple(draft.notes),
        assumed=tuple(_assumed(driver, topology)),
        illegal=tuple(_of_option(one, draft, commands) for one in broken),
    )


def _driver(serve: str, benchmark: str | None) -> Command | None:
    """Return the command of the benchmark, given apart or beside the server's."""
    text, file = (serve, "command") if benchmark is None else (benchmark, "--bench")
    for grammar in (bench.GRAMMAR, bench.SGLANG):
        if mentions(text, file, grammar):
            return read_command(text, file, grammar)
    return None if benchmark is None else read_command(text, file, bench.GRAMMAR)


def _reader(serve: str) -> Reader:
    """Return how the one server in a text is read."""
    found = [reader for reader in READERS if mentions(serve, "command", reader.grammar)]
    if len(found) == 1:
        return found[0]
    names = [f"`{reader.grammar.name}`" for reader in READERS]
    if found:
        message = f"found {' and '.join(names)}; a scenario is one of them"
    else:
        other = "commands of TensorRT-LLM can't be read; " if "trtllm-" in serve else ""
        message = f"found no {' or '.join(names)}; {other}expected such as `{READERS[0].grammar.example}`"
    raise InputError(Problem(file="command", message=message))


def _of_option(problem: Problem, draft: Draft, commands: Sequence[Command]) -> Problem:
    """Point at the option that a value is from: the scenario itself is written nowhere."""
    path = problem.path
    while path and path not in draft.entries:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    for name in re.findall(r"--[a-z][\w-]*", draft.entries[path].origin if path else ""):
        for command in commands:
            if name in command.choices:
                return command.choices[name].place.problem(f"{name} becomes {problem.path}: {problem.message}")
    return replace(problem, file=None, line=None, column=None)


def _place(problem: Problem) -> tuple[str, int, int]:
    return (problem.file or "", problem.line or 0, problem.column or 0)


def _head(server: Command, driver: Command | None, topology: str | None) -> list[str]:
    """Return the comment at the head. Values of ignored options may be secrets, and are not repeated."""
    grammar = server.grammar
    lines = [
        f"From a command line of {grammar.engine}, as release {grammar.version} reads it. Beside each value stands "
        "where it comes from."
    ]
    lines += [f"  {command.grammar.name} {_kept(command)}" for command in (server, driver) if command is not None]
    lines += _assumed(driver, topology)
    stages = grammar.keys["plan.stages"]
    ignored: dict[str, list[str]] = {}
    for command in (server, driver):
        for choice in command.choices.values() if command is not None else ():
            if choice.flag.fate == "ignored":
                ignored.setdefault(choice.flag.words, []).append(choice.name)
        if command is not None and (
            others := [name for name in command.environment if name != stages and not left_out_by(name)]
        ):
            ignored.setdefault("the environment", []).extend(others)
    lines += [f"Ignored: {', '.join(names)} ({why})." for why, names in ignored.items()]
    return lines


def _assumed(driver: Command | None, topology: str | None) -> Iterator[str]:
    """Yield what stands for what no command line says."""
    if driver is None:
        yield "The workload is assumed: what `vllm bench serve` sends by default. --bench gives another."
    if topology is None:
        yield f"The topology is assumed: nodes of {TOPOLOGY}. --topology gives another."


def _kept(command: Command) -> str:
    words = [word.text for word in command.positional]
    for choice in command.choices.values():
        if choice.flag.fate != "ignored":
            words += [choice.name, *(value.text for value in choice.values)]
    return " ".join(words)
