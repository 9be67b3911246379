"""Decisions of the scheduler, step by step; blocks have 4 tokens."""

from __future__ import annotations

import pytest

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, FINISHED, PREEMPTED
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence


def scheduler(*, blocks=100, owners=1, stages=1, overlap=True, **config):
    pool = BlockPool(blocks=blocks, block_tokens=4, owners=owners)
    return Scheduler(ServingConfig(kv_block_tokens=4, **config), pool, stages=stages, decode_overlap=overlap)


def add(chosen, *lengths):
    """Queue requests 0, 1, … of (prompt, output) tokens."""
    sequences = [Sequence(request=i, prompt_tokens=p, output_tokens=o) for i, (p, o) in enumerate(lengths)]
    for sequence in sequences:
        chosen.add(sequence)
    return sequences


def carried(decision: Decision | None):
    """What a decision carries: requests that decode, and (request, tokens) that prefill."""
    assert decision is not None
    return [s.request for s in decision.decodes], [(s.request, count) for s, count in decision.prefills]


def steps(chosen, count=1):
    """Take steps one after the other; return what they carried."""
    found = []
    for now in range(count):
        decision = chosen.schedule(now)
        found.append(carried(decision))
        chosen.complete(now + 1, decision)
    return found


def facts(chosen, kind):
    return [(request, value) for _, found, request, value, _ in chosen.facts if found == kind]


def test_chunked_prefill_fills_what_decodes_leave_of_the_budget():
    chosen = scheduler(max_batch_tokens=8)
    add(chosen, (4, 9), (20, 9))
    # 4 + 4; then a decode and 7 of the 16 tokens that are left, twice; then the last 2.
    assert steps(chosen, 4) == [([], [(0, 4), (1, 4)]), ([0], [(1, 7)]), ([0], [(1, 7)]), ([0], [(1, 2)])]


def test_chunked_prefill_finishes_a_begun_prompt_before_it_admits_another():
    chosen = scheduler(max_batch_tokens=8)
    add(chosen, (12, 9), (8, 9))
    assert steps(chosen, 3) == [([], [(0, 8)]), ([], [(0, 4), (1, 4)]), ([0], [(1, 4)])]


def test_continuous_takes_whole_prompts_only():
    chosen = scheduler(scheduler="continuous", max_batch_tokens=8)
    add(chosen, (5, 9), (4, 9), (1, 9))
    # 5 + 4 > 8; and request 2, which would fit, does not overtake request 1.
    assert steps(chosen, 3) == [([], [(0, 5)]), ([], [(1, 4), (2, 1)]), ([0, 1, 2], [])]


def test_continuous_prefills_before_it_decodes():
    chosen = scheduler(scheduler="continuous")
    add(chosen, (4, 9))
    steps(chosen)
    add(chosen, (4, 9))
    assert steps(chosen, 2) == [([], [(0, 4)]), ([0, 0], [])]


def test_continuous_takes_a_prompt_longer_than_the_budget_alone_in_chunks():
    chosen = scheduler(scheduler="continuous", max_batch_tokens=8)
    add(chosen, (1, 9), (20, 9))
    # The first chunk waits for a step without other prompts; what the last one leaves of the budget is for others.
    assert steps(chosen, 4) == [([], [(0, 1)]), ([], [(1, 8)]), ([], [(1, 8)]), ([], [(1, 4)])]


def test_the_step_that_computes_the_last_prompt_token_samples_the_first_output_token():
    chosen = scheduler(max_batch_tokens=8)
    (sequence,) = add(chosen, (12, 9))
    steps(chosen)
    assert (sequence.computed, sequence.generated) == (8, 0)
    steps(chosen)
    assert (sequence.computed, sequence.generated) == (12, 1)


def test_a_request_for_no_token_ends_with_its_prompt():
    chosen = scheduler()
    (sequence,) = add(chosen, (4, 0))
    outcome = chosen.complete(1, chosen.schedule(0))
    assert outcome.sampled == ()
    assert outcome.finished == (sequence,)
    assert chosen.pool.used == 0


def test_max_batch_requests_keeps_the_others_waiting():
    chosen = scheduler(max_batch_requests=2)
    add(chosen, (4, 2), (4, 2), (4, 2))
    assert steps(chosen, 3) == [([], [(0, 4), (1, 4)]), ([0, 1], []), ([], [(2, 4)])]


def test_max_batch_tokens_bounds_decodes_too():
    chosen = scheduler(max_batch_tokens=2)
    add(chosen, (1, 9), (1, 9), (1, 9))
    assert steps(chosen, 3)[1:] == [([0, 1], []), ([0, 1], [])]


