"""Files of users are opened in one place, and code of users is run in one place.

A new ``open`` fails here until it goes through :mod:`clustersim.inputs`, or somebody says why it need not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import clustersim

ROOT: Final = Path(clustersim.__file__).parent
READS: Final = {
    "open", "fdopen", "read_text", "read_bytes", "read_table", "read_csv", "ParquetFile", "memory_map", "fromfile",
    "loadtxt", "genfromtxt", "memmap", "file_digest",
}  # fmt: skip
RUNS: Final = {"exec", "eval", "import_module", "__import__", "spec_from_file_location", "exec_module", "run_path"}
UNPICKLES: Final = {("pickle", "load"), ("pickle", "loads"), ("np", "load"), ("yaml", "load"), ("marshal", "loads")}
NAMED: Final = re.compile(rf"\b(?:{'|'.join(sorted({*READS, *RUNS, *map('.'.join, UNPICKLES)}))}) *\(")
"""What a module has in it that is parsed: no other one reads files or runs code."""

PLACES: Final = {
    ("inputs.py", "open"), ("inputs.py", "fdopen"), ("inputs.py", "ParquetFile"),  # the one place
    ("report/page_files.py", "read_text"),  # pages that ship
    ("legality/rulebook/examples.py", "read_text"),  # examples that ship
    ("scenario/keys/json_schema.py", "read_text"),  # meanings that ship
    ("cli/streams.py", "open"),  # /dev/null
    ("files.py", "open"),  # locks on what it wrote itself
    ("cli/streams.py", "open"),  # nothing, in the place of a stream that is closed
    ("cli/limits.py", "read_text"),  # what the system lets this process have
    ("pytest_plugin/golden.py", "open"),  # tables that it has just written, and an archive in memory
    ("__init__.py", "import_module"), ("cli/__init__.py", "import_module"),  # modules of our own, by a fixed table
    ("values.py", "exec"),  # ``__init__`` of our own classes
    ("serving/user_class.py", "exec"),  # behind UserClass.allowed
    ("replay/shares.py", "loads"),  # what one of our own processes says to another
}  # fmt: skip
"""(Module, call) → allowed, and why."""


def calls(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield what reads files or runs code: the name of the call, and its line."""
    nodes = list(ast.walk(tree))
    ours = {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}
    for one in nodes:
        if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("clustersim."):
            ours |= {alias.asname or alias.name for alias in one.names}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in RUNS or (name in READS and (name not in ours or name == "open") and not _writes(node, 1)):
                yield name, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if (
                (owner, name) in UNPICKLES
                or name in RUNS - {"eval", "exec"}
                or (name in READS and owner != "inputs" and not _writes(node, 0))
            ):
                yield name, node.lineno


def _writes(node: ast.Call, place: int) -> bool:
    """Whether an ``open`` names a mode that writes."""
    given = [*node.args[place : place + 1], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(mode[:1] in ("w", "x", "a") for mode in modes)


@cache
def found() -> list[tuple[str, str, int]]:
    """Return (module, call, line) of everything that reads files or runs code."""
    return [
        (path.relative_to(ROOT).as_posix(), name, line)
        for path in sorted(ROOT.rglob("*.py"))
        if NAMED.search(text := path.read_text(encoding="utf-8"))
        for name, line in calls(ast.parse(text))
    ]


def test_every_file_is_opened_in_the_one_place() -> None:
    assert [f"{module}:{line}: {name}" for module, name, line in found() if (module, name) not in PLACES] == []


def test_no_place_is_allowed_that_is_not_there() -> None:
    assert PLACES - {(module, name) for module, name, _ in found()} == set()


@pytest.mark.parametrize(
    "source",
    [
        "open('a')", "path.open()", "path.open('rb')", "Path(a).read_text()", "path.read_bytes()", "pq.read_table(a)",
        "pq.ParquetFile(a)", "exec(code)", "importlib.import_module(a)", "pickle.load(a)", "np.load(a)",
        "gzip.open(a)", "read_text(a)",
    ],
)  # fmt: skip
def test_what_opens_a_file_is_seen(source: str) -> None:
    assert len(list(calls(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "path.open('w')", "open('a', 'wb')", "inputs.read_text(a, most=1)", "re.compile(a)", "json.loads(text)",
        "from clustersim.scenario.document import read_text\nread_text(a)",
    ],
)  # fmt: skip
def test_what_writes_or_goes_through_the_one_place_is_left_alone(source: str) -> None:
    assert list(calls(ast.parse(source))) == []
