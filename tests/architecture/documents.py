"""The fenced blocks of a document: commands, example files and code, so that tests can do what a reader does.

The word after a block's language is the name of a file that it shows: ```` ```yaml my-node.yaml ````.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
GUIDE: Final = tuple(
    f"docs/{page}" for page in re.findall(r"- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
)
"""The pages of the documentation, in their order."""
_FENCE: Final = re.compile(r"^```(?P<language>\w*)[ ]?(?P<file>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; ``file`` is empty when it shows no file."""

    language: str
    file: str
    text: str


def blocks(document: str) -> list[Block]:
    """Return the fenced blocks of a document in the repository's root, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [Block(**found.groupdict()) for found in _FENCE.finditer(text)]


def commands(document: str) -> list[list[str]]:
    """Return the arguments of every command ``clustersim …`` in a document's shell blocks, in order."""
    found = []
    for block in blocks(document):
        if block.language == "sh":
            for line in block.text.splitlines():
                for part in line.split("&&"):
                    words = shlex.split(part, comments=True)
                    if words[:1] == ["clustersim"]:
                        found.append(words[1:])
    return found


def write_files(document: str, folder: Path) -> None:
    """Write the example files of a document into a folder."""
    for block in blocks(document):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def imported(folder: Path, name: str) -> ModuleType:
    """Return the module of an example file that was written into a folder."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(document: str, head: str) -> list[list[str]]:
    """Return the cells of every table row of a document whose table's first column is called ``head``."""
    found: list[list[str]] = []
    inside = False
    for line in (ROOT / document).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            inside = False
        elif inside:
            found.append(cells)
        else:
            inside = cells[0] == head
    return [cells for cells in found if not set(cells[0]) <= set("-|")]