def test_a_waiting_request_without_blocks_keeps_those_behind_it_out():
    chosen = scheduler(blocks=4)
    add(chosen, (8, 4), (12, 4), (1, 4))
    # Request 0 has 2 of 4 blocks, request 1 needs 3; request 2 would fit, but it came later.
    assert steps(chosen, 2) == [([], [(0, 8)]), ([0], [])]


def test_a_begun_prompt_without_blocks_keeps_later_requests_out():
    """Else a stream of short requests could take every block that comes free, and the prompt would never end."""
    chosen = scheduler(blocks=5, max_batch_tokens=10)
    add(chosen, (4, 5), (16, 1), (1, 1))
    # 4 + 6 tokens take 1 + 2 blocks and the decode of request 0 another one; the next 9 tokens of request 1 need 2
    # blocks, but there is only 1, which would do for request 2.
    assert steps(chosen, 2) == [([], [(0, 4), (1, 6)]), ([0], [])]


def test_the_sequence_that_came_last_is_preempted_when_an_earlier_one_lacks_a_block():
    chosen = scheduler(blocks=2)
    add(chosen, (4, 9), (4, 9))
    steps(chosen)
    assert steps(chosen) == [([0], [])]
    assert facts(chosen, PREEMPTED) == [(1, 1)]
    assert [s.request for s in chosen.waiting] == [1]


def test_a_decision_says_who_gave_blocks_up_for_it():
    chosen = scheduler(blocks=2)
    _, second = add(chosen, (4, 9), (4, 9))
    first = chosen.schedule(0)
    assert first.evicted == ()
    chosen.complete(1, first)
    assert chosen.schedule(1).evicted == (second,)


def test_a_sequence_never_takes_the_blocks_of_an_earlier_one():
    chosen = scheduler(blocks=3)
    add(chosen, (7, 9), (4, 9))
    # Request 0 decodes in the second half of its 2 blocks; request 1 lacks a block and waits for it, unpreempted.
    assert steps(chosen, 2) == [([], [(0, 7), (1, 4)]), ([0], [])]
    assert facts(chosen, PREEMPTED) == []


def test_preempted_sequences_wait_before_later_arrivals_in_their_old_order():
    chosen = scheduler(blocks=4)
    add(chosen, (4, 9), (4, 9), (4, 9), (4, 9))
    steps(chosen)
    chosen.add(Sequence(request=4, prompt_tokens=4, output_tokens=9))
    # All 4 need a second block: request 0 takes that of request 3, then request 1 that of request 2.
    assert steps(chosen) == [([0, 1], [])]
    assert [s.request for s in chosen.waiting] == [2, 3, 4]


def test_sequences_preempted_one_after_the_other_wait_in_the_order_of_their_arrival():
    chosen = scheduler(blocks=2, owners=2)
    add(chosen, (4, 9), (3, 9), (4, 9), (4, 9))
    steps(chosen, 3)  # On owner 0 request 2 gives way to request 0; a step later on owner 1 request 3 to request 1.
    assert facts(chosen, PREEMPTED) == [(2, 1), (3, 1)]
    assert [s.request for s in chosen.waiting] == [2, 3]


def test_a_preempted_sequence_computes_prompt_and_generated_tokens_anew_and_goes_on():
    chosen = scheduler(blocks=2)
    _, second = add(chosen, (4, 2), (4, 3))
    steps(chosen, 2)  # Request 1 sampled once, then gave way to the one decode of request 0.
    assert (second.generated, second.computed, second.preemptions) == (1, 0, 1)
    assert steps(chosen) == [([], [(1, 5)])]
    assert (second.generated, second.computed) == (2, 5)


def test_facts_tell_how_many_blocks_are_in_use_right_after_them():
    chosen = scheduler(blocks=2)
    add(chosen, (4, 2), (4, 2))
    steps(chosen, 2)  # Request 0 takes the block of request 1 for its fifth token, and ends with it.
    assert chosen.facts == [
        (0, ADMITTED, 0, 4, 1),
        (0, ADMITTED, 1, 4, 2),
        (1, PREEMPTED, 1, 1, 1),
        (2, FINISHED, 0, 2, 0),
    ]


def test_what_is_in_flight_is_in_no_other_batch():
    chosen = scheduler(stages=2, max_batch_tokens=4)
    add(chosen, (4, 9), (4, 9))
    assert carried(chosen.schedule(0)) == ([], [(0, 4)])
    assert carried(chosen.schedule(0)) == ([], [(1, 4)])
    assert chosen.schedule(0) is None


def test_decodes_are_shared_out_over_the_stages():
    chosen = scheduler(stages=2)
    add(chosen, (4, 9), (4, 9), (4, 9))
    steps(chosen)
    assert [carried(chosen.schedule(1)), carried(chosen.schedule(1))] == [([0, 1], []), ([2], [])]


