"""A scenario being written: values by path, each with the words that say where it comes from, and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from clustersim.scenario.resolve import to_yaml
from clustersim.values import dataclass

WIDTH: Final = 108
"""Of a line of the comment at the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A value of the scenario and its origin, such as ``--tensor-parallel-size``."""

    value: Any
    origin: str = ""


@dataclass(slots=True, kw_only=True)
class Draft:
    """Entries by dotted path, in the order in which they are written, and what a reader must know.

    ``left_out`` has what is not simulated, in words, and the options that ask for it.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def set(self, path: str, value: Any, origin: str = "") -> None:
        """Set the value at a path such as ``plan.tp``."""
        self.entries[path] = Entry(value=value, origin=origin)

    def leave_out(self, name: str, what: str) -> None:
        """Say that what an option asks for is not simulated, once for all parts of it."""
        names = self.left_out.setdefault(what, [])
        if name not in names:
            names.append(name)

    def settle(self) -> None:
        """Write what is left out, so that each run says it."""
        told = [f"{', '.join(names)}: {what}" for what, names in self.left_out.items()]
        if told:
            self.set("left_out", told)
        for text in told:
            self.note(f"NOT SIMULATED: {text}.")

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def text(self, head: Sequence[str]) -> str:
        """Return the YAML: the head and the notes as comments, then the values, each with its origin."""
        lines = [line for text in head for line in _wrapped(text)]
        lines += [line for text in self.notes for line in _wrapped(f"NOTE: {text}")]
        tree: dict[str, Any] = {}
        for path, entry in self.entries.items():
            at = tree
            *above, last = path.split(".")
            for part in above:
                at = at.setdefault(part, {})
            at[last] = entry
        return "\n".join([*lines, *_lines(tree, "")]) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> list[str]:
    leaves = {key: _leaf(key, entry.value) for key, entry in tree.items() if isinstance(entry, Entry)}
    width = max((len(text) for text in leaves.values() if len(text) <= 50), default=0)
    found: list[str] = []
    for key, entry in tree.items():
        if isinstance(entry, Entry):
            comment = f"  # {entry.origin}" if entry.origin else ""
            found.append(f"{indent}{leaves[key].ljust(width if comment else 0)}{comment}")
        else:
            found += [f"{indent}{key}:", *_lines(entry, f"{indent}  ")]
    return found


def _leaf(key: str, value: Any) -> str:
    if isinstance(value, list):
        return (
            f"{key}: [{', '.join(to_yaml({'': item}).strip().removeprefix('? ').split(': ', 1)[1] for item in value)}]"
        )
    return to_yaml({key: value}).rstrip("\n")


def _wrapped(text: str) -> list[str]:
    """Return a comment of lines that are not too long, the later ones indented by two more."""
    lines: list[str] = []
    line = "#"
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    for word in text.split(" "):
        if len(line) + 1 + len(word) > WIDTH and line.strip("# "):
            lines.append(line)
            line = f"#{indent}"
        line += f" {word}"
    return [*lines, line]
