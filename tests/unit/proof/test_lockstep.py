"""Replicas that share experts, executed together: logits are those of the unsharded model, and mutants are caught."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.graph.blueprint import StepKind
from clustersim.graph.stepgraph import StepGraph
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.proof.operators import experts
from clustersim.proof.proof import Proof, graphs_of, prove
from clustersim.proof.script import Script, chunked_script
from clustersim.proof.shrink import shrunk
from tests.legality.graph_cases_small import model
from tests.legality.plans import EXPERTS


def small(dp: int, tp: int, ep: int, redundant: int = 0) -> tuple[ModelSpec, ParallelPlan, Script]:
    plan = ParallelPlan(dp=dp, tp=tp, ep=ExpertPlan(degree=ep, scope="global", redundant=redundant))
    tiny, together = shrunk(model(ffn=EXPERTS, layers=2), plan.lockstep)
    script = chunked_script((9, 4, 6), output_tokens=3, budget=12, vocab=tiny.vocab, plan=together)
    return tiny, together, script


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "redundant"), [(2, 1, 2, 0), (4, 1, 4, 0), (2, 2, 2, 0), (4, 2, 4, 4), (8, 1, 8, 0)]
)
def test_logits_are_those_of_the_unsharded_model(dp: int, tp: int, ep: int, redundant: int) -> None:
    """With three sequences on four or eight replicas, some are idle."""
    proof = prove(*small(dp, tp, ep, redundant), orders=0)
    assert proof.verdict.verdict == "legal", proof.verdict.violations
    assert proof.max_relative_error <= 1e-9
    assert proof.tokens_equal
    assert proof.num_tokens == 3 * 3


def mutant(name: str, rank: int) -> Proof:
    """Prove with graphs in which an operator forgets a rank."""
    tiny, plan, script = small(4, 1, 4)
    graphs: dict[StepKind, StepGraph] = {}
    for kind, graph in graphs_of(tiny, plan, script).items():
        groups, group = list(graph.groups), graph.group.copy()
        for node in range(len(graph)):
            if graph.symbols[int(graph.symbol[node])].name == name:
                fewer = tuple(one for one in graph.ranks_of(node) if one != rank)
                groups += [] if fewer in groups else [fewer]
                group[node] = groups.index(fewer)
        graphs[kind] = replace(graph, groups=tuple(groups), group=np.asarray(group))
    return prove(tiny, plan, script, graphs=graphs, orders=0)


@pytest.mark.parametrize(("name", "rank"), [("combine", 1), ("dispatch", 0), ("dispatch", 3)])
def test_collective_that_forgets_a_rank_is_caught(name: str, rank: int) -> None:
    """Rank 3 has no sequence of its own, but experts that others ask for."""
    proof = mutant(name, rank)
    assert proof.verdict.verdict == "illegal"
    assert {violation.rule for violation in proof.verdict.violations} <= {"EP-2", "EP-4"}


def test_token_that_goes_to_the_wrong_rank_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = experts.homes

    def astray(at, token, expert):  # type: ignore[no-untyped-def]
        found = right(at, token, expert)
        return np.where(token == 2, (found + 1) % at.setting.plan.ep.degree, found)

    monkeypatch.setattr(experts, "homes", astray)
    proof = prove(*small(4, 1, 4), orders=0)
    assert {violation.rule for violation in proof.verdict.violations} == {"EP-2"}
