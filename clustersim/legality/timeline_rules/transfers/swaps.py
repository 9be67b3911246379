"""What a stay in host memory must keep to: KV-1, KV-2, KV-6, KV-7, RUN-2 and RUN-4 of sequences that are swapped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.history import CANCELLED, PREEMPTED
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import Swap
from clustersim.timeline.tables import ALL_HEADS, ALL_LAYERS, HOST

WHOLE: Final = {"layer": ALL_LAYERS, "head": ALL_HEADS, "heads": ALL_HEADS}
"""What a copy of whole blocks says of its layers and heads."""
NO_COPIES: Final = "the copies of what was swapped (no moves were recorded)"


class HostUse(NamedTuple):
    """A replica, the request that was swapped out when the host had no more room, when, and the blocks in use then."""

    replica: int
    request: int
    time_ns: int
    used: int


def _said(swaps: Iterable[Swap], faults: list[str], looked: int, fix: str) -> Finding:
    """Return a finding with a sentence for each stay, empty where nothing is wrong."""
    listed = list(swaps)
    broken = np.array([bool(fault) for fault in faults], bool)
    return judged(
        looked, broken, "replica {swap.replica}, request {swap.request}", "{fault}", fix, swap=listed, fault=faults
    )


def keeps_its_entries(reading: Reading) -> Finding:
    """KV-1: what is copied out and back is all that the sequence has, from its first entry on."""
    swaps, moves = reading.swaps, reading.history.moves
    if not swaps:
        return NOTHING

    def fault(swap: Swap) -> str:
        for word, told in zip(("out", "in"), swap.told, strict=True):
            if told not in (-1, swap.held):
                return f"is swapped {word} with {told:,} entries, but has {swap.held:,}"
        if moves is None:
            return ""
        for row in (*swap.out, *swap.back):
            first, tokens = int(moves["first"][row]), int(moves["tokens"][row])
            if (first, tokens) != (0, swap.held):
                last = first + tokens
                return f"has {swap.held:,} entries, but those of tokens {first:,} to {last:,} are copied"
            if any(int(moves[name][row]) != every for name, every in WHOLE.items()):
                return "is copied in some layers or heads only"
            if any(int(moves[f"{side}_replica"][row]) != swap.replica for side in ("from", "to")):
                return "is copied from or to another replica"
        return next(
            (fault for rows, name in ((swap.out, "from"), (swap.back, "to")) if (fault := twice(rows, name))), ""
        )

    def twice(rows: list[int], side: str) -> str:
        assert moves is not None
        ranks = [int(moves[f"{side}_rank"][row]) for row in rows]
        again = sorted({rank for rank in ranks if ranks.count(rank) > 1})
        return f"is copied {side} rank {again[0]} twice in one stay" if again else ""

    fix = "copy all entries of a sequence, and nothing else"
    return merged(_said(swaps, [fault(swap) for swap in swaps], len(swaps), fix), _strays(reading, fix))


def _strays(reading: Reading, fix: str) -> Finding:
    """Judge whether every copy belongs to a stay, but for one that a failure or the horizon cut off before it had."""
    moves, facts, declared = reading.history.moves, reading.history.facts, reading.declared
    if moves is None or facts is None or reading.pieces is None or declared.horizon_ns is not None:
        return NOTHING
    out, back = (moves[f"{side}_rank"] == HOST for side in ("to", "from"))
    rows = np.flatnonzero((out | back) & (moves["from_replica"] == moves["to_replica"]))
    known = {row for swap in reading.swaps for row in (*swap.out, *swap.back)}
    some = reading.residency.among(facts["kind"] == PREEMPTED)
    preempted = dict(zip(facts["request"][some].tolist(), facts["time_ns"][some].tolist(), strict=True))
    stray = np.array(
        [
            row not in known and int(moves["end_ns"][row]) > preempted.get(int(moves["request"][row]), -1)
            for row in rows.tolist()
        ],
        bool,
    )
    return judged(
        0, stray, "swap of request {move.request}, replica {move.from_replica}",
        "is copied at {move.start_ns:,} ns, when it is neither swapped out nor comes back", fix, move=Rows(moves, rows),
    )  # fmt: skip


def comes_back_first(reading: Reading) -> Finding:
    """KV-2: a sequence that was swapped out computes again when all its ranks have their entries back."""
    swaps, moves, pieces, declared = reading.swaps, reading.history.moves, reading.pieces, reading.declared
    if not swaps or pieces is None:
        return NOTHING
    if moves is None:
        return lacking(NO_COPIES)
    ranks = declared.tp * declared.pp if declared.mesh else None

    def fault(swap: Swap) -> str:
        if swap.in_at < 0:
            return ""
        begins = _next_begin(pieces, swap)
        if begins is None or 0 <= swap.lost_at <= begins:
            return ""
        came = {int(moves["to_rank"][row]) for row in swap.back}
        left = {int(moves["from_rank"][row]) for row in swap.out}
        if left and came != left:
            lost = ", ".join(str(rank) for rank in sorted(left - came)[:4]) or "none"
            return f"computes at {begins:,} ns, but its entries never come back to all ranks that they left ({lost})"
        if ranks is not None and len(came) != ranks:
            return f"computes at {begins:,} ns, but its entries come back to {len(came)} ranks of {ranks}"
        until = max(int(moves["end_ns"][row]) for row in swap.back)
        return f"computes at {begins:,} ns, but its entries come back until {until:,} ns" if begins < until else ""

    return _said(swaps, [fault(swap) for swap in swaps], len(swaps), "let entries come back before they are read")


def _next_begin(pieces: Pieces, swap: Swap) -> int | None:
    """Return when the sequence computes again after a stay."""
    low = int(np.searchsorted(pieces.request, swap.request))
    high = int(np.searchsorted(pieces.request, swap.request, side="right"))
    later = pieces.begin[low:high][pieces.begin[low:high] >= swap.in_at]
    return int(later.min()) if len(later) else None


def away(reading: Reading) -> Finding:
    """KV-7: from the start of the copy out until it has device blocks again, a sequence computes nothing.

    One that is preempted meanwhile begins anew.
    """
    swaps, moves, pieces = reading.swaps, reading.history.moves, reading.pieces
    if not swaps or pieces is None:
        return NOTHING

    def fault(swap: Swap) -> str:
        if swap.out_at < 0:
            return f"gets blocks at {swap.in_at:,} ns to come back to, but was not swapped out"
        leaves = swap.out_at
        if moves is not None:
            leaves = min([leaves, *(int(moves["start_ns"][row]) for row in swap.out)])
        low = int(np.searchsorted(pieces.request, swap.request))
        high = int(np.searchsorted(pieces.request, swap.request, side="right"))
        running = pieces.end[low:high] > leaves
        until = swap.in_at if swap.in_at >= 0 else swap.lost_at
        if until >= 0:
            running &= pieces.begin[low:high] < until
        at = np.flatnonzero(running)
        if not len(at):
            return ""
        return (
            f"goes on in step {pieces.first_step[low + at[0]]} though it leaves for its host from {leaves:,} ns on, "
            f"where it gives its blocks back at {swap.out_at:,} ns"
        )

    def uncopied(swap: Swap) -> str:
        copied = moves is None or swap.out_at < 0 or bool(swap.out)
        return "" if copied else f"gives its blocks back at {swap.out_at:,} ns, but was not copied to its host"

    fix = "compute a swapped sequence when it has come back"
    return merged(
        _said(swaps, [fault(swap) for swap in swaps], len(swaps), fix),
        _said(swaps, [uncopied(swap) for swap in swaps], 0, "copy a sequence out before its blocks are given back"),
    )


def host_pool(reading: Reading) -> Finding:
    """KV-6: what is in host memory, or on its way to or from there, fits the pool."""
    swaps, moves, declared = reading.swaps, reading.history.moves, reading.declared
    if not swaps or moves is None or declared.host_blocks is None or declared.block_tokens is None:
        return NOTHING
    facts = reading.history.facts
    gone: dict[int, int] = {}
    if facts is not None:
        rows = np.flatnonzero(facts["kind"] == CANCELLED)
        gone = dict(zip(facts["request"][rows].tolist(), facts["time_ns"][rows].tolist(), strict=True))
    changes: dict[int, list[tuple[int, int, int]]] = {}
    for swap in swaps:
        blocks = -(-swap.held // declared.block_tokens)
        mine = changes.setdefault(swap.replica, [])
        if swap.out:
            mine.append((min(int(moves["start_ns"][row]) for row in swap.out), blocks, swap.request))
        if swap.out and len(swap.back) >= len(swap.out):
            mine.append((max(int(moves["end_ns"][row]) for row in swap.back), -blocks, swap.request))
        elif swap.out and swap.lost_at >= 0:
            mine.append((swap.lost_at, -blocks, swap.request))
        elif swap.out and swap.in_at < 0 and swap.request in gone:
            mine.append((gone[swap.request], -blocks, swap.request))
    faults = []
    for replica, mine in sorted(changes.items()):
        used = 0
        for time, blocks, request in sorted(mine):
            used += blocks
            if used > declared.host_blocks:
                faults.append(HostUse(replica, request, time, used))
                break
    return judged(
        len(swaps), np.ones(len(faults), bool), "replica {full.replica}, request {full.request}",
        "{full.used:,} blocks are in host memory at {full.time_ns:,} ns, which has {declared.host_blocks:,}",
        "compute a preempted sequence anew where the host has no room", full=faults, declared=declared,
    )  # fmt: skip


def cut_off(reading: Reading) -> Finding:
    """RUN-3: no sequence is copied to or from its host while something has failed that its replica needs."""
    moves = reading.history.moves
    if moves is None:
        return NOTHING
    rows = np.flatnonzero((moves["from_rank"] == HOST) | (moves["to_rank"] == HOST))
    replica, start, end = (moves[name][rows] for name in ("from_replica", "start_ns", "end_ns"))
    broken = np.zeros(len(rows), bool)
    for failed, since, until in reading.declared.down:
        broken |= (replica == failed) & (start < until) & (end > since)
    return judged(
        len(rows) if reading.declared.down else 0, broken, "swap of request {move.request}, replica {replica}",
        "runs from {start:,} to {end:,} ns, when something that it needs had failed",
        "begin no copy before what failed is back, and record none that it cut off", move=Rows(moves, rows),
        replica=replica, start=start, end=end,
    )  # fmt: skip


def copies_cost(reading: Reading) -> Finding:
    """RUN-2: a copy carries the whole blocks of its sequence; how long it takes is judged in ``carried``."""
    moves, declared = reading.history.moves, reading.declared
    if moves is None or declared.block_tokens is None or declared.host_block_bytes is None or not declared.mesh:
        return NOTHING
    rows = np.flatnonzero((moves["from_rank"] == HOST) | (moves["to_rank"] == HOST))
    rank = np.maximum(moves["from_rank"][rows], moves["to_rank"][rows]).astype(np.int64)
    stage = rank // declared.stage_ranks % declared.pp
    blocks = -(-moves["tokens"][rows].astype(np.int64) // declared.block_tokens)
    due = blocks * np.array(declared.host_block_bytes, np.int64)[stage]
    carried = moves["bytes"][rows].astype(np.int64)
    return judged(
        len(rows), carried != due, "swap of request {move.request}, rank {rank}",
        "carries {carried:,} bytes, where its {blocks:,} blocks have {due:,}", "copy the blocks that the sequence has",
        move=Rows(moves, rows), rank=rank, carried=carried, blocks=blocks, due=due,
    )  # fmt: skip


__all__ = ["away", "comes_back_first", "copies_cost", "cut_off", "host_pool", "keeps_its_entries"]
