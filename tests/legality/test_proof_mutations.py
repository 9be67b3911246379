"""Level X: each way to break a step graph, or what runs it, is a missing or a different number, and names its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from proof_mutations import (
    COMPARISONS,
    PROOFS,
    SPREAD,
    STAGES,
    TWO,
    between,
    bypassed,
    case,
    dispatched,
    duplicate,
    lose,
    misroute,
    node,
    proven,
    renamed,
    routing_by_rank,
    segments,
    symbols,
    without,
)

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.graph.expand import blueprint_of
from clustersim.graph.stepgraph import StepGraph, expand
from clustersim.graph.variant import Variant
from clustersim.legality.rule import Violation
from clustersim.legality.rulebook import RULES
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, TensorSplit
from clustersim.proof import execution
from clustersim.proof import proof as proving
from clustersim.proof.operators import attention
from clustersim.proof.operators.values import Routed
from clustersim.proof.order import program_order
from clustersim.proof.proof import LOOKED_AT, Proof, graphs_of, prove
from clustersim.proof.script import chunked_script, kind_of
from clustersim.proof.wiring import wired
from tests.effort import each_in_one, is_long
from tests.laws.proof_cases import model_of
from tests.legality.timeline.golden import compare

SOMEWHERE = Violation(rule="KV-2", level="X", where="", message="", fix="")
"""Stands for where the first wrong number comes from: to look for that takes a proof as long again."""


def found(proof: Proof) -> Violation:
    (violation,) = proof.verdict.violations
    assert proof.verdict.verdict == "illegal"
    assert violation.level == "X"
    assert violation.fix
    return violation


CASES = [("llama", TWO), ("shared", SPREAD), ("latent", segments("all_gather", tp=2)), ("mha", segments("all_to_all"))]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_plans_are_legal_before_they_are_broken(name: str, plan: ParallelPlan) -> None:
    assert proven(name, plan).verdict.verdict == "legal"


# --- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROOFS)
def test_a_mutation_breaks_its_rule_and_no_other(name: str) -> None:
    rule, broken = PROOFS[name]
    assert found(broken()).rule == rule


def test_each_rule_of_level_x_is_necessary() -> None:
    """A proof names one rule for the first wrong value: without that rule, the mutations that break it pass."""
    of_level_x = {rule.id for rule in RULES if "X" in rule.levels}
    assert set(LOOKED_AT) == of_level_x
    assert {rule for rule, _ in PROOFS.values()} - {"PP-2", "PP-6"} == of_level_x


@pytest.mark.parametrize("name", COMPARISONS)
def test_each_comparison_of_a_proof_is_necessary(name: str) -> None:
    """Switched off, it lets a wrong execution pass that no other comparison sees."""
    owner, attribute, passing, broken = COMPARISONS[name]
    assert broken().verdict.verdict == "illegal"
    with mock.patch.object(owner, attribute, passing):
        assert broken().verdict.verdict == "legal"


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    """Each is held to its rule by a test of its own."""
    lines = [f"{rule:6}  {name:52}  {rule}" for name, (rule, _) in PROOFS.items()]
    compare(request, Path(__file__).with_name("proof_matrix.txt"), "\n".join(sorted(lines)) + "\n")


# --- TP-2 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["o_proj_all_reduce", "ffn_down_all_reduce", "embedding_all_reduce"])
def test_dropped_all_reduce_leaves_a_term_that_is_read_as_the_whole(name: str) -> None:
    violation = found(proven("llama", TWO, bypassed(name)))
    assert violation.rule == "TP-2"
    assert "a term of a sum is read as if it were the whole" in violation.message
    assert violation.where.startswith("step 0, rank 0")


def test_dropped_all_gather_leaves_a_slice_that_is_read_as_the_whole() -> None:
    violation = found(proven("llama", TWO, bypassed("lm_head_all_gather")))
    assert (violation.rule, violation.where) == ("TP-2", "step 0, rank 0, host sample")
    assert "a slice of the features" in violation.message


@pytest.mark.parametrize(
    ("old", "new", "op"),
    [
        ("o_proj_all_reduce", "o_proj_all_gather", "all_gather"),
        ("lm_head_all_gather", "lm_head_all_reduce", "all_reduce"),
        ("ffn_down_all_reduce", "ffn_down_reduce_scatter", "reduce_scatter"),
    ],
)
def test_sum_and_concatenation_swapped(old: str, new: str, op: str) -> None:
    violation = found(proven("llama", TWO, renamed(old, new, op)))
    assert violation.rule == "TP-2"
    assert new in violation.where or op == "reduce_scatter"


def test_sum_over_the_ranks_that_share_an_expert_is_needed() -> None:
    plan = ParallelPlan(tp=4, ep=ExpertPlan(degree=2))
    assert proven("moe", plan).verdict.verdict == "legal"
    violation = found(proven("moe", plan, bypassed("expert_down_all_reduce")))
    assert (violation.rule, violation.where.split()[-1]) == ("TP-2", "combine")


def test_scattered_features_must_be_those_of_the_next_operator() -> None:
    plan = ParallelPlan(tp=2, split=TensorSplit(ffn_up="rows", ffn_down="rows"))
    assert proven("llama", plan).verdict.verdict == "legal"
    violation = found(proven("llama", plan, bypassed("ffn_up_reduce_scatter")))
    assert (violation.rule, violation.where.split()[-1]) == ("TP-2", "ffn_act")


# --- KV-2, PH-5 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "latent"])
@pytest.mark.parametrize("source", ["kv_write", "kv_read"])
@pytest.mark.parametrize("target", ["attention_prefill", "attention_decode"])
def test_dropped_edge_from_the_cache(name: str, source: str, target: str) -> None:
    violation = found(proven(name, ParallelPlan(), between(source, target)))
    assert (violation.rule, violation.where.split()[-1]) == ("KV-2", target)
    when = "this rank writes in this step" if source == "kv_write" else "an earlier step wrote"
    assert f"whose K/V {when}" in violation.message or name == "latent"


def test_write_that_runs_after_the_attention_that_reads_it() -> None:
    model, script, expected, graphs = case("llama", ParallelPlan())
    ready = {kind: wired(graph) for kind, graph in graphs.items()}
    order = program_order(script, ready)

    def name(event: tuple[int, int]) -> str:
        return ready[kind_of(script.steps[event[0]])].nodes[event[1]].node.name

    write = next(at for at, event in enumerate(order) if name(event) == "kv_write")
    core = next(at for at, event in enumerate(order) if name(event) == "attention_prefill")
    order[write : core + 1] = [*order[write + 1 : core + 1], order[write]]
    proof = prove(
        model, ParallelPlan(), script, expected=expected, graphs=graphs, orders=0, recorded={"recorded order": order}
    )
    violation = found(proof)
    assert (violation.rule, violation.where) == ("KV-2", "step 0, rank 0, layer 0, attention attention_prefill")
    assert violation.message.endswith("(recorded order)")


def test_step_that_starts_before_the_one_before_has_sampled() -> None:
    model, script, expected, graphs = case("llama", ParallelPlan())
    ready = {kind: wired(graph) for kind, graph in graphs.items()}
    order = program_order(script, ready)
    last = len(script.steps) - 1
    early = [event for event in order if event[0] == last and event[1] == 0]
    others = [event for event in order if event not in early]
    proof = prove(
        model, ParallelPlan(), script, expected=expected, graphs=graphs, orders=0,
        recorded={"recorded order": early + others},
    )  # fmt: skip
    assert found(proof).rule == "PH-3"


def test_wider_window_attends_to_what_the_model_does_not() -> None:
    assert proven("slides", ParallelPlan()).verdict.verdict == "legal"
    wider = symbols(lambda symbol: replace(symbol, variant=Variant(window=5)) if symbol.variant.window == 4 else symbol)
    violation = found(proven("slides", ParallelPlan(), wider))
    assert violation.rule == "PH-5"
    assert "token 4 of sequence 0 attends to token 0" in violation.message


def test_token_that_attends_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attention._visible

    def forward(at, rows, window):
        return plain(at, rows, window) | np.roll(plain(at, rows, window), 1, axis=1)

    monkeypatch.setattr(attention, "_visible", forward)
    violation = found(proven("llama", ParallelPlan()))
    assert violation.rule == "PH-5"
    assert "token 0 of sequence 0 attends to token 1" in violation.message


# --- SP-2, SP-8 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "source", "target"),
    [
        (segments("all_gather"), "kv_all_gather", "attention_prefill"),
        (segments("ring"), "kv_ring_1", "attention_prefill_1"),
        (segments("ring", degree=3), "kv_ring_1", "kv_ring_2"),
        (segments("ring", degree=3), "kv_ring_2", "attention_prefill_2"),
    ],
)
def test_segment_that_is_not_brought_to_the_rank(plan: ParallelPlan, source: str, target: str) -> None:
    violation = found(proven("llama", plan, between(source, target)))
    assert violation.rule == "SP-2"
    assert "does not attend to token" in violation.message


@pytest.mark.parametrize("scheme", ["all_gather", "ring", "all_to_all"])
def test_context_of_an_earlier_chunk_that_its_owner_does_not_show(scheme: str) -> None:
    reads = without(lambda a, b, k: a.name == "kv_read" and b.is_collective)
    violation = found(proven("mha", segments(scheme), reads))
    assert violation.rule == "SP-2"
    assert "keeps" in violation.message


def test_segment_that_no_rank_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, script, expected, graphs = case("llama", segments("ring"))
    lay_out = execution.lay_out

    def without_one(*given):
        tokens = lay_out(*given)
        return replace(tokens, s=np.where((tokens.position == 1) & (tokens.sequence == 0), -1, tokens.s))

    monkeypatch.setattr(execution, "lay_out", without_one)
    violation = found(prove(model, segments("ring"), script, expected=expected, graphs=graphs, orders=0))
    assert violation.rule == "SP-2"
    assert "token 1, whose K/V no SP rank computes" in violation.message


@pytest.mark.parametrize("decode", ["idle", "dp"])
@pytest.mark.parametrize("name", ["llama", "latent"])
def test_segment_that_is_not_moved_to_where_decode_reads_it(name: str, decode: str) -> None:
    plan = segments("all_gather", decode)
    assert proven(name, plan).verdict.verdict == "legal"
    violation = found(proven(name, plan, between("kv_move", "boundary", "boundary")))
    assert violation.rule in ("SP-8", "SP-2")  # a later chunk needs it at its owner too
    whole = found(proven(name, plan, without(lambda a, b, k: b.name == "kv_move")))
    assert (whole.rule, whole.where.split()[-1]) == ("SP-8", "kv_move")


def test_only_whole_prompts_and_no_move_are_missed_by_decode() -> None:
    model, plan = model_of("llama"), segments("ring")
    script = chunked_script((9, 8), output_tokens=3, budget=40, vocab=model.vocab, plan=plan)
    change = between("kv_move", "boundary", "boundary")
    graphs = {kind: change(graph) for kind, graph in graphs_of(model, plan, script).items()}
    violation = found(prove(model, plan, script, graphs=graphs, orders=0))
    assert (violation.rule, violation.where.split()[-1]) == ("SP-8", "attention_decode")
    assert "was not moved to this rank" in violation.message


# --- EP-2, EP-3 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lose, duplicate, misroute])
@pytest.mark.parametrize("plan", [ParallelPlan(), TWO, SPREAD])
def test_token_lost_duplicated_or_misrouted(change: Callable[[Routed], Routed], plan: ParallelPlan) -> None:
    with dispatched(change):
        violation = found(proven("shared", plan))
    assert (violation.rule, violation.where.split()[-1]) == ("EP-2", "dispatch")
    assert "of sequence" in violation.message
    assert "expert" in violation.message


def test_lost_results_of_experts() -> None:
    violation = found(proven("shared", SPREAD, between("combine", "aggregate", "data")))
    assert violation.rule == "EP-2"


def test_router_that_looks_at_its_rank() -> None:
    violation = found(routing_by_rank())
    assert (violation.rule, violation.where.split()[3], violation.where.split()[-1]) == ("EP-3", "1,", "gate")


# --- between stages and layers ------------------------------------------------------------------------------------


def test_stage_that_starts_without_what_was_sent_to_it() -> None:
    violation = found(proven("llama", STAGES, between("send", "recv", "sync")))
    assert (violation.rule, violation.where) == ("PP-2", "step 0, rank 1, pipeline recv")


@pytest.mark.parametrize("plan", [ParallelPlan(), STAGES])
def test_layers_in_the_wrong_order(plan: ParallelPlan) -> None:
    model, script, expected, _ = case("llama", plan)
    graphs = {}
    for kind in dict.fromkeys(kind_of(parts) for parts in script.steps):
        blueprint = blueprint_of(model, plan, Precision(), kind)
        first, *rest = blueprint.stages
        place = {(unit.layer, unit.body.name): at for at, unit in enumerate(first)}
        units = list(first)
        one, other = place[0, "attention"], place[1, "attention"]
        units[one], units[other] = units[other], units[one]
        graphs[kind] = expand(replace(blueprint, stages=(tuple(units), *rest)), plan)
    violation = found(prove(model, plan, script, expected=expected, graphs=graphs, orders=0))
    assert violation.rule == "PP-6"
    assert violation.where == "step 0, rank 0, layer 1, attention attention_norm"


def test_residual_that_is_left_out() -> None:
    assert found(proven("llama", ParallelPlan(), between("embedding", "attention_add", "data"))).rule == "PP-6"


# --- what a node says of its own shape, and what people assume -----------------------------------------------------


@pytest.mark.parametrize("name", ["qkv_proj", "o_proj", "ffn_up", "ffn_down", "lm_head"])
@pytest.mark.parametrize("side", ["n", "k"])
def test_matrix_with_half_of_its_inputs_or_outputs(name: str, side: str) -> None:
    half = symbols(lambda one: replace(one, **{side: getattr(one, side) // 2}) if one.name == name else one)
    assert proven("llama", TWO, half).verdict.verdict == "illegal"


def test_attention_with_half_of_its_heads() -> None:
    half = symbols(lambda one: replace(one, heads=one.heads // 2) if one.op == "attention_decode" else one)
    assert proven("llama", TWO, half).verdict.verdict == "illegal"


def test_assumption_that_tp_removes_autoregression_is_rejected() -> None:
    """A decode step with two tokens of one sequence needs the second before the first has been computed."""
    model = model_of("llama")
    script = chunked_script((4, 6), output_tokens=3, budget=16, vocab=model.vocab, plan=TWO)
    both = tuple(replace(part, count=2) for part in script.steps[1])
    violation = found(prove(model, TWO, replace(script, steps=(script.steps[0], both)), orders=0))
    assert (violation.rule, violation.where) == ("PH-3", "step 1, rank 0, host schedule")


def test_assumption_that_pp_overlaps_decode_steps_is_rejected() -> None:
    model, script, expected, graphs = case("llama", STAGES)
    ready = {kind: wired(graph) for kind, graph in graphs.items()}
    order = program_order(script, ready)
    last = len(script.steps) - 1

    def early(event: tuple[int, int]) -> bool:
        return event[0] == last and ready["decode"].nodes[event[1]].stage == 0

    first_stage = [event for event in order if early(event)]
    order = [event for event in order if not early(event)]
    start = next(at for at, event in enumerate(order) if event[0] == script.needs(last)[-1])
    order[start:start] = first_stage
    proof = prove(model, STAGES, script, expected=expected, graphs=graphs, orders=0, recorded={"recorded order": order})
    assert found(proof).rule == "PH-3"


def test_assumption_that_ep_bypasses_causality_is_rejected() -> None:
    """Experts that see a token before its attention compute another model."""

    def early(graph: StepGraph) -> StepGraph:
        source = graph.source.copy()
        at = {(node(graph, i).name, graph.ranks_of(i)[0]): i for i in range(len(graph)) if graph.layer[i] == 0}
        for edge, (a, b) in enumerate(zip(graph.source.tolist(), graph.target.tolist(), strict=True)):
            if (node(graph, a).name, node(graph, b).name) == ("attention_add", "moe_norm") and graph.layer[b] == 0:
                source[edge] = at["attention_norm", graph.ranks_of(b)[0]]
        return replace(graph, source=source)

    violation = found(proven("shared", SPREAD, early))
    assert (violation.rule, violation.where.split()[-1]) == ("PP-6", "moe_norm")


# --- every edge ---------------------------------------------------------------------------------------------------

ORDER_ONLY = {
    ("sample", "boundary", "boundary"),
    ("kv_a_norm_rope", "kv_b_proj", "data"),  # latents reach the expansion through the cache as well
    ("kv_write", "attention_prefill_1", "kv"),  # a later step of a ring attends to what the ring brought
    ("kv_read", "attention_prefill_1", "kv"),
}
"""Edges that order and carry nothing that is not carried by others."""


HIDDEN = TensorSplit(embedding="hidden", attention_out="columns", ffn_up="rows", ffn_down="columns", lm_head="hidden")
CUT = {
    "llama": replace(TWO, pp=2),
    "windows": replace(TWO, split=HIDDEN),
    "mha": segments("all_to_all", tp=2),
    "latent": segments("all_gather", "idle"),
    "shared": SPREAD,
}
"""Models and plans whose edges are left out, those first whose proof takes least."""


@cache
def kinds_of_edges(name: str) -> Counter[tuple[str, str, str]]:
    kinds = Counter[tuple[str, str, str]]()
    _, _, _, graphs = case(name, CUT[name])
    for graph in graphs.values():
        for a, b, k in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True):
            kinds[node(graph, a).name, node(graph, b).name, EDGE_KINDS[k]] += 1
    return kinds


@pytest.mark.parametrize("name", CUT)
def test_no_edge_can_be_left_out(name: str) -> None:
    """Each kind of edge in the first case that has it, and with ``--long=1`` in all of them."""
    tried = each_in_one({one: kinds_of_edges(one) for one in CUT})[name]
    with nullcontext() if is_long() else mock.patch.object(proving, "_found", return_value=SOMEWHERE):
        silent = {kind for kind in tried if proven(name, CUT[name], between(*kind)).verdict.verdict == "legal"}
    assert silent <= ORDER_ONLY
    assert (("sample", "boundary", "boundary") in silent) == (("sample", "boundary", "boundary") in tried)
