"""The K/V pool counts blocks, and never lends what it does not have."""

from __future__ import annotations

import pytest

from clustersim.errors import BrokenLawError
from tests.oracle.serving.blocks import BlockPool


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_needed_rounds_up_to_whole_blocks(tokens, blocks):
    assert BlockPool(blocks=9, block_tokens=4).needed(tokens) == blocks


def test_take_and_give_move_blocks_between_free_and_used():
    pool = BlockPool(blocks=5, block_tokens=4)
    pool.take(0, 3)
    assert (pool.free, pool.used) == ([2], 3)
    pool.give(0, 2)
    assert (pool.free, pool.used) == ([4], 1)


def test_each_owner_has_blocks_of_its_own():
    pool = BlockPool(blocks=5, block_tokens=4, owners=2)
    pool.take(1, 5)
    assert (pool.total, pool.used, pool.free) == (10, 5, [5, 0])


def test_emptiest_is_the_owner_with_most_free_blocks_and_the_first_among_equals():
    pool = BlockPool(blocks=5, block_tokens=4, owners=3)
    assert pool.emptiest() == 0
    pool.take(0, 1)
    assert pool.emptiest() == 1


def test_take_raises_when_the_pool_has_too_few():
    with pytest.raises(BrokenLawError, match="KV-6: 3 blocks taken from a pool with 2 free"):
        BlockPool(blocks=2, block_tokens=4).take(0, 3)


def test_give_raises_when_more_comes_back_than_was_lent():
    with pytest.raises(BrokenLawError, match="KV-7: 1 blocks given back twice"):
        BlockPool(blocks=2, block_tokens=4).give(0, 1)