def test_one_decode_batch_is_in_flight_without_decode_overlap():
    chosen = scheduler(stages=2, overlap=False)
    add(chosen, (4, 9), (4, 9), (4, 9))
    steps(chosen)
    first = chosen.schedule(1)
    assert chosen.schedule(1) is None
    chosen.complete(2, first)
    assert carried(chosen.schedule(2)) == ([0, 1], [])


def test_a_sequence_lives_where_most_blocks_are_free():
    chosen = scheduler(owners=2)
    sequences = add(chosen, (8, 2), (4, 2), (4, 2))
    steps(chosen)
    assert [s.owner for s in sequences] == [0, 1, 1]


def test_a_sequence_is_preempted_only_for_one_of_its_own_owner():
    chosen = scheduler(blocks=2, owners=2)
    add(chosen, (4, 9), (3, 9), (4, 9), (3, 9))
    steps(chosen)  # Owners 0, 1, 0, 1; those of owner 1 have room for a fourth token in their blocks.
    assert steps(chosen) == [([0, 1, 3], [])]
    assert facts(chosen, PREEMPTED) == [(2, 1)]


def test_a_sequence_in_flight_is_not_preempted():
    chosen = scheduler(blocks=2, stages=2, max_batch_tokens=4)
    add(chosen, (4, 9), (4, 9))
    first, second = chosen.schedule(0), chosen.schedule(0)
    chosen.complete(1, first)
    assert chosen.schedule(1) is None  # Request 0 needs the block of request 1, which is in flight.
    chosen.complete(2, second)
    assert carried(chosen.schedule(2)) == ([0], [])
    assert facts(chosen, PREEMPTED) == [(1, 1)]


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (0, 1, "the prompt is empty"),
        (16, 1, None),
        (13, 4, None),  # The last token is sampled and never read: 16 tokens need K/V.
        (13, 5, "needs 5 K/V blocks for 17 tokens, but the pool has 4"),
        (17, 0, "has no output token, as one that failed where its trace was recorded"),
    ],
)
def test_refusal_says_why_a_request_can_never_run(prompt, output, reason):
    sequence = Sequence(request=0, prompt_tokens=prompt, output_tokens=output)
    assert scheduler(blocks=4).refusal(sequence) == reason


def steady(lengths, **options):
    """A scheduler after the prefill of all, and its first decision to decode."""
    chosen = scheduler(**options)
    add(chosen, *lengths)
    steps(chosen)
    return chosen, chosen.schedule(1)


def test_a_decision_is_steady_when_all_that_runs_decodes():
    chosen, decision = steady([(4, 9), (4, 9)])
    assert decision.steady
    chosen.complete(2, decision)
    chosen.add(Sequence(request=2, prompt_tokens=4, output_tokens=9))
    assert not chosen.schedule(2).steady


def test_a_decision_is_not_steady_when_the_budget_leaves_a_decode_out():
    chosen = scheduler(scheduler="continuous", max_batch_tokens=2)
    add(chosen, (1, 9), (1, 9), (1, 9))
    steps(chosen, 2)  # Two prompts, then the third.
    decision = chosen.schedule(2)
    assert carried(decision) == ([0, 1], [])
    assert not decision.steady


def test_nothing_is_steady_with_several_stages():
    assert not steady([(4, 9), (4, 9)], stages=2)[1].steady


def test_horizon_is_the_step_in_which_the_first_sequence_finishes():
    chosen, decision = steady([(4, 9), (4, 4)])
    assert chosen.horizon(decision) == 3


def test_horizon_ends_before_the_step_that_lacks_a_block():
    # 4 tokens and the one decided now are 2 blocks; tokens 9 and 13 take a third and a fourth one, 17 a fifth:
    # the decisions for tokens 5 … 16 are 12.
    chosen, decision = steady([(4, 99)], blocks=25)
    chosen.pool.take(0, 21)
    assert chosen.horizon(decision) == 12


def test_horizon_counts_the_blocks_of_each_owner():
    chosen, decision = steady([(4, 99), (4, 99)], blocks=25, owners=2)
    chosen.pool.take(1, 23)  # Owner 1 has none left for its third block, owner 0 has 23.
    assert chosen.horizon(decision) == 4


def test_advance_does_what_single_steps_do():
    (jumps, decision), (walks, first) = steady([(4, 20), (7, 13)]), steady([(4, 20), (7, 13)])
    count = jumps.horizon(decision)
    assert count == 12
    jumps.advance(decision, count)
    jumps.complete(1 + count, decision)
    walks.complete(2, first)
    for now in range(2, 1 + count):
        walks.complete(now + 1, walks.schedule(now))
    assert jumps.facts == walks.facts
    assert jumps.pool.free == walks.pool.free
    assert [(s.computed, s.generated) for s in jumps.running] == [(s.computed, s.generated) for s in walks.running]
