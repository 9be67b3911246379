"""Static batching: one batch after the other; blocks have 4 tokens."""

from __future__ import annotations

from clustersim.serving.config import ServingConfig
from clustersim.serving.order import UNLIMITED, Order
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.sequence import Sequence
from tests.oracle.serving.static import StaticScheduler


def batches(lengths, *, blocks=100, **config):
    """Run requests of (prompt, output) tokens that all wait from the start; return what each step carried."""
    chosen = StaticScheduler(ServingConfig(kv_block_tokens=4, **config), BlockPool(blocks=blocks, block_tokens=4))
    for request, (prompt, output) in enumerate(lengths):
        chosen.add(Sequence(request=request, prompt_tokens=prompt, output_tokens=output))
    found = []
    while (decision := chosen.schedule(len(found))) is not None:
        found.append(("p", [s.request for s, _ in decision.prefills]) if decision.prefills else
                     ("d", [s.request for s in decision.decodes]))  # fmt: skip
        chosen.complete(len(found), decision)
    assert chosen.pool.used == 0
    return found


def test_nobody_joins_before_all_of_the_batch_has_finished():
    assert batches([(4, 3), (4, 2), (4, 1)], max_batch_requests=2) == [
        ("p", [0, 1]), ("d", [0, 1]), ("d", [0]), ("p", [2]),
    ]  # fmt: skip


def test_a_batch_is_prefilled_in_several_steps_where_the_budget_is_small():
    assert batches([(6, 2), (6, 2)], max_batch_tokens=8) == [("p", [0]), ("p", [1]), ("d", [0, 1])]


def test_a_batch_is_no_larger_than_the_blocks_that_its_members_will_need():
    # 4 + 8 − 1 tokens are 3 blocks each: of 7 blocks two members have theirs, a third would lack two.
    assert batches([(4, 8), (4, 8), (4, 8)], blocks=7)[0] == ("p", [0, 1])


def test_those_that_arrive_later_wait_for_the_next_batch():
    chosen = StaticScheduler(ServingConfig(kv_block_tokens=4), BlockPool(blocks=9, block_tokens=4))
    chosen.add(Sequence(request=0, prompt_tokens=4, output_tokens=2))
    first = chosen.schedule(0)
    assert first is not None
    chosen.add(Sequence(request=1, prompt_tokens=4, output_tokens=2))
    chosen.complete(1, first)
    second = chosen.schedule(1)
    assert second is not None
    assert ([s.request for s in second.decodes], second.prefills) == ([0], ())


def test_those_of_a_lower_rank_that_arrive_later_wait_for_the_next_batch_too():
    order = Order(by="shortest_prompt", patience_ns=UNLIMITED)
    config = ServingConfig(kv_block_tokens=4, order=order, max_batch_tokens=6)
    chosen = StaticScheduler(config, BlockPool(blocks=9, block_tokens=4))
    for request in range(2):
        chosen.add(Sequence(request=request, prompt_tokens=6, output_tokens=2))
    carried = []
    for now in range(4):
        decision = chosen.schedule(now)
        assert decision is not None
        carried.append([s.request for s, _ in decision.prefills] + [s.request for s in decision.decodes])
        if now == 0:
            chosen.add(Sequence(request=2, prompt_tokens=1, output_tokens=1))
        chosen.complete(now + 1, decision)
    assert carried == [[0], [1], [0, 1], [2]]
