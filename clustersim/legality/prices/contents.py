"""What steps have that prices depend on, their features: worked out from chunks and episodes for many steps at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.prices.declared import Declared
from clustersim.legality.prices.shares import Prompts, prompts_of, split_prompts
from clustersim.legality.timeline_rules.pieces import BoolArray, Pieces
from clustersim.legality.timeline_rules.runs import Runs
from clustersim.timeline.tables import Table


class Contents:
    """Tokens, keys and pairs of the steps of one pool.

    Parameters
    ----------
    declared : Declared
    runs : Runs
    pieces : Pieces
    chunks : Table
    """

    def __init__(self, declared: Declared, runs: Runs, pieces: Pieces, chunks: Table) -> None:
        self.declared, self.runs = declared, runs
        at = runs.at(chunks["replica"], chunks["step"])
        known = at >= 0
        self.chunk_run = at[known]
        self.start, self.count = (chunks[name].astype(np.int64)[known] for name in ("start", "count"))
        episodes = np.flatnonzero(~pieces.is_chunk)
        self.first = runs.place[pieces.first_run[episodes]]
        self.many, self.before = pieces.count[episodes], pieces.computed[episodes]
        self.places = int(runs.count[runs.slotted].sum()) + 1
        self._prompts: dict[int | None, Mapping[str, FloatArray]] = {}
        self._decodes: dict[int | None, tuple[FloatArray, FloatArray]] = {}

    def decodes(self, window: int | None) -> tuple[FloatArray, FloatArray]:
        """Return, by place of a step in the order of its slot, how many sequences decode, and the keys they attend to.

        A sequence attends to one key more in every step of its episode, up to the window.
        """
        if window not in self._decodes:
            grows = self.many if window is None else np.clip(window - self.before, 0, self.many)
            count = self._running(self.first, self.many, np.ones(len(self.first)))
            growing = self._running(self.first, grows, np.ones(len(self.first)))
            keys = self._running(self.first, grows, (self.before + 1 - self.first).astype(np.float64))
            keys += growing * np.arange(self.places)
            if window is not None:
                keys += self._running(self.first + grows, self.many - grows, np.full(len(self.first), float(window)))
            self._decodes[window] = count, keys
        return self._decodes[window]

    @cached_property
    def changes(self) -> Int64Array:
        """How often the number of decodes has changed up to each place."""
        count, _ = self.decodes(None)
        found: Int64Array = np.cumsum(np.diff(count, prepend=count[:1]) != 0)
        return found

    def _running(self, first: Int64Array, many: Int64Array, weight: FloatArray) -> FloatArray:
        """Return sums over the episodes that run at each place."""
        change: FloatArray = np.bincount(first, weights=weight, minlength=self.places + 1).astype(np.float64)
        change -= np.bincount(first + many, weights=weight, minlength=self.places + 1)
        found: FloatArray = np.cumsum(change)[: self.places]
        return found

    def prompts(self, window: int | None) -> Mapping[str, FloatArray]:
        """Return what prompt chunks of each run of steps come to."""
        if window not in self._prompts:
            each = prompts_of(self.start, self.count, window)
            many = len(self.runs)
            self._prompts[window] = {
                name: np.bincount(self.chunk_run, weights=values, minlength=many).astype(np.float64)
                for name, values in each.items()
            }
        return self._prompts[window]

    @cached_property
    def by_rank(self) -> Callable[[int | None], Mapping[str, FloatArray]]:
        """What the chunks of each run come to on every SP rank, where prompts are split; columns are ranks."""
        known: dict[int | None, Mapping[str, FloatArray]] = {}
        plan, many = self.declared.plan.sp, len(self.runs)

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

    def at(self, replica: Int64Array, step: Int64Array, spread: FloatArray | None = None) -> Features:
        """Return the features of steps; ``replica`` is the first one where all take a step together.

        ``spread``, of shape (SP ranks, steps), tells how many sequences decode on each rank, where that is known.
        """
        return Features(self, replica, step, spread)

    @cached_property
    def chunks_of(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Starts and counts of chunks in the order of runs, as recorded within each, and where each run begins."""
        order = np.argsort(self.chunk_run, kind="stable")
        first = np.searchsorted(self.chunk_run[order], np.arange(len(self.runs) + 1))
        return self.start[order], self.count[order], first


