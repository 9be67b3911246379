"""What the source documents call failure-prone, or rule out in a sentence: each one is seen to be rejected.

Every sentence of a document has a test named after it, at each level at which the assumption can be acted on: by a
plan (P), a step graph (G), a recorded history (T), an execution (X).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import test_proof_mutations as proof_tests
from graph_cases_small import PRECISION, changed, one, pick, valued, view_of
from graph_mutations import MUTATIONS
from plan_mutations import verdict_of
from plans import EXPERTS, model
from proof_mutations import COMPARISONS, PROOFS

from clustersim.legality.audit import check_history
from clustersim.legality.check_graph import check_graph
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.plan.parallel import ParallelPlan
from clustersim.simulation.graph_legality import graph_view
from tests.legality.timeline.notation import history_in

HISTORIES = Path(__file__).with_name("histories") / "illegal"
GRAPHS = {str(mutation): mutation for mutation in MUTATIONS}
OTHER_REPLICA = 5
"""The step that the story of a plan with dp 2 gives to its second replica."""


def broken(view: GraphView) -> set[str]:
    return {violation.rule for violation in check_graph(view).violations}


def assert_rejected(*, plan: str = "", graph: str = "", history: str = "", proof: str = "", rule: str = "") -> None:
    """Assert that mutations break the rule that they begin with; those of plans and proofs break ``rule``."""
    if plan:
        assert {violation.rule for violation in verdict_of(plan).violations} == {rule}
    if graph:
        mutation = GRAPHS[graph]
        assert broken(mutation.change(view_of(mutation.case))) == {mutation.rule}
    if history:
        verdict = check_history(history_in(HISTORIES / f"{history}.txt"))
        assert {violation.rule for violation in verdict.violations} == {history.partition("/")[0]}
    if proof:
        (violation,) = PROOFS[proof][1]().verdict.violations
        assert violation.rule == rule


# --- SP -----------------------------------------------------------------------------------------------------------


def test_assumption_that_sp_can_be_used_in_decode_is_rejected() -> None:
    assert_rejected(plan="silence about decode", rule="SP-3")
    assert_rejected(graph="SP-3: a decode beside a prompt gathers over SP ranks")
    assert_rejected(graph="SP-3: a decode step gathers over SP ranks", history="SP-3/in_a_decode_step")


def test_assumption_that_sp_parallelises_autoregressive_decode_steps_is_rejected() -> None:
    assert_rejected(graph="PH-2: a decode step has two tokens of one sequence", history="PH-3/overlap")
    assert_rejected(history="SP-3/idle_rank_decodes")


def test_assumption_that_sp_removes_causal_dependencies_is_rejected() -> None:
    assert_rejected(proof="one segment's K/V is not gathered", rule="SP-2")
    assert_rejected(graph="SP-2: one segment's K/V is left out of the gather", history="SP-2/segment_dropped")


def test_assumption_that_a_token_need_not_wait_for_earlier_segments_is_rejected() -> None:
    assert_rejected(graph="SP-5: attention does not wait for the gather", history="SP-5/before_the_segment_arrives")


def test_assumption_that_sp_is_equivalent_to_tp_is_rejected() -> None:
    assert_rejected(plan="weights divided by sp", rule="SP-9")
    assert_rejected(graph="TP-9: TP splits the batch")


def test_assumption_that_sp_partitions_may_share_the_cache_improperly_is_rejected() -> None:
    assert_rejected(proof="segments are never moved", rule="SP-8")
    assert_rejected(graph="SP-8: one rank's segment does not move", history="SP-8/never_moved")


def test_assumption_that_sp_alters_how_the_cache_grows_is_rejected() -> None:
    assert_rejected(graph="KV-1: a write leaves out an entry", history="KV-3/two")


def test_assumption_that_batching_relaxes_sp_is_rejected() -> None:
    assert_rejected(plan="a segment that reaches into the next sequence", rule="SP-7")


def test_assumption_that_sp_may_reshard_between_the_two_linears_is_rejected() -> None:
    assert_rejected(graph="SP-6: tokens are resharded between the two linears")


# --- TP -----------------------------------------------------------------------------------------------------------


def test_assumption_that_tp_removes_autoregressive_dependencies_is_rejected() -> None:
    proof_tests.test_assumption_that_tp_removes_autoregression_is_rejected()
    assert_rejected(graph="PH-5: a new token does not attend to the tokens before it", history="PH-3/overlap")


def test_assumption_that_tp_reduces_the_number_of_decode_steps_is_rejected() -> None:
    assert_rejected(graph="PH-2: a decode step has two tokens of one sequence", history="PH-4/lost_step")
    assert_rejected(history="TP-9/other_steps")


def test_assumption_that_tp_changes_cache_semantics_is_rejected() -> None:
    assert_rejected(plan="an undeclared copy", rule="KV-4")
    assert_rejected(plan="heads in another order", rule="TP-9")
    assert_rejected(graph="KV-4: K/V heads are copied without a word", history="KV-1/overwritten")


def test_assumption_that_tp_removes_causal_mask_constraints_is_rejected() -> None:
    assert_rejected(graph="PH-5: attention sees tokens that come later: it has no causal mask")
    assert_rejected(proof="a token attends to the next one", rule="PH-5")


def test_assumption_that_tp_may_split_what_does_not_decompose_is_rejected() -> None:
    assert_rejected(plan="a softmax that is split between two ranks", rule="TP-1")
    assert_rejected(plan="an operator that is split along its softmax", rule="TP-1")


def test_assumption_that_tp_breaks_deterministic_expert_computation_is_rejected() -> None:
    assert_rejected(graph="EP-6: TP inside an expert joins ranks of two experts")
    assert_rejected(graph="TP-2: a partial sum of experts is read as if it were whole")
    (violation,) = COMPARISONS["orders"][-1]().verdict.violations
    assert (violation.rule, violation.where) == ("TP-2", "random order 0")


def test_assumption_that_tp_changes_the_execution_graph_is_rejected() -> None:
    assert_rejected(graph="TP-8: an extra edge")
    assert_rejected(graph="TP-8: a missing edge on one rank")


def test_assumption_that_tp_synchronises_across_layers_or_steps_is_rejected() -> None:
    assert_rejected(graph="TP-7: an all-reduce joins two layers", history="TP-7/two_layers")
    assert_rejected(graph="TP-7: an all-reduce joins two steps", history="TP-7/two_steps")


def test_assumption_that_tp_alters_per_sequence_independence_is_rejected() -> None:
    assert_rejected(graph="KV-5: a read of another sequence", history="KV-5/cross_read")


def test_assumption_that_other_strategies_may_ignore_tp_boundaries_is_rejected() -> None:
    assert_rejected(graph="TP-5: two collectives are reordered on one rank", history="TP-6/dependent_early")


# --- PP -----------------------------------------------------------------------------------------------------------


def test_assumption_that_pp_overlaps_decode_steps_is_rejected() -> None:
    proof_tests.test_assumption_that_pp_overlaps_decode_steps_is_rejected()
    assert_rejected(graph="PH-3: two steps overlap across stages", history="PH-3/across_stages")
    assert_rejected(history="PP-3/two_decodes_in_flight")


# --- EP -----------------------------------------------------------------------------------------------------------


def test_assumption_that_ep_routing_bypasses_the_phase_is_rejected() -> None:
    assert_rejected(graph="EP-5: experts are fed from the step before", history="EP-5/fed_from_the_step_before")


def test_assumption_that_ep_routing_bypasses_causality_is_rejected() -> None:
    proof_tests.test_assumption_that_ep_bypasses_causality_is_rejected()
    assert_rejected(graph="EP-5: routing goes round attention")


def test_assumption_that_ep_removes_causal_mask_constraints_is_rejected() -> None:
    view = view_of("spread")
    tokens = sum(chunk.count**2 for chunk in view.steps[0].chunks)
    core = pick(view, "attention_prefill", step=0, layer=0, rank=0)
    assert broken(valued(view, core, "attended", lambda _: tokens)) == {"PH-5"}


def test_assumption_that_experts_process_tokens_that_did_not_choose_them_is_rejected() -> None:
    assert_rejected(graph="EP-2: every token is sent to every rank", history="EP-2/duplicated")
    assert_rejected(proof="a token is misrouted", rule="EP-2")


def test_assumption_that_routing_depends_on_more_than_the_token_is_rejected() -> None:
    assert_rejected(history="EP-3/reseeded", proof="the router looks at its rank", rule="EP-3")


# --- DP -----------------------------------------------------------------------------------------------------------


def test_assumption_that_dp_alters_per_token_semantics_is_rejected() -> None:
    assert_rejected(graph="DP-3: a K/V edge goes from one replica to another", history="DP-4/other_tokens")


@pytest.mark.parametrize("name", ["ffn_up", "o_proj"])
def test_assumption_that_dp_alters_per_layer_semantics_of_dense_layers_is_rejected(name: str) -> None:
    """The second replica computes half of a layer's product."""
    view = view_of("dense")
    assert view.steps[OTHER_REPLICA].replica == 1
    nodes = pick(view, name, step=OTHER_REPLICA, layer=1)
    half = view.symbols[view.symbol[nodes[0]]].n // 2
    assert "TP-9" in broken(changed(view, nodes, n=half))


