"""Scripts of steps, orders of their nodes, and which tokens each rank has."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest

from clustersim.plan.parallel import Cut, ParallelPlan, SequencePlan
from clustersim.proof.comparison import expected_of
from clustersim.proof.execution import TOGETHER, Execution
from clustersim.proof.order import orders_from_spans, program_order, random_order
from clustersim.proof.proof import graphs_of, prove
from clustersim.proof.script import Part, Script, chunked_script, kind_of
from clustersim.proof.tokens import lay_out
from clustersim.proof.wiring import wired
from tests.laws.proof_cases import model_of

ONE = ParallelPlan()
TWO_STAGES = ParallelPlan(pp=2, tp=2, stages=(Cut(layer=1, before="ffn"),))
SPREAD = SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp")


def script(plan=ONE, lengths=(7, 3, 5), budget=6):
    return chunked_script(lengths, output_tokens=3, budget=budget, vocab=48, plan=plan)


def test_chunks_fill_what_decodes_leave_of_the_budget():
    steps = [[(p.sequence, p.start, p.count, p.decodes) for p in step] for step in script().steps]
    assert steps[:3] == [
        [(0, 0, 6, False)],
        [(0, 6, 1, False), (1, 0, 3, False), (2, 0, 2, False)],
        [(0, 7, 1, True), (1, 3, 1, True), (2, 2, 3, False)],
    ]
    assert [kind_of(step) for step in script().steps] == ["prefill", "prefill", "mixed", "decode", "decode"]


def test_every_token_but_the_last_generated_one_is_computed_once():
    found = sorted((p.sequence, i) for step in script().steps for p in step for i in range(p.start, p.start + p.count))
    assert found == [(s, i) for s, length in enumerate((7, 3, 5)) for i in range(length + 2)]


def test_preempted_sequence_computes_what_it_knew_as_a_prompt():
    again = chunked_script((4, 2), output_tokens=4, budget=8, vocab=48, plan=ONE, preempted=0)
    steps = [[(p.sequence, p.start, p.count, p.decodes) for p in step] for step in again.steps]
    assert steps == [
        [(0, 0, 4, False), (1, 0, 2, False)],
        [(0, 4, 1, True), (1, 2, 1, True)],  # the second output token of sequence 0: 6 are known, 5 were cached
        [(1, 3, 1, True), (0, 0, 6, False)],
        [(0, 6, 1, True), (1, 4, 1, True)],
    ]
    assert prove(model_of("llama"), ONE, again, orders=1).verdict.verdict == "legal"


def test_with_stages_sequences_form_micro_batches_in_turn():
    sequences = [{p.sequence for p in step} for step in script(TWO_STAGES, (7, 3, 5, 4)).steps]
    assert sequences[:4] == [{0}, {1, 3}, {0, 2}, {1, 3}]
    assert all(step <= {0, 2} or step <= {1, 3} for step in sequences)


def test_a_step_needs_the_earlier_ones_of_its_sequences():
    assert script(TWO_STAGES, (7, 3, 5, 4)).needs(3) == (1,)


def test_tokens_of_a_prompt_lie_in_segments_and_decodes_with_their_owner():
    plan = ParallelPlan(sp=SPREAD)
    parts = (Part(sequence=0, start=4, count=1, decodes=True, owner=1), Part(sequence=1, start=0, count=4))
    tokens = lay_out(parts, plan, sequences=2, positions=5)
    assert tokens.s.tolist() == [1, 0, 1, 1, 0]  # zigzag: runs 0 and 3, 1 and 2
    assert tokens.slot.tolist() == [4, 5, 6, 7, 8]
    assert tokens.rows("rows", 0).tolist() == [4]
    assert tokens.rows("decode_sequences", 1).tolist() == [0]
    assert tokens.context.tolist() == [True] * 4 + [False] * 6


@pytest.fixture(scope="module")
def staged():
    model, plan = model_of("llama"), TWO_STAGES
    steps = script(plan, (7, 3, 5, 4))
    return model, plan, steps, {kind: wired(graph) for kind, graph in graphs_of(model, plan, steps).items()}


def test_random_orders_run_every_node_once_and_after_what_it_needs(staged):
    _, _, steps, graphs = staged
    order = random_order(steps, graphs, 3)
    assert sorted(order) == sorted(program_order(steps, graphs))
    place = {event: at for at, event in enumerate(order)}
    for step, parts in enumerate(steps.steps):
        for node, followers in enumerate(graphs[kind_of(parts)].followers):
            assert all(place[step, node] < place[step, after] for after in followers)
        first = min(place[step, node] for node in range(len(graphs[kind_of(parts)])))
        for earlier in steps.needs(step):
            assert max(at for (one, _), at in place.items() if one == earlier) < first


def test_random_orders_mix_steps_of_different_micro_batches(staged):
    _, _, steps, graphs = staged
    numbers = [step for step, _ in random_order(steps, graphs, 3)]
    assert numbers != sorted(numbers)
    assert random_order(steps, graphs, 3) != random_order(steps, graphs, 4)


def test_every_order_gives_the_same_logits_bit_for_bit(staged):
    model, plan, steps, graphs = staged
    weights = expected_of(model, steps).weights
    orders = [program_order(steps, graphs), random_order(steps, graphs, 0), random_order(steps, graphs, 1)]
    found = [Execution(model, plan, weights, steps, graphs).run(order).logits for order in orders]
    for one, other in pairwise(found):
        assert one.keys() == other.keys()
        for key in one:
            by_rank, others = dict(one[key]), dict(other[key])
            assert all(np.array_equal(by_rank[rank], others[rank]) for rank in by_rank)


def test_orders_from_spans_sort_by_start_and_put_reads_before_what_needs_them():
    model, steps = (
        model_of("llama"),
        Script(prompts=((1, 2),), output_tokens=1, steps=((Part(sequence=0, start=0, count=2),),)),
    )
    graphs = {kind: wired(graph) for kind, graph in graphs_of(model, ONE, steps).items()}
    nodes = graphs["prefill"].nodes
    spans = {
        (0, node.layer, node.node.name, 0): (10 * at, 10 * at + 10)
        for at, node in enumerate(nodes)
        if not node.node.is_structural
    }
    order = [node for _, node in orders_from_spans(steps, graphs, [spans])]
    names = [nodes[node].node.name for node in order]
    assert sorted(order) == list(range(len(nodes)))
    for at, name in enumerate(names):
        if name == "kv_read":
            assert names[at + 1] == "attention_prefill"
    assert names[-2:] == ["sample", "boundary"]
    backwards = {place: (-start, -start) for place, (start, _) in spans.items()}
    turned = [nodes[node].node.name for _, node in orders_from_spans(steps, graphs, [backwards])]
    assert turned.index("sample") < turned.index("schedule")


def test_sums_that_depend_on_the_order_of_execution_do_not_prove(monkeypatch, staged):
    model, plan, steps, _ = staged
    plain, calls = TOGETHER["all_reduce"], count()

    def noisy(ats, arrived):
        return [replace(one, data=one.data * (1 + next(calls) * 1e-15)) for one in plain(ats, arrived)]

    monkeypatch.setitem(TOGETHER, "all_reduce", noisy)
    (violation,) = prove(model, plan, steps, orders=1).verdict.violations
    assert (violation.rule, violation.where) == ("TP-2", "random order 0")


def test_a_wrong_logit_is_reported_with_its_size():
    model, steps = model_of("llama"), script(lengths=(4,))
    expected = expected_of(model, steps)
    trace = expected.traces[0]
    trace.values[-1, "lm_head"][3] *= 1.5
    proof = prove(model, ONE, steps, expected=expected, orders=0)
    assert proof.max_relative_error == pytest.approx(1 / 3)
    assert proof.verdict.verdict == "illegal"