class Features:
    """The features of some steps, each an array over these steps, worked out when first asked for."""

    def __init__(
        self, contents: Contents, replica: Int64Array, step: Int64Array, spread: FloatArray | None = None
    ) -> None:
        self.contents, self.declared, self.spread = contents, contents.declared, spread
        members = contents.declared.coordinates if contents.declared.together else 1
        self.run = np.stack([contents.runs.at(replica + one, step) for one in range(members)])
        runs = contents.runs
        self.slotted = (self.run >= 0) & (runs.slot[self.run] >= 0) if len(runs) else self.run >= 0
        self.place = np.where(self.slotted, runs.place[self.run] + step - runs.step[self.run], contents.places - 1)
        self._known: dict[tuple[str, int], FloatArray] = {}

    def __len__(self) -> int:
        return int(self.run.shape[1])

    @property
    def recorded(self) -> BoolArray:
        """Which of the steps are in the record."""
        found: BoolArray = np.all(self.run >= 0, axis=0)
        return found

    def get(self, name: str, s: int) -> FloatArray:
        """Return a feature at an SP coordinate."""
        key = (name, s)
        if key not in self._known:
            plain, _, half = name.partition("~")
            if half:
                self._known[key] = self._of_half(plain, s, int(half))
            elif self.declared.splits:
                self._known[key] = self._split(plain, s)
            else:
                self._known[key] = self._whole(plain, s)
        return self._known[key]

    @staticmethod
    def _window(name: str) -> tuple[str, int | None]:
        base, _, window = name.partition("@")
        return base, int(window) if window else None

    def decoding(self, s: int, window: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Return how many sequences of a replica decode, and the keys they attend to, without dummy batches."""
        count, keys = self.contents.decodes(window)
        here = self.slotted[s]
        return np.where(here, count[self.place[s]], 0.0), np.where(here, keys[self.place[s]], 0.0)

    def _prompt(self, name: str, s: int, window: int | None = None) -> Any:
        return self.contents.prompts(window)[name][self.run[s]]

    def changes_within(self, last: Features) -> BoolArray:
        """Return where the number of decodes is not the same in all steps from these to ``last``."""
        changes = self.contents.changes
        found = np.zeros(len(self), bool)
        for s, first in enumerate(self.place):
            found |= self.slotted[s] != last.slotted[s]
            found |= changes[np.maximum(first, last.place[s])] != changes[first]
        return found

    @cached_property
    def _dummies(self) -> tuple[FloatArray, FloatArray]:
        """Which replicas bring a dummy batch: of one prompt token, or of a sequence that begins to decode."""
        decodes = np.stack([self.decoding(s)[0] for s in range(len(self.run))])
        idle = (decodes == 0) & (np.stack([self._prompt("chunks", s) for s in range(len(self.run))]) == 0)
        any_decodes = (decodes > 0).any(axis=0)
        return (idle & ~any_decodes).astype(np.float64), (idle & any_decodes).astype(np.float64)

    def _whole(self, name: str, s: int) -> Any:
        """Return a feature where a replica has whole prompts."""
        together = self.declared.together
        prompt, decode = (each[s] for each in self._dummies) if together else (0.0, 0.0)
        base, window = self._window(name)
        if base == "decode_keys":
            return self.decoding(s, window)[1] + decode
        if base in ("pairs", "prefill_keys"):
            return self._prompt("pairs" if base == "pairs" else "keys", s, window) + prompt
        decodes = self.decoding(s)[0] + decode
        new, chunks = self._prompt("new", s) + prompt, self._prompt("chunks", s) + prompt
        match name:
            case "tokens":
                return new + decodes
            case "prefill_tokens":
                return new
            case "decode_sequences":
                return decodes
            case "rows" | "sequences":
                return chunks + decodes
            case "stage_tokens" | "peak_tokens":
                each = [self.get("tokens", one) for one in range(len(self.run))]
                return np.sum(each, axis=0) if name == "stage_tokens" else np.max(each, axis=0)
        return np.full(len(self), np.nan)  # steps of this plan have no such thing

    def _split(self, name: str, s: int) -> Any:
        """Return a feature where the tokens of prompts are split over ranks, and one rank decodes, or all do."""
        run, sp = self.run[0], self.declared.plan.sp
        base, window = self._window(name.partition("#")[0].rstrip("*"))
        ranks = self.contents.by_rank(window)
        decodes, keys = self.decoding(0, window)
        if self.declared.spreads:
            own = np.where(decodes == 0, 0.0, np.nan) if self.spread is None else self.spread[s]
            keys = np.where(own == 0, 0.0, np.where(own == decodes, keys, np.nan))
        else:
            own, keys = (each if s == 0 else np.zeros(len(self)) for each in (decodes, keys))
        if base == "decode_keys":
            return keys
        if base in ("pairs", "prefill_keys"):
            if name.endswith("*"):
                return self._prompt("pairs" if base == "pairs" else "keys", 0, window)
            step = name.partition("#")[2]
            if not step:
                return ranks[base][run, s]
            return ranks[f"{base}#"][run, s * sp.degree + (s - int(step)) % sp.degree]
        new, context = self._prompt("new", 0), self._prompt("context", 0)
        match name:
            case "tokens":
                return ranks["new"][run, s] + own
            case "prefill_tokens":
                return ranks["new"][run, s]
            case "decode_sequences":
                return own
            case "rows":
                return ranks["last"][run, s] + own
            case "stage_tokens":
                return new + decodes
            case "peak_tokens":
                each = [self.get("tokens", one) for one in range(sp.degree)]
                return np.max(each, axis=0)
            case "segment_tokens":
                return ranks["new"][run].max(axis=1)
            case "all_prefill_tokens":
                return new
            case "context_tokens":
                return context
            case "exposed_tokens":
                return context + new
            case "ring_tokens":
                return ranks["new"][run].max(axis=1) + context
            case "sequences":
                return self._prompt("chunks", 0) + decodes
        return np.full(len(self), np.nan)  # steps of this plan have no such thing

    @cached_property
    def _halves(self) -> list[tuple[FloatArray, FloatArray]]:
        """Return, by replica, how many decodes and how many chunks are in the first half of each step."""
        _, counts, first = self.contents.chunks_of
        found = []
        for s, run in enumerate(self.run):
            decodes = self.decoding(s)[0].astype(np.int64)
            cut = decodes // 2
            prompts = np.zeros(len(self), np.int64)
            for at in np.flatnonzero(first[run + 1] > first[run]).tolist():
                tokens = [1] * int(decodes[at]) + counts[first[run[at]] : first[run[at] + 1]].tolist()
                before = np.cumsum(tokens)
                whole = 1 + int(np.argmin(np.abs(before[-1] - 2 * before[:-1]))) if len(tokens) > 1 else len(tokens)
                cut[at] = min(whole, decodes[at])
                prompts[at] = whole - cut[at]
            found.append((cut.astype(np.float64), prompts.astype(np.float64)))
        return found

    def _of_half(self, name: str, s: int, half: int) -> Any:
        if name in ("stage_tokens", "peak_tokens"):
            each = [self.get(f"tokens~{half}", one) for one in range(len(self.run))]
            return np.sum(each, axis=0) if name == "stage_tokens" else np.max(each, axis=0)
        decodes, cut = self.decoding(s)[0], self._halves[s][0]
        decodes = cut if half == 1 else decodes - cut
        if name == "decode_sequences":
            return decodes
        if name.startswith("decode_keys"):  # which sequences are in which half is not recorded
            whole, keys = self.decoding(s, self._window(name)[1])
            return np.where(decodes == 0, 0.0, np.where(decodes == whole, keys, np.nan))
        prompt = self._half_prompts(self._window(name)[1])
        sums = {key: values[half - 1][s] for key, values in prompt.items()}
        base = self._window(name)[0]
        if base in ("pairs", "prefill_keys"):
            return sums["pairs" if base == "pairs" else "keys"]
        match name:
            case "tokens":
                return sums["new"] + decodes
            case "prefill_tokens":
                return sums["new"]
            case "rows" | "sequences":
                return sums["chunks"] + decodes
        return np.full(len(self), np.nan)  # steps of this plan have no such thing

    def _half_prompts(self, window: int | None) -> Mapping[str, FloatArray]:
        """Return sums over the chunks of each half: arrays of shape (2, replicas, steps)."""
        starts, counts, first = self.contents.chunks_of
        each: Prompts = prompts_of(starts, counts, window)
        found = {}
        for name, values in each.items():
            upto = np.concatenate(([0.0], np.cumsum(values)))
            low, high = first[self.run], first[self.run + 1]
            middle = low + np.stack([prompts for _, prompts in self._halves]).astype(np.int64)
            found[name] = np.stack((upto[middle] - upto[low], upto[high] - upto[middle]))
        return found
