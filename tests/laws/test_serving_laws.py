"""Laws of serving over random scenarios: ``tests.audit`` on every run, and what does not depend on the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.replay.replay import replay
from tests.audit import replayed, simulated, token_instants
from tests.effort import examples
from tests.laws.random_scenarios import documents, scenario_of
from tests.round_numbers import deployment

ARRIVALS = st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 30), st.integers(0, 12)), min_size=1, max_size=12)


@examples(25)
@given(documents())
def test_no_request_token_or_block_is_lost(document: dict[str, Any]) -> None:
    simulated(scenario_of(document))


PLANS = (
    ParallelPlan(),
    ParallelPlan(dp=2),
    ParallelPlan(pp=2),
    ParallelPlan(pp=3, decode_overlap="none"),
    ParallelPlan(pp=2, sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp")),
    ParallelPlan(sp=SequencePlan(degree=2, scheme="all_gather", partition="contiguous", decode="dp")),
)


@examples(60)
@given(
    ARRIVALS,
    st.sampled_from(PLANS),
    st.sampled_from(("continuous", "chunked_prefill")),
    st.integers(1, 4),
    st.integers(4, 40),
    st.integers(8, 14),
)
def test_nothing_is_lost_when_a_pool_for_one_sequence_makes_all_preempt(
    arrivals: list[tuple[int, int, int]], plan: ParallelPlan, scheduler: str, most: int, tokens: int, blocks: int
) -> None:
    given_ = deployment(
        sorted(arrivals),
        plan=plan,
        layers=plan.pp,
        scheduler=scheduler,
        max_batch_requests=most,
        max_batch_tokens=tokens,
        kv_blocks=blocks,
    )
    result = replayed(given_)
    assert result.timeline.digest == replay(replace(given_, mode="full")).timeline.digest


@examples(40)
@given(ARRIVALS, st.integers(8, 14))
def test_time_scales_leave_decisions_as_they_are_when_all_arrive_at_once(
    arrivals: list[tuple[int, int, int]], blocks: int
) -> None:
    """The scheduler has no clock: slower hardware takes the same steps."""
    at_once = [(0, prompt, output) for _, prompt, output in arrivals]
    fast = replayed(deployment(at_once, kv_blocks=blocks, max_batch_tokens=16))
    slow = replayed(deployment(at_once, kv_blocks=blocks, max_batch_tokens=16, layers=3))
    for column in ("prefill_tokens", "decode_tokens", "context_tokens", "kv_blocks_used"):
        assert np.array_equal(fast.timeline.steps[column], slow.timeline.steps[column])
    assert np.array_equal(fast.preemptions, slow.preemptions)


def test_tokens_of_a_request_are_as_many_as_asked() -> None:
    result = replayed(deployment([(0, 4, 3), (0, 9, 0), (0, 1, 5)]))
    assert [len(ends) for ends in token_instants(result.timeline, 3)] == [3, 0, 5]
