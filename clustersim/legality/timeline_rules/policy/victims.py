"""RUN-5: where a block is missing, the sequence that comes last gives way, and is kept in host memory if that has room.

The last one is the one that was admitted last; in a ranked queue, the one of the highest rank. Nobody gives way whom
the step that is being made up carries already, or one in flight. Where each SP rank keeps whole sequences, those of one
rank give way to each other; nothing is said where these are swapped, or their prefixes are cached.
"""

from __future__ import annotations

import numpy as np

from clustersim.legality.history import PREEMPTED, Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole
from clustersim.legality.timeline_rules.policy.queues import Queue
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.swaps import Swap


class Victims:
    """Preemptions of one replica.

    Parameters
    ----------
    policies : Policies
    declared : Declared
        Of its pool.
    replica : int
    """

    def __init__(self, policies: Policies, declared: Declared, replica: int) -> None:
        reading = policies.reading
        self.reading, self.declared, self.replica = reading, declared, replica
        facts, runs = reading.history.facts, reading.runs
        assert facts is not None
        rows = reading.rows_at(facts["replica"], replica)
        rows = rows[facts["kind"][rows] == PREEMPTED]
        self.gone = {*zip(facts["request"][rows].tolist(), facts["time_ns"][rows].tolist(), strict=True)}
        self.last = dict(zip(facts["time_ns"][rows].tolist(), facts["request"][rows].tolist(), strict=True))
        self.by_request: dict[int, list[Swap]] = {}
        for swap in reading.swaps:
            self.by_request.setdefault(swap.request, []).append(swap)
        self.apart = keeps_whole(declared)
        self.kept = _kept(reading, replica) if self.apart else {}
        self.free = policies.free_at_runs(declared) if self.apart else None
        self.order = "arrival" if declared.policy is None else declared.policy.order
        self.swaps = declared.policy is not None and declared.policy.swaps
        fails = any(one.replica == replica for one in declared.down)
        self.told = not fails and reading.pieces is not None and runs is not None
        self.told &= not self.apart or not (declared.prefix_caching or reading.swaps)
        self.told = self.told and bool(reading.plain.all())
        names = ("kv_blocks_used", "prefill_tokens", "running", "batch_requests")
        self.columns = {name: None if runs is None else runs.column(name) for name in names}

    def found(self, queue: Queue, request: int, now: int) -> str:
        """Return why somebody else had to give way, or nobody; empty where nothing is wrong."""
        policy = self.declared.policy
        if policy is not None and policy.keeps_room and request in queue.running:
            return f"is preempted at {now:,} ns, and nobody is to be preempted"
        if not self.told or policy is None or policy.scheduler is None or request not in queue.running:
            return ""
        if policy.scheduler == "static":
            return f"is preempted at {now:,} ns, and a static batch has set its blocks aside"
        other = self._comes_after(queue, request, now)
        if other is not None:
            return f"is preempted at {now:,} ns, and request {other}, which comes after it, is not"
        return self._in_vain(request, now) or self._room_at_host(request, now)

    def swapped(self, queue: Queue, request: int, now: int) -> str:
        """Return why another one had to leave for its host, which one did by an instant; empty where nothing is."""
        policy, moves = self.declared.policy, self.reading.history.moves
        if policy is not None and not policy.swaps:
            return f"is in host memory at {now:,} ns, and is to be computed anew where it is preempted"
        if not self.told or policy is None or policy.scheduler is None or request not in queue.running or moves is None:
            return ""
        swap = next((one for one in self.by_request.get(request, ()) if one.out_at == now), None)
        if swap is None or not swap.out:
            return ""
        decided = self._ended(request, now)
        if min(int(moves["start_ns"][row]) for row in swap.out) != decided:
            return ""  # when it was decided is not known
        other = self._comes_after(queue, request, decided)
        if other is None:
            return ""
        return f"leaves for its host at {decided:,} ns, and request {other}, which comes after it, does not"

    def back_at(self, request: int, now: int) -> int | None:
        """Return until when a request is copied back that is given blocks for that at an instant."""
        moves = self.reading.history.moves
        rows = next((one.back for one in self.by_request.get(request, ()) if one.in_at == now), [])
        return None if moves is None or not rows else max(int(moves["end_ns"][row]) for row in rows)

    def _comes_after(self, queue: Queue, request: int, now: int) -> int | None:
        """Return who should have given way instead."""
        running, (mine, since) = list(queue.running), queue.running[request]
        if self.order == "arrival":
            after = running[running.index(request) + 1 :]
        else:
            after = [one for one in running if queue.running[one][0] > mine]
        if self.apart:
            after = [other for other in after if self._owner(other, now) == self._owner(request, now)]
        for other in after:
            there = queue.running[other][1] <= now and (other, now) not in self.gone
            there &= not self.swaps or queue.running[other][1] != since  # who of these came back first is not told
            if there and not self._excused(queue, request, other, now) and not self._leaving(other, now):
                return other
        return None

    def _owner(self, request: int, now: int) -> int:
        """Return which SP rank keeps a request before what an instant decides; −1 where that was not told."""
        return next((owner for time, owner in reversed(self.kept.get(request, ())) if time < now), -1)

    def _excused(self, queue: Queue, request: int, other: int, now: int) -> bool:
        """Return whether one that comes after a victim is in flight, or its step may have taken it before.

        In order of arrival a step takes decodes in the order of admission, then prompts. So one that is admitted after
        the victim, and is in a step that starts now, comes before it there only as a decode beside a prompt.
        """
        if not self._carried(other, now):
            return False
        pieces, mine, at = self.reading.pieces, self._pieces(other), self._begins(now)
        told = self.order == "arrival" and self.declared.pp == 1 and queue.running[other][1] < now
        if pieces is None or not told or at < 0:
            return True
        here = (pieces.first_run[mine] <= at) & (pieces.last_run[mine] >= at)
        if not here.any():
            return True
        if pieces.is_chunk[mine][here].any():
            return False
        running = list(queue.running)
        return not all(self._decodes(queue, one, now) for one in running[: running.index(request)])

    def _begins(self, now: int) -> int:
        """Return which run of steps begins at an instant; −1: none."""
        runs = self.reading.runs
        assert runs is not None
        mine = slice(int(runs.bounds[self.replica]), int(runs.bounds[self.replica + 1]))
        at = mine.start + int(np.searchsorted(runs.start[mine], now))
        return at if at < mine.stop and runs.start[at] == now else -1

    def _decodes(self, queue: Queue, request: int, now: int) -> bool:
        """Return whether a request has got a token from a step that ended by an instant, since it was taken up."""
        pieces, mine = self.reading.pieces, self._pieces(request)
        assert pieces is not None
        since = queue.running[request][1]
        begun = (pieces.begin[mine] >= since) & (pieces.begin[mine] < now)
        return bool((begun & (pieces.gave[mine] > 0) & ((pieces.end[mine] <= now) | ~pieces.is_chunk[mine])).any())

    def _leaving(self, request: int, now: int) -> bool:
        """Return whether a request is on its way to its host at an instant, or may be."""
        if self.swaps and self.declared.horizon_ns is not None:
            return True
        return any(self._ended(request, swap.out_at) <= now <= swap.out_at for swap in self.by_request.get(request, ()))

    def _ended(self, request: int, now: int) -> int:
        """Return when the last step that had carried a request by an instant had ended."""
        pieces, mine = self.reading.pieces, self._pieces(request)
        assert pieces is not None
        end = pieces.end[mine]
        return int(end[end <= now].max(initial=-1))

    def _pieces(self, request: int) -> slice:
        pieces = self.reading.pieces
        assert pieces is not None
        low, high = np.searchsorted(pieces.request, (request, request + 1)).tolist()
        return slice(low, high)

    def _carried(self, request: int, now: int) -> bool:
        """Return whether a step under way at an instant, or that starts then, carries a request, or may have."""
        pieces, mine = self.reading.pieces, self._pieces(request)
        assert pieces is not None
        here = pieces.replica[mine] == self.replica
        begin, end = pieces.begin[mine][here], pieces.end[mine][here]
        cut = self.declared.horizon_ns is not None and not (end > now).any()
        return cut or bool(((begin <= now) & (end > now)).any())

    def _held(self, request: int, now: int) -> int:
        """Return how many blocks a request has when it gives way."""
        pieces, mine, size = self.reading.pieces, self._pieces(request), self.declared.block_tokens
        assert pieces is not None
        ended = np.flatnonzero(pieces.end[mine] <= now)
        if not len(ended) or size is None:
            return 0
        last = mine.start + int(ended[-1])
        return -(-int(pieces.computed[last] + pieces.count[last]) // size)

    def _in_vain(self, request: int, now: int) -> str:
        """Judge whether the step that starts leaves more blocks free than the last victim had, and may be needed."""
        declared, used = self.declared, self.columns["kv_blocks_used"]
        sized = (
            declared.pool_blocks is not None
            and declared.block_tokens is not None
            and declared.max_batch_tokens is not None
        )
        if used is None or not sized or self.last[now] != request or declared.prefix_caching:
            return ""
        at = self._begins(now)
        if at < 0:
            return ""
        assert declared.pool_blocks is not None
        assert declared.block_tokens is not None
        assert declared.max_batch_tokens is not None
        chunks = self.columns["prefill_tokens"]
        gives_up = declared.policy is not None and declared.policy.first_chunk
        begun = gives_up or chunks is None or int(chunks[at]) > 0 or self._begun(now)
        most = -(-declared.max_batch_tokens // declared.block_tokens) + 1 if begun else 0
        free, held = declared.pool_blocks - int(used[at]), self._held(request, now)
        if self.apart:
            free = 0 if self.free is None else int(self.free[at, self._owner(request, now)])
        if free < held + most:
            return ""
        return f"is preempted at {now:,} ns with {held:,} blocks, and {free:,} are free in the step that starts then"

    def _begun(self, now: int) -> bool:
        """Return whether some prompt may lack blocks: steps leave out what runs."""
        runs = self.reading.runs
        assert runs is not None
        running, carried = self.columns["running"], self.columns["batch_requests"]
        mine = slice(int(runs.bounds[self.replica]), int(runs.bounds[self.replica + 1]))
        at = mine.start + int(np.searchsorted(runs.start[mine], now))
        return running is None or carried is None or bool(running[at] != carried[at])

    def _room_at_host(self, request: int, now: int) -> str:
        """Judge whether a sequence is computed anew though its blocks would fit its host, where it is to be swapped."""
        declared = self.declared
        if (
            declared.policy is None
            or not declared.policy.swaps
            or declared.host_blocks is None
            or declared.block_tokens is None
        ):
            return ""
        moves, held = self.reading.history.moves, self._held(request, now)
        if moves is None or not held or declared.horizon_ns is not None:
            return ""
        used = 0
        for swap in (one for mine in self.by_request.values() for one in mine if one.replica == self.replica):
            back = [int(moves["end_ns"][row]) for row in swap.back]
            ends = max(back) if back else swap.lost_at
            if self._ended(swap.request, swap.out_at) <= now and (ends > now or ends < 0):
                used += -(-swap.held // declared.block_tokens)
        room = declared.host_blocks // (declared.sp if self.apart else 1)
        if held + used > room:
            return ""
        return (
            f"is preempted at {now:,} ns to be computed anew, and its host has room for its {held:,} blocks: at most "
            f"{used:,} of {room:,} are in use"
        )


def _kept(reading: Reading, replica: int) -> dict[int, list[tuple[int, int]]]:
    """Return since when which SP rank of a replica keeps each request, in order of time."""
    found: dict[int, list[tuple[int, int]]] = {}
    tables = reading.history.folded
    if tables is None:
        return found
    mine = reading.rows_at(tables.owners["replica"], replica)
    rows = zip(*(tables.owners[name][mine].tolist() for name in ("time_ns", "request", "owner")), strict=True)
    for time, request, owner in sorted(rows):
        found.setdefault(request, []).append((time, owner))
    return found
