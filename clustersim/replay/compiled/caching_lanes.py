"""What drives lanes of one stage that keep what is computed of prompts: :mod:`clustersim.replay.compiled.caching`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import prefixes as px
from clustersim.replay.compiled.caching import advance_caching
from clustersim.replay.compiled.lanes import only_read
from clustersim.replay.compiled.prices import KernelPrices
from clustersim.replay.compiled.single_lanes import SingleLanes
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane
from clustersim.serving.config import PrefixRouting
from clustersim.serving.prefix_keys import PrefixKeys


class CachingLanes(SingleLanes):
    """Lanes of one clock.

    Parameters
    ----------
    intake : Intake
    lanes : sequence of Lane
    prices : KernelPrices
    keys : PrefixKeys
        What says which blocks of prompts are equal.
    routing : PrefixRouting or None
        How the router goes by prefixes, where it does.
    """

    def __init__(
        self,
        intake: Intake,
        lanes: Sequence[Lane],
        prices: KernelPrices,
        keys: PrefixKeys,
        routing: PrefixRouting | None,
    ) -> None:
        super().__init__(intake, lanes, prices, 0, 1)
        count, blocks = len(lanes), int(self.limits[k.TOTAL])
        pools = np.zeros((count, len(px.POOL)), np.int64)
        pools[:, px.FREE], pools[:, px.MADE], pools[:, px.SPARE] = blocks, 1, px.NOTHING
        places = np.zeros((count, blocks + 2, len(px.PLACE)), np.int64)
        places[:, 0] = px.NOTHING
        places[:, 0, px.BLOCKS] = blocks
        numbers, runs = np.unique(keys.keys, return_inverse=True)
        kept = np.zeros((count, len(numbers) + 1, len(px.RUN)), np.int64)
        kept[:, :, [px.EARLIEST, px.LATEST]] = px.NOTHING
        told: tuple[float, ...] = ()
        if routing is not None and count > 1:
            self.limits[k.BALANCED] = True
            told = routing.cache_threshold, routing.balance_abs_threshold, routing.balance_rel_threshold
        self.prefixes = (
            pools, kept, places, only_read(keys.bounds), runs.astype(np.int64), only_read(keys.blocks),
            np.array(told, np.float64), np.full(1, px.NOTHING, np.int64),
        )  # fmt: skip

    def _go_on(self, everything: Sequence[Any]) -> int:
        status: int = advance_caching(*everything, self.prefixes)
        return status
