"""Full prompt blocks that outlive their sequences: who takes them over, who holds them, which go first.

Blocks have 4 tokens; a prompt is given by the hashes of its blocks.
"""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.replay.replay import replay
from clustersim.serving.config import ServingConfig
from clustersim.serving.decision import ADMITTED, PREEMPTED, REUSED
from clustersim.serving.prefix_keys import PrefixKeys
from clustersim.simulation.prefixes import prefix_figures
from clustersim.workload.requests import Requests
from tests.oracle.serving.make import make_pool, make_scheduler
from tests.oracle.serving.prefix_cache import CachingPool
from tests.oracle.serving.sequence import Sequence
from tests.round_numbers import deployment, prefixed

CHUNKED, CONTINUOUS, STATIC = "chunked_prefill", "continuous", "static"


def scheduler(*, blocks=100, owners=1, stages=1, **config):
    chosen = ServingConfig(kv_block_tokens=4, prefix_caching=True, **config)
    pool = make_pool(chosen, blocks=blocks, owners=owners)
    return make_scheduler(chosen, pool, stages=stages, decode_overlap=True)


def add(chosen, request, keys, prompt, output=1):
    sequence = Sequence(request=request, prompt_tokens=prompt, output_tokens=output, keys=[(key, 1) for key in keys])
    chosen.add(sequence)
    return sequence


def step(chosen, now):
    """Take a step; return what it carries: requests that decode, and (request, first token, tokens) that prefill."""
    decision = chosen.schedule(now)
    found = [s.request for s in decision.decodes], [(s.request, s.computed, n) for s, n in decision.prefills]
    chosen.complete(now + 1, decision)
    return found


def facts(chosen, *kinds):
    return [(kind, request, value) for _, kind, request, value, _ in chosen.facts if kind in kinds]


@pytest.mark.parametrize("name", [CHUNKED, CONTINUOUS, STATIC])
def test_a_prompt_takes_over_the_full_blocks_that_another_with_an_equal_start_has_computed(name):
    chosen = scheduler(scheduler=name)
    add(chosen, 0, [1, 2], 10)
    assert step(chosen, 0) == ([], [(0, 0, 10)])
    add(chosen, 1, [1, 2, 3], 14)
    assert step(chosen, 1) == ([], [(1, 8, 6)])
    assert facts(chosen, ADMITTED, REUSED) == [(ADMITTED, 0, 10), (ADMITTED, 1, 14), (REUSED, 1, 8)]


def test_prompts_share_until_the_first_block_that_is_not_cached():
    chosen = scheduler()
    add(chosen, 0, [1, 2, 3], 12)
    step(chosen, 0)
    add(chosen, 1, [1, 9, 3], 12)
    assert step(chosen, 1) == ([], [(1, 4, 8)])


def test_a_prompt_that_is_cached_altogether_computes_its_last_block_once_more():
    chosen = scheduler()
    add(chosen, 0, [1, 2], 8)
    step(chosen, 0)
    add(chosen, 1, [1, 2], 8)
    assert step(chosen, 1) == ([], [(1, 4, 4)])  # not 8 of 8 tokens: something must be computed to sample from


def test_blocks_are_shared_only_when_the_step_that_computes_them_has_ended():
    chosen = scheduler(stages=2)
    add(chosen, 0, [1], 6, output=2)
    first = chosen.schedule(0)
    add(chosen, 1, [1], 6, output=2)
    second = chosen.schedule(0)
    assert [count for _, count in second.prefills] == [6]
    assert chosen.pool.used == 4
    chosen.complete(1, first)
    chosen.complete(1, second)
    assert chosen.pool.used == 3  # the copy was given back: block 1 is shared, each has its second block


def test_what_two_prompts_share_counts_once_and_is_free_when_both_have_ended():
    chosen = scheduler(blocks=10)
    add(chosen, 0, [1, 2], 9, output=3)
    step(chosen, 0)
    add(chosen, 1, [1, 2], 9, output=3)
    step(chosen, 1)
    assert (chosen.pool.used, chosen.pool.free) == (4, [6])  # 2 shared, and one each
    step(chosen, 2)
    step(chosen, 3)
    assert chosen.pool.used == 0
    assert set(chosen.pool.caches[0].runs) == {1, 2}


