"""From a serving configuration to the scheduler of a replica."""

from __future__ import annotations

from clustersim.serving.config import ServingConfig
from clustersim.serving.user_class import UserClass
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.custom_scheduler import CustomScheduler
from tests.oracle.serving.prefix_cache import CachingPool
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.static import StaticScheduler
from tests.oracle.serving.swapping import SwappingScheduler


def make_pool(config: ServingConfig, *, blocks: int, owners: int) -> BlockPool:
    """Return an empty K/V pool; it keeps what its blocks hold where prefixes are cached."""
    kind = CachingPool if config.prefix_caching else BlockPool
    return kind(blocks=blocks, block_tokens=config.kv_block_tokens, owners=owners)


def make_scheduler(
    config: ServingConfig,
    pool: BlockPool,
    *,
    stages: int,
    decode_overlap: bool,
    host: BlockPool | None = None,
) -> Scheduler:
    """Return the scheduler that a configuration names, with nothing in it; ``host`` are blocks to swap to.

    Raises
    ------
    InputError
        When a user's class can't be made.
    """
    named = config.scheduler
    if isinstance(named, UserClass):
        return CustomScheduler(config, pool, named, stages=stages, decode_overlap=decode_overlap)
    if host is not None:
        return SwappingScheduler(config, pool, host, stages=stages, decode_overlap=decode_overlap)
    kind = StaticScheduler if named == "static" else Scheduler
    return kind(config, pool, stages=stages, decode_overlap=decode_overlap)
