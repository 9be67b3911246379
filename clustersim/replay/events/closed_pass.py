"""A pass whose operators overlap: a few events as long as it meets nothing, and all of them from then on.

Where its collectives are, if nothing changes, is known when it begins. A foreign flow that is on the links of one while
that is there meets it; so does one that stays longer than it was to. Both ways give the same times while nothing is
met, so it does not matter when exactly a pass changes from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.replay.events.pass_program import NONE
from clustersim.replay.events.stage_pass import EventPass
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.replay.links.sharing_by_events import Network

Use = Callable[[int, tuple[int, ...], int], tuple[frozenset[int], int]]
"""(class, local ranks, duration in ns) → links of a collective, and for how long it is there."""


class ClosedPass(EventPass):
    """One execution of a program.

    Parameters
    ----------
    run : EventPass
        What has not begun.
    network : Network
    watched : tuple of int
        Links on which a foreign flow may appear.
    template : PassTemplate
    ends : int64 array of shape (instances,)
        When each ends, from the start of the pass, if it meets nothing.
    use : callable
    """

    __slots__ = ("_uses", "due", "network", "over", "passed", "stretched", "use", "watched")  # fmt: skip

    def __init__(
        self, run: EventPass, network: Network, watched: tuple[int, ...], template: PassTemplate, ends: Int64Array,
        use: Use,
    ) -> None:  # fmt: skip
        for name in EventPass.__slots__:
            setattr(self, name, getattr(run, name))
        self.network, self.watched, self.use = network, watched, use
        if ClosedPass not in template.made:
            template.made[ClosedPass] = self.program.last_instances(template.node_instance)
        self.due: Int64Array = ends[template.made[ClosedPass]]
        """When each operator ends."""
        self.stretched = False
        self.over = False
        self.passed: set[int] = set()
        """Operators of whose ends others know."""
        self._uses: list[tuple[frozenset[int], Int64Array, int]] | None = None

    def begin(self) -> None:
        """Start the pass now."""
        self.due = self.due + now_ns(self.env)
        self.network.watch(self.watched, self)
        if self._meets():
            self._step()
            return
        for operator in {**self.exits, **self.marks}:
            at(self.env, int(self.due[operator]) - now_ns(self.env), COMPLETION, self._tell, operator)
        at(self.env, int(self.due.max()) - now_ns(self.env), COMPLETION, self._close, None)

    def disturb(self) -> None:
        """Take note of a foreign flow that enters a watched link now."""
        if not self.stretched and not self.over and self._meets():
            self._step()

    prolong = disturb

    def calm(self) -> None:
        """Take no note: what it met has changed all that follows."""

    def abandon(self) -> None:
        """Take no more note of anything: what it runs on has failed."""
        if not self.stretched and not self.over:
            self.network.unwatch(self.watched, self)
        self.over = True

    def _tell(self, operator: int) -> None:
        """Say that an operator has ended for which others wait."""
        if self.stretched or self.over:
            return
        self.passed.add(operator)
        ranks, mark = self.exits.get(operator), self.marks.get(operator)
        if ranks is not None:
            self.on_exit(ranks)
        if mark is not None:
            mark()

    def _close(self, _: None) -> None:
        if self.stretched or self.over:
            return
        if len(self.passed) < len({**self.exits, **self.marks}):  # what ends now has yet to be passed
            at(self.env, 0, COMPLETION, self._close, None)
            return
        self.abandon()
        self.on_end()

    def _meets(self) -> bool:
        """Whether a foreign flow meets a collective, if nothing changes."""
        now = now_ns(self.env)
        for links, leaves in self.network.foreign():
            if links.isdisjoint(self.watched):
                continue
            for mine, ends, ns in self._collectives():
                if ns and not links.isdisjoint(mine) and bool(((ends - ns <= leaves) & (ends >= now)).any()):
                    return True
        return False

    def _collectives(self) -> list[tuple[frozenset[int], Int64Array, int]]:
        """Return the links of each class of collectives, when they leave these, and for how long they are there."""
        if self._uses is None:
            groups, operators = self.program.groups
            self._uses = []
            for (cls, members), some in zip(groups, operators, strict=True):
                links, ns = self.use(cls, members, self.durations[some[0]])
                self._uses.append((links, self.due[some], ns))
        return self._uses

    def _step(self) -> None:
        """Go on operator by operator: what ends now has yet to end."""
        self.network.unwatch(self.watched, self)
        self.stretched = True
        now, due = now_ns(self.env), self.due.tolist()
        self.ends[:] = [end if end < now else NONE for end in due]
        for operator, targets in enumerate(self.program.successors):
            if self.ends[operator] != NONE:
                for target in targets:
                    self.pending[target] -= 1
        self.exits = {one: ranks for one, ranks in self.exits.items() if one not in self.passed}
        self.marks = {one: call for one, call in self.marks.items() if one not in self.passed}
        start = self._prepared()
        for operator, waits in enumerate(self.pending):
            if waits == 0 and self.ends[operator] == NONE:
                start(operator, now, due[operator] - self.durations[operator])
