"""The pages of ``docs/reference`` that are made of the code: keys of a scenario, commands, rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from clustersim.cli import COMMANDS, main
from clustersim.cli.commands.rules import LEVELS
from clustersim.legality.rule import Rule
from clustersim.legality.rulebook import RULES
from clustersim.legality.rulebook.examples import examples_of
from clustersim.scenario.keys.json_schema import key_texts, keys
from clustersim.scenario.schema import FaultPart, ScenarioPart

NOTE: Final = "<!-- Made of the code: pytest tests/architecture --update-golden rewrites it. -->"
_KEYS: Final = re.compile(r"<!-- keys: (?P<names>[^>]*) -->\n.*?<!-- /keys -->", re.DOTALL)
_TWICE: Final = "workload.output_tokens."
"""Keys that are those of ``workload.prompt_tokens`` again."""


def with_key_tables(page: str) -> str:
    """Return a page with the tables of keys that its marks ask for, as ``<!-- keys: run targets -->`` does."""
    return _KEYS.sub(lambda mark: _key_table(mark["names"].split()), page)


def documented_keys() -> dict[str, Any]:
    """Return the keys that have a meaning, each with its field."""
    plain = {key: field for key, field in keys(ScenarioPart) if not key.startswith(_TWICE)}
    return plain | dict(keys(FaultPart, "faults."))


def _key_table(names: Sequence[str]) -> str:
    chosen = {key: field for key, field in documented_keys().items() if key.partition(".")[0] in names}
    ranked = sorted(chosen, key=lambda key: names.index(key.partition(".")[0]))
    rows = ((f"`{key}`", key_texts()["meanings"][key], _default(key, chosen[key])) for key in ranked)
    return "\n".join(
        (f"<!-- keys: {' '.join(names)} -->", *_table(("key", "meaning", "default"), rows), "<!-- /keys -->")
    )


def _default(key: str, field: Any) -> str:
    if field.is_required():
        return "required"
    match field.get_default(call_default_factory=True):
        case bool(value):
            return f"`{str(value).lower()}`"
        case str(value) | int(value) | float(value):
            return f"`{value}`"
        case {"name": name}:
            return f"`{name}`"
        case _:
            return key_texts()["defaults"].get(key, "–")


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def commands_page() -> str:
    """Return the page of all commands, with their options."""
    shown = click.Context(main, info_name="clustersim")
    parts = ["# Commands", "", NOTE, "", _paragraphs(main.help), ""]
    parts += _table(
        ("command", ""), ([f"[`{name}`](#clustersim-{name})", text] for name, (_, text) in COMMANDS.items())
    )
    parts += ["", f"{main.epilog}", ""]
    for name in COMMANDS:
        command = main.get_command(shown, name)
        assert command is not None
        parts += [*_command(command, click.Context(command, info_name=name, parent=shown)), ""]
    return "\n".join(parts).rstrip() + "\n"


def _command(command: click.Command, context: click.Context, depth: int = 2) -> Iterator[str]:
    yield f"{'#' * depth} {context.command_path}"
    yield ""
    yield f"```text\n{' '.join((context.command_path, *command.collect_usage_pieces(context)))}\n```"
    yield ""
    yield _paragraphs(command.help)
    records = (param.get_help_record(context) for param in command.get_params(context))
    options = [record for record in records if record is not None and record[1] and "--help" not in record[0]]
    if options:
        yield ""
        yield from _table(("option", "what it does"), ([f"`{name}`", text] for name, text in options))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and inner.help:
                yield ""
                yield from _command(inner, click.Context(inner, info_name=name, parent=context), depth + 1)


def _paragraphs(text: str | None) -> str:
    """Return help as Markdown: one line per paragraph, and marked blocks as they are."""
    shown = []
    for part in (text or "").replace("\f", "").split("\n\n"):
        is_block = part.startswith("\b\n")
        shown.append(f"```text\n{part[2:]}\n```" if is_block else " ".join(part.split()))
    return "\n\n".join(part for part in shown if part)


def rules_page() -> str:
    """Return the page of all rules."""
    parts = ["# Rules", "", NOTE, ""]
    levels = ", ".join(f"{level}: {what}" for level, what in LEVELS.items())
    parts += [
        f"What a legal deployment meets, and on what each rule is checked ({levels}). `clustersim rules ID` shows one, "
        "and a violation that a tested case yields.",
        "",
    ]
    parts += _table(
        ("rule", "checked on", "what must hold"),
        ([f"[{rule.id}](#{rule.id.lower()})", " ".join(rule.levels), rule.statement] for rule in RULES),
    )
    for rule in RULES:
        parts += ["", *_rule(rule)]
    return "\n".join(parts).rstrip() + "\n"


def _rule(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id}"
    yield ""
    yield f"{rule.statement} (Checked on {', '.join(LEVELS[level] for level in rule.levels)}.)"
    yield ""
    yield f"- Why: {rule.why}"
    yield f"- Source: {rule.source}"
    yield f"- Catches: {rule.example}"
    for one in examples_of(rule.id):
        yield f"- On {LEVELS[one.level]} it reads: `{one.where}`: {one.message}; {one.fix}"
