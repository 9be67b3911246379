"""A pass whose operators form a chain: one event as long as no foreign flow is on its links, steps while one is.

::

    closed:    |----------------------- one event ----------------------->|
                          foreign flow enters
                                 v
    stepping:             |segment|segment|segment|
                                          ^ it has left: closed again for the rest
    segments:  runs of work on the device, and single collectives

Both ways give the same times while nothing foreign is there, so it does not matter when exactly a pass changes from
one to the other; while something foreign is there, every collective is a flow in the network, as in ``full``. The
one condition is that whatever it may meet is visible in the network: true of sends, which always are flows there,
and not of other passes, so a pass that may meet another pass only ever steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.program import StageProgram
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.values import dataclass

if TYPE_CHECKING:
    from simpy import Environment


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainShape:
    """A chain of instances cut into segments.

    Parameters
    ----------
    instance_class : int64 array of shape (instances,)
    first : int64 array of shape (segments,)
        First instance of each segment.
    members : list of tuple of int or None
        Local ranks of the segment's collective; None for a run of other work.
    cls : list of int
        Cost class of that collective, −1 otherwise.
    """

    instance_class: Int64Array
    first: Int64Array
    members: list[tuple[int, ...] | None]
    cls: list[int]

    @cached_property
    def joins(self) -> Int64Array:
        """The instances that are collectives."""
        found: Int64Array = self.first[np.array(self.cls) >= 0]
        return found

    @cached_property
    def groups(self) -> tuple[list[tuple[int, tuple[int, ...]]], Int64Array]:
        """Each class of collectives with its local ranks, once; and which of them each collective is."""
        all_of = [(cls, ranks) for cls, ranks in zip(self.cls, self.members, strict=True) if ranks is not None]
        numbers = {one: number for number, one in enumerate(dict.fromkeys(all_of))}
        return list(numbers), np.array([numbers[one] for one in all_of], np.int64)

    @cached_property
    def many(self) -> Int64Array:
        """Instances of each segment."""
        return np.diff(self.first, append=len(self.instance_class))


def chain_shape(program: StageProgram) -> ChainShape:
    """Cut a chain program into segments."""
    template = program.template
    node_of: dict[int, int] = {}
    for node, instance in enumerate(template.node_instance.tolist()):
        node_of.setdefault(instance, node)
    first: list[int] = []
    members: list[tuple[int, ...] | None] = []
    classes: list[int] = []
    for index, cls in enumerate(template.instance_class.tolist()):
        group = template.members[node_of[index]] if program.classes[cls].comm is not None else None
        if group is not None or not members or members[-1] is not None:
            first.append(index)
            members.append(group)
            classes.append(cls if group is not None else -1)
    return ChainShape(
        instance_class=template.instance_class, first=np.array(first, np.int64), members=members, cls=classes
    )


Communicate = Callable[[int, int, tuple[int, ...], int, Callable[[Any], None], int], None]
"""(operator, cost class, local ranks, duration in ns, done, started at) starts a communication."""


class ChainPass:
    """One execution of a chain.

    Parameters
    ----------
    env, network : Environment, Network
    shape : ChainShape
    by_class : int64 array of shape (classes,)
    watched : tuple of int
        Links on which a foreign flow may appear; None when passes may meet, so that it always steps.
    communicate : callable
        Starts a collective: (segment, class, local ranks, duration, done, started at).
    on_end : callable
    marks : sequence of (int, callable), optional
        Instances in order, and what is to be called when each has ended; collectives are not among them.
    longer : int64 array of shape (instances,), optional
        How much longer each takes than its class does, whatever it meets (``replay.slowdown``).
    """

    __slots__ = (
        "alone", "by_instance", "communicate", "ends", "env", "foreign", "marked", "marks", "network", "on_end",
        "over", "segment", "shape", "start", "version", "watched",
    )  # fmt: skip

    def __init__(
        self,
        env: Environment,
        network: Network,
        shape: ChainShape,
        by_class: Int64Array,
        watched: tuple[int, ...] | None,
        communicate: Communicate,
        on_end: Callable[[], None],
        marks: Sequence[tuple[int, Callable[[], None]]] = (),
        longer: Int64Array | None = None,
    ) -> None:
        self.env = env
        self.network = network
        self.shape = shape
        self.alone = by_class[shape.instance_class]
        self.by_instance = self.alone.copy() if longer is None else self.alone + longer
        self.ends = np.cumsum(np.add.reduceat(self.by_instance, shape.first))
        self.watched = watched
        self.communicate = communicate
        self.on_end = on_end
        self.foreign = 0
        self.segment = -1
        self.version = 0
        self.over = False
        self.start = 0
        self.marks = marks
        self.marked = 0

    def begin(self) -> None:
        """Start the pass now."""
        self.start = now_ns(self.env)
        self.ends += self.start
        if self.watched is None:
            self.foreign = 1
        else:
            self.foreign = self.network.watch(self.watched, self)
        self._advance(0)

    def go_on(self, start: int, foreign: int) -> None:
        """Go on with a pass that began at ``start``, met nothing until now, and is to end later.

        Parameters
        ----------
        start : int
        foreign : int
            Foreign flows on its links, more than 0.
        """
        self.start = start
        self.ends += start
        self.foreign = foreign
        segment = int(np.searchsorted(self.ends, now_ns(self.env), side="right"))
        self._step(segment, int(self.ends[segment - 1]) if segment else start)

    def disturb(self) -> None:
        """Take note of a foreign flow that enters a watched link now."""
        self.foreign += 1
        if self.segment >= 0:
            return
        now = now_ns(self.env)
        segment = int(np.searchsorted(self.ends, now, side="right"))
        if segment == len(self.ends):
            return
        self._step(segment, int(self.ends[segment - 1]) if segment else self.start)

    def calm(self) -> None:
        """Take note of a foreign flow that leaves a watched link."""
        self.foreign -= 1

    def prolong(self) -> None:
        """Take no note: what is on a link is met, however long it is there."""

    def _advance(self, segment: int) -> None:
        """Go on with ``segment``, which starts now."""
        if segment == len(self.ends):
            self._finish()
        elif self.foreign:
            self._step(segment, now_ns(self.env))
        else:
            self.segment = -1
            self.version += 1
            at(self.env, int(self.ends[-1]) - now_ns(self.env), COMPLETION, self._closed, self.version)
            self._arm_mark()

    def _arm_mark(self) -> None:
        """Wait for the end of the next marked instance, where it is known: of all while closed, else of what began."""
        if self.marked == len(self.marks):
            return
        instance = self.marks[self.marked][0]
        first = self.shape.first
        segment = int(np.searchsorted(first, instance, side="right")) - 1
        if self.segment >= 0 and segment > self.segment:
            return
        following = int(first[segment + 1]) if segment + 1 < len(first) else len(self.by_instance)
        end = int(self.ends[segment]) - int(self.by_instance[instance + 1 : following].sum())
        at(self.env, end - now_ns(self.env), COMPLETION, self._mark, self.version)

    def _mark(self, version: int) -> None:
        if version == self.version and not self.over:
            self.marked += 1
            self.marks[self.marked - 1][1]()
            self._arm_mark()

    def _closed(self, version: int) -> None:
        if version == self.version:
            self._finish()

    def abandon(self) -> None:
        """Take no more note of anything: what it runs on has failed."""
        if self.watched is not None and not self.over:
            self.network.unwatch(self.watched, self)
        self.over = True
        self.version += 1

    def _finish(self) -> None:
        if self.over:
            return
        self.over = True
        if self.watched is not None:
            self.network.unwatch(self.watched, self)
        self.on_end()

    def _step(self, segment: int, started: int) -> None:
        """Run one segment, which started at ``started``, as an event or as a flow."""
        self.segment = segment
        self.version += 1
        members = self.shape.members[segment]
        self._arm_mark()
        if members is None:
            at(self.env, int(self.ends[segment]) - now_ns(self.env), COMPLETION, self._stepped, segment)
        else:
            cls, length = self.shape.cls[segment], int(self.alone[self.shape.first[segment]])
            self.communicate(segment, cls, members, length, self._stepped, started)

    def _stepped(self, segment: int) -> None:
        if self.over:  # what it runs on has failed since
            return
        late = now_ns(self.env) - int(self.ends[segment])
        if late:
            self.ends[segment:] += late
            self.by_instance[self.shape.first[segment]] += late
        self._advance(segment + 1)

    @property
    def stretched(self) -> bool:
        """Whether anything has taken longer than its class does."""
        return not np.array_equal(self.by_instance, self.alone)

    def lost(self) -> list[int]:
        """Return what took longer than its class does, of a pass that has ended: instance and ns, in turns."""
        some = np.flatnonzero(self.by_instance != self.alone)
        pairs: list[int] = np.stack((some, (self.by_instance - self.alone)[some]), axis=1).ravel().tolist()
        return pairs

    def instance_times(self) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every instance."""
        ends = np.cumsum(self.by_instance) + self.start
        return ends - self.by_instance, ends
