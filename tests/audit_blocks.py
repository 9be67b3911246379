"""The K/V blocks that a run reports, against those that follow from the tokens it computed: ceil(computed / size).

A step takes the blocks that its new tokens need when it is decided, and what finishes or is preempted gives all of its
blocks back; so the chunks and episodes of the record, together with the facts, tell how many are in use at any time.
"""

from __future__ import annotations

from collections import deque

from clustersim.replay.replay import ReplayInput, ReplayResult
from clustersim.serving.decision import ADMITTED, FINISHED, PREEMPTED
from clustersim.timeline.timeline import Timeline

MOST_TOKENS = 300_000
"""Runs with more tokens are audited by totals only, for time."""

Carried = dict[int, list[tuple[int, int, int]]]
"""Step → (request, first new token, one after the last); −1 as the first where a sequence decodes."""


def blocks_are_conserved(given: ReplayInput, result: ReplayResult) -> None:
    """Raise AssertionError when blocks are lost, lent twice, or not those of the sequences in the batch."""
    timeline, owners = result.timeline, given.plan.sp.degree if given.plan.sp.decode == "dp" else 1
    facts = timeline.facts
    pooled = facts["used"] >= 0
    assert (pooled == ((facts["kind"] == ADMITTED) | (facts["kind"] == PREEMPTED) | (facts["kind"] == FINISHED))).all()
    assert (facts["used"] <= given.kv_blocks * owners).all()
    for replica in range(given.plan.dp):
        used = facts["used"][pooled & (facts["replica"] == replica)]
        if given.horizon_ns is None and len(used):
            assert used[-1] == 0, f"replica {replica}: all pools are empty at the end"
        if int(timeline.steps["count"] @ timeline.steps["decode_tokens"]) <= MOST_TOKENS:
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


def _blocks_follow_from_tokens(given: ReplayInput, timeline: Timeline, replica: int) -> None:
    size = given.serving.kv_block_tokens
    facts, steps = timeline.facts, timeline.steps
    mine = (facts["replica"] == replica) & (facts["used"] >= 0)
    coming = deque(zip(*(facts[name][mine].tolist() for name in ("time_ns", "kind", "request", "used")), strict=True))
    carried = carried_by_step(timeline, replica)
    computed: dict[int, int] = {}

    def used() -> int:
        return sum(-(-tokens // size) for tokens in computed.values())

    def until(now: int | None) -> None:
        while coming and (now is None or coming[0][0] <= now):
            _, kind, request, told = coming.popleft()
            if kind != ADMITTED and computed.pop(request, None) is not None and kind == FINISHED and now is not None:
                assert told == used(), f"replica {replica}: {told} blocks in use after request {request} finished"

    mine = steps["replica"] == replica
    rows = sorted(
        zip(*(steps[n][mine].tolist() for n in ("step", "count", "start_ns", "kv_blocks_used", "decode_tokens",
            "prefill_tokens")), strict=True)
    )  # fmt: skip
    for first, count, start_ns, blocks, decode_tokens, prefill_tokens in rows:
        until(start_ns)
        for step in range(first, first + count):
            decoding = [request for request, begin, _ in carried[step] if begin < 0]
            assert len(decoding) == decode_tokens == len(set(decoding)), f"step {step} decodes {decoding}"
            assert sum(end - begin for _, begin, end in carried[step] if begin >= 0) == prefill_tokens
            for request, begin, end in carried[step]:
                assert begin <= 0 or computed[request] == begin, f"request {request}: a chunk that starts at {begin}"
                computed[request] = end if begin >= 0 else computed[request] + 1
            assert step > first or used() == blocks, f"replica {replica}, step {step}: {blocks} blocks in use"
    until(None)
    assert given.horizon_ns is not None or not computed, "what has finished holds no block"
