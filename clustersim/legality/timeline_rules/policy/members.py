"""Who is on a replica, with how much computed and which blocks, as what happened there says, instant by instant.

What is decided there is judged in :mod:`clustersim.legality.timeline_rules.policy.step_by_step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.legality.finding import Fault
from clustersim.legality.history import (
    ARRIVED,
    CANCELLED,
    HANDED_OVER,
    LOST,
    PREEMPTED,
    RECEIVED,
    REJECTED,
    SWAPPED_OUT,
)
from clustersim.legality.timeline_rules.policy.choices import Carried, Choices
from clustersim.legality.timeline_rules.policy.declared import keeps_whole
from clustersim.legality.timeline_rules.policy.instants import (
    BACK,
    COMES,
    FAILS,
    FREE,
    REVIVES,
    STEP,
    WITHIN,
    Instants,
    Steps,
)
from clustersim.legality.timeline_rules.policy.moved import Moved
from clustersim.legality.timeline_rules.policy.queues import rank_of
from clustersim.legality.timeline_rules.policy.sequences import Blocks, Sequence
from clustersim.legality.timeline_rules.views.reading import Reading

FIX: Final = "let each decision be the one that the declared scheduler takes of who waits, runs and is away"
MOST: Final = 10_000
"""About so many sequences in steps of a pool are looked at, from its beginning on."""


class Members:
    """Who is on one replica, and where; ``faults`` has what is wrong, at most one thing.

    Parameters
    ----------
    reading : Reading
        Of its pool.
    replica : int
    arrived : mapping
        When each request arrived, in whichever pool.
    moved : Moved
    """

    def __init__(self, reading: Reading, replica: int, arrived: Mapping[int, int], moved: Moved) -> None:
        declared, policy, requests = reading.declared, reading.declared.policy, reading.history.requests
        assert policy is not None
        assert requests is not None
        self.declared, self.policy, self.replica, self.arrived = declared, policy, replica, arrived
        self.moved, self.alone, self.steps = (
            moved,
            moved.alone,
            Steps(reading, replica, MOST // declared.dp, moved.until),
        )
        self.instants = Instants(reading, replica, self.steps, moved)
        self.contents = reading.prefixes.contents if declared.prefix_caching else None
        self.prompt, self.output = requests["prompt_tokens"], requests["output_tokens"]
        self.priority = requests.get("priority")
        self.members: dict[int, Sequence] = {}
        self.flight: dict[int, tuple[Carried, int]] = {}
        """Runs of steps under way: what they carry, and how many steps of each have ended."""
        tables = reading.history.folded
        self.together = tables is not None and tables.lockstep > 1
        self.at = self.looked_at = 0
        self.within = -1
        """The run of steps of which one begins at this instant that is not its first; −1: none."""
        self.goes_on = True
        self.faults: list[Fault] = []
        self._fresh()

    def _fresh(self) -> None:
        """Begin with nothing in blocks, queues and stages, and all members not computed."""
        declared, owners = self.declared, self.declared.sp if keeps_whole(self.declared) else 1
        self.blocks = Blocks((declared.pool_blocks or 0) // owners, owners, declared.block_tokens or 1, self.contents)
        self.choices = Choices(declared, self.policy, self.blocks, (declared.host_blocks or 0) // owners)
        self.free, self.frozen, self.down = True, False, False
        self.broken_off: list[tuple[int, int, int]] = []
        """What gave blocks back at this instant that were for what was on its way."""
        self.flight.clear()
        if not self.alone:
            self.members.clear()
        for one in self.members.values():
            one.computed, one.blocks, one.flies = 0, 0, False

    def wrong(self, message: str) -> None:
        """Tell what is wrong."""
        self.faults.append(Fault(where=f"replica {self.replica}", message=message, fix=FIX))

    def happens(self, now: int, kind: int, which: int, value: int) -> None:
        """Let one thing happen: to a step (``which``), to a request, or to the replica."""
        choices, one = self.choices, self.members.get(which)
        if kind == STEP:
            self._ends(now, which)
        elif kind == FREE:
            self.free = True
        elif kind == WITHIN:
            self._goes_on(which, value)
        elif kind == BACK:
            if which in choices.inbound:
                choices.back(which)
        elif kind == FAILS:
            self._fresh()
            self.down = True
        elif kind == REVIVES:
            self.down = False
            for other in self.members.values():
                choices.enter(other)
        elif kind == ARRIVED and self.down:
            if self.alone:  # elsewhere it waits in front, for any of them
                self.comes(which)
        elif kind in (ARRIVED, COMES):
            choices.enter(self.comes(which, max(value, 0) if kind == COMES else 0))
        elif one is None:
            return
        elif kind == RECEIVED:
            choices.receiving -= 1
            choices.running.append(one)
            one.away = False
        elif kind == PREEMPTED:
            if one.away:
                self._breaks_off(now, one)
        elif kind == SWAPPED_OUT:
            if not choices.out(which) and not self.frozen:
                self.wrong(f"tells request {which} to be in host memory at {now:,} ns, for which it was not to leave")
        elif kind in (HANDED_OVER, CANCELLED, REJECTED, LOST):
            choices.leave(one)
            del self.members[which]

    def comes(self, request: int, tokens: int = 0) -> Sequence:
        """Make a sequence of a request that comes, with so many tokens."""
        prompt, output = int(self.prompt[request]), int(self.output[request])
        urgent = 0 if self.priority is None else int(self.priority[request])
        goes_on = self.declared.role == "prefill" and output > tokens + 1
        rank = rank_of(self.policy, request, self.arrived.get(request, 0), prompt, urgent)
        output = tokens + 1 if goes_on else output
        one = Sequence(request=request, prompt=prompt, output=output, rank=rank, goes_on=goes_on, tokens=tokens)
        self.members[request] = one
        return one

    def _breaks_off(self, now: int, one: Sequence) -> None:
        """Let blocks be free of what was on its way when a replica failed, or nobody was left to take it."""
        self.blocks.release(one)
        self.broken_off.append((now, PREEMPTED, one.request))
        if self.declared.role == "decode":
            self.choices.receiving -= 1
            del self.members[one.request]

    def _ends(self, now: int, at: int) -> None:
        """Let a run of steps end."""
        if at not in self.flight:
            return
        carried, done = self.flight.pop(at)
        self._advance(carried, self.steps.many[at] - 1 - done)
        told = []
        for one in self.choices.ended(carried, self.instants.given_up.get(now, set())):
            one.away = one.goes_on
            if not one.goes_on:
                self.blocks.release(one)
                told.append((one.request, self.blocks.used))
                del self.members[one.request]
        recorded = self.instants.finished.get(now, [])
        if self.frozen and self.declared.pp > 2:  # more steps that were cut off may hold blocks behind the first one
            agrees = [request for request, _ in told] == [request for request, _ in recorded]
        else:
            agrees = told == recorded
        if not agrees:
            self.wrong(f"tells at {now:,} ns who finishes: {_ended(recorded)}; and {_ended(told)} does")

    def _advance(self, carried: Carried, steps: int) -> None:
        for one in carried[0]:
            one.computed += steps
            one.tokens += steps
            if not self.blocks.take(one, one.computed + 1):
                self.wrong(f"decodes on with request {one.request} when it lacks a block")

    def _goes_on(self, at: int, done: int) -> None:
        """Let so many steps of a run have ended."""
        if at in self.flight:
            carried, before = self.flight[at]
            self._advance(carried, done - before)
            self.flight[at] = carried, done
            self.within = at


def _ended(told: list[tuple[int, int]]) -> str:
    return ", ".join(f"request {request} ({used:,} blocks in use)" for request, used in told) or "nobody"
