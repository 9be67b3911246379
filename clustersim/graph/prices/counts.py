"""What tells a step from another one: its features as whole numbers, each once.

A replica without SP is told by seven sums over its batch (:data:`ALIASES`) and by what attends, replicas in lockstep by
those of each and the tokens of all. Where prompts are split over SP ranks each rank has its own: a sum over prompt
chunks but for a few sums and maxima of that. What a chunk adds is a function of its tokens; where it goes on with a
prompt, each token of the context adds as much to what is attended to, so that a chunk behind one token tells of all
(not within sliding windows: there each context is looked up by itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from clustersim.graph.batch import Chunk, Features, StepBatch, features_of
from clustersim.graph.prices.table import SENT
from clustersim.graph.program import CostClass
from clustersim.plan.parallel import SequencePlan

ALIASES: Final = (
    ("tokens", "stage_tokens", "peak_tokens"),
    ("sequences", "rows"),
    ("prefill_tokens", "segment_tokens", "all_prefill_tokens"),
    ("decode_sequences",),
    ("context_tokens",),
    ("exposed_tokens", "ring_tokens"),
    ("prefill_keys", "prefill_keys*", "prefill_keys#0"),
)
"""Features that are equal where there is no SP (``graph.batch``)."""
COUNTS: Final = {name: place for place, names in enumerate(ALIASES) for name in names}
"""Feature → which of the counts of a step without SP it is."""
OF_TOKENS: Final = "stage_tokens", "peak_tokens"
"""Features of all replicas in lockstep together: the tokens of all, and the most of one."""

BY_RANK: Final = ("tokens", "prefill_tokens", "decode_sequences", "rows")
"""Features of which each SP rank has its own, besides what attends."""
ALIKE: Final = (
    "stage_tokens", "peak_tokens", "segment_tokens", "all_prefill_tokens", "context_tokens", "exposed_tokens",
    "ring_tokens", "sequences",
)  # fmt: skip
"""Features that are the same on all of them."""
MOST_CHUNKS: Final = 1 << 15
"""Chunks that are remembered."""


class Counts:
    """Where the counts of a step have its features.

    Parameters
    ----------
    places : mapping
        Feature → its place by SP coordinate.
    """

    def __init__(self, places: Mapping[str, Sequence[int]]) -> None:
        self.places = places

    def place(self, name: str, s: int) -> int | None:
        """Return where a feature of an SP coordinate is; None where counts don't tell it."""
        found = self.places.get(name)
        return None if found is None else found[s]

    def features(self, counts: Sequence[int], names: Iterable[str] | None = None) -> Features:
        """Return the features of these names, or all, at all SP coordinates."""
        wanted = self.places if names is None else names
        return {name: tuple([float(counts[at]) for at in self.places[name]]) for name in wanted}


def fields(windows: Sequence[int]) -> tuple[tuple[str, ...], ...]:
    """Return the names of each count of a batch without SP: sums, and what attends without and within windows."""
    near = [((f"pairs@{one}",), (f"prefill_keys@{one}",), (f"decode_keys@{one}",)) for one in windows]
    return (*ALIASES, ("pairs",), ("decode_keys",), *[names for each in near for names in each])


def whole_counts(windows: Sequence[int]) -> Counts:
    """Return where a batch without SP has its features."""
    return Counts({name: (at,) for at, names in enumerate(fields(windows)) for name in names})


def lockstep_counts(windows: Sequence[int], replicas: int) -> Counts:
    """Return where a step of replicas in lockstep has its features: those of one behind the other, then of all."""
    names, every = fields(windows), range(replicas)
    places = {name: [s * len(names) + at for s in every] for at, own in enumerate(names) for name in own}
    return Counts(places | {name: [replicas * len(names) + at] * replicas for at, name in enumerate(OF_TOKENS)})


def count_features(counts: Sequence[int], places: Iterable[int]) -> Features:
    """Return the features that the counts at ``places`` of a step without SP tell."""
    return {name: (float(counts[place]),) for place in places for name in ALIASES[place]}


class SplitCounts(Counts):
    """Counts of the steps of one stage whose prompts are split over SP ranks.

    Parameters
    ----------
    sp : SequencePlan
    windows : tuple of int
        Sliding windows of the model.
    classes : iterable of CostClass
        All that the stage's steps consist of.
    """

    def __init__(self, sp: SequencePlan, windows: tuple[int, ...], classes: Iterable[CostClass]) -> None:
        self.sp = sp
        self.windows = windows
        attended: dict[str, None] = {}
        for cls in classes:
            if cls.node.op == "attention_prefill":
                attended |= dict.fromkeys((f"pairs{cls.node.variant}", f"prefill_keys{cls.node.variant}"))
            attended |= {name: None for name, _ in cls.node.amount if name == "prefill_keys"}
        self.sums = ("prefill_tokens", "rows", *attended)
        keys = ["decode_keys", *[f"decode_keys@{window}" for window in windows]]
        names, each = (*BY_RANK, *ALIKE, *attended, *keys, SENT), range(sp.degree)
        super().__init__(
            {name: [at * sp.degree + (0 if name in ALIKE else s) for s in each] for at, name in enumerate(names)}
        )
        self._known: dict[tuple[int, ...], list[int]] = {}

    def alone(self, *chunk: int) -> list[int]:
        """Return what the features are of a step of one chunk: those of :attr:`sums`, rank by rank."""
        found = self._known.get(chunk)
        if found is None:
            told = _features(chunk, self.sp, self.windows)
            if len(self._known) >= MOST_CHUNKS:
                self._known.clear()
            self._known[chunk] = found = [int(value) for name in self.sums for value in told[name]]
        return found


@lru_cache(maxsize=MOST_CHUNKS)
def _features(chunk: tuple[int, int, int], sp: SequencePlan, windows: tuple[int, ...]) -> Features:
    """Return the features of a step of one chunk; equal for all plans that split prompts alike."""
    start, count, owner = chunk
    return features_of(StepBatch(chunks=(Chunk(request=0, start=start, count=count, owner=owner),)), sp, windows)
