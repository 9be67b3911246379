"""The fluid network: transfers and collectives that are in flight together share the links they meet on.

A flow waits for its α without using a link, then carries its load at one rate. A flow that meets no other one takes
exactly the time that its cost says; where flows meet, rates are max-min fair over the flows connected through
shared links, and are solved anew when one of them joins or leaves (Casanova et al., "SimGrid", 2014, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy import Environment

from clustersim.clock import NS_PER_S, FloatArray, Int64Array, to_ns
from clustersim.collective.fluid import fair_rates
from clustersim.collective.plan import CommPlan
from clustersim.replay.instant import COMPLETION, NETWORK, at, now_ns

FlowKey = tuple[int, ...]
"""Orders flows at one instant: (replica, stage, step, node)."""


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
    remaining: float = 1.0
    rate: float = 0.0
    since: int = 0
    version: int = 0


class Network:
    """Flows on the directed links of a topology.

    Parameters
    ----------
    env : simpy.Environment
    capacity : float array of shape (links,)
        Bytes per second.
    """

    def __init__(self, env: Environment, capacity: FloatArray) -> None:
        self.env = env
        self.capacity = capacity
        self.users: dict[int, list[Flow]] = {}
        self.touched: dict[FlowKey, Flow] = {}
        self.solved = 0

    def begin(
        self,
        key: FlowKey,
        plan: CommPlan | None,
        payload_bytes: float,
        duration_ns: int,
        done: Callable[[Any], None],
        value: Any,
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
        """
        transfer_ns = 0 if plan is None else min(duration_ns, to_ns(payload_bytes * plan.seconds_per_byte))
        if plan is None or transfer_ns == 0:
            at(self.env, duration_ns, COMPLETION, done, value)
            return
        flow = Flow(key, plan.links.tolist(), plan.links, plan.load_per_byte * payload_bytes, transfer_ns, done, value)
        wait = duration_ns - transfer_ns
        if wait:
            at(self.env, wait, COMPLETION, self._enter, flow)
        else:
            self._enter(flow)

    def _enter(self, flow: Flow) -> None:
        shared = False
        users = self.users
        for link in flow.links:
            found = users.get(link)
            if found:
                found.append(flow)
                shared = True
            else:
                users[link] = [flow]
        flow.since = now_ns(self.env)
        if shared:
            self._touch(flow)
        else:
            self._end_after(flow, flow.transfer_ns)

    def _end_after(self, flow: Flow, delay: int) -> None:
        flow.version += 1
        at(self.env, delay, COMPLETION, self._leave, (flow, flow.version))

    def _leave(self, ending: tuple[Flow, int]) -> None:
        flow, version = ending
        if version != flow.version:
            return
        flow.version += 1
        for link in flow.links:
            users = self.users[link]
            users.remove(flow)
            for other in users:
                self._touch(other)
        self.touched.pop(flow.key, None)
        flow.done(flow.value)

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
        rates = fair_rates([(flow.link_ids, flow.loads) for flow in flows], self.capacity)
        for flow, rate in zip(flows, np.asarray(rates, np.float64).tolist(), strict=True):
            if flow.rate == 0.0 and flow.version > 0:  # so far alone, at the pace of its own cost
                flow.remaining -= (now - flow.since) / flow.transfer_ns
            elif flow.rate > 0.0:
                flow.remaining -= flow.rate * ((now - flow.since) / NS_PER_S)
            flow.remaining = max(0.0, flow.remaining)
            flow.since, flow.rate = now, rate
            alone = len(flows) == 1
            delay = flow.transfer_ns * flow.remaining if alone else flow.remaining / rate * NS_PER_S
            self._end_after(flow, round(delay))
            if alone:
                flow.rate = 0.0
