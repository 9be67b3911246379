"""Routers that compare the loads of replicas (``serving.router``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from clustersim.serving.config import PrefixRouting, RouterName, ServingConfig
from clustersim.serving.router import CustomRouter
from clustersim.serving.user_class import UserClass
from clustersim.serving.view import ReplicaView, RouterView
from clustersim.workload.streams import named_stream
from tests.oracle.serving.sequence import Sequence as Request


class Load(Protocol):
    """What a router may ask a replica."""

    @property
    def index(self) -> int:
        """Number of the replica."""
        ...

    @property
    def outstanding(self) -> int:
        """Prompt and output tokens of its unfinished requests."""
        ...

    @property
    def waiting(self) -> int:
        """Sequences that wait."""
        ...

    @property
    def running(self) -> int:
        """Sequences that run."""
        ...

    def cached_tokens(self, request: Request) -> int:
        """Leading tokens of a prompt that its prefix cache holds."""
        ...

    def view(self, request: Request) -> ReplicaView:
        """Return everything that a user's router is shown."""
        ...


class Router(Protocol):
    """Chooses among the replicas that can take a request; ``loads`` has at least one."""

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return the number of the replica."""
        ...


class RoundRobin:
    """Replicas in turn."""

    def __init__(self) -> None:
        self.turn = 0

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return the next one."""
        del now, request
        self.turn += 1
        return loads[(self.turn - 1) % len(loads)].index


class Least:
    """The replica with the smallest of something, the first among equals.

    Parameters
    ----------
    of : callable
        Load → what is compared.
    """

    def __init__(self, of: Callable[[Load], int]) -> None:
        self.of = of

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return the least loaded one."""
        del now, request
        return min(loads, key=lambda load: (self.of(load), load.index)).index


class PowerOfTwo:
    """The less loaded of two that are drawn at random.

    Parameters
    ----------
    seed : int
    stream : str
    """

    def __init__(self, seed: int, stream: str = "router") -> None:
        self.draw = named_stream(np.random.SeedSequence(seed), stream)

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return the less loaded one of the two; they are different where there are two."""
        del now, request
        first = int(self.draw.integers(len(loads)))
        second = int(self.draw.integers(max(1, len(loads) - 1)))
        second += second >= first
        pair = [loads[place] for place in (first, second) if place < len(loads)]
        return min(pair, key=lambda load: (load.outstanding, load.index)).index


class PrefixAware:
    """The replica that has most of the prompt cached, where that is worth it.

    Parameters
    ----------
    routing : PrefixRouting
    """

    def __init__(self, routing: PrefixRouting) -> None:
        self.routing = routing

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return the replica with the longest cached prefix, or the one with fewest outstanding tokens."""
        del now
        chosen = loads if self._unbalanced(loads) else self._with_longest(request, loads)
        return min(chosen, key=lambda load: (load.outstanding, load.index)).index

    def _unbalanced(self, loads: Sequence[Load]) -> bool:
        counts = [load.waiting + load.running for load in loads]
        most, least, routing = max(counts), min(counts), self.routing
        return most - least > routing.balance_abs_threshold and most > routing.balance_rel_threshold * least

    def _with_longest(self, request: Request, loads: Sequence[Load]) -> Sequence[Load]:
        """Return the replicas that have most of the prompt cached; all, where that is too little to follow."""
        cached = [load.cached_tokens(request) for load in loads]
        most = max(cached)
        if most == 0 or most < self.routing.cache_threshold * request.prompt_tokens:
            return loads
        return [load for load, tokens in zip(loads, cached, strict=True) if tokens == most]


class UserRouter(CustomRouter):
    """Shows a user's router the state of replicas."""

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return what the user's router chose; see :meth:`CustomRouter.choose`."""
        view = RouterView(
            now_ns=now,
            request=request.request,
            prompt_tokens=request.prompt_tokens,
            priority=request.priority,
            replicas=tuple(load.view(request) for load in loads),
        )
        return self.choose(view)


_BY_LOAD: Final[dict[RouterName, Callable[[Load], int]]] = {
    "least_outstanding": lambda load: load.outstanding,
    "fewest_waiting": lambda load: 4 * load.waiting + load.running,
}


def make_router(config: ServingConfig, seed: int, stream: str = "router") -> Router:
    """Return the router that a configuration names, in its first state.

    Parameters
    ----------
    config : ServingConfig
    seed : int
        Of the scenario.
    stream : str
        Name of the stream of random numbers, one per router.
    """
    named = config.router
    if isinstance(named, UserClass):
        return UserRouter(named)
    if named == "round_robin":
        return RoundRobin()
    if named == "prefix_aware":
        return PrefixAware(config.prefix_routing)
    return PowerOfTwo(seed, stream) if named == "power_of_two" else Least(_BY_LOAD[named])
