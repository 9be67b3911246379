"""KV-2, KV-3, PP-6, EP-4, EP-5: what comes before what inside a layer and from layer to layer, on every rank."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.timeline_rules.operators.layers import every_layer_once
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.sheet import COMPUTE, Sheet, of_structure

MOE_ORDER: Final = (
    ("gate",), ("dispatch",), ("expert_",), ("combine",), ("aggregate",), ("shared_add",), ("moe_post_norm",),
    ("moe_add",),
)  # fmt: skip

ATTENDS: Final = ("attention_prefill", "attention_decode")
BRINGS: Final = ("kv_write", "kv_move", "kv_all_gather", "kv_ring", "qkv_all_to_all")
"""Operators behind which entries can be read."""

NEEDED: Final = {"dispatch": "a dispatch of its layer and step", "expert_": "the experts of its layer and step"}


def _before(sheet: Sheet, earlier: BoolArray, later: BoolArray, fix: str, *, needed: str = "") -> Finding:
    """Judge, site by site, whether all of ``earlier`` ends before any of ``later`` starts.

    ``needed`` names what must be there where something of ``later`` is; empty: it may lack.
    """
    first, second = np.flatnonzero(earlier), np.flatnonzero(later)
    if not len(second):
        return NOTHING
    sites = Groups(sheet.site[second])
    done = Groups(sheet.site[first])
    at = done.find(sites.keys)
    ends = done.most(sheet.end[first])
    until = np.where(at >= 0, ends[at], 0) if len(ends) else np.zeros(len(sites), np.int64)
    starts = sites.least(sheet.start[second])
    broken = (at >= 0) & (starts < until)
    if needed:
        broken |= at < 0

    words = ("starts at {start:,} ns, before {before} ends at {until:,} ns", "runs without {needed}")
    return judged(
        len(sites) if needed else int((at >= 0).sum()), broken, lambda i: sheet.where(_first(sheet, second, sites, i)),
        Rows(words, at < 0), fix, start=starts, until=until, needed=needed,
        before=lambda i: _last(sheet, first, done, int(at[i])),
    )  # fmt: skip


def _last(sheet: Sheet, rows: Int64Array, groups: Groups, number: int) -> str:
    mine = rows[groups.order[groups.firsts[number] : groups.firsts[number] + groups.counts[number]]]
    return sheet.name(int(mine[np.argmax(sheet.end[mine])]))


def _first(sheet: Sheet, rows: Int64Array, groups: Groups, number: int) -> int:
    mine = rows[groups.order[groups.firsts[number] : groups.firsts[number] + groups.counts[number]]]
    return int(mine[np.argmin(sheet.start[mine])])


def reads_written(sheet: Sheet) -> Finding:
    """KV-2: attention reads a layer's entries after that step has written its own, and others when they arrived."""
    write = sheet.named("kv_write")
    attends = sheet.named(*ATTENDS) & (sheet.stream == COMPUTE)
    arrived = _arrived(sheet, attends)
    if not write.any():
        return arrived
    fix = "write a token's K/V before attention reads it"
    return merged(_before(sheet, write, attends, fix, needed="a kv_write of its layer and step"), arrived)


def _arrived(sheet: Sheet, attends: BoolArray) -> Finding:
    """Judge whether attention waits for K/V of other ranks and steps that it is said to need."""
    sources, targets = sheet.sources, sheet.targets
    elsewhere = sheet.named(*BRINGS)[sources] & attends[targets] & (sheet.place[sources] != sheet.place[targets])
    elsewhere &= sheet.replica[sources] == sheet.replica[targets]
    sources, targets = sources[elsewhere], targets[elsewhere]
    return judged(
        len(sources), sheet.start[targets] < sheet.end[sources], Rows(sheet, targets),
        "starts at {start:,} ns to read entries that {source.of_step} on rank {source.global_rank} brings until "
        "{source.end:,} ns",
        "let entries that another rank or step wrote arrive before attention reads them", source=Rows(sheet, sources),
    )  # fmt: skip


