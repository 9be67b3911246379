"""Links shared by events: the fluid network on the clock of a run, whose flows share the links that they meet on.

Who shares with whom, and when, is worked out here (for lanes, in :mod:`clustersim.replay.links.sharing_by_lanes`); at
which rates, in :mod:`clustersim.replay.links.fair_rates`; what can meet at all, before, in ``links.contention``.
A flow waits for its α without using a link, then carries its load at one rate. A flow that meets no other one takes
exactly the time that its cost says; where flows meet, rates are max-min fair over the flows connected through
shared links, and are solved anew when one of them joins or leaves (Casanova et al., "SimGrid", 2014, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clustersim.clock import FloatArray, Int64Array, to_ns
from clustersim.collective.price import CommPlan
from clustersim.replay.instant import COMPLETION, NETWORK, at, now_ns
from clustersim.replay.links.fair_rates import fair_rates, left, needed_ns
from clustersim.replay.slowdown import WeakLinks
from clustersim.values import dataclass

if TYPE_CHECKING:
    from simpy import Environment

MOST_RATES: Final = 1_000
"""Rates that are remembered, with all links of their flows; they can be worked out again."""
FlowKey = tuple[int, ...]
"""Orders flows at one instant: (replica, stage, step, node)."""


class Owner(Protocol):
    """Whatever has flows."""

    dead: bool
    """Whether it has failed, so that none of its flows goes on."""


@dataclass(slots=True, eq=False)
class Flow:
    """One communication in flight."""

    key: FlowKey
    links: list[int]
    link_ids: Int64Array
    loads: FloatArray
    transfer_ns: int
    done: Callable[[Any], None]
    value: Any
    foreign: bool
    remaining: float = 1.0
    owner: Owner | None = None
    rate: float = 0.0
    since: int = 0
    version: int = 0


class Watcher(Protocol):
    """Something that has to know when a flow that is not its own is on its links."""

    def disturb(self) -> None:
        """Take note that one entered a link."""

    def calm(self) -> None:
        """Take note that one left a link."""


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
        self.capacity = capacity
        self.users: dict[int, list[Flow]] = {}
        self.touched: dict[FlowKey, Flow] = {}
        self.watchers: dict[int, list[Watcher]] = {}
        self.solved = 0
        self._rates: dict[tuple[tuple[bool, ...], tuple[tuple[bytes, bytes], ...]], list[float]] = {}
        """Faults at work, and links and bytes of flows that share links → their rates: collectives meet K/V alike."""

    def begin(
        self,
        key: FlowKey,
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
        key : tuple of int
            Unique among flows in flight.
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
        loads = plan.load_per_byte * payload_bytes
        flow = Flow(key, plan.links.tolist(), plan.links, loads, transfer_ns, done, value, foreign, owner=owner)
        wait = duration_ns - transfer_ns - gone
        if wait > 0:
            at(self.env, wait, COMPLETION, self._enter, flow)
        else:
            self._enter(flow, wait)

    def watch(self, links: Sequence[int], watcher: Watcher) -> int:
        """Tell ``watcher`` of foreign flows on these links from now on; return how many are there (by link)."""
        present = 0
        for link in links:
            self.watchers.setdefault(link, []).append(watcher)
            present += sum(1 for flow in self.users.get(link, ()) if flow.foreign)
        return present

    def unwatch(self, links: Sequence[int], watcher: Watcher) -> None:
        """End what :meth:`watch` began."""
        for link in links:
            self.watchers[link].remove(watcher)

    def _enter(self, flow: Flow, ago: int = 0) -> None:
        """Put a flow on its links; ``ago`` ≤ 0 is how long it has been there already, alone."""
        if flow.owner is not None and flow.owner.dead:
            return
        shared = False
        users = self.users
        for link in flow.links:
            found = users.get(link)
            if found:
                found.append(flow)
                shared = True
            else:
                users[link] = [flow]
        flow.since = now_ns(self.env) + ago
        if shared:
            flow.version += ago < 0  # what it has done alone counts
            self._touch(flow)
        else:
            self._end_after(flow, flow.transfer_ns + ago)
        if flow.foreign and self.watchers:
            for link in flow.links:
                for watcher in tuple(self.watchers.get(link, ())):
                    watcher.disturb()

    def _end_after(self, flow: Flow, delay: int) -> None:
        flow.version += 1
        at(self.env, delay, COMPLETION, self._leave, (flow, flow.version))

    def _leave(self, ending: tuple[Flow, int]) -> None:
        flow, version = ending
        if version != flow.version:
            return
        self._remove(flow)
        flow.done(flow.value)

    def drop(self, owner: Owner) -> None:
        """Take all flows of an owner off their links; nobody is told that they ended."""
        flows = {flow.key: flow for users in self.users.values() for flow in users if flow.owner is owner}
        for key in sorted(flows):
            self._remove(flows[key])

    def _remove(self, flow: Flow) -> None:
        flow.version += 1
        for link in flow.links:
            users = self.users[link]
            users.remove(flow)
            for other in users:
                self._touch(other)
            if flow.foreign:
                for watcher in self.watchers.get(link, ()):
                    watcher.calm()
        self.touched.pop(flow.key, None)

    def _touch(self, flow: Flow) -> None:
        if not self.touched:
            at(self.env, 0, NETWORK, self._solve)
        self.touched[flow.key] = flow

    def _solve(self, _: None) -> None:
        now = now_ns(self.env)
        pending, self.touched = self.touched, {}
        seen: dict[FlowKey, Flow] = {}
        for key in sorted(pending):
            if key in seen:
                continue
            component = self._component(pending[key])
            seen |= {flow.key: flow for flow in component}
            self._share(component, now)

    def _share_anew(self, links: Sequence[int]) -> None:
        """Share links anew whose capacity has changed, where flows share them."""
        for link in links:
            for flow in self.users.get(link, ()):
                if flow.rate > 0.0:
                    self._touch(flow)

    def _component(self, first: Flow) -> list[Flow]:
        found = {first.key: first}
        queue = [first]
        while queue:
            for link in queue.pop().links:
                for other in self.users[link]:
                    if other.key not in found:
                        found[other.key] = other
                        queue.append(other)
        return [found[key] for key in sorted(found)]

    def _share(self, flows: list[Flow], now: int) -> None:
        self.solved += 1
        rates = [0.0] if len(flows) == 1 else self._rates_of(flows, now)
        for flow, rate in zip(flows, rates, strict=True):
            if flow.version > 0:  # it has carried something: alone, where it has no rate
                flow.remaining = left(flow.remaining, flow.rate, flow.transfer_ns, now - flow.since)
            flow.since, flow.rate = now, rate
            self._end_after(flow, needed_ns(flow.remaining, rate, flow.transfer_ns))

    def _rates_of(self, flows: list[Flow], now: int) -> list[float]:
        loads = [(flow.link_ids, flow.loads) for flow in flows]
        weak = () if self.weak is None else tuple([fault.covers(now) for fault in self.weak.faults])
        key = weak, tuple([(links.tobytes(), size.tobytes()) for links, size in loads])
        found = self._rates.get(key)
        if found is None:
            if len(self._rates) >= MOST_RATES:
                self._rates.clear()
            capacity = self.capacity if self.weak is None else self.weak.at(now)
            rates: list[float] = fair_rates(loads, capacity).tolist()
            found = self._rates[key] = rates
        return found
