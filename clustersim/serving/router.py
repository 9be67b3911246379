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

from typing import NoReturn

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import IllegalDecisionError
from clustersim.serving.user_class import UserClass, shown, whole_number
from clustersim.serving.view import RouterView, RoutesRequests
from clustersim.workload.streams import named_stream


class DrawnPairs:
    """Which two replicas ``power_of_two`` compares for each request, drawn ahead.

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
