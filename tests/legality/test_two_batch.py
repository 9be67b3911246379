"""Steps of two halves that overlap: legal as they are, and caught when anything between or inside them is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from clustersim.graph.stepgraph import StepGraph
from clustersim.legality.check_graph import check_graph
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.proof.proof import graphs_of, prove
from clustersim.proof.script import chunked_script, program_of
from clustersim.simulation.audit import audit_run
from clustersim.simulation.graph_legality import check_steps, graph_view
from clustersim.simulation.simulate import RunResult, simulate
from tests.laws.graph_cases import PRECISION, model_of
from tests.laws.proof_cases import model_of as small_model_of
from tests.laws.random_scenarios import MIXTRAL, scenario_of

LOCAL: Final = ParallelPlan(tp=4, ep=ExpertPlan(degree=4, overlap="two_batch"))
SHARED: Final = ParallelPlan(tp=4, dp=2, ep=ExpertPlan(degree=2, overlap="two_batch"))
WIDE: Final = ParallelPlan(dp=4, ep=ExpertPlan(degree=4, scope="global", overlap="two_batch"))
WIDE_TP: Final = ParallelPlan(tp=2, dp=2, ep=ExpertPlan(degree=2, scope="global", overlap="two_batch"))


@pytest.mark.parametrize("plan", [LOCAL, SHARED, WIDE, WIDE_TP], ids=("local", "shared", "wide", "wide-tp"))
@pytest.mark.parametrize("name", ["shared", "windows", "latent"])
def test_halves_are_legal(name: str, plan: ParallelPlan) -> None:
    verdict = check_steps(model_of(name), plan, PRECISION)
    assert verdict.violations == ()
    assert {rule.id: rule.looked_at for rule in verdict.rules}["PP-4"] > 0


@cache
def view_of() -> GraphView:
    return graph_view(model_of("shared"), LOCAL, PRECISION)


def _first(view: GraphView, name: str, half: int) -> int:
    step = next(at for at, step in enumerate(view.steps) if step.half == half)
    return int(np.flatnonzero(view.named(name) & (view.step == step))[0])


def _rewired(view: GraphView, source: int, target: int, other: int) -> GraphView:
    """Let ``target`` need ``other`` in place of ``source``."""
    edge = np.flatnonzero((view.source == source) & (view.target == target))
    assert len(edge)
    sources = view.source.copy()
    sources[edge] = other
    return replace(view, source=sources)


def _crossed(view: GraphView) -> GraphView:
    """Let the second half's combine be fed by the first half's experts."""
    combine, own, other = _first(view, "combine", 2), _first(view, "expert_down", 2), _first(view, "expert_down", 1)
    return _rewired(view, own, combine, other)


def _beside(view: GraphView) -> GraphView:
    """Let the second half's dispatch wait for the first half's combine as well."""
    ends = (_first(view, "combine", 1), _first(view, "dispatch", 2), 0)
    source, target, kind = (
        np.append(column, end) for column, end in zip((view.source, view.target, view.kind), ends, strict=True)
    )
    return replace(view, source=source, target=target, kind=kind)


def _dropped(view: GraphView) -> GraphView:
    """Let a half's combine need nothing."""
    kept = view.target != _first(view, "combine", 1)
    return replace(view, source=view.source[kept], target=view.target[kept], kind=view.kind[kept])


def _uncombined(view: GraphView) -> GraphView:
    """Take the combine of a half away, with its edges."""
    gone = _first(view, "combine", 2)
    kept, member = (view.source != gone) & (view.target != gone), view.member_node != gone
    return replace(
        view, source=view.source[kept], target=view.target[kept], kind=view.kind[kept],
        member_node=view.member_node[member], member_rank=view.member_rank[member],
        member_position=view.member_position[member],
    )  # fmt: skip


def _second(view: GraphView, change: Callable[[Any], Any]) -> GraphView:
    at = next(at for at, step in enumerate(view.steps) if step.half == 2)
    return replace(view, steps=(*view.steps[:at], change(view.steps[at]), *view.steps[at + 1 :]))


def _twice(view: GraphView) -> GraphView:
    """Put a sequence of the first half into the second one, too."""
    first = next(step for step in view.steps if step.half == 1)
    return _second(view, lambda step: replace(step, chunks=step.chunks + first.chunks))


def _left_out(view: GraphView) -> GraphView:
    """Let the second half carry another sequence than the step does."""
    return _second(view, lambda step: replace(step, chunks=tuple(replace(one, request=99) for one in step.chunks)))


def _out_of_turn(view: GraphView) -> GraphView:
    """Let the stream run the first half's combine before its dispatch, which the edges contradict."""
    combine, dispatch = _first(view, "combine", 1), _first(view, "dispatch", 1)
    position = view.member_position.copy()
    mine, theirs = (view.member_node == node for node in (combine, dispatch))
    position[mine], position[theirs] = view.member_position[theirs].copy(), view.member_position[mine].copy()
    return replace(view, member_position=position)


