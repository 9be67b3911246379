"""A stage's pass as events: every operator starts when its stream is free and all that it needs has ended.

This is the definition of a pass; the closed form of ``graph.template`` must give the same times wherever no flow of
the pass meets another one. Operators are calls on SimPy's clock, not processes: a process per operator costs ten
times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clustersim.clock import LATEST_NS, Int64Array
from clustersim.replay.events.pass_program import NONE, EventProgram
from clustersim.replay.instant import COMPLETION, at, now_ns

if TYPE_CHECKING:
    from simpy import Environment

Communicate = Callable[[int, int, tuple[int, ...], int, Callable[[Any], None], int | None], None]
"""(operator, cost class, local ranks, duration in ns, done, when it began if not now) starts a communication; it calls
``done(operator)``."""


_NO_MARKS: Final[Mapping[int, Callable[[], None]]] = {}


class EventPass:
    """One execution of an :class:`EventProgram`.

    Parameters
    ----------
    env : simpy.Environment
    program : EventProgram
    durations : list of int
        Nanoseconds by class.
    communicate : callable
        Starts a collective.
    on_exit : callable
        Called with the local ranks whose output has left the stage.
    on_end : callable
        Called when every operator has ended.
    marks : mapping, optional
        Operator → what is to be called when it has ended.
    """

    __slots__ = (
        "communicate", "durations", "ends", "env", "exits", "marks", "on_end", "on_exit", "pending", "program",
        "starts", "works",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        program: EventProgram,
        durations: list[int],
        communicate: Communicate,
        on_exit: Callable[[tuple[int, ...]], None],
        on_end: Callable[[], None],
        marks: Mapping[int, Callable[[], None]] = _NO_MARKS,
    ) -> None:
        self.env = env
        self.program = program
        self.marks = marks
        self.exits = program.exits
        self.works: Int64Array | None = None
        if program.works is None:
            self.durations = [durations[cls] for cls in program.cls]
        else:
            self.works = np.array(durations, np.int64)[program.works.cls]
            self.durations = np.add.reduceat(self.works, program.works.first).tolist()
        self.communicate = communicate
        self.on_exit = on_exit
        self.on_end = on_end
        self.pending = program.indegree.copy()
        self.starts: dict[int, int] = {}
        self.ends = [NONE] * len(self.pending)

    stretched = True
    """Whether anything may have taken longer than its class does."""

    def begin(self) -> None:
        """Start every operator that waits for nothing."""
        start = self._prepared()
        for operator, waits in enumerate(self.program.indegree):
            if waits == 0:
                start(operator, now_ns(self.env))

    def _prepared(self) -> Callable[..., None]:
        """Return what starts an operator.

        The rest follows in ``ended``, a closure, since names of a closure are twice as fast as attributes.
        """
        env, communicate, ended_at = self.env, self.communicate, self.ends
        starts, pending, durations = self.starts, self.pending, self.durations
        program = self.program
        successors, members, exits, classes = program.successors, program.members, self.exits, program.cls
        on_exit, on_end, marks = self.on_exit, self.on_end, self.marks
        follower = program.follower
        if marks:
            follower = [NONE if operator in marks else after for operator, after in enumerate(follower)]
        left = sum([after == NONE and end == NONE for after, end in zip(follower, ended_at, strict=True)])
        clock: Any = env  # SimPy types its instant as int or float; asking ``now_ns`` costs a call
        queue: list[Any] = env._queue
        serial, phase = env._eid, COMPLETION
        sure_until = LATEST_NS - max(durations, default=0) if min(durations, default=0) >= 0 else NONE

        def start(operator: int, now: int, begun: int | None = None) -> None:
            group = members[operator]
            if group is not None:
                starts[operator] = now if begun is None else begun
                communicate(operator, classes[operator], group, durations[operator], ended, begun)
            elif begun is not None:
                at(env, begun + durations[operator] - now, phase, ended, operator)
            elif now <= sure_until:  # what ``at`` does, in place
                heappush(queue, (now + durations[operator], phase, next(serial), ended, operator))
            else:
                at(env, durations[operator], phase, ended, operator)

        def ended(operator: int) -> None:
            nonlocal left
            now: int = clock._now
            ended_at[operator] = now
            after = follower[operator]
            if after >= 0:
                if now <= sure_until:  # what ``start`` does, in place
                    heappush(queue, (now + durations[after], phase, next(serial), ended, after))
                else:
                    start(after, now)
                return
            for after in successors[operator]:
                waits = pending[after] - 1
                pending[after] = waits
                if not waits:
                    start(after, now)
            left -= 1
            if operator in exits:
                on_exit(exits[operator])
            if operator in marks:
                marks[operator]()
            if not left:
                on_end()

        return start

    def waiting(self) -> set[int]:
        """Return operators that wait for others, for a stall's story."""
        each = zip(self.ends, self.program.successors, strict=True)
        return {target for end, targets in each if end == NONE for target in targets}

    def node_times(self) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every node of the template."""
        ends = np.fromiter(self.ends, np.int64, len(self.ends))
        starts = ends - np.fromiter(self.durations, np.int64, len(ends))
        communications = list(self.starts)
        starts[communications] = list(self.starts.values())
        if self.works is not None and self.program.works is not None:
            return self.program.works.times(starts, ends, self.works)
        node_of = self.program.node_of
        return starts[node_of], ends[node_of]
