"""The rules of level G share no code with what makes step graphs: no part vouches for itself."""

from __future__ import annotations

import ast
from pathlib import Path

import clustersim.legality.graph_rules

ALLOWED = {"blueprint": {"Node", "COLLECTIVE_OPS", "TRANSFER_OPS", "HOST_OPS", "EDGE_KINDS"}, "batch": {"Chunk"}}
"""Modules of the graph that rules may import: the words of its data, and none of the code that makes it."""


def test_rules_know_nothing_of_the_code_that_makes_graphs() -> None:
    (folder,) = clustersim.legality.graph_rules.__path__
    found: dict[str, set[str]] = {}
    for path in sorted(Path(folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clustersim."):
                package, _, module = (node.module or "").removeprefix("clustersim.").partition(".")
                assert package in ("clock", "graph", "legality", "model", "plan", "values"), (path.name, node.module)
                if package == "graph":
                    found.setdefault(module, set()).update(alias.name for alias in node.names)
                if package == "plan":
                    assert module == "parallel", path.name
    strange = {module: names - ALLOWED.get(module, set()) for module, names in found.items()}
    assert not any(strange.values()), strange
