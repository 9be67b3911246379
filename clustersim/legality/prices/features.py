"""What steps have that prices depend on, their features, by name: tokens, rows, keys and pairs, whole or of a part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.prices.shares import prompts_of
from clustersim.legality.timeline_rules.views.pieces import BoolArray

if TYPE_CHECKING:  # contents make features
    from clustersim.legality.prices.contents import Contents

PROMPTS = {"pairs": "pairs", "prefill_keys": "keys", "prefill_tokens": "new"}
"""Features of prompt chunks alone, by what they sum."""


class Features:
    """The features of some steps, each an array over these steps, worked out when first asked for.

    Parameters
    ----------
    contents : Contents
    run, place : int64 arrays of shape (replicas in lockstep, steps)
        Run of each step, −1 where there is none, and its place in the order of its slot.
    """

    def __init__(self, contents: Contents, run: Int64Array, place: Int64Array) -> None:
        self.contents, self.deployment = contents, contents.deployment
        self.run, self.place = run, place
        self._known: dict[tuple[str, int], FloatArray] = {}
        self._decoding: dict[tuple[int, int | None], tuple[FloatArray, FloatArray]] = {}

    def __len__(self) -> int:
        return int(self.run.shape[1])

    def part(self, some: slice) -> Features:
        """Return the features of some of the steps, which are worked out for all of them."""
        return _Part(self, some)

    def going_on(self, of: Int64Array, index: Int64Array) -> Features:
        """Return the features of steps that come so many after those at ``of``, each in the same run as that one."""
        place = np.minimum(self.place[:, of] + index, self.contents.places - 1)
        return Features(self.contents, self.run[:, of], place)

    @cached_property
    def recorded(self) -> BoolArray:
        """Which of the steps are in the record."""
        found: BoolArray = np.all(self.run >= 0, axis=0)
        return found

    def get(self, name: str, s: int) -> FloatArray:
        """Return a feature at an SP coordinate."""
        key = (name, s)
        if key not in self._known:
            plain, _, half = name.partition("~")
            split = self.deployment.splits and not half
            self._known[key] = self._split(plain, s) if split else self._of_part(plain, s, int(half or 0))
        return self._known[key]

    @staticmethod
    def _window(name: str) -> tuple[str, int | None]:
        base, _, window = name.partition("@")
        return base, int(window) if window else None

    def decoding(self, s: int, window: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Return how many sequences of a replica decode, and the keys they attend to, without dummy batches."""
        if (s, window) not in self._decoding:
            count, keys = self.contents.decodes(window)
            self._decoding[s, window] = count[self.place[s]], keys[self.place[s]]
        return self._decoding[s, window]

    def _prompt(self, name: str, s: int, window: int | None = None) -> Any:
        return self.contents.prompts(window)[name][self.run[s]]

    def changes_within(self, last: Features) -> BoolArray:
        """Return where the number of decodes is not the same in all steps from these to ``last``."""
        changes, none = self.contents.changes, self.contents.places - 1
        found = np.zeros(len(self), bool)
        for first, end in zip(self.place, last.place, strict=True):
            found |= ((first == none) != (end == none)) | (changes[np.maximum(first, end)] != changes[first])
        return found

    @cached_property
    def _dummies(self) -> tuple[FloatArray, FloatArray]:
        """Which replicas bring a dummy batch: of one prompt token, or of a sequence that begins to decode."""
        decodes = np.stack([self.decoding(s)[0] for s in range(len(self.run))])
        idle = (decodes == 0) & (np.stack([self._prompt("chunks", s) for s in range(len(self.run))]) == 0)
        any_decodes = (decodes > 0).any(axis=0)
        return (idle & ~any_decodes).astype(np.float64), (idle & any_decodes).astype(np.float64)

    @cached_property
    def _most_decodes(self) -> FloatArray:
        """The most sequences that decode on a replica."""
        found: FloatArray = np.max([self._decodes(s, None, 0)[0] for s in range(len(self.run))], axis=0)
        return found

    @cached_property
    def _captured(self) -> BoolArray:
        """Which steps run as captured graphs with padding: they only decode, and not too much on any replica."""
        engine = self.deployment.engine
        if not engine.graph_sizes:
            return np.zeros(len(self), bool)
        only = np.all([self._prompt("chunks", s) == 0 for s in range(len(self.run))], axis=0)
        found: BoolArray = only & (self._most_decodes > 0) & (self._most_decodes <= engine.graph_max_tokens)
        return found

    def _with_padding(self, tokens: FloatArray, whole: FloatArray, half: int = 0) -> FloatArray:
        """Return the tokens that are computed for those of a replica, or of a half of the ``whole``.

        Replicas in lockstep are padded as the fullest one; a half has half of that. A rank without any stays empty.
        """
        engine = self.deployment.engine
        if not self._captured.any():
            return tokens
        most = self._most_decodes if self.deployment.together else whole
        size = np.full(len(tokens), np.inf)
        for sizes in reversed(engine.graph_sizes):
            up = np.ceil(most / sizes.by) * sizes.by
            size = np.where(up <= (np.inf if sizes.upto is None else sizes.upto), up, size)
        size = np.minimum(size, engine.graph_max_tokens)
        if half:
            size = size // 2 if half == 1 else size - size // 2
        computes = self._captured if self.deployment.together else self._captured & (tokens > 0)
        return np.where(computes, size, tokens)

    def _of_part(self, name: str, s: int, half: int) -> Any:
        """Return a feature of whole steps (0), or of one half of them, where a replica has whole prompts."""
        base, window = self._window(name)

        def prompts(what: str) -> Any:
            if half:
                return self._half_prompts(window)[what][half - 1][s]
            found = self._prompt(what, s, window)
            return found + self._dummies[0][s] if self.deployment.together else found

        match base:
            case "decode_keys":
                return self._decodes(s, window, half)[1]
            case "pairs" | "prefill_keys" | "prefill_tokens":
                return prompts(PROMPTS[base])
            case "tokens":
                tokens = prompts("new") + self._decodes(s, None, half)[0]
                return self._with_padding(tokens, self._decodes(s, None, 0)[0] if half else tokens, half)
            case "decode_sequences":
                return self._decodes(s, None, half)[0]
            case "rows" | "sequences":
                return prompts("chunks") + self._decodes(s, None, half)[0]
            case "stage_tokens" | "peak_tokens":
                tokens = f"tokens~{half}" if half else "tokens"
                each = [self.get(tokens, one) for one in range(len(self.run))]
                return np.sum(each, axis=0) if base == "stage_tokens" else np.max(each, axis=0)
        return np.full(len(self), np.nan)  # steps of this plan have no such thing

    def _decodes(self, s: int, window: int | None, half: int) -> tuple[Any, Any]:
        """Return how many sequences of a part decode, and the keys they attend to; NaN where that is not recorded."""
        whole, keys = self.decoding(s, window)
        if not half:
            dummy = self._dummies[1][s] if self.deployment.together else None
            return (whole, keys) if dummy is None else (whole + dummy, keys + dummy)
        cut = self._halves[s][0]
        many = cut if half == 1 else whole - cut
        return many, np.where(many == 0, 0.0, np.where(many == whole, keys, np.nan))

    def _split(self, name: str, s: int) -> Any:
        """Return a feature where the tokens of prompts are split over ranks, and one rank decodes, or all do."""
        run, sp = self.run[0], self.deployment.plan.sp
        base, window = self._window(name.partition("#")[0].rstrip("*"))
        ranks = self.contents.by_rank(window)
        decodes, keys = self.decoding(0, window)
        if self.deployment.spreads:
            own, keys = (each[self.place[0]] for each in self.contents.decodes_of(s, window))
        else:
            own, keys = (each if s == 0 else np.zeros(len(self)) for each in (decodes, keys))
        if base == "decode_keys":
            return keys
        if base in ("pairs", "prefill_keys"):
            if name.endswith("*"):
                return self._prompt(PROMPTS[base], 0, window)
            step = name.partition("#")[2]
            if not step:
                return ranks[base][run, s]
            if f"{base}#" not in ranks:  # of a ring, which this plan has not
                return np.full(len(self), np.nan)
            return ranks[f"{base}#"][run, s * sp.degree + (s - int(step)) % sp.degree]
        new, context = self._prompt("new", 0), self._prompt("context", 0)
        match name:
            case "tokens":
                tokens = ranks["new"][run, s] + own
                return self._with_padding(tokens, tokens)
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

    def _half_prompts(self, window: int | None) -> Mapping[str, FloatArray]:
        """Return sums over the chunks of each half: arrays of shape (2, replicas, steps)."""
        starts, counts, first = self.contents.chunks_of
        found = {}
        for name, values in prompts_of(starts, counts, window).items():
            upto = np.concatenate(([0.0], np.cumsum(values)))
            low, high = first[self.run], first[self.run + 1]
            middle = low + np.stack([prompts for _, prompts in self._halves]).astype(np.int64)
            found[name] = np.stack((upto[middle] - upto[low], upto[high] - upto[middle]))
        return found


class _Part(Features):
    """The features of some steps among others."""

    def __init__(self, whole: Features, some: slice) -> None:
        super().__init__(whole.contents, whole.run[:, some], whole.place[:, some])
        self._whole, self._some = whole, some

    def get(self, name: str, s: int) -> FloatArray:
        """Return a feature at an SP coordinate."""
        return self._whole.get(name, s)[self._some]
