"""The work that a run's tokens need of a model, whatever the plan: FLOPs, and keys that attention reads.

Counted from requests and prompt chunks in closed form, not from steps, so it costs the same at any scale.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import by_parts, parts
from clustersim.model.architecture import Layer, ModelSpec
from clustersim.model.work import module_flops
from clustersim.timeline.tables import Table
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Computed:
    """What was computed of each request, int64 arrays of shape (requests,).

    Parameters
    ----------
    first, prompt, last : int64 array
        Positions [first, prompt) were computed as prompt, [prompt, last) as output: each counts once, however often a
        preemption had it computed anew. ``first`` is above 0 where a prefix was reused.
    generated : int64 array
        Tokens generated: rows of the LM head.
    """

    first: Int64Array
    prompt: Int64Array
    last: Int64Array
    generated: Int64Array


def computed_positions(prompt_tokens: Int64Array, generated: Int64Array, chunks: Table) -> Computed:
    """Return what was computed of each request.

    Parameters
    ----------
    prompt_tokens, generated : int64 arrays of shape (requests,)
        By number of request.
    chunks : Table
        Of a timeline.
    """
    count = len(prompt_tokens)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.zeros(count, np.int64)
    for some in parts(len(chunks["start"]), 8):
        start = chunks["start"][some].astype(np.int64)  # of the type of what it goes into: of another this takes longer
        np.minimum.at(first, chunks["request"][some], start)
        np.maximum.at(last, chunks["request"][some], start + chunks["count"][some])
    for some in parts(count, 8):
        # the last token generated is never computed; every one before it is
        given = prompt_tokens[some] + generated[some] - 1
        np.maximum(last[some], np.where(generated[some] > 0, given, 0), out=last[some])
        np.minimum(first[some], last[some], out=first[some])
    prompt = by_parts("int64", count, lambda some: np.clip(prompt_tokens[some], first[some], last[some]))
    return Computed(first=first, prompt=prompt, last=last, generated=generated)


def causal_pairs(first: Int64Array, last: Int64Array, window: int | None = None) -> int:
    """Return the (query, key) pairs of the positions [first, last) of each request, summed.

    Position p, counted from 0, attends to the p + 1 keys up to its own, at most ``window`` of them.

    Examples
    --------
    >>> causal_pairs(np.array([0, 9]), np.array([4, 10])), causal_pairs(np.array([0]), np.array([4]), window=2)
    (20, 7)
    """
    return sum(
        int((_pairs_before(last[some], window) - _pairs_before(first[some], window)).sum())
        for some in parts(len(first), 8)
    )


def _pairs_before(position: Int64Array, window: int | None) -> Int64Array:
    """Pairs of the positions [0, position) of a request."""
    whole = np.asarray(position, np.int64)
    growing = whole if window is None else np.minimum(whole, window)
    pairs: Int64Array = growing * (growing + 1) // 2
    return pairs if window is None else pairs + (whole - growing) * window


def model_flops(model: ModelSpec, computed: Computed) -> int:
    """Return the FLOPs that one forward pass of the model over all computed tokens needs.

    Every position whose K/V entries were computed counts once: its products with the weights (2 per parameter that it
    visits), and 2 FLOPs per head dimension and attended key for scores and for values, causally; and one row of the LM
    head per generated token. This is the count of PaLM [1]_ (appendix B: 6N + 12LHQT per trained token, a third of
    which is the forward pass), with exact causal pairs in place of the full square. Norms, activations, what padding,
    replicas of an operator or a second computation after a preemption cost is not model work, and not counted. MLA:
    prompts expand the latent, output tokens absorb the expansion, as engines do it.

    .. [1] Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B.
    """
    prompt_tokens = int(computed.prompt.sum()) - int(computed.first.sum())
    output_tokens = int(computed.last.sum()) - int(computed.prompt.sum())
    total = 2 * int(computed.generated.sum()) * model.hidden * model.vocab
    for layer, times in _alike(model.layers):
        window = layer.attention.sliding_window
        prompt_pairs = causal_pairs(computed.first, computed.prompt, window)
        output_pairs = causal_pairs(computed.prompt, computed.last, window)
        parts = (
            module_flops(model, layer, prompt_tokens, prompt_pairs),
            module_flops(model, layer, output_tokens, output_pairs, absorbed=True),
        )
        total += times * sum(sum(part.values()) for part in parts)
    return total


def cache_reads(model: ModelSpec, chunks: Table, prompt_tokens: Int64Array, generated: Int64Array) -> list[int]:
    """Return the tokens whose K/V entries attention of each layer reads from the cache in all steps together.

    A prompt chunk reads what was cached before it, once; the keys of the chunk itself are at hand. A decode reads all
    keys before its own. With a sliding window only keys within it are read. Chunks that are computed anew after a
    preemption read again.
    """
    found: dict[int | None, int] = {}
    made = int(generated.sum())
    for window in {layer.attention.sliding_window for layer in model.layers}:
        # each generated token had prompt + i − 1 known tokens before it (i from 1); those that chunks sampled are
        # no decodes, and a decode's own key is at hand
        reads = -made
        for some in parts(len(prompt_tokens), 8):
            first = prompt_tokens[some] - 1
            reads += causal_pairs(first, first + generated[some], window)
        for some in parts(len(chunks["start"]), 8):
            start, count = (chunks[name][some].astype(np.int64) for name in ("start", "count"))
            sampled = np.asarray(chunks["sampled"][some]).astype(np.bool_)
            of_chunks = start if window is None else np.minimum(start, window - 1)
            known = start[sampled] + count[sampled]
            of_sampled = int((known if window is None else np.minimum(known, window)).sum())
            reads += int(of_chunks.sum()) - of_sampled + int(sampled.sum())
        found[window] = reads
    return [found[layer.attention.sliding_window] for layer in model.layers]


def _alike(layers: tuple[Layer, ...]) -> list[tuple[Layer, int]]:
    """Return each distinct layer and how often it occurs."""
    counts: dict[Layer, int] = {}
    distinct = {id(layer): layer for layer in layers}  # most are one object
    for key, times in Counter(map(id, layers)).items():
        counts[distinct[key]] = counts.get(distinct[key], 0) + times
    return list(counts.items())
