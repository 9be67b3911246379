"""The order of the queue: ranks that never change, so that neither preemption nor skipping disturbs it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, PREEMPTED
from clustersim.serving.order import UNLIMITED, Order
from tests.effort import examples
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.queues import RankedQueue
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence
from tests.oracle.serving.swapping import SwappingScheduler

PRIORITY = Order(by="priority", patience_ns=100)
SHORTEST = Order(by="shortest_prompt", patience_ns=10)


def sequence(request: int, arrived_ns: int = 0, *, prompt: int = 1, priority: int = 0, output: int = 9) -> Sequence:
    return Sequence(
        request=request, prompt_tokens=prompt, output_tokens=output, arrived_ns=arrived_ns, priority=priority
    )


def scheduler(order: Order, *, blocks: int = 100, **config: int) -> Scheduler:
    pool = BlockPool(blocks=blocks, block_tokens=4)
    return Scheduler(ServingConfig(kv_block_tokens=4, order=order, **config), pool)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        # arrivals 0, 50, 120 with priorities 1, 0, 0 and prompts of 9, 8 and 1 tokens
        (Order(), [0, 1, 2]),
        (PRIORITY, [1, 0, 2]),  # ranks 100, 50, 120: the last came more than 100 ns after the first
        (Order(by="priority", patience_ns=UNLIMITED), [1, 2, 0]),
        (SHORTEST, [0, 1, 2]),  # ranks 90, 130, 130: a tie goes to the one that came first
        (Order(by="shortest_prompt", patience_ns=UNLIMITED), [2, 1, 0]),
    ],
)
def test_the_queue_is_in_the_declared_order(order, expected):
    chosen = scheduler(order)
    for one in (sequence(0, 0, prompt=9, priority=1), sequence(1, 50, prompt=8), sequence(2, 120, prompt=1)):
        chosen.add(one)
    assert [s.request for s in chosen.waiting] == expected


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5)), max_size=20), st.integers(1, 300))
def test_nobody_is_overtaken_by_one_that_came_longer_after_it_than_its_patience(drawn, patience_ns):
    chosen = scheduler(Order(by="priority", patience_ns=patience_ns))
    for request, (arrived, priority) in enumerate(sorted(drawn)):
        chosen.add(sequence(request, arrived, priority=priority))
    order = list(chosen.waiting)
    for place, one in enumerate(order):
        for before in order[:place]:
            assert before.arrived_ns - one.arrived_ns <= patience_ns * max(0, one.priority - before.priority)


def test_a_preempted_sequence_returns_to_its_place_and_the_last_in_rank_gives_way():
    # 4 blocks of 4: prompts of 4 take 1 block each; the first decode of each takes its second one.
    chosen = scheduler(PRIORITY, blocks=4, max_batch_tokens=8)
    for one in (sequence(0, 0, prompt=4, priority=2), sequence(1, 0, prompt=4), sequence(2, 0, prompt=4, priority=1)):
        chosen.add(one)
    for now in range(3):
        decision = chosen.schedule(now)
        assert decision is not None
        chosen.complete(now + 1, decision)
    facts = [(request, kind) for _, kind, request, _, _ in chosen.facts if kind in (ADMITTED, PREEMPTED)]
    # Step 0 admits 1 and 2 (budget 8); step 1 decodes them, which takes blocks 3 and 4. 0 waits all the time.
    assert facts == [(1, ADMITTED), (2, ADMITTED)]
    chosen.add(sequence(3, 0, prompt=4))
    assert [s.request for s in chosen.waiting] == [3, 0]
    for now in range(3, 8):
        decision = chosen.schedule(now)
        assert decision is not None
        chosen.complete(now + 1, decision)
    # After 4 decodes each, 1 and 2 need a third block: 2 ranks above 1 and gives way; what 1 leaves of its blocks
    # goes to 3, which ranks below 2.
    assert [(r, k) for _, k, r, _, _ in chosen.facts if k == PREEMPTED] == [(2, PREEMPTED)]
    assert [s.request for s in chosen.waiting] == [2, 0]


class Watched(Scheduler):
    """Notes for whom somebody is preempted, and raises where that one ranks behind."""

    needs: Sequence

    def _grow(self, now: int, sequence: Sequence, tokens: int, chosen: list[Sequence]) -> bool:
        self.needs = sequence
        return super()._grow(now, sequence, tokens, chosen)

    def _preempt(self, now: int, sequence: Sequence) -> None:
        assert self._is_behind(sequence)
        super()._preempt(now, sequence)

    def _is_behind(self, sequence: Sequence) -> bool:
        return sequence.rank > self.needs.rank


class WatchedSwaps(Watched, SwappingScheduler):
    """The same, by swap: in order of arrival, one that came back is behind those that were admitted meanwhile."""

    def _is_behind(self, sequence: Sequence) -> bool:
        if self.config.order.by != "arrival":
            return super()._is_behind(sequence)
        return self.running.index(sequence) > self.running.index(self.needs)


ORDERS = {
    "arrival": Order(),
    "priority": Order(by="priority", patience_ns=30),
    "priority alone": Order(by="priority", patience_ns=UNLIMITED),
    "shortest prompt": Order(by="shortest_prompt", patience_ns=3),
}
CROWD = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 9), st.integers(0, 2)), max_size=14)
"""(arrival, prompt, output, priority)"""


@pytest.mark.parametrize("swaps", [False, True], ids=["recompute", "swap"])
@pytest.mark.parametrize("named", ["continuous", "chunked_prefill"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@examples(25)
@given(crowd=CROWD, blocks=st.integers(5, 9), budget=st.sampled_from((4, 16)))
def test_preemption_and_skipping_keep_the_declared_order(order, named, swaps, crowd, blocks, budget):
    config = ServingConfig(
        scheduler=named, kv_block_tokens=4, order=order, max_batch_requests=3, max_batch_tokens=budget
    )
    pool, host = (BlockPool(blocks=many, block_tokens=4) for many in (blocks, 6))
    chosen = WatchedSwaps(config, pool, host) if swaps else Watched(config, pool)
    coming = [
        sequence(request, arrived, prompt=prompt, output=output, priority=priority)
        for request, (arrived, prompt, output, priority) in enumerate(sorted(crowd))
    ]
    served, waits, now = list(coming), {}, 0
    while coming or chosen.waiting or chosen.running or chosen.swapped_out:
        while coming and coming[0].arrived_ns <= now:
            waits[coming[0].request] = coming[0]
            chosen.add(coming.pop(0))
        decision = chosen.schedule(now)
        for _, kind, request, _, _ in chosen.facts:
            if kind == PREEMPTED:
                waits[request] = served[request]
            elif kind == ADMITTED:
                first = waits.pop(request)
                assert all(first.rank < other.rank for other in waits.values()), "the first in rank is admitted"
        chosen.facts.clear()
        now += 1
        assert now < 5000, "nobody starves"
        if decision is not None:
            chosen.complete(now, decision)
            chosen.facts.clear()
        for swap in getattr(chosen, "swaps", ()):
            chosen.copied(now, swap.sequence)
        if swaps:
            chosen.swaps.clear()
    assert all(one.generated == one.output_tokens for one in served)
    assert pool.used == host.used == 0


def test_long_prompts_are_cut_and_leave_budget_to_others():
    chosen = scheduler(Order(), max_batch_tokens=12, long_prompt_tokens=6)
    for request, prompt in enumerate((20, 4, 9)):
        chosen.add(sequence(request, prompt=prompt))
    decision = chosen.schedule(0)
    assert decision is not None
    assert [(s.request, count) for s, count in decision.prefills] == [(0, 6), (1, 4), (2, 2)]


def test_a_queue_gives_back_what_is_removed_only_once():
    queue = RankedQueue()
    one = sequence(4)
    one.rank = (0, 3, 4)
    queue.add(one)
    queue.remove(one)
    with pytest.raises(ValueError, match="request 4 isn't waiting"):
        queue.remove(one)
