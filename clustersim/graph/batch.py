"""What one step carries, and the numbers (*features*) that the graph's amounts are linear forms of.

Features, each a number per SP rank:

========================  ======================================================================
``tokens``                new tokens (prefill segment + decode sequences)
``prefill_tokens``        new prompt tokens of the rank's segments
``decode_sequences``      sequences that decode on the rank
``rows``                  sequences whose last token is on the rank (rows of the LM head)
``pairs``                 attended (query, key) pairs of prefill
``prefill_keys``          keys that prefill attention reads
``decode_keys``           keys that decode attention reads, the new token included
``stage_tokens``          tokens over all SP ranks; ``peak_tokens`` the most on one
``segment_tokens``        most prefill tokens on one SP rank; ``all_prefill_tokens`` the sum
``context_tokens``        tokens cached before this step, of the sequences in prefill
``exposed_tokens``        context + new tokens of the sequences in prefill
``sequences``             sequences in the batch
``ring_tokens``           most tokens whose K/V one SP rank passes on in a ring step
========================  ======================================================================

Attention features take a suffix: ``@W`` for a sliding window of W, ``#j`` for the j-th step of a ring, ``*`` for
all tokens of the step. Of a step of two halves (:mod:`clustersim.graph.passes.two_batch`) each half's features are
there too, as ``tokens~1`` and ``tokens~2``; those without such an ending are of both.
"""

from __future__ import annotations

import math
from dataclasses import field, replace

from clustersim.graph.blueprint import StepKind
from clustersim.graph.turns import half_feature
from clustersim.plan.parallel import SequencePlan
from clustersim.plan.segments import Segment, causal_pairs, count_between, later, segments
from clustersim.values import dataclass

Features = dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The part of a prompt that a step prefills: tokens [start, start + count); owned by an SP rank."""

    request: int
    start: int
    count: int
    owner: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One micro-batch of one step.

    Parameters
    ----------
    chunks : tuple of Chunk
        Prompt chunks, one per sequence.
    decode_sequences : tuple of int
        Sequences that decode on each SP rank.
    decode_keys : tuple of int
        Sum over those of the keys that they attend to (context + the new token).
    windowed_keys : dict
        The same per sliding window: window → per SP rank.
    halves : tuple of StepBatch
        The two halves that overlap; empty where the step is one micro-batch.
    """

    chunks: tuple[Chunk, ...] = ()
    decode_sequences: tuple[int, ...] = (0,)
    decode_keys: tuple[int, ...] = (0,)
    windowed_keys: dict[int, tuple[int, ...]] = field(default_factory=dict)
    halves: tuple[StepBatch, ...] = ()

    @property
    def program(self) -> str:
        """Which of a plan's programs runs it: its kind, or ``decode+decode`` of two halves."""
        return "+".join([half.kind for half in self.halves]) or self.kind

    @property
    def kind(self) -> StepKind:
        """``prefill``, ``decode`` or ``mixed``."""
        if not self.chunks:
            return "decode"
        return "mixed" if any(self.decode_sequences) else "prefill"

    @property
    def prefill_tokens(self) -> int:
        """New prompt tokens."""
        return sum(chunk.count for chunk in self.chunks)

    @property
    def num_decodes(self) -> int:
        """Sequences that decode."""
        return sum(self.decode_sequences)


def features_of(batch: StepBatch, sp: SequencePlan, windows: tuple[int, ...] = ()) -> Features:
    """Return every feature of a batch, one value per SP rank.

    Parameters
    ----------
    batch : StepBatch
    sp : SequencePlan
    windows : tuple of int
        Sliding windows of the model.
    """
    if batch.halves:
        found = features_of(replace(batch, halves=()), sp, windows)
        for number, half in enumerate(batch.halves):
            own = features_of(half, sp, windows)
            found |= {half_feature(name, number + 1): values for name, values in own.items()}
        return found
    if sp.whole:
        return _apart(batch, sp.degree, windows)
    return _whole(batch, windows) if sp.degree == 1 else _split(batch, sp, windows)


def _whole(batch: StepBatch, windows: tuple[int, ...]) -> Features:
    """Return the features of a batch whose prompts are not split; equal to :func:`_split` at degree 1."""
    chunks = batch.chunks
    new, context = float(batch.prefill_tokens), float(sum([chunk.start for chunk in chunks]))
    decodes, keys = float(batch.decode_sequences[0]), float(batch.decode_keys[0])
    tokens, sequences, exposed = new + decodes, decodes + len(chunks), context + new
    found: Features = {
        "tokens": (tokens,),
        "prefill_tokens": (new,),
        "decode_sequences": (decodes,),
        "rows": (sequences,),
        "decode_keys": (keys,),
        "stage_tokens": (tokens,),
        "peak_tokens": (tokens,),
        "segment_tokens": (new,),
        "all_prefill_tokens": (new,),
        "context_tokens": (context,),
        "exposed_tokens": (exposed,),
        "ring_tokens": (exposed,),
        "sequences": (sequences,),
    }
    for window in windows:
        found[f"decode_keys@{window}"] = (float(batch.windowed_keys.get(window, batch.decode_keys)[0]),)
    for window_or_none in (None, *windows) if chunks else ():
        suffix = "" if window_or_none is None else f"@{window_or_none}"
        spans = [((chunk.start, chunk.start + chunk.count), (0, chunk.start + chunk.count)) for chunk in chunks]
        pairs = (float(sum([causal_pairs(queries, seen, window_or_none) for queries, seen in spans])),)
        attended = (float(sum([_keys(chunk, window_or_none) for chunk in chunks])),)
        found |= {f"pairs{suffix}{part}": pairs for part in ("", "*", "#0")}
        found |= {f"prefill_keys{suffix}{part}": attended for part in ("", "*", "#0")}
    return found