def test_blocks_that_were_freed_first_are_taken_first_the_last_of_a_sequence_before_its_first():
    chosen = scheduler(blocks=5)
    for request, keys in enumerate(([1, 2], [3, 4])):
        add(chosen, request, keys, 8)
        step(chosen, request)
    # The queue: the block that nobody had, then 2, 1, 4, 3. Three blocks take the first three.
    add(chosen, 2, [5, 6, 7], 12)
    step(chosen, 2)
    assert set(chosen.pool.caches[0].runs) == {5, 6, 7, 4, 3}


def test_a_block_that_was_taken_over_since_counts_as_used_recently():
    chosen = scheduler(blocks=4)
    for request, keys in enumerate(([1], [2], [1])):
        add(chosen, request, keys, 5)
        step(chosen, request)
    # Blocks 1 and 2 were filled in this order, but 1 was held again after 2. The queue: 2 and two without content …
    add(chosen, 3, [7, 8, 9], 12)
    step(chosen, 3)
    assert 1 in chosen.pool.caches[0].runs
    assert 2 not in chosen.pool.caches[0].runs


def test_a_preempted_sequence_finds_its_own_blocks_again():
    chosen = scheduler(blocks=4, max_batch_tokens=32)
    add(chosen, 0, [1], 7, output=6)
    add(chosen, 1, [2], 7, output=6)
    for now in range(4):
        step(chosen, now)
    # Each needs a third block with its 9th token: the later one gives both of its blocks, and keeps one cached.
    assert facts(chosen, PREEMPTED) == [(PREEMPTED, 1, 2)]
    for now in range(4, 7):
        step(chosen, now)
    assert facts(chosen, REUSED) == [(REUSED, 1, 4)]


def test_owners_cache_for_themselves_and_a_prompt_goes_where_most_of_it_is():
    chosen = scheduler(owners=2)
    add(chosen, 0, [1, 2], 9, output=9)
    add(chosen, 1, [3], 5, output=9)
    step(chosen, 0)
    third = add(chosen, 2, [1, 2], 9, output=9)
    assert step(chosen, 1) == ([0, 1], [(2, 8, 1)])
    assert third.owner == 0  # though the other pool is emptier


@pytest.mark.parametrize(
    ("hash_tokens", "block_tokens", "first", "second", "shared"),
    [
        (8, 4, [1, 2], [1, 3], 2),  # a hash has two blocks
        (4, 8, [1, 2, 3, 4], [1, 2, 3, 5], 1),  # a block has two hashes
        (8, 3, [1, 2], [1, 3], 2),  # blocks of tokens 0-2, 3-5 and 6-8: the third lies in both hashes
        (8, 5, [1, 2], [1, 2], 3),
        (8, 4, [1, 2], [2, 2], 0),  # an equal block behind another start is another block
        (8, 4, [1], [1, 2], 2),  # where hashes are left out nothing is known to be equal
        (16, 16, [1], [1], 1),
    ],
)
def test_keys_are_equal_where_all_hashes_agree_that_a_block_lies_in(hash_tokens, block_tokens, first, second, shared):
    found = PrefixKeys(
        Requests(
            arrived_at_ns=np.zeros(2, np.int64),
            prompt_tokens=np.full(2, 16),
            output_tokens=np.ones(2, np.int64),
            prefix_hashes=(np.array(first), np.array(second)),
            hash_block_tokens=hash_tokens,
            source="a test",
        ),
        block_tokens,
    )
    one, other = ([(key, b) for key, blocks in found.of(row) for b in range(blocks)] for row in range(2))
    assert len(one) == min(16, len(first) * hash_tokens) // block_tokens
    assert len(set(one)) == len(one)
    equal = [a == b for a, b in zip(one, other, strict=False)]
    assert equal == [place < shared for place in range(len(equal))]