@of_structure
def writes_once(sheet: Sheet) -> Finding:
    """KV-3: a layer's entries of a step are written once on each rank."""
    rows = np.flatnonzero(sheet.named("kv_write"))
    if not len(rows):
        return NOTHING
    sites = Groups(sheet.site[rows])
    fix = "add one entry per computed token and layer"
    once = judged(
        len(sites), sites.counts != 1, Rows(sheet, rows, sites.some),
        "writes the entries of this layer {sites.counts} times in one step", fix, sites=Rows(sites),
    )  # fmt: skip
    # A layer that attends without having written is KV-2's.
    after = np.flatnonzero(sheet.named("o_proj") & (sheet.stream == COMPUTE) & (sheet.layer >= 0))
    read = Groups(sheet.site[sheet.named(*ATTENDS)])
    none = (sites.find(sheet.site[after]) < 0) & (read.find(sheet.site[after]) < 0)
    never = judged(0, none, Rows(sheet, after), "no entry of this layer was written", fix)
    return merged(once, never)


def layers_in_order(sheet: Sheet) -> Finding:
    """PP-6: a layer starts on a rank when the one before it has ended there."""
    rows = np.flatnonzero((sheet.layer >= 0) & (sheet.stream == COMPUTE))
    if not len(rows):
        return NOTHING
    sites = Groups(sheet.site[rows])
    starts, ends = sites.least(sheet.start[rows]), sites.most(sheet.end[rows])
    places, layers = sheet.place[rows[sites.some]], sheet.layer[rows[sites.some]]
    same = places[1:] == places[:-1]
    in_order = judged(
        int(same.sum()), same & (starts[1:] < ends[:-1]), lambda i: sheet.where(_first(sheet, rows, sites, i + 1)),
        "starts at {start:,} ns, but layer {layer} of this step ends at {end:,} ns",
        "run the layers of a step one after the other", start=starts[1:], layer=layers, end=ends,
    )  # fmt: skip
    return merged(in_order, every_layer_once(sheet)) if sheet.numbered else in_order


def expert_order(sheet: Sheet) -> Finding:
    """EP-4: gate, dispatch, experts, combine, what follows: in this order, within one step."""
    moe = sheet.in_module("moe")
    if not moe.any():
        return NOTHING
    parts = [moe & sheet.named(*names) for names in MOE_ORDER]
    fix = "run gate, dispatch, experts and combine in this order in one step"
    findings = []
    for number, part in enumerate(parts[1:], 1):
        for earlier, names in zip(reversed(parts[:number]), reversed(MOE_ORDER[:number]), strict=True):
            if earlier.any():
                findings.append(_before(sheet, earlier, part, fix, needed=NEEDED.get(names[0], "")))
                break
    experts, combine = parts[2], parts[3]
    if experts.any():
        findings.append(_combined(sheet, experts, combine, fix))
    findings.append(_before(sheet, combine, moe & sheet.named("shared_add", "moe_post_norm", "moe_add"), fix))
    findings.append(_next_layer(sheet, combine, fix))
    return merged(*findings)


def _next_layer(sheet: Sheet, combine: BoolArray, fix: str) -> Finding:
    """Judge whether the next layer waits for a combine; where that is computed itself, PP-6 does."""
    rows = np.flatnonzero(combine & (sheet.stream != COMPUTE) & (sheet.layer >= 0))
    following = np.flatnonzero((sheet.layer >= 0) & (sheet.stream == COMPUTE))
    done, then = Groups(sheet.site[rows] + 1), Groups(sheet.site[following])
    at = then.find(done.keys)
    ends = done.most(sheet.end[rows])
    starts = np.where(at >= 0, then.least(sheet.start[following])[at], ends) if len(then) else ends
    return judged(
        int((at >= 0).sum()), starts < ends, lambda i: sheet.where(_first(sheet, following, then, int(at[i]))),
        "starts at {start:,} ns, before the combine of the layer before it ends at {end:,} ns", fix,
        start=starts, end=ends,
    )  # fmt: skip


def _combined(sheet: Sheet, experts: BoolArray, combine: BoolArray, fix: str) -> Finding:
    rows = np.flatnonzero(experts)
    sites = Groups(sheet.site[rows])
    there = Groups(sheet.site[combine]).find(sites.keys) >= 0
    return judged(
        len(sites), ~there, Rows(sheet, rows, sites.some),
        "what the experts make is not combined in this layer and step", fix,
    )  # fmt: skip


def experts_after_attention(sheet: Sheet) -> Finding:
    """EP-5: experts see a token after its attention in that layer and step."""
    moe = sheet.in_module("moe") & sheet.named("dispatch", "expert_")
    if not moe.any():
        return NOTHING
    attention = sheet.in_module("attention") & (sheet.stream == COMPUTE) & (sheet.layer >= 0)
    return _before(sheet, attention, moe, "run a layer's attention before its experts")
