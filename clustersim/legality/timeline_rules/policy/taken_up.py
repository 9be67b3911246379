"""RUN-5: who waits is taken up in the declared order, as soon as there is room, and no queue is longer than declared.

One walk through what happened on each replica, in the order of its instants. Where something fails, who moves to
another replica's queue is not told: there only those are compared that are known to wait.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Fault, Finding, merged
from clustersim.legality.history import (
    ADMITTED,
    ARRIVED,
    CANCELLED,
    FINISHED,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    REUSED,
    SWAPPED_IN,
    SWAPPED_OUT,
    Declared,
)
from clustersim.legality.timeline_rules.policy.declared import Policies
from clustersim.legality.timeline_rules.policy.queues import (
    ARRIVALS,
    DEPARTURES,
    Chances,
    Queue,
    Rank,
    chances_of,
    one_after_the_other,
    phase_of,
    rank_of,
)
from clustersim.legality.timeline_rules.policy.victims import Victims
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.rows_of import in_order as rows_in_order

IN_ORDER: Final = "take up what waits in the declared order, and as soon as there is room"
GIVE_WAY: Final = "preempt the sequence that comes last, and only where a K/V block is missing"
KEEP_ROOM: Final = "admit a request when there are blocks for all that it and those which run may come to need"
LIMITED: Final = "reject a request where so many wait as serving.queue_limit says, and no other"


class Walk:
    """A walk through the facts of one replica.

    Parameters
    ----------
    policies : Policies
    declared : Declared
        Of its pool.
    replica : int
    rows : int64 array
        Its facts, in order.
    arrived : list of int
        When each request arrived.
    """

    def __init__(
        self, policies: Policies, declared: Declared, replica: int, rows: Int64Array, arrived: list[int]
    ) -> None:
        reading = policies.reading
        facts, requests = reading.history.facts, reading.history.requests
        assert facts is not None
        assert requests is not None
        assert declared.policy is not None
        self.reading, self.declared, self.policy, self.replica = reading, declared, declared.policy, replica
        self.rows, self.arrived = rows, arrived
        self.victims = Victims(policies, declared, replica)
        self.kind, self.time, self.request, self.value = (
            facts[name][rows].tolist() for name in ("kind", "time_ns", "request", "value")
        )
        self.prompt = requests["prompt_tokens"].tolist()
        self.output = requests["output_tokens"].tolist()
        self.priority = requests["priority"].tolist() if "priority" in requests else [0] * len(self.prompt)
        self.known: dict[int, int] = {}
        self.size, self.blocks = declared.block_tokens or 1, declared.pool_blocks
        self.queue = Queue(need=self.most) if declared.policy.keeps_room else Queue()
        self.faults: list[Fault] = []
        self.down = sorted(one.instants for one in declared.down if one.replica == replica)
        self.exact = not declared.down
        self.reserved = set(reading.hand_overs.reserved.tolist())
        reservations = reading.hand_overs.reservations
        self.vain = set() if reservations is None else set(reservations.vain.tolist())

    def most(self, request: int) -> int:
        """Return how many blocks a request holds at its end."""
        needed: int = -(-(self.prompt[request] + max(self.output[request] - 1, 0)) // self.size)
        return needed

    def rank(self, request: int, arrived: int) -> Rank:
        """Return what the queue is sorted by."""
        return rank_of(self.policy, request, arrived, self.prompt[request], self.priority[request])

    def fault(self, request: int, message: str, fix: str = IN_ORDER) -> None:
        """Tell what is wrong."""
        self.faults.append(Fault(where=f"replica {self.replica}, request {request}", message=message, fix=fix))

    def go(self, leaves: set[tuple[int, int]], chances: Chances) -> None:
        """Walk, and look at each chance to take up more when all of its instant has been decided."""
        queue, failed, at = self.queue, 0, 0
        starts, turn = chances.starts, 0
        moves = self.declared.role == "prefill" and not self.exact  # what can't be handed over waits somewhere else
        while at < len(self.kind):
            now = self.time[at]
            while turn < len(starts) and starts[turn] < now:
                self.look(chances, turn)
                turn += 1
            while failed < len(self.down) and self.down[failed][0] <= now:
                queue.forget()
                failed += 1
            if queue.coming:
                queue.come(now)
            gone = bool(self.down) and any(since <= now <= until for since, until in self.down)
            request, kind = self.request[at], self.kind[at]
            if kind == ARRIVED and not gone:
                self.arrives(request, now, leaves)
                self.known[request] = self.prompt[request]
                queue.enter(request, self.rank(request, self.arrived[request]))
            elif kind == REJECTED and (request, now) not in leaves:
                self.turned_away(request, now)
            elif kind == PREEMPTED and (gone or moves or int(self.rows[at]) in self.vain):
                queue.leave(request)
            elif kind == PREEMPTED:
                if message := self.victims.found(queue, request, now):
                    self.fault(request, message, GIVE_WAY)
                self.known[request] = self.prompt[request] + self.value[at]
                queue.leave(request)
                queue.enter(request, self.rank(request, self.arrived[request]))
            elif kind == ADMITTED:
                self.taken(request, now, reserved=int(self.rows[at]) in self.reserved)
            elif kind == RECEIVED:
                queue.run(request, self.rank(request, self.arrived[request]), now)
            elif kind == SWAPPED_OUT:
                if message := self.victims.swapped(queue, request, now):
                    self.fault(request, message, GIVE_WAY)
                queue.leave(request)
                queue.resting[request] = self.rank(request, self.arrived[request])
            elif kind == SWAPPED_IN:
                self.back(request, now)
            elif kind not in (REUSED, ARRIVED):
                queue.leave(request)
            at += 1
        while turn < len(starts):
            self.look(chances, turn)
            turn += 1

    @cached_property
    def present(self) -> tuple[Int64Array, Int64Array] | None:
        """When requests came and when they ended, ascending; None where it is not known when they come."""
        requests = self.reading.history.requests
        assert requests is not None
        if "arrives_ns" not in requests:
            return None
        ends = self.reading.residency.first_ns(len(self.prompt), FINISHED, CANCELLED, REJECTED, LOST)
        return np.sort(requests["arrives_ns"]), np.sort(ends)

    def arrives(self, request: int, now: int, leaves: set[tuple[int, int]]) -> None:
        """Judge whether the queue had room for a request that was not turned away."""
        limit = self.policy.queue_limit
        if limit is None or self.declared.role == "decode":
            return
        there = sum((one, now) not in leaves for one in (*self.queue.waiting, *self.queue.resting))
        if there >= limit:
            self.fault(request, f"joins a queue of {there:,} at {now:,} ns, where queue_limit is {limit:,}", LIMITED)

    def turned_away(self, request: int, now: int) -> None:
        """Judge whether a request that was rejected as it came found a full queue, or could never run."""
        limit, there = self.policy.queue_limit, len(self.queue.waiting)
        if self.declared.role == "decode":
            return
        if not self.exact or self.queue.resting or self.policy.swaps:  # who waits here is not known, but who may
            failed = {one.replica for one in self.declared.down if one.instants[0] <= now}
            each = (range(pool.first_replica, pool.first_replica + pool.dp) for pool in self.reading.history.pools)
            if any(failed.issuperset(pool) for pool in each) or self.present is None:
                return
            came, ended = self.present
            there = int(np.searchsorted(came, now, side="right") - np.searchsorted(ended, now)) - 1
        window = self.policy.context_window
        never = self.prompt[request] == 0 or self.output[request] == 0
        never |= window is not None and self.prompt[request] + self.output[request] > window
        tokens = self.prompt[request] + max(self.output[request] - 1, 0)
        for pool in self.reading.history.pools:
            if pool.pool_blocks is None or pool.block_tokens is None:
                return
            owners = pool.sp if pool.sp_decode == "dp" else 1
            never |= -(-tokens // pool.block_tokens) > pool.pool_blocks // owners
        if not never and (limit is None or there < limit):
            most = "and no limit is declared" if limit is None else f"where queue_limit is {limit:,}"
            self.fault(request, f"is turned away at {now:,} ns by a queue of {there:,}, {most}", LIMITED)

    def taken(self, request: int, now: int, *, reserved: bool) -> None:
        """Judge whether a request was the next one."""
        queue = self.queue
        if self.policy.scheduler is None:
            queue.leave(request)
            return
        mine, before = queue.waiting.pop(request, None), queue.first()
        if self.policy.scheduler == "static":
            before = self.in_batch(request, now, before, known=mine is not None)
        if queue.resting:
            self.fault(request, f"is admitted at {now:,} ns, when request {min(queue.resting)} waits in host memory")
        elif before is not None and (reserved or (mine is not None and queue.waiting[before] < mine)):
            self.fault(request, f"is admitted at {now:,} ns, and request {before}, which waits, comes before it")
        queue.batch.discard(request)
        if not reserved:
            queue.run(request, self.rank(request, self.arrived[request]), now)
        if self.policy.keeps_room and self.exact and not self.declared.prefix_caching:
            self.keeps_room(request, now)

    def keeps_room(self, request: int, now: int) -> None:
        """Judge whether there are blocks for all that those who run may come to need."""
        needed, blocks = self.queue.promised, self.blocks
        if blocks is not None and needed > blocks:
            all_in_all = f"with it those that run may come to need {needed:,} of {blocks:,} blocks"
            self.fault(request, f"is admitted at {now:,} ns, and {all_in_all}", KEEP_ROOM)

    def in_batch(self, request: int, now: int, before: int | None, *, known: bool) -> int | None:
        """Judge whether a request may join a batch; return who of that comes first."""
        queue = self.queue
        if not queue.running:
            again = request in queue.batch  # it may have been chosen already, before others came
            queue.batch = {*queue.waiting}
            return None if again else before
        if known and request not in queue.batch and self.exact:
            self.fault(request, f"is admitted at {now:,} ns, to a batch that is under way and was made up without it")
        return before if before in queue.batch else None

    def back(self, request: int, now: int) -> None:
        """Judge whether a sequence in host memory was the next one to come back."""
        mine = self.queue.resting.pop(request, None)
        first = min(((rank, one) for one, rank in self.queue.resting.items()), default=None)
        if mine is not None and first is not None and first[0] < mine:
            self.fault(request, f"comes back from host memory at {now:,} ns, and request {first[1]} comes before it")
        ends = self.victims.back_at(request, now)
        if ends is not None:
            self.queue.coming.append((ends, request, self.rank(request, self.arrived[request])))

    def look(self, chances: Chances, turn: int) -> None:
        """Judge whether a step that had room for the first one that waits took it up."""
        request = self.queue.first()
        if request is None or request not in self.known or self.queue.resting:
            return
        size, whole, left = chances.size, chances.whole, chances.left[turn]
        known, free = self.known[request], chances.free[turn]
        count = min(known, left, self.policy.long_prompt_tokens or left)
        if whole and count < known and (chances.begun[turn] or known <= chances.budget):
            return
        at_once = self.policy.first_chunk and not self.declared.prefix_caching
        blocks = -(-(count if at_once else known) // size)
        if self.policy.keeps_room:
            if self.victims.apart:
                return
            blocks, free = self.most(request), chances.blocks - self.queue.promised
        if count > 0 and blocks <= free:
            now = chances.starts[turn]
            self.fault(
                request, f"waits on at {now:,} ns, with room for {count:,} of its tokens, and {free:,} blocks free"
            )


def in_order(reading: Reading, policies: Policies) -> Finding:
    """Judge who is taken up when, and who may join a queue."""
    facts, requests = reading.history.facts, reading.history.requests
    if facts is None or requests is None or "value" not in facts or reading.history.folded is None:
        return NOTHING
    count = max(len(requests["prompt_tokens"]), int(facts["request"].max(initial=-1)) + 1)
    if count > len(requests["prompt_tokens"]):
        return NOTHING
    kind, time, request, replica = (facts[name].astype(np.int64) for name in ("kind", "time_ns", "request", "replica"))
    came = np.zeros(count, np.int64)
    rows = np.flatnonzero(kind == ARRIVED)
    came[request[rows]] = time[rows]
    there = np.zeros(count, bool)
    there[request[rows]] = True
    phase = phase_of(kind, rejected_first=~there[request])
    late = np.flatnonzero((phase == DEPARTURES) & (kind != LOST))
    leaves = {*zip(request[late].tolist(), time[late].tolist(), strict=True)}
    order = rows_in_order(replica, time, phase, np.where(phase == ARRIVALS, request, 0))
    bounds = np.searchsorted(replica[order], np.arange(policies.replicas + 1))
    arrived = came.tolist()
    found = []
    for number in np.flatnonzero(np.diff(bounds)).tolist():  # where there is no fact, nobody waits
        declared = policies.pools[policies.pool_at[number]]
        mine = order[bounds[number] : bounds[number + 1]]
        chances = chances_of(policies, declared, number)
        if one_after_the_other(reading, declared, mine, chances):
            found.append(Finding(looked_at=len(mine)))
            continue
        walk = Walk(policies, declared, number, mine, arrived)
        walk.go(leaves, chances)
        found.append(Finding(looked_at=len(mine), faults=tuple(walk.faults[:1])))
    return merged(*found)