def test_a_pool_counts_what_is_lent_and_never_lends_a_held_block():
    pool = CachingPool(blocks=3, block_tokens=4)
    held = Sequence(request=0, prompt_tokens=8, output_tokens=1, computed=8, blocks=2, keys=[(1, 1), (2, 1)])
    pool.take(0, 2)
    pool.store(held, 8)
    pool.take(0, 1)
    assert set(pool.caches[0].runs) == {1, 2}
    assert pool.free == [0]
    pool.release(held)
    assert (pool.free, held.blocks) == ([2], 0)
    pool.take(0, 1)
    assert set(pool.caches[0].runs) == {1}


ARRIVALS = [(0, 10, 2), (40_000, 11, 2), (80_000, 9, 1), (120_000, 12, 1)]
HASHES = [[1, 2, 3], [1, 2, 4], [1, 5, 6], [1, 2, 4]]


@pytest.mark.parametrize("mode", ["full", "folded"])
@pytest.mark.parametrize("name", [CHUNKED, CONTINUOUS, STATIC])
def test_hits_are_counted_in_tokens_and_in_blocks_of_the_trace(run, name, mode):
    given = prefixed(deployment(ARRIVALS, scheduler=name, mode=mode, prefix_caching=True), HASHES, 4)
    facts = run(given).timeline.facts
    rows = facts["kind"] == REUSED
    assert list(zip(facts["request"][rows].tolist(), facts["value"][rows].tolist(), strict=True)) == [
        (1, 8),
        (2, 4),
        (3, 8),
    ]
    columns = {"request": np.arange(4), "admitted_ns": np.zeros(4), "cached_tokens": np.array([0, 8, 4, 8])}
    # 42 tokens in 12 blocks. Of the last prompt three blocks came before, but the third was not full then.
    assert prefix_figures(given.requests, columns, 4) == {
        "cached_tokens": 20,
        "hit_rate": 20 / 42,
        "block_hit_rate": 5 / 12,
        "infinite_block_hit_rate": 6 / 12,
    }


def test_both_shares_are_of_the_blocks_of_those_that_were_admitted():
    given = prefixed(deployment([(0, 8, 1), (1, 8, 1), (2, 8, 1)]), [[1, 2], [1, 2], [1, 2]], 4)
    columns = {"request": np.arange(3), "admitted_ns": np.array([0, 5, np.nan]), "cached_tokens": np.array([0, 4, 0])}
    found = prefix_figures(given.requests, columns, 4)
    assert (found["block_hit_rate"], found["infinite_block_hit_rate"]) == (1 / 4, 2 / 4)


def test_a_partial_block_of_a_trace_is_found_when_all_of_it_is_that_can_be():
    # Two equal prompts of 10 tokens, hashed by 8, in blocks of 2: 8 of 10 tokens are taken over, the last 2 computed.
    given = prefixed(deployment([(0, 10, 1), (1, 10, 1), (2, 11, 1)]), [[1, 2], [1, 2], [1, 2]], 8)
    for tokens, found in ((8, 1), (6, 0)):
        columns = {"request": np.arange(2), "admitted_ns": np.zeros(2), "cached_tokens": np.array([0, tokens])}
        assert prefix_figures(given.requests, columns, 2)["block_hit_rate"] == found / 4
    columns = {"request": np.arange(3), "admitted_ns": np.zeros(3), "cached_tokens": np.array([0, 8, 10])}
    assert prefix_figures(given.requests, columns, 2)["block_hit_rate"] == (1 + 2) / 6


def test_without_hashes_a_prefix_cache_changes_nothing():
    arrivals = [(0, 30, 20), (1_000, 30, 20), (2_000, 9, 4)]
    plain, caching = (
        replay(deployment(arrivals, kv_blocks=20, prefix_caching=value, max_batch_tokens=16)) for value in (False, True)
    )
    assert plain.timeline.digest == caching.timeline.digest