MUTATIONS: Final = {
    _crossed: "PP-4",
    _beside: "PP-4",
    _dropped: "EP-4",
    _uncombined: "EP-2",
    _twice: "PP-4",
    _left_out: "PP-4",
    _out_of_turn: "RUN-1",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__.strip("_"))
def test_broken_halves_are_caught_in_the_graph(mutation: Callable[[GraphView], GraphView]) -> None:
    assert MUTATIONS[mutation] in {violation.rule for violation in check_graph(mutation(view_of())).violations}


def _script() -> Any:
    model = small_model_of("shared")
    return model, chunked_script((7, 5, 6), output_tokens=3, budget=9, vocab=model.vocab, plan=LOCAL)


def test_halves_that_overlap_give_the_logits_of_one_device() -> None:
    model, script = _script()
    assert {program_of(step) for step in script.steps} >= {"prefill+prefill", "decode+decode", "decode+mixed"}
    proof = prove(model, LOCAL, script)
    assert proof.verdict.verdict == "legal"
    assert proof.tokens_equal


def test_a_combine_that_is_fed_by_the_other_half_gives_other_logits() -> None:
    model, script = _script()
    graphs = graphs_of(model, LOCAL, script)

    def crossed(graph: StepGraph) -> StepGraph:
        named = [graph.symbols[symbol].name for symbol in graph.symbol.tolist()]
        own = [at for at, name in enumerate(named) if name == "expert_down" and graph.half[at] == 1]
        sources = graph.source.copy()
        combine = next(at for at, name in enumerate(named) if name == "combine" and graph.half[at] == 2)
        edges = np.flatnonzero(graph.target == combine)
        sources[edges] = own[: len(edges)]
        return replace(graph, source=sources)

    broken = graphs | {"decode+decode": crossed(graphs["decode+decode"])}
    assert prove(model, LOCAL, script, graphs=broken).verdict.verdict == "illegal"


@cache
def _run() -> RunResult:
    plan = {"dp": 1, "pp": 1, "tp": 2, "ep": {"degree": 2, "overlap": "two_batch"}}
    return simulate(scenario_of({
        "name": "halves", "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}}, "plan": plan,
        "serving": {"scheduler": "chunked_prefill", "max_batch_tokens": 64, "kv_block_tokens": 16},
        "workload": {
            "arrivals": "all_at_once", "prompt_tokens": {"fixed": 40}, "output_tokens": {"fixed": 6}, "requests": 5,
        },
        "run": {},
    }))  # fmt: skip


def test_one_half_computes_while_the_other_one_communicates() -> None:
    spans = _run().timeline.unfold(ranks=[0])
    names = np.array(spans.names)[spans.name]
    computes, moves = np.isin(spans.stream, (0,)), np.isin(names, ("dispatch", "combine"))
    for half, other in ((1, 2), (2, 1)):
        mine, theirs = np.flatnonzero(moves & (spans.half == half)), np.flatnonzero(computes & (spans.half == other))
        covered = [
            bool(((spans.start_ns[theirs] < spans.end_ns[at]) & (spans.end_ns[theirs] > spans.start_ns[at])).any())
            for at in mine.tolist()
        ]
        assert len(mine)
        assert np.mean(covered) > 0.4


def _with_templates(result: RunResult, change: Callable[[Any], Any]) -> RunResult:
    templates = tuple(change(one) if len(one.node_half) else one for one in result.timeline.templates)
    timeline = replace(result.timeline, templates=templates)
    return replace(result, replayed=replace(result.replayed, timeline=timeline))


def test_a_run_of_halves_is_legal() -> None:
    assert audit_run(_run()).verdict != "illegal"


def test_a_half_that_needs_the_other_one_is_caught_in_the_timeline() -> None:
    def crossed(template: Any) -> Any:
        half = np.zeros(len(template.instance_class), np.int64)
        half[template.node_instance] = template.node_half
        first, second = int(np.flatnonzero(half == 1)[0]), int(np.flatnonzero(half == 2)[-1])
        after = list(template.after)
        after[second] = tuple(sorted({*after[second], first}))
        return replace(template, after=tuple(after))

    assert "PP-4" in {violation.rule for violation in audit_run(_with_templates(_run(), crossed)).violations}


def test_operators_of_both_halves_told_as_one_are_caught_in_the_timeline() -> None:
    def merged(template: Any) -> Any:
        return replace(template, node_half=np.minimum(template.node_half, 1))

    found = {violation.rule for violation in audit_run(_with_templates(_run(), merged)).violations}
    assert {"PP-6", "KV-3"} <= found
