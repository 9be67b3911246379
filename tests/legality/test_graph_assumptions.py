"""The failure-prone assumptions of the source documents, each one seen to be rejected on a step graph."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from graph_cases_small import view_of
from graph_mutations import MUTATIONS

import clustersim.legality.graph_rules
from clustersim.legality.check_graph import check_graph

ASSUMPTIONS = {
    "SP can parallelise autoregressive decode steps": "SP-3: a decode step gathers over SP ranks",
    "SP removes causal dependencies": "SP-2: one segment's K/V is left out of the gather",
    "SP is equivalent to TP": "TP-9: TP splits the batch",
    "SP partitions may share the K/V cache as they like": "SP-8: a segment is never moved to where decode reads it",
    "TP removes autoregressive dependencies": "PH-5: attention sees tokens that come later: it has no causal mask",
    "TP reduces the number of decode steps": "PH-2: a decode step has two tokens of one sequence",
    "TP changes K/V cache semantics": "KV-4: K/V heads are copied without a word",
    "TP may break deterministic expert computation": "EP-6: TP inside an expert joins ranks of two experts",
    "EP routing may bypass the phase": "EP-5: experts are fed from the step before",
    "EP routing may bypass causal constraints": "EP-5: routing goes round attention",
    "PP can overlap decode steps": "PH-3: two steps overlap across stages",
    "DP may alter per-token semantics": "DP-3: a K/V edge goes from one replica to another",
}
"""Assumption → the mutation that acts on it."""


@pytest.mark.parametrize("assumption", ASSUMPTIONS)
def test_assumption_is_rejected(assumption: str) -> None:
    (mutation,) = [mutation for mutation in MUTATIONS if str(mutation) == ASSUMPTIONS[assumption]]
    verdict = check_graph(mutation.change(view_of(mutation.case)))
    assert {violation.rule for violation in verdict.violations} == {mutation.rule}


ALLOWED = {"blueprint": {"Node", "COLLECTIVE_OPS", "TRANSFER_OPS"}, "batch": {"Chunk"}}
"""Modules of the graph that rules may import: the words of its data, and none of the code that makes it."""


def test_rules_know_nothing_of_the_code_that_makes_graphs() -> None:
    (folder,) = clustersim.legality.graph_rules.__path__
    found: dict[str, set[str]] = {}
    for path in sorted(Path(folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clustersim."):
                package, _, module = (node.module or "").removeprefix("clustersim.").partition(".")
                assert package in ("clock", "graph", "legality", "model", "plan"), (path.name, node.module)
                if package == "graph":
                    found.setdefault(module, set()).update(alias.name for alias in node.names)
                if package == "plan":
                    assert module == "parallel", path.name
    strange = {module: names - ALLOWED.get(module, set()) for module, names in found.items()}
    assert not any(strange.values()), strange
