"""Which replica a request goes to.

- ``round_robin``: in turn.
- ``least_outstanding``: fewest prompt and output tokens of unfinished requests, as if output lengths were known.
- ``fewest_waiting``: smallest 4 × waiting + running, as vLLM balances its data-parallel ranks
  (vllm/v1/engine/core_client.py, ``DPLBAsyncMPClient``, 2025).
- ``power_of_two``: of two replicas drawn at random, the one with fewer outstanding tokens (Mitzenmacher, "The Power of
  Two Choices in Randomized Load Balancing", IEEE TPDS 2001).
- ``prefix_aware``: the replica whose cache holds most of the prompt, unless that is little or replicas are unbalanced;
  then the one with fewest outstanding tokens (the cache-aware policies of SGLang's router, of Mooncake [Qin et al.,
  FAST 2025, algorithm 1] and of Dynamo's KV router). It knows what is cached at that instant, as one that is told of
  every block stored and evicted does; prompts that are still being computed do not count.
- a class of a user's file, with the method ``route`` (``serving.view``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import IllegalDecisionError
from clustersim.serving.config import PrefixRouting, RouterName, ServingConfig
from clustersim.serving.sequence import Sequence as Request
from clustersim.serving.user_class import UserClass, shown, whole_number
from clustersim.serving.view import ReplicaView, RouterView, RoutesRequests
from clustersim.workload.streams import named_stream


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


class DrawnPairs:
    """Which two replicas :class:`PowerOfTwo` compares for each request, drawn ahead.

    Parameters
    ----------
    seed : int
    stream : str
    """

    def __init__(self, seed: int, stream: str = "router") -> None:
        self.draw = named_stream(np.random.SeedSequence(seed), stream)
        self.state = self.draw.bit_generator.state
        self.replicas = 2

    def next(self, used: int, replicas: int, requests: int) -> Int64Array:
        """Return the places of two replicas for each of the next requests, one behind the other.

        Parameters
        ----------
        used : int
            How many of the pairs before were asked for; the others are drawn anew.
        replicas : int
            How many there are to choose from; where it is one, nothing is drawn.
        requests : int
        """
        self.draw.bit_generator.state = self.state
        self._draw(self.replicas, used)
        self.state, self.replicas = self.draw.bit_generator.state, replicas
        found = self._draw(replicas, requests)
        found[1::2] += found[1::2] >= found[::2]
        return found

    def _draw(self, replicas: int, requests: int) -> Int64Array:
        return self.draw.integers(np.tile([replicas, max(1, replicas - 1)], requests))


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


class CustomRouter:
    """Asks a user's router, and checks that there is such a replica.

    Parameters
    ----------
    user : UserClass
        It has the method ``route``.
    """

    def __init__(self, user: UserClass) -> None:
        self.user = user
        self.router: RoutesRequests = user.made()

    def route(self, now: int, request: Request, loads: Sequence[Load]) -> int:
        """Return what the user's router chose; see :meth:`choose`."""
        view = RouterView(
            now_ns=now,
            request=request.request,
            prompt_tokens=request.prompt_tokens,
            priority=request.priority,
            replicas=tuple(load.view(request) for load in loads),
        )
        return self.choose(view)

    def choose(self, view: RouterView) -> int:
        """Return what the user's router chooses.

        Raises
        ------
        IllegalDecisionError
            When that is no replica that can take the request.
        InputError
            When it is no number.
        """
        chosen = self.user.asked(lambda: self.router.route(view))
        known = [one.replica for one in view.replicas]
        number = chosen if type(chosen) is int else self.user.asked(lambda: whole_number(chosen))
        if number is None:
            message = f"sends request {view.request} to {shown(chosen)}; expected the number of a replica, one of "
            raise self.user.wrong_answer(view.now_ns, message + _listed(known))
        if number not in known:
            self._refuse(view.now_ns, view.request, number, known)
        return number

    def _refuse(self, now: int, request: int, chosen: object, known: list[int]) -> NoReturn:
        raise IllegalDecisionError(
            f"{self.user} at {now / 1e6:.6f} ms: DP-2: request {request} goes to replica {shown(chosen)}; "
            f"expected one of {_listed(known)}"
        )


def _listed(known: list[int]) -> str:
    return ", ".join(map(str, known[:8])) + (", …" if len(known) > 8 else "")


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
        return CustomRouter(named)
    if named == "round_robin":
        return RoundRobin()
    if named == "prefix_aware":
        return PrefixAware(config.prefix_routing)
    return PowerOfTwo(seed, stream) if named == "power_of_two" else Least(_BY_LOAD[named])
