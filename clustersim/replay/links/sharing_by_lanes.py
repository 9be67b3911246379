"""Links shared by lanes: the flows of one replica without a clock of their own, in scalars.

It does what :mod:`clustersim.replay.links.sharing_by_events` does on a clock, with the same arithmetic
(:mod:`clustersim.replay.links.fair_rates`). Flows are few (the sends in flight and a collective per stage) and have
numbers. All ranks of a send do the same, so they are one flow here with the loads of each. Every step of arithmetic,
and when it is taken, is that of ``Network``: a flow that enters among others, and those that share a link with one that
leaves, are *touched*, and what is connected to a touched flow is shared out anew, once at the end of an instant.
"""

from __future__ import annotations

from typing import Final

from clustersim.clock import FloatArray
from clustersim.errors import BrokenLawError
from clustersim.replay.links.fair_rates import Load, fair_rates, left, needed_ns
from clustersim.values import dataclass

MOST_RATES: Final = 10_000
"""Rates that are remembered; they can be worked out again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """What a communication puts on links.

    Parameters
    ----------
    transfer_ns : int
        How long it uses them when alone; above 0.
    links : frozenset of int
    loads : tuple of (links, bytes)
        One for a collective, one per rank for the sends of a stage.
    """

    transfer_ns: int
    links: frozenset[int]
    loads: tuple[Load, ...]


class Flow:
    """A communication on its links.

    Attributes
    ----------
    number : int
    use : Use
    since : int
        The instant up to which ``remaining`` counts.
    end : int
        When it leaves as things are.
    remaining : float
        The part that is left, at ``since``.
    rate : float
        Its share in 1/s; 0 while it is alone.
    """

    __slots__ = ("end", "number", "rate", "remaining", "since", "use")

    def __init__(self, number: int, use: Use, since: int, end: int) -> None:
        self.number = number
        self.use = use
        self.since = since
        self.end = end
        self.remaining = 1.0
        self.rate = 0.0


class SharedFlows:
    """Flows on links.

    Parameters
    ----------
    capacity : float array of shape (links,)
        Bytes per second.
    """

    def __init__(self, capacity: FloatArray) -> None:
        self.capacity = capacity
        self.present: dict[int, Flow] = {}
        self.touched: dict[int, None] = {}
        self._rates: dict[tuple[Use, ...], tuple[float, ...]] = {}

    def enter(self, number: int, use: Use, since: int, end: int) -> None:
        """Put a flow on its links, where it has been alone since ``since`` and would stay until ``end``."""
        if any(not use.links.isdisjoint(other.use.links) for other in self.present.values()):
            self.touched[number] = None
        self.present[number] = Flow(number, use, since, end)

    def leave(self, number: int) -> None:
        """Take a flow off its links."""
        links = self.present.pop(number).use.links
        self.touched.pop(number, None)
        for other in self.present.values():
            if not links.isdisjoint(other.use.links):
                self.touched[other.number] = None

    def solve(self, now: int) -> list[Flow]:
        """Share out the links of what was touched; return the flows whose end is new."""
        pending, self.touched = self.touched, {}
        solved: dict[int, Flow] = {}
        for number in pending:
            if number not in solved:
                component = self._component(self.present[number])
                self._share(component, now)
                solved |= {flow.number: flow for flow in component}
        return list(solved.values())

    def _component(self, first: Flow) -> list[Flow]:
        found, queue = {first.number: first}, [first]
        while queue:
            links = queue.pop().use.links
            for other in self.present.values():
                if other.number not in found and not links.isdisjoint(other.use.links):
                    found[other.number] = other
                    queue.append(other)
        return [found[number] for number in sorted(found)]

    def _share(self, flows: list[Flow], now: int) -> None:
        alone = len(flows) == 1
        rates = (0.0,) if alone else self._rates_of(tuple([flow.use for flow in flows]))
        for flow, rate in zip(flows, rates, strict=True):
            flow.remaining = left(flow.remaining, flow.rate, flow.use.transfer_ns, now - flow.since)
            flow.since, flow.rate = now, rate
            flow.end = now + needed_ns(flow.remaining, rate, flow.use.transfer_ns)

    def _rates_of(self, uses: tuple[Use, ...]) -> tuple[float, ...]:
        rates = self._rates.get(uses)
        if rates is None:
            if len(self._rates) >= MOST_RATES:
                self._rates.clear()
            whole = fair_rates([load for use in uses for load in use.loads], self.capacity).tolist()
            found = []
            for use in uses:
                mine, whole = whole[: len(use.loads)], whole[len(use.loads) :]
                if any(rate != mine[0] for rate in mine):
                    raise BrokenLawError(f"ranks that send alike got rates {mine}; they share links differently")
                found.append(mine[0])
            rates = self._rates[uses] = tuple(found)
        return rates
