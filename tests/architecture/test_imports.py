"""The import order of the packages, and the one package that may import each library.

A new package or library fails here until somebody places it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import clustersim

ROOT: Final = Path(clustersim.__file__).parent

LAYERS: Final = (
    ("__main__",),
    ("pytest_plugin",),
    ("cli", "library"),
    ("accuracy",),
    ("search",),
    ("report", "interop"),
    ("simulation",),
    ("scenario",),
    ("replay",),
    ("serving",),
    ("core",),
    ("proof",),
    ("legality",),
    ("timeline",),
    ("graph",),
    ("cost", "collective"),
    ("plan",),
    ("cluster", "model", "workload"),
    (
        "units",
        "clock",
        "errors",
        "catalog",
        "files",
        "limits",
        "inputs",
        "processes",
        "copies",
        "values",
        "memory",
        "column",
        "compiled",
        "compiler",
    ),
)
"""From top to bottom: a package imports only from lower rows. Packages of one row cannot see each other; the
modules of the last row can."""

LIBRARIES: Final = {
    "yaml": {"scenario"},
    "pydantic": {"scenario"},
    "pydantic_core": {"scenario"},
    "numba": {"compiled", "compiler", "search"},
    "llvmlite": {"compiler"},
    "simpy": {"replay"},
    "plotly": {"report"},
    "networkx": {"cluster", "graph"},
    "click": {"cli"},
    "rich": {"cli", "report"},
    "pytest": {"pytest_plugin"},
    "dask": {"search"},
    "distributed": {"search"},
    "ray": {"search"},
}
"""Library → the only packages that may import it."""

LIBRARIES_FOR_ALL: Final = {"numpy", "pyarrow"}

RANK: Final = {package: rank for rank, row in enumerate(LAYERS) for package in row}
GROUND: Final = set(LAYERS[-1])


def imported(source: str, package: str) -> Iterator[str]:
    """Yield the dotted names that a module of ``package`` imports, as absolute names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(filter(None, [*above, base]))
            if base == "clustersim":
                yield from (f"clustersim.{alias.name}" for alias in node.names)
            else:
                yield base


def faults(source: str, module: str) -> list[str]:
    """Return what is wrong with the imports of a module such as ``clustersim.plan.mesh``."""
    parts = module.split(".")
    home = parts[1] if len(parts) > 1 else ""
    if home and home not in RANK:
        return [f"{module}: package {home} has no place in LAYERS"]
    found = []
    for name in imported(source, ".".join(parts[:-1]) or "clustersim"):
        top, _, rest = name.partition(".")
        if top == "clustersim":
            target = rest.split(".")[0]
            if target in ("", "__version__") or target == home:
                continue
            if target not in RANK:
                found.append(f"{module} imports {name}, which has no place in LAYERS")
            elif home and RANK[target] <= RANK[home] and not {home, target} <= GROUND:
                found.append(f"{module} imports {name}, which is not below it")
        elif top in LIBRARIES:
            if home not in LIBRARIES[top]:
                found.append(f"{module} imports {top}, which only {sorted(LIBRARIES[top])} may import")
        elif top not in sys.stdlib_module_names and top not in LIBRARIES_FOR_ALL:
            found.append(f"{module} imports {top}, which is no library of this project")
    return found


def modules() -> list[tuple[str, Path]]:
    """Return (dotted name, file) of every module; a package is named by its ``__init__``."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(("clustersim", *path.relative_to(ROOT).with_suffix("").parts))
        found.append((name if path.parent != ROOT else name.removesuffix(".__init__"), path))
    return found


def test_modules_import_only_what_lies_below() -> None:
    assert [fault for module, path in modules() for fault in faults(path.read_text(encoding="utf-8"), module)] == []


def test_layers_name_only_packages_that_exist() -> None:
    present = {path.stem for path in ROOT.iterdir()}
    assert sorted(set(RANK) - present) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("clustersim.plan.mesh", "from clustersim.graph import expand"),
        ("clustersim.plan.mesh", "from ..graph import expand"),
        ("clustersim.plan.mesh", "def f():\n    import clustersim.graph.expand"),
        ("clustersim.cost.roofline", "from clustersim.collective import price"),
        ("clustersim.model.spec", "from clustersim import cluster"),
        ("clustersim.graph.expand", "import yaml"),
        ("clustersim.serving.scheduler", "from simpy import Environment"),
        ("clustersim.simulation.one", "import plotly.graph_objects as go"),
        ("clustersim.simulation.one", "import pandas"),
        ("clustersim.novel.thing", ""),
        ("clustersim.simulation.one", "from clustersim.novel import thing"),
    ],
)
def test_faults_sees_a_forbidden_import(module: str, source: str) -> None:
    assert len(faults(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("clustersim.graph.expand", "from clustersim.plan.parallel import ParallelPlan"),
        ("clustersim.graph.expand", "from . import passes\nfrom .passes import tensor"),
        ("clustersim.units", "from clustersim.errors import ClustersimError"),
        ("clustersim.cli.commands.run", "import click\nfrom clustersim import __version__"),
        ("clustersim.cluster.topology", "import json\nimport networkx as nx\nimport numpy.typing as npt"),
    ],
)
def test_faults_accepts_what_lies_below(module: str, source: str) -> None:
    assert faults(source, module) == []