def test_assumption_that_dp_alters_per_layer_semantics_of_experts_is_rejected() -> None:
    """The second replica gives each token one expert of the two that it chose."""
    view = graph_view(model(ffn=EXPERTS, layers=5), ParallelPlan(dp=2, tp=2), PRECISION)
    assert broken(view) == set()
    assert view.steps[OTHER_REPLICA].replica == 1
    names = ("expert_up", "expert_down")
    nodes = [one(view, name, step=OTHER_REPLICA, layer=0, rank=rank) for name in names for rank in (2, 3)]
    assert "EP-2" in broken(valued(view, nodes, "amount", lambda routed: routed / 2))


def test_assumption_that_a_replica_may_hold_a_part_of_the_model_is_rejected() -> None:
    assert_rejected(plan="half a replica", rule="DP-1")


# --- the cache ----------------------------------------------------------------------------------------------------


def test_assumption_that_a_decode_may_update_more_than_its_new_token_is_rejected() -> None:
    assert_rejected(graph="KV-1: an entry is written again by the next step", history="KV-3/two")


PRONE = "Failure-Prone Assumptions"
ATTENTION, FFN, MOE = "attention_mapping.md", "ffn_mapping.md", "moe_mapping.md"
SP, TP = "sequence_parallelism.md", "tensor_parallelism.md"