def _apart(batch: StepBatch, degree: int, windows: tuple[int, ...]) -> Features:
    """Return the features of replicas in lockstep: each has whole prompts of its own; only experts see all tokens."""
    mine: list[list[Chunk]] = [[] for _ in range(degree)]
    for chunk in batch.chunks:
        mine[chunk.owner].append(chunk)
    parts = [
        _whole(
            StepBatch(
                chunks=tuple(mine[s]),
                decode_sequences=batch.decode_sequences[s : s + 1],
                decode_keys=batch.decode_keys[s : s + 1],
                windowed_keys={window: keys[s : s + 1] for window, keys in batch.windowed_keys.items()},
            ),
            windows,
        )
        for s in range(degree)
    ]
    names = dict.fromkeys(name for part in parts for name in part)
    found = {name: tuple([part.get(name, (0.0,))[0] for part in parts]) for name in names}
    tokens = found["tokens"]
    return found | {"stage_tokens": (math.fsum(tokens),) * degree, "peak_tokens": (max(tokens),) * degree}


def _split(batch: StepBatch, sp: SequencePlan, windows: tuple[int, ...]) -> Features:
    degree = sp.degree
    parts = [segments(chunk.count, degree, sp.partition or "contiguous") for chunk in batch.chunks]
    prefill = [sum(len(range(*run)) for part in parts for run in part[s]) for s in range(degree)]
    decodes = batch.decode_sequences + (0,) * (degree - len(batch.decode_sequences))
    keys = batch.decode_keys + (0,) * (degree - len(batch.decode_keys))
    tokens = [p + d for p, d in zip(prefill, decodes, strict=True)]
    last = [_holder(part, chunk.count) for part, chunk in zip(parts, batch.chunks, strict=True)]
    context = sum(chunk.start for chunk in batch.chunks)
    new = sum(chunk.count for chunk in batch.chunks)

    def everywhere(value: float) -> tuple[float, ...]:
        return (float(value),) * degree

    found: Features = {
        "tokens": tuple(map(float, tokens)),
        "prefill_tokens": tuple(map(float, prefill)),
        "decode_sequences": tuple(map(float, decodes)),
        "rows": tuple(float(decodes[s] + last.count(s)) for s in range(degree)),
        "decode_keys": tuple(map(float, keys)),
        "stage_tokens": everywhere(sum(tokens)),
        "peak_tokens": everywhere(max(tokens)),
        "segment_tokens": everywhere(max(prefill)),
        "all_prefill_tokens": everywhere(new),
        "context_tokens": everywhere(context),
        "exposed_tokens": everywhere(context + new),
        "ring_tokens": everywhere(max(prefill) + context),
        "sequences": everywhere(sum(decodes) + len(batch.chunks)),
    }
    for window in windows:
        windowed = batch.windowed_keys.get(window, batch.decode_keys)
        found[f"decode_keys@{window}"] = tuple(map(float, windowed)) + (0.0,) * (degree - len(windowed))
    if batch.chunks:
        for window_or_none in (None, *windows):
            found |= _prefill_features(batch.chunks, parts, degree, window_or_none)
    return found


def _holder(part: list[tuple[Segment, ...]], count: int) -> int:
    """Return the SP rank that has the last of ``count`` tokens."""
    return next(s for s, runs in enumerate(part) if any(count - 1 in range(*run) for run in runs))


def _keys(chunk: Chunk, window: int | None) -> int:
    """Return the keys that all tokens of a chunk attend to together."""
    keys = chunk.start + chunk.count
    return keys if window is None else min(keys, chunk.count + window - 1)


def _prefill_features(
    chunks: tuple[Chunk, ...], parts: list[list[tuple[Segment, ...]]], degree: int, window: int | None
) -> Features:
    suffix = "" if window is None else f"@{window}"
    pairs = [[0] * degree for _ in range(degree)]  # [query rank][key rank]
    reads = [[0] * degree for _ in range(degree)]
    seen = [0] * degree
    for chunk, part in zip(chunks, parts, strict=True):
        start = chunk.start
        held = [[later(run, start) for run in runs] for runs in part]
        for s, mine in enumerate(held):
            tokens = [run for run in (range(*run) for run in mine) if run]
            if not tokens:
                continue
            top = max(run[-1] for run in tokens) + 1
            floor = 0 if window is None else max(0, min(run[0] for run in tokens) - window + 1)
            seen[s] += top - floor
            for source in range(degree):
                theirs = held[source]
                if source == chunk.owner and start > 0:
                    theirs = [(0, start), *theirs]
                pairs[s][source] += sum(causal_pairs(q, k, window) for q in mine for k in theirs)
                reads[s][source] += sum(count_between(run, floor, top) for run in theirs)
    found: Features = {
        f"pairs{suffix}": tuple(float(sum(row)) for row in pairs),
        f"prefill_keys{suffix}": tuple(map(float, seen)),
        f"pairs{suffix}*": (float(sum(map(sum, pairs))),) * degree,
        f"prefill_keys{suffix}*": (float(sum(_keys(chunk, window) for chunk in chunks)),) * degree,
    }
    for step in range(degree):
        sender = [(s - step) % degree for s in range(degree)]
        found[f"pairs{suffix}#{step}"] = tuple(float(pairs[s][sender[s]]) for s in range(degree))
        found[f"prefill_keys{suffix}#{step}"] = tuple(float(reads[s][sender[s]]) for s in range(degree))
    return found
