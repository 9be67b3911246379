"""PH-2: what a step says of its batch (kind, size, slot) is what its own chunks and decodes are."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import KINDS, Declared
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading

PREFILL, DECODE, MIXED = (KINDS.index(kind) for kind in ("prefill", "decode", "mixed"))


def carried(reading: Reading) -> tuple[Int64Array, Int64Array]:
    """Return how many chunks, and how many sequences that decode, each run of steps carries in every step."""
    pieces, runs = reading.pieces, reading.runs
    assert pieces is not None
    assert runs is not None
    chunks = np.bincount(pieces.first_run[pieces.is_chunk], minlength=len(runs))
    decodes, many = ~pieces.is_chunk, len(runs.slotted) + 1
    change = np.bincount(runs.rank_in_slots[pieces.first_run[decodes]] % many, minlength=many)  # −1 is the last one
    change -= np.bincount(runs.rank_in_slots[pieces.last_run[decodes]] + 1, minlength=many)
    found = np.zeros(len(runs), np.int64)
    found[runs.slotted] = np.cumsum(change[:-1])
    return chunks, found


def as_carried(reading: Reading) -> Finding:
    """Judge kinds, batch sizes and slots of steps.

    A step that carries a sequence twice is told as that (PH-2), and one whose tokens are not those of its chunks and
    decodes by its tokens (KV-3, PH-2).
    """
    pieces, runs = reading.pieces, reading.runs
    if pieces is None or runs is None or pieces.astray:
        return NOTHING
    chunks, decodes = carried(reading)
    clear = np.ones(len(runs), bool)
    clear[pieces.first_run[reading.twice]] = False
    added = np.bincount(pieces.first_run, weights=pieces.is_chunk * pieces.count, minlength=len(runs))
    for name, has in (("prefill_tokens", added), ("decode_tokens", decodes)):
        told = runs.column(name)
        clear &= True if told is None else told == has

    findings = []
    size = runs.column("batch_requests")
    if size is not None:
        findings.append(judged(
            len(runs), clear & (size != chunks + decodes), Rows(runs),
            "says that it carries {size:,} sequences, and has {chunks:,} prompt chunks and {decodes:,} sequences that "
            "decode",
            "count each sequence of a step once", size=size, chunks=chunks, decodes=decodes,
        ))  # fmt: skip
    kind = runs.column("kind")
    if kind is not None:
        findings.append(_kinds(reading, kind, chunks > 0, decodes > 0, clear))
    findings.append(judged(
        0, clear & (runs.slot >= 0) & (decodes == 0), Rows(runs),
        "names micro-batch {slot} of decodes, and decodes no sequence",
        "name the micro-batch of a step that decodes, and none of others",
    ))  # fmt: skip
    return merged(*findings)


def _together(reading: Reading) -> tuple[Int64Array, Int64Array]:
    """Return the pool of each step, and how many replicas may share the step, so that it is what any of them brings.

    Where the degrees were not declared, there are as many replicas as took steps.
    """
    runs = reading.runs
    assert runs is not None
    pools = reading.history.pools
    at = np.searchsorted([declared.first_replica for declared in pools], runs.replica, side="right") - 1
    took = [len(np.unique(runs.replica[at == pool])) for pool in range(len(pools))]
    many = [1 if _share(one) is False else max(one.dp, took[pool]) for pool, one in enumerate(pools)]
    return at, np.array(many, np.int64)[at]


def _share(declared: Declared) -> bool | None:
    """Return whether the replicas of a pool share experts; None where nobody said it, or of how many ranks' experts."""
    if declared.ep_scope == "replica":
        return False
    if declared.ep_scope is None or (declared.ep == 1 and declared.deployment is None):
        return None
    return declared.ep > 1


def _due(prefills: BoolArray, decodes: BoolArray) -> Int64Array:
    return np.where(prefills & decodes, MIXED, np.where(prefills, PREFILL, DECODE))


def _kinds(reading: Reading, kind: Int64Array, prefills: BoolArray, decodes: BoolArray, clear: BoolArray) -> Finding:
    """Judge kinds; replicas in lockstep share the kind of a step, and one that idles has a dummy batch in it."""
    runs = reading.runs
    assert runs is not None
    (pool, many), told = _together(reading), NOTHING
    own, has = _due(prefills, decodes), prefills | decodes
    if (many > 1).any():
        key = np.where(many > 1, (pool << 40) + runs.step, -1 - np.arange(len(runs)))
        steps = Groups(key)
        of = steps.find(key)
        whole = (steps.counts[of] == many) & (steps.least(runs.count) == steps.most(runs.count))[of]
        said = all(_share(declared) is not None for declared in reading.history.pools)
        prefills, decodes = (steps.most(some.astype(np.int64))[of] > 0 for some in (prefills, decodes))
        if not whole.all():
            told = lacking("which kind steps are that replicas share (not all of them recorded the same steps)")
        elif not said and (_due(prefills, decodes) != own).any():
            told = lacking(
                "whether replicas share experts, so that all of them take steps of one kind: say ep_scope and ep"
            )
        lacks_own = has & (kind != own) & (kind != MIXED)  # whoever takes the step as well
        clear = clear & (lacks_own | (whole & (said | (kind != own))))
    due = _due(prefills, decodes)
    nothing = ~prefills & ~decodes
    if runs.column("prefill_tokens") is not None and runs.column("decode_tokens") is not None:
        clear = clear & ~nothing  # it says itself that it has none

    words = (
        "is told as a {kind} step, and what it carries makes a {due} step",
        "is told as a {kind} step, and carries no sequence",
    )
    kinds = judged(
        len(runs), clear & ((kind != due) | nothing), Rows(runs), Rows(words, nothing),
        "call a step with chunks alone prefill, with decodes alone decode, with both mixed", kind=Rows(KINDS, kind),
        due=Rows(KINDS, due),
    )  # fmt: skip
    return merged(kinds, told)