STATED: dict[tuple[str, str, str], tuple[Callable[..., None], ...]] = {
    (ATTENTION, PRONE, "SP across decode steps is invalid"): (
        test_assumption_that_sp_can_be_used_in_decode_is_rejected,
    ),
    (ATTENTION, PRONE, "TP/EP cannot remove causal mask constraints"): (
        test_assumption_that_tp_removes_causal_mask_constraints_is_rejected,
        test_assumption_that_ep_removes_causal_mask_constraints_is_rejected,
    ),
    (ATTENTION, PRONE, "PP cannot overlap decode steps"): (test_assumption_that_pp_overlaps_decode_steps_is_rejected,),
    (ATTENTION, PRONE, "KV Cache cannot be shared improperly across SP partitions"): (
        test_assumption_that_sp_partitions_may_share_the_cache_improperly_is_rejected,
    ),
    (ATTENTION, "KV Cache Interaction", "During decode, only the new token updates KV Cache"): (
        test_assumption_that_a_decode_may_update_more_than_its_new_token_is_rejected,
    ),
    (ATTENTION, "Applicable Parallel Primitives", "Each device has full attention module replica"): (
        test_assumption_that_a_replica_may_hold_a_part_of_the_model_is_rejected,
    ),
    (FFN, PRONE, "SP across decode steps is invalid"): (test_assumption_that_sp_can_be_used_in_decode_is_rejected,),
    (FFN, PRONE, "TP/EP cannot remove causal mask constraints (for FFN in MoE context)"): (
        test_assumption_that_ep_removes_causal_mask_constraints_is_rejected,
        test_assumption_that_ep_routing_bypasses_causality_is_rejected,
    ),
    (FFN, PRONE, "PP cannot overlap decode steps improperly"): (
        test_assumption_that_pp_overlaps_decode_steps_is_rejected,
    ),
    (FFN, PRONE, "DP does not alter per-token or per-layer semantics"): (
        test_assumption_that_dp_alters_per_token_semantics_is_rejected,
        test_assumption_that_dp_alters_per_layer_semantics_of_dense_layers_is_rejected,
    ),
    (FFN, "Applicable Parallel Primitives", "Token-level SP requires consistent partitioning across both linears"): (
        test_assumption_that_sp_may_reshard_between_the_two_linears_is_rejected,
    ),
    (MOE, PRONE, "SP across decode steps is invalid"): (test_assumption_that_sp_can_be_used_in_decode_is_rejected,),
    (MOE, PRONE, "EP routing cannot bypass phase or causal constraints"): (
        test_assumption_that_ep_routing_bypasses_the_phase_is_rejected,
        test_assumption_that_ep_routing_bypasses_causality_is_rejected,
    ),
    (MOE, PRONE, "TP cannot break deterministic expert computation"): (
        test_assumption_that_tp_breaks_deterministic_expert_computation_is_rejected,
    ),
    (MOE, PRONE, "DP does not change per-token or per-layer semantics"): (
        test_assumption_that_dp_alters_per_token_semantics_is_rejected,
        test_assumption_that_dp_alters_per_layer_semantics_of_experts_is_rejected,
    ),
    (MOE, "Applicable Parallel Primitives", "Only selected experts process the token"): (
        test_assumption_that_experts_process_tokens_that_did_not_choose_them_is_rejected,
    ),
    (MOE, "Phase-Specific Summary", "Sparse expert routing per token, deterministic per input"): (
        test_assumption_that_routing_depends_on_more_than_the_token_is_rejected,
    ),
    (SP, PRONE, "SP can parallelize autoregressive decode steps"): (
        test_assumption_that_sp_parallelises_autoregressive_decode_steps_is_rejected,
        test_assumption_that_sp_can_be_used_in_decode_is_rejected,
    ),
    (SP, PRONE, "SP removes causal dependencies"): (test_assumption_that_sp_removes_causal_dependencies_is_rejected,),
    (SP, PRONE, "SP is equivalent to TP"): (test_assumption_that_sp_is_equivalent_to_tp_is_rejected,),
    (SP, "Fundamental Legality Constraint", "All tokens j ≤ i must be available before computing token i"): (
        test_assumption_that_a_token_need_not_wait_for_earlier_segments_is_rejected,
    ),
    (SP, "Interaction with KV Cache", "SP cannot alter KV Cache growth semantics"): (
        test_assumption_that_sp_alters_how_the_cache_grows_is_rejected,
    ),
    (SP, "Batch Semantics", "Batching does not relax SP legality constraints"): (
        test_assumption_that_batching_relaxes_sp_is_rejected,
    ),
    (SP, "Role in Parallel Strategy Composition", "Any higher-level strategy must disable SP during decode"): (
        test_assumption_that_sp_can_be_used_in_decode_is_rejected,
    ),
    (TP, PRONE, "TP can remove autoregressive dependencies"): (
        test_assumption_that_tp_removes_autoregressive_dependencies_is_rejected,
    ),
    (TP, PRONE, "TP reduces the number of decode steps"): (
        test_assumption_that_tp_reduces_the_number_of_decode_steps_is_rejected,
    ),
    (TP, PRONE, "TP changes KV Cache semantics"): (test_assumption_that_tp_changes_cache_semantics_is_rejected,),
    (TP, "Fundamental Constraint", "The partitioned operation is mathematically decomposable"): (
        test_assumption_that_tp_may_split_what_does_not_decompose_is_rejected,
    ),
    (TP, "Communication Semantics", "Synchronization does not cross layer boundaries or decode steps"): (
        test_assumption_that_tp_synchronises_across_layers_or_steps_is_rejected,
    ),
    (TP, "Communication Semantics", "TP preserves the original execution DAG structure"): (
        test_assumption_that_tp_changes_the_execution_graph_is_rejected,
    ),
    (TP, "Batch Semantics", "Does not alter per-sequence independence"): (
        test_assumption_that_tp_alters_per_sequence_independence_is_rejected,
    ),
    (TP, "Role in Parallel Strategy Composition", "Higher-level strategies must respect TP-imposed boundaries"): (
        test_assumption_that_other_strategies_may_ignore_tp_boundaries_is_rejected,
    ),
}
"""(document, section, sentence) → its tests. Sentences are the documents' own, some of them shortened."""


def test_every_failure_prone_assumption_of_the_five_documents_has_its_test() -> None:
    listed = Counter(document for document, section, _ in STATED if section == PRONE)
    assert listed == {ATTENTION: 4, FFN: 4, MOE: 4, SP: 3, TP: 3}
    assert all(tests for tests in STATED.values())


def test_every_test_of_this_file_belongs_to_a_sentence() -> None:
    named = {name for name in globals() if name.startswith("test_assumption_")}
    assert named == {test.__name__ for tests in STATED.values() for test in tests}
