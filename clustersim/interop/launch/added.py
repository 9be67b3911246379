"""Options that a user adds to those of every server: read as its engine would, and held to its release."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.interop import sglang, vllm
from clustersim.interop.command import read_command
from clustersim.interop.launch.account import Account
from clustersim.interop.launch.asked import KEYS
from clustersim.interop.launch.server import ENGINES, Options, Started
from clustersim.interop.launch.versions import SPANS, numbers, outdated

GRAMMARS: Final = {"vllm": vllm.GRAMMAR, "sglang": sglang.GRAMMAR}
"""Engines whose options are known."""


def add_options(started: Started, add: Sequence[str], engine: str, account: Account) -> None:
    """Add options to a server's, and refuse what its release does not take."""
    if add and started.before:
        message = "before 1.0 several commands start TensorRT-LLM; write it behind the one that takes it"
        raise InputError(Problem(path="--add", message=message))
    added = _read(add, engine)
    _refuse_said(started, added)
    started.options |= added
    if engine in GRAMMARS:
        newest = list(SPANS[engine])[-1]
        if started.version > numbers(newest):
            account.note(f"options are those of {ENGINES[engine]} {newest}, the newest that was read.")
        words = f"{ENGINES[engine]} {'.'.join(map(str, started.version))}"
        written: Options = {**started.environment, **started.options}
        for own in started.per_node or ({},):
            for line in outdated(engine, words, written | own, started.version):
                account.refuse(line)


def _refuse_said(started: Started, added: Options) -> None:
    """Refuse options that the scenario says already: which of both holds would be left to the engine.

    Raises
    ------
    InputError
        With both of each.
    """
    said = {name: _words(name, value) for own in (started.options, *started.per_node) for name, value in own.items()}
    problems = []
    for name, value in added.items():
        key = KEYS.get(name, name[2:].replace("-", "_"))
        file = f"{key}: {started.config[key]}" if key in started.config else None
        other = said.get(name) or said.get(f"--no-{name[2:]}") or said.get(f"--{name.removeprefix('--no-')}") or file
        if other is not None:
            message = f"'{_words(name, value)}' is said already: '{other}', by the scenario; change that (--set)"
            problems.append(Problem(path="--add", message=message))
    if problems:
        raise InputError(problems)


def _words(name: str, value: str | tuple[str, ...] | None) -> str:
    return " ".join([name, *([value] if isinstance(value, str) else value or ())])


def _read(add: Sequence[str], engine: str) -> Options:
    """Read options that are added: of vLLM and SGLang by their grammar, of others as they stand."""
    text = " ".join(add)
    if not add:
        return {}
    if engine in GRAMMARS:
        grammar = GRAMMARS[engine]
        command = read_command(f"{grammar.name} {text}", "--add", grammar)
        if command.positional:
            raise InputError(command.positional[0].problem("belongs to no option"))
        return {
            choice.name: None if choice.flag.takes == "switch" else tuple(value.text for value in choice.values)
            if len(choice.values) > 1 else choice.text for choice in command.choices.values()
        }  # fmt: skip
    found: Options = {}
    last = None
    try:
        words = shlex.split(text)
    except ValueError:
        raise InputError(Problem(path="--add", message=f"a quote in {text!r:.60} is not closed")) from None
    for word in words:
        if word.startswith("--"):
            last, _, value = word.partition("=")
            found[last] = value or None
        elif last is None or found[last] is not None:
            raise InputError(
                Problem(path="--add", message=f"{word!r} belongs to no option; expected such as '--name value'")
            )
        else:
            found[last] = word
    return found
