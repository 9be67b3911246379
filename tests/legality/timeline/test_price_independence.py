"""What operators cost is worked out twice: the second time without any of the code of the first."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import clustersim.legality.prices

ALLOWED: Final[dict[str, set[str]]] = {
    "clock": {"FloatArray", "Int64Array", "NS_PER_S"},
    "cluster.topology": {"Topology"},
    "collective.constants": {"ASSUMED"},
    "cost.engine": {"Engine"},
    "cost.kernels": {"ASSUMED"},
    "cost.precision": {"Precision"},
    "graph.template": {"PassTemplate"},
    "legality.formats": {"BYTES", "bytes_of", "weights_in"},
    "legality.shards": {"expert_map"},
    "legality.timeline_rules.views.grouping": {"numbered"},
    "legality.timeline_rules.views.pieces": {"BoolArray", "Pieces"},
    "legality.timeline_rules.views.runs": {"Runs"},
    "model.architecture": {"Attention", "Ffn", "Layer", "ModelSpec", "Moe"},
    "plan.exchange": {"DEEPEP", "Exchange"},
    "plan.parallel": {"ExpertPlan", "ParallelPlan"},
    "timeline.tables": {"Table"},
    "values": {"dataclass"},
}
"""What may be imported: declared data, the constants that are assumed, the record, and shards as rules see them."""
WORKED_OUT: Final = ("reached", "weights")
"""Methods of declared data that work something out, for the code that prices."""


def test_prices_know_nothing_of_the_code_that_prices() -> None:
    (folder,) = clustersim.legality.prices.__path__
    found: dict[str, set[str]] = {}
    for path in sorted(Path(folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clustersim."):
                module = (node.module or "").removeprefix("clustersim.")
                if not module.startswith("legality.prices"):
                    found.setdefault(module, set()).update(alias.name for alias in node.names)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in WORKED_OUT, (path.name, node.lineno, node.func.attr)
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("clustersim") for alias in node.names), path.name
    strange = {module: names - ALLOWED.get(module, set()) for module, names in found.items()}
    assert not any(strange.values()), strange
