"""What a plan must not change (rules PH-4, TP-9, DP-4): each request's tokens, and that each has a step of its own.

With as many K/V blocks, and all requests there at once, TP does not change a single decision either.
"""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequencePlan
from tests.audit import replayed, token_instants
from tests.round_numbers import SPARSE, deployment

REQUESTS = [(0, 1 + 7 * i % 40, 1 + 5 * i % 13) for i in range(12)]
TIGHT = {"kv_blocks": 20, "max_batch_tokens": 16, "layer": SPARSE}
DECISIONS = (
    "kind",
    "count",
    "batch_requests",
    "prefill_tokens",
    "decode_tokens",
    "context_tokens",
    "waiting",
    "running",
)
PLANS = {
    "tp": ParallelPlan(tp=4),
    "pp": ParallelPlan(pp=2),
    "pp, one decode in flight": ParallelPlan(pp=2, decode_overlap="none"),
    "sp, idle": ParallelPlan(sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="idle")),
    "sp, dp": ParallelPlan(sp=SequencePlan(degree=2, scheme="all_gather", partition="contiguous", decode="dp")),
    "ep": ParallelPlan(tp=2, ep=ExpertPlan(degree=2)),
    "dp": ParallelPlan(dp=3),
    "all": ParallelPlan(
        dp=2,
        pp=2,
        tp=2,
        sp=SequencePlan(degree=2, scheme="all_gather", partition="zigzag", decode="dp"),
        ep=ExpertPlan(degree=4),
    ),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_changes_no_requests_tokens_nor_that_each_has_its_step(plan):
    given = deployment(REQUESTS, plan=plan, layers=2, **TIGHT)
    tokens = token_instants(replayed(given).timeline, len(REQUESTS))
    assert [len(ends) for ends in tokens] == [output for _, _, output in REQUESTS]
    assert all(len(set(ends)) == len(ends) for ends in tokens)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("scheduler", ["continuous", "chunked_prefill"])
def test_tp_changes_no_step(tp, scheduler):
    one, other = (
        replayed(deployment(REQUESTS, plan=ParallelPlan(tp=degree), scheduler=scheduler, **TIGHT)) for degree in (1, tp)
    )
    for column in DECISIONS:
        assert np.array_equal(one.timeline.steps[column], other.timeline.steps[column]), column
    assert one.preemptions.tolist() == other.preemptions.tolist()
    assert one.preemptions.sum() > 0


def test_without_preemption_a_request_has_as_many_decode_steps_as_tokens_after_the_first():
    """The sum over steps of sequences that decode is Σ (output − 1), under every plan."""
    expected = sum(output - 1 for _, _, output in REQUESTS)
    for name, plan in PLANS.items():
        steps = replayed(deployment(REQUESTS, plan=plan, layers=2, layer=SPARSE)).timeline.steps
        assert (steps["count"] * steps["decode_tokens"]).sum() == expected, name
        assert (steps["count"] * steps["prefill_tokens"]).sum() == sum(prompt for _, prompt, _ in REQUESTS), name


def test_dp_changes_the_steps_of_no_replica():
    """What one of two replicas does is what it would do alone with its requests."""
    both = replayed(deployment(REQUESTS, plan=ParallelPlan(dp=2), **TIGHT)).timeline.steps
    alone = replayed(deployment(REQUESTS[1::2], **TIGHT)).timeline.steps
    second = both["replica"] == 1
    for column in (*DECISIONS, "start_ns", "end_ns"):
        assert np.array_equal(both[column][second], alone[column]), column
