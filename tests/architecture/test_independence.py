"""What rules of level T take as given shares no code with what simulates: no part vouches for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import clustersim

ROOT: Final = Path(clustersim.__file__).parent
SIMULATES: Final = ("clustersim.replay", "clustersim.serving")
DATA: Final = {f"clustersim.serving.{name}" for name in ("config", "order", "user_class")}
"""What a user decides about serving, as plain data: no code that serves."""
PRICES: Final = ("clustersim.graph.prices.pricer", "clustersim.graph.prices.table", "clustersim.graph.prices.steps")


@cache
def imports(module: str) -> tuple[str, ...]:
    """Return what a module imports when it runs, as dotted names of modules."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    tree = ast.parse(file_of(module).read_text(encoding="utf-8"))
    unseen = [
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    ]
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("clustersim"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clustersim"):
            yield node.module or ""
            inner_modules = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name for name in inner_modules if is_module(name))


def file_of(module: str) -> Path:
    path = ROOT.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def is_module(name: str) -> bool:
    return file_of(name).is_file()


def reached(*modules: str) -> dict[str, str]:
    """Return every module that some lead to, and which one leads to it first."""
    found = dict.fromkeys(modules, "")
    queue = list(modules)
    while queue:
        module = queue.pop()
        for name in imports(module):
            if name not in found:
                found[name] = module
                queue.append(name)
    return found


@pytest.mark.parametrize(
    "module", ["clustersim.legality.audit", "clustersim.simulation.declared", "clustersim.simulation.audit"]
)
def test_what_judges_a_timeline_knows_nothing_of_what_made_it(module: str) -> None:
    found = reached(module)
    assert len(found) > 50
    strange = {name: via for name, via in found.items() if name.startswith(SIMULATES) and name not in DATA}
    assert strange.keys() <= set(SIMULATES), strange  # the packages themselves hold no code
    for package in SIMULATES:
        tree = ast.parse(file_of(package).read_text(encoding="utf-8"))
        assert all(isinstance(node, ast.Expr) for node in tree.body), package


def test_rules_of_timelines_know_nothing_of_what_prices_them() -> None:
    found = reached("clustersim.legality.audit")
    assert not [name for name in found if name in PRICES]


def test_what_is_data_of_serving_leads_to_no_code_that_serves() -> None:
    found = reached(*DATA)
    assert {name for name in found if name.startswith(SIMULATES)} - set(SIMULATES) <= DATA
