"""SP-2, SP-3, SP-5, SP-8: K/V exposed at attention, in prefill only, and moved to where decode reads it."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import KINDS
from clustersim.legality.timeline_rules.operators.tensor import EXPERTS
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.sheet import COMPUTE, Sheet

DECODE = KINDS.index("decode")
BEFORE_ATTENTION = ("kv_all_gather", "kv_ring", "qkv_all_to_all")


def _of_sp(sheet: Sheet) -> BoolArray:
    """Return which spans belong to a collective that joins several SP coordinates."""
    found = np.zeros(len(sheet), bool)
    rows = np.flatnonzero(sheet.group >= 0)
    groups = Groups(sheet.group[rows])
    joins = groups.least(sheet.s[rows]) != groups.most(sheet.s[rows])
    if len(rows):
        found[rows] = joins[groups.find(sheet.group[rows])]
    return found


def _attention(sheet: Sheet) -> BoolArray:
    found: BoolArray = sheet.named("attention_prefill") & (sheet.kind != DECODE)
    return found


def exposed(sheet: Sheet) -> Finding:
    """SP-2: where a rank attends, the K/V of every segment was communicated to it."""
    sp = sheet.declared.sp  # 1 where it is not known which rank is where
    rows = np.flatnonzero(_attention(sheet)) if sp > 1 else np.empty(0, np.int64)
    if not len(rows):
        return NOTHING
    needed = sp - 1 if sheet.declared.sp_scheme == "ring" else 1
    exposures = np.flatnonzero(sheet.named(*BEFORE_ATTENTION))
    sites, there = Groups(sheet.site[rows]), Groups(sheet.site[exposures])
    at = there.find(sites.keys)
    counts = np.where(at >= 0, there.counts[at], 0) if len(there) else np.zeros(len(sites), np.int64)
    present = judged(
        len(sites), counts < needed, Rows(sheet, rows, sites.some),
        "attends after {counts} of {needed} exchanges of K/V between the SP ranks",
        "expose the K/V of every segment before attention", counts=counts, needed=needed,
    )  # fmt: skip
    return merged(present, _whole(sheet, exposures, "exposes", "expose the K/V of every segment before attention"))


def _whole(sheet: Sheet, rows: Int64Array, verb: str, fix: str) -> Finding:
    """Judge whether every SP rank takes part in these collectives, where it was told who is in which."""
    rows = rows[sheet.group[rows] >= 0]
    if not len(rows):
        return NOTHING
    groups = Groups(sheet.group[rows])
    counts, sp = groups.counts, sheet.declared.sp
    return judged(
        len(groups), counts != sp, Rows(sheet, rows, groups.some),
        "{verb} the segments of {counts} of {sp} SP ranks", fix, verb=verb, counts=counts, sp=sp,
    )  # fmt: skip


def prefill_only(sheet: Sheet) -> Finding:
    """SP-3: no decode work is split by tokens: no exchange between SP ranks, and none on ranks that idle."""
    if sheet.declared.sp == 1:
        return NOTHING
    experts = sheet.in_module("moe") & (sheet.named(*EXPERTS) | sheet.named("expert_"))
    decode = sheet.kind == DECODE
    exchanges = decode & _of_sp(sheet) & ~experts
    split = judged(
        int((decode & (sheet.group >= 0)).sum()), exchanges, Rows(sheet),
        "joins SP ranks inside a decode step", "disable SP in decode",
    )  # fmt: skip
    if sheet.declared.sp_decode != "idle":
        return split
    works = decode & (sheet.stream == COMPUTE) & ~sheet.named("expert_", *EXPERTS)  # experts may serve other ranks
    works |= sheet.named("attention_decode")
    idle = judged(
        int(works.sum()), works & (sheet.s > 0), Rows(sheet),
        "runs in a decode step on SP rank {s}, which idles in decode", "decode on SP rank 0, or declare decode: dp",
    )  # fmt: skip
    return merged(split, idle)


def at_attention(sheet: Sheet) -> Finding:
    """SP-5: a segment's K/V arrives before it is attended to, and SP synchronises at attention alone."""
    if sheet.declared.sp == 1:
        return NOTHING
    fix = "expose K/V in the order of the sequence, at attention"
    elsewhere = _of_sp(sheet) & (sheet.kind != DECODE) & ~sheet.in_module("attention")
    elsewhere &= ~(sheet.in_module("moe") & (sheet.named(*EXPERTS) | sheet.named("expert_")))
    placed = judged(int(_of_sp(sheet).sum()), elsewhere, Rows(sheet), "synchronises SP ranks outside attention", fix)
    rows = np.flatnonzero(_attention(sheet))
    parts = np.array([_part(name) for name, _, _ in sheet.symbols], np.int64)
    arrivals = np.flatnonzero(sheet.named(*BEFORE_ATTENTION))
    scale = int(parts.max(initial=0)) + 2
    arrived = Groups(sheet.site[arrivals] * scale + parts[sheet.symbol[arrivals]])
    at = arrived.find(sheet.site[rows] * scale + parts[sheet.symbol[rows]])
    until = np.where(at >= 0, arrived.most(sheet.end[arrivals])[at], 0) if len(arrived) else np.zeros(len(rows))
    early = judged(
        int((at >= 0).sum()), sheet.start[rows] < until, Rows(sheet, rows),
        "attends from {start:,} ns to a segment that arrives at {until:,} ns", fix, until=until,
    )  # fmt: skip
    return merged(placed, early)


def _part(name: str) -> int:
    """Return which round of a ring an operator belongs to, 0 where there are no rounds (or it is the first)."""
    tail = name.rpartition("_")[2]
    return int(tail) if tail.isdigit() and name.startswith(("kv_ring_", "attention_prefill_")) else 0


def moved(sheet: Sheet) -> Finding:
    """SP-8: after a prefill its entries move to where decode reads them, once they are written."""
    if sheet.declared.sp == 1:
        return NOTHING
    write = np.flatnonzero(sheet.named("kv_write") & (sheet.kind != DECODE) & (sheet.kind >= 0))
    if not len(write):
        return NOTHING
    fix = "move every segment to the rank that decodes, before the phase boundary"
    moves = np.flatnonzero(sheet.named("kv_move"))
    places, there = Groups(sheet.place[write]), Groups(sheet.place[moves])
    at = there.find(places.keys)
    until = places.most(sheet.end[write])
    starts = np.where(at >= 0, there.least(sheet.start[moves])[at], 0) if len(there) else np.zeros(len(places))
    words = (
        "the segment is moved from {start:,} ns, but written until {until:,} ns",
        "the segment is never moved to where decode reads it",
    )
    present = judged(
        len(places), (at < 0) | (starts < until), Rows(sheet, write, places.some), Rows(words, at < 0), fix,
        start=starts, until=until,
    )  # fmt: skip
    return merged(present, _whole(sheet, moves, "moves", fix))
