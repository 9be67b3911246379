"""Links shared by events: the fluid network on the clock of a run, whose flows share the links that they meet on.

How they share them is :mod:`clustersim.core.flows`' to work out; what can meet at all, before, ``links.contention``'s.
A flow waits for its α without using a link, then carries its load at one rate. A flow that meets no other one takes
exactly the time that its cost says; where flows meet, rates are max-min fair over the flows connected through
shared links, and are solved anew when one of them joins or leaves (Casanova et al., "SimGrid", 2014, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from clustersim.clock import FloatArray, to_ns, too_late
from clustersim.collective.price import CommPlan
from clustersim.core.flows import enter, leave, share, touch_link
from clustersim.core.state import NEVER
from clustersim.replay.instant import COMPLETION, NETWORK, at, now_ns
from clustersim.replay.links.paths import LinkPaths, shares_of
from clustersim.replay.slowdown import WeakLinks
from clustersim.values import dataclass

if TYPE_CHECKING:
    from simpy import Environment


class Owner(Protocol):
    """Whatever has flows."""

    dead: bool
    """Whether it has failed, so that none of its flows goes on."""


@dataclass(slots=True, eq=False)
class Flow:
    """One communication in flight."""

    plan: CommPlan
    transfer_ns: int
    done: Callable[[Any], None]
    value: Any
    foreign: bool
    owner: Owner | None


class Watcher(Protocol):
    """Something that has to know when a flow that is not its own is on its links."""

    def disturb(self) -> None:
        """Take note that one entered a link."""

    def calm(self) -> None:
        """Take note that one left a link."""

    def prolong(self) -> None:
        """Take note that one leaves at another instant than it was to."""


class Network:
    """Flows on the directed links of a topology.

    Parameters
    ----------
    env : simpy.Environment
    capacity : float array of shape (links,)
        Bytes per second.
    weak : WeakLinks, optional
        Links that carry less at times.
    """

    def __init__(self, env: Environment, capacity: FloatArray, weak: WeakLinks | None = None) -> None:
        self.env = env
        self.weak = weak
        for fault in () if weak is None else weak.faults:
            for instant in (fault.at_ns, fault.until_ns):
                if instant is not None:
                    at(env, instant, NETWORK, self._share_anew, fault.links)
        self.paths = LinkPaths(capacity)
        self.present: dict[int, Flow] = {}
        """Flows by their paths."""
        self.armed = False
        """Whether links are shared again at this instant."""
        self.watchers: dict[int, list[Watcher]] = {}
        self.solved = 0

    def begin(
        self,
        plan: CommPlan | None,
        payload_bytes: float,
        duration_ns: int,
        done: Callable[[Any], None],
        value: Any,
        started: int | None = None,
        foreign: bool = False,
        owner: Owner | None = None,
    ) -> None:
        """Start a communication now; ``done(value)`` is called when it ends.

        Parameters
        ----------
        plan : CommPlan or None
            None: no link is used.
        payload_bytes : float
        duration_ns : int
            Its duration when it meets no other flow.
        done, value
        started : int, optional
            When it started, if it has been under way alone; now by default.
        foreign : bool
            Whether watchers of its links have to know of it.
        owner : Owner, optional
            Whose it is.
        """
        gone = 0 if started is None else now_ns(self.env) - started
        transfer_ns = 0 if plan is None else min(duration_ns, to_ns(payload_bytes * plan.seconds_per_byte))
        if plan is None or transfer_ns == 0:
            at(self.env, duration_ns - gone, COMPLETION, done, value)
            return
        flow = Flow(plan, transfer_ns, done, value, foreign, owner)
        wait = duration_ns - transfer_ns - gone
        if wait > 0:
            at(self.env, wait, COMPLETION, self._enter, flow)
        else:
            self._enter(flow, wait)

    def watch(self, links: Sequence[int], watcher: Watcher) -> int:
        """Tell ``watcher`` of foreign flows on these links from now on; return how many are there (by link)."""
        for link in links:
            self.watchers.setdefault(link, []).append(watcher)
        return sum(len({*links} & on) for on, _ in self.foreign())

    def foreign(self) -> list[tuple[set[int], int]]:
        """Return the links of each foreign flow, and when it leaves them."""
        n = self.paths.n
        return [({*self.paths.links_of(f)}, n.paths[f].due) for f, flow in self.present.items() if flow.foreign]

    def unwatch(self, links: Sequence[int], watcher: Watcher) -> None:
        """End what :meth:`watch` began."""
        for link in links:
            self.watchers[link].remove(watcher)

    def _enter(self, flow: Flow, ago: int = 0) -> None:
        """Put a flow on its links; ``ago`` ≤ 0 is how long it has been there already, alone."""
        if flow.owner is not None and flow.owner.dead:
            return
        f = self.paths.take((flow.plan,))
        self.present[f] = flow
        enter(self.paths.n, f, now_ns(self.env) + ago, flow.transfer_ns)
        self._end(f)
        self._arm()
        if flow.foreign and self.watchers:
            for link in self.paths.links_of(f):
                for watcher in tuple(self.watchers.get(link, ())):
                    watcher.disturb()

    def _end(self, f: int) -> None:
        """Let a flow end when it is due."""
        path = self.paths.n.paths[f]
        if path.due == NEVER:
            raise too_late()
        at(self.env, path.due - now_ns(self.env), COMPLETION, self._leave, (f, path.version))

    def _leave(self, ending: tuple[int, int]) -> None:
        f, version = ending
        if version == self.paths.n.paths[f].version:
            flow = self._remove(f)
            flow.done(flow.value)

    def drop(self, owner: Owner) -> None:
        """Take all flows of an owner off their links; nobody is told that they ended."""
        for f in [f for f, flow in self.present.items() if flow.owner is owner]:
            self._remove(f)

    def _remove(self, f: int) -> Flow:
        leave(self.paths.n, f)
        flow = self.present.pop(f)
        if flow.foreign and self.watchers:
            for link in self.paths.links_of(f):
                for watcher in self.watchers.get(link, ()):
                    watcher.calm()
        self.paths.give_back(f)
        self._arm()
        return flow

    def _arm(self) -> None:
        """Share links again at the end of this instant, where that is to be done."""
        if not self.armed and self.paths.n.traffic[0].touched:
            self.armed = True
            at(self.env, 0, NETWORK, self._solve)

    def _solve(self, _: None) -> None:
        n, self.armed = self.paths.n, False
        before = n.traffic[0].seen
        share(n, now_ns(self.env))
        self.solved += n.traffic[0].seen - before
        changed = [path.changed for path in n.paths[: n.traffic[0].changed]]
        for f in changed:
            self._end(f)
        for f in changed:
            if f in self.present and self.present[f].foreign and self.watchers:
                for link in self.paths.links_of(f):
                    for watcher in tuple(self.watchers.get(link, ())):
                        watcher.prolong()

    def _share_anew(self, links: Sequence[int]) -> None:
        """Share links again whose capacity has changed."""
        assert self.weak is not None
        n, now = self.paths.n, now_ns(self.env)
        left = shares_of(self.paths.capacity, self.weak.at(now))
        for link in links:
            n.links[link].capacity = int(left[link])
            touch_link(n, link)
        self._arm()
