"""The K/V blocks that a run reports, against those that follow from the tokens it computed: ceil(computed / size).

A step takes the blocks that its new tokens need when it is decided, and what finishes or is preempted gives all of its
blocks back, as does what is swapped out, to take as many again when it comes back; so the chunks and episodes of the
record, together with the facts, tell how many are in use at any time.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush

import numpy as np

from clustersim.replay.replay import ReplayInput, ReplayResult
from clustersim.serving.decision import ADMITTED, FINISHED, PREEMPTED, REUSED, SWAPPED_IN, SWAPPED_OUT
from clustersim.timeline.timeline import Timeline

MOST_TOKENS = 300_000
"""Runs with more tokens are audited by totals only, for time."""

Carried = dict[int, list[tuple[int, int, int]]]
"""Step → (request, first new token, one after the last); −1 as the first where a sequence decodes."""


def blocks_are_conserved(given: ReplayInput, result: ReplayResult) -> None:
    """Raise AssertionError when blocks are lost, lent twice, or not those of the sequences in the batch."""
    timeline, owners = result.timeline, given.entry.plan.sp.degree if given.entry.plan.sp.decode == "dp" else 1
    facts = timeline.facts
    pooled = facts["used"] >= 0
    assert (pooled == np.isin(facts["kind"], (ADMITTED, PREEMPTED, FINISHED, REUSED, SWAPPED_OUT, SWAPPED_IN))).all()
    assert given.entry.serving.prefix_caching or not (facts["kind"] == REUSED).any()
    assert (facts["used"] <= given.entry.kv_blocks * owners).all()
    for replica in range(given.entry.plan.dp):
        used = facts["used"][pooled & (facts["replica"] == replica)]
        if given.horizon_ns is None and len(used):
            assert used[-1] == 0, f"replica {replica}: all pools are empty at the end"
        several = given.entry.serving.prefix_caching and owners > 1  # which pool shares what is not recorded
        if int(timeline.steps["count"] @ timeline.steps["decode_tokens"]) <= MOST_TOKENS and not several:
            _blocks_follow_from_tokens(given, timeline, replica)


def carried_by_step(timeline: Timeline, replica: int) -> Carried:
    """Return what each step of a replica computed, from chunks and episodes."""
    found: Carried = {}
    slots: dict[int, list[int]] = {}
    steps = timeline.steps
    mine = steps["replica"] == replica
    for step, count, slot in sorted(
        zip(*(steps[name][mine].tolist() for name in ("step", "count", "slot")), strict=True)
    ):
        slots.setdefault(slot, []).extend(range(step, step + count))
        for number in range(step, step + count):
            found[number] = []
    decodes, chunks = timeline.decodes, timeline.chunks
    mine = decodes["replica"] == replica
    for slot, request, first, last in zip(
        *(decodes[name][mine].tolist() for name in ("slot", "request", "first_step", "last_step")), strict=True
    ):
        listed = slots[slot]
        for step in listed[listed.index(first) : listed.index(last) + 1]:
            found[step].append((request, -1, -1))
    mine = chunks["replica"] == replica
    for step, request, start, count in zip(
        *(chunks[name][mine].tolist() for name in ("step", "request", "start", "count")), strict=True
    ):
        found[step].append((request, start, start + count))
    return found


def contents_of(given: ReplayInput, request: int) -> list[object]:
    """Return what each full block of a prompt holds, equal for equal ones; nothing where prefixes are not cached."""
    rows, hashed = given.requests.prefix_hashes, given.requests.hash_block_tokens
    if rows is None or hashed is None or not given.entry.serving.prefix_caching:
        return []
    size, row = given.entry.serving.kv_block_tokens, rows[request].tolist()
    full = min(int(given.requests.prompt_tokens[request]), hashed * len(row)) // size
    return [(block, tuple(row[: -(-(block + 1) * size // hashed)])) for block in range(full)]


def _blocks_follow_from_tokens(given: ReplayInput, timeline: Timeline, replica: int) -> None:
    size = given.entry.serving.kv_block_tokens
    facts, steps = timeline.facts, timeline.steps
    mine = (facts["replica"] == replica) & (facts["used"] >= 0)
    names = ("time_ns", "kind", "request", "used", "value")
    coming = deque(zip(*(facts[name][mine].tolist() for name in names), strict=True))
    carried = carried_by_step(timeline, replica)
    computed: dict[int, int] = {}
    away: dict[int, int] = {}
    ending: list[tuple[int, int, int]] = []
    """(end of a step, request, tokens computed by then)"""
    filled: dict[int, list[object]] = {}
    """What the blocks hold that steps of each request have filled, or that it has taken over."""
    cached: set[object] = set()

    def used() -> int:
        more = Counter(content for held in filled.values() for content in held)
        return sum(-(-tokens // size) for tokens in computed.values()) - sum(count - 1 for count in more.values())

    def end_steps(now: int) -> None:
        while ending and ending[0][0] <= now:
            _, request, tokens = heappop(ending)
            if request in computed:
                filled[request] = contents_of(given, request)[: tokens // size]
                cached.update(filled[request])

    def until(now: int | None) -> None:
        while coming and (now is None or coming[0][0] <= now):
            time, kind, request, told, value = coming.popleft()
            end_steps(time)
            if kind == REUSED:
                computed[request] = value
                filled[request] = contents_of(given, request)[: value // size]
                assert len(filled[request]) * size == value > 0, "full blocks of a prompt are taken over"
                assert cached.issuperset(filled[request]), f"request {request} takes over what nobody computed"
            elif kind == SWAPPED_IN:
                computed[request] = away.pop(request)
            elif kind != ADMITTED:
                filled.pop(request, None)
                had = computed.pop(request, None)
                if kind == SWAPPED_OUT and had is not None:
                    away[request] = had
                if had is not None and kind in (FINISHED, SWAPPED_OUT) and now is not None:
                    assert told == used(), f"replica {replica}: {told} blocks in use after request {request} left"
        if now is not None:
            end_steps(now)

    mine = steps["replica"] == replica
    rows = sorted(
        zip(*(steps[n][mine].tolist() for n in ("step", "count", "start_ns", "kv_blocks_used", "decode_tokens",
            "prefill_tokens", "end_ns")), strict=True)
    )  # fmt: skip
    for first, count, start_ns, blocks, decode_tokens, prefill_tokens, end_ns in rows:
        until(start_ns)
        for step in range(first, first + count):
            decoding = [request for request, begin, _ in carried[step] if begin < 0]
            assert len(decoding) == decode_tokens == len(set(decoding)), f"step {step} decodes {decoding}"
            assert sum(end - begin for _, begin, end in carried[step] if begin >= 0) == prefill_tokens
            for request, begin, end in carried[step]:
                assert begin < 0 or computed.get(request, 0) == begin, f"request {request}: a chunk starts at {begin}"
                computed[request] = end if begin >= 0 else computed[request] + 1
                if begin >= 0:
                    heappush(ending, (end_ns, request, end))
            assert step > first or used() == blocks, f"replica {replica}, step {step}: {blocks} blocks in use"
    until(None)
    assert given.horizon_ns is not None or not (computed or away), "what has finished holds no block"
