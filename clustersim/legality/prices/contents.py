"""What steps of a pool have, worked out from chunks and episodes: by run of steps, and by place in their slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.features import Features
from clustersim.legality.prices.shares import prompts_of, split_prompts
from clustersim.legality.timeline_rules.views.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.timeline.tables import Table


class Contents:
    """Tokens, keys and pairs of the steps of one pool.

    Parameters
    ----------
    deployment : PricedDeployment
    runs : Runs
    pieces : Pieces
    chunks : Table
    owner : int64 array of shape (pieces,), optional
        The SP rank that keeps each sequence, −1 where that is not known.
    """

    def __init__(
        self,
        deployment: PricedDeployment,
        runs: Runs,
        pieces: Pieces,
        chunks: Table,
        owner: Int64Array | None = None,
    ) -> None:
        self.deployment, self.runs = deployment, runs
        at = runs.at(chunks["replica"], chunks["step"])
        known = at >= 0
        self.chunk_run = at[known]
        self.start, self.count = (chunks[name].astype(np.int64)[known] for name in ("start", "count"))
        episodes = np.flatnonzero(~pieces.is_chunk)
        self.first = runs.place[pieces.first_run[episodes]]
        self.many, self.before = pieces.count[episodes], pieces.computed[episodes]
        self._owner = np.full(len(episodes), -1) if owner is None else owner[episodes]
        self.places = int(runs.count[runs.slotted].sum()) + 1  # the last one is that of all steps without decodes
        self._carries, self._ahead = runs.slot >= 0, runs.place - runs.step
        self._prompts: dict[int | None, Mapping[str, FloatArray]] = {}
        self._decodes: dict[int | None, tuple[FloatArray, FloatArray]] = {}
        self._own: dict[tuple[int, int | None], tuple[FloatArray, FloatArray]] = {}

    def decodes(self, window: int | None) -> tuple[FloatArray, FloatArray]:
        """Return, by place of a step in the order of its slot, how many sequences decode, and the keys they attend to.

        A sequence attends to one key more in every step of its episode, up to the window.
        """
        if window not in self._decodes:
            self._decodes[window] = self._of_episodes(slice(None), window)
        return self._decodes[window]

    def decodes_of(self, s: int, window: int | None) -> tuple[FloatArray, FloatArray]:
        """Return the same of one SP rank, where each keeps its own sequences; NaN where one is kept by none."""
        if (s, window) not in self._own:
            count, keys = self._of_episodes(self._owner == s, window)
            self._own[s, window] = np.where(self._kept, count, np.nan), np.where(self._kept, keys, np.nan)
        return self._own[s, window]

    @cached_property
    def _kept(self) -> BoolArray:
        """At which places all sequences that decode are kept by some SP rank."""
        count, _ = self._of_episodes((self._owner >= 0) & (self._owner < self.deployment.plan.sp.degree), None)
        found: BoolArray = count == self.decodes(None)[0]
        return found

    def _of_episodes(self, some: BoolArray | slice, window: int | None) -> tuple[FloatArray, FloatArray]:
        first, many, before = self.first[some], self.many[some], self.before[some]
        grows = many if window is None else np.clip(window - before, 0, many)
        count = self._running(first, many, np.ones(len(first)))
        growing = count if window is None else self._running(first, grows, np.ones(len(first)))
        keys = self._running(first, grows, (before + 1 - first).astype(np.float64))
        ramp = np.arange(self.places, dtype=np.float64)
        ramp *= growing
        keys += ramp
        if window is not None:
            keys += self._running(first + grows, many - grows, np.full(len(first), float(window)))
        count[-1] = keys[-1] = 0.0
        return count, keys

    @cached_property
    def changes(self) -> Int64Array:
        """How often the number of decodes has changed up to each place."""
        count, _ = self.decodes(None)
        found: Int64Array = np.cumsum(np.diff(count, prepend=count[:1]) != 0)
        return found

    def _running(self, first: Int64Array, many: Int64Array, weight: FloatArray) -> FloatArray:
        """Return sums over the episodes that run at each place."""
        found: FloatArray = np.bincount(first, weights=weight, minlength=self.places + 1).astype(np.float64, copy=False)
        found -= np.bincount(first + many, weights=weight, minlength=self.places + 1)
        return np.cumsum(found, out=found)[: self.places]

    def prompts(self, window: int | None) -> Mapping[str, FloatArray]:
        """Return what prompt chunks of each run of steps come to."""
        if window not in self._prompts:
            each = prompts_of(self.start, self.count, window)
            many = len(self.runs)
            self._prompts[window] = {
                name: np.bincount(self.chunk_run, weights=values, minlength=many).astype(np.float64, copy=False)
                for name, values in each.items()
            }
        return self._prompts[window]

    @cached_property
    def by_rank(self) -> Callable[[int | None], Mapping[str, FloatArray]]:
        """What the chunks of each run come to on every SP rank, where prompts are split; columns are ranks."""
        known: dict[int | None, Mapping[str, FloatArray]] = {}
        plan, many = self.deployment.plan.sp, len(self.runs)

        def of(window: int | None) -> Mapping[str, FloatArray]:
            if window not in known:
                each = split_prompts(
                    self.start,
                    self.count,
                    plan.degree,
                    plan.partition or "contiguous",
                    window,
                    by_source=plan.scheme == "ring",
                    owned=plan.decode == "idle",
                )
                known[window] = {
                    name: np.stack(
                        [np.bincount(self.chunk_run, weights=column, minlength=many) for column in values.T], axis=1
                    )
                    for name, values in each.items()
                }
            return known[window]

        return of

    def at(self, replica: Int64Array, step: Int64Array) -> Features:
        """Return the features of steps; ``replica`` is the first one where all take a step together."""
        members = self.deployment.coordinates if self.deployment.together else 1
        run = np.stack([self.runs.at(replica + one, step) for one in range(members)])
        place = np.full(run.shape, self.places - 1)
        if len(self.runs):
            place = np.where((run >= 0) & self._carries[run], self._ahead[run] + step, place)
        return Features(self, run, place)

    @cached_property
    def chunks_of(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Starts and counts of chunks in the order of runs, as recorded within each, and where each run begins."""
        order = np.argsort(self.chunk_run, kind="stable")
        first = np.searchsorted(self.chunk_run[order], np.arange(len(self.runs) + 1))
        return self.start[order], self.count[order], first
