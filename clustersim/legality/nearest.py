"""The nearest legal deployment: the fewest changes that leave no rule of level P broken.

Best first over the repairs that broken rules name: fewest changed fields, then the kinds of change that the documents
prefer (:mod:`clustersim.legality.preference`), then the nearest values. Every candidate is examined by all rules. A
change that is not needed beside the others is dropped, so that no part of the answer would do alone.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, count
from typing import Any, Final

from clustersim.legality.broken import Broken, Offer, broken_by, broken_rules, fewest_more, independent
from clustersim.legality.deployment import Deployment
from clustersim.legality.preference import distance, neighbours, preference
from clustersim.legality.repair import changed
from clustersim.legality.rule import Change, Violation

State = Mapping[str, Any]
"""Path → new value, of all that is changed."""

MOST_EXAMINED: Final = 4000
"""Candidates after which a search gives up: some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One change, and the rule that is broken without it.

    Parameters
    ----------
    path, value : str, object
        As ``--set`` would have it.
    rule, message : str
        The rule, and what it finds when all is changed but this.
    """

    path: str
    value: Any
    rule: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """What a search found.

    Parameters
    ----------
    changes : tuple of Asked or None
        In the order that the documents prefer. Empty where the deployment is legal as it is, None where nothing near
        it is.
    left : tuple of Broken
        Where nothing is: what is left of the candidate that comes closest.
    examined : int
        Candidates that were looked at; where these are :data:`MOST_EXAMINED`, the search gave up.
    """

    changes: tuple[Asked, ...] | None
    left: tuple[Broken, ...] = ()
    examined: int = 0


def nearest_legal(
    deployment: Deployment, verify: Callable[[Deployment], Sequence[Violation]] = lambda _: ()
) -> Nearest:
    """Search for the nearest legal deployment.

    Parameters
    ----------
    deployment : Deployment
    verify : callable, optional
        What else must be found nothing wrong with, such as a check of what the simulator makes of a plan.
    """
    found = Nearest(changes=None)
    for last_resorts in (False, True):
        search = _Search(deployment, verify, last_resorts=last_resorts)
        found = search.run()
        if found.changes is not None:
            return found
    return found


@dataclass(slots=True, kw_only=True, order=True)
class _Candidate:
    """A state in the queue; ``fields`` is at least how many it takes until all is legal."""

    fields: int
    preference: int
    distance: float
    serial: int
    state: State = field(compare=False)
    asked_by: Mapping[str, str] = field(compare=False)
    distances: Mapping[str, float] = field(compare=False)


class _Search:
    """One search; it knows what was examined, so that no state is looked at twice."""

    def __init__(
        self, deployment: Deployment, verify: Callable[[Deployment], Sequence[Violation]], *, last_resorts: bool
    ) -> None:
        self.deployment, self.verify, self.last_resorts = deployment, verify, last_resorts
        self.known: dict[str, tuple[Broken, ...]] = {}
        self.offered: dict[str, tuple[Offer, ...]] = {}
        self.serial = count()

    def run(self) -> Nearest:
        """Look at candidates, the best first."""
        start = _Candidate(
            fields=0, preference=0, distance=0.0, serial=next(self.serial), state={}, asked_by={}, distances={}
        )
        queue, queued = [start], {_key({})}
        closest = self.broken({})
        while queue and len(self.known) < MOST_EXAMINED:
            candidate = heapq.heappop(queue)
            broken = self.broken(candidate.state)
            if not broken:
                return Nearest(changes=self._explained(candidate), examined=len(self.known))
            closest = min(closest, broken, key=len)
            offers = self.offers(candidate.state)
            fields = len(candidate.state) + fewest_more(offers, candidate.state.keys())
            if fields > candidate.fields:
                candidate.fields = fields
                heapq.heappush(queue, candidate)
                continue
            for following in self._following(candidate, offers):
                if _key(following.state) not in queued:
                    queued.add(_key(following.state))
                    heapq.heappush(queue, following)
        return Nearest(changes=None, left=closest, examined=len(self.known))

    def broken(self, state: State) -> tuple[Broken, ...]:
        """Return what is wrong with a state: what the rules find, and if that is nothing what ``verify`` finds."""
        key = _key(state)
        if key not in self.known:
            deployment = changed(self.deployment, tuple(state.items()))
            self.known[key] = broken_rules(deployment) or tuple(map(broken_by, self.verify(deployment)))
        return self.known[key]

    def offers(self, state: State) -> tuple[Offer, ...]:
        """Return what may mend what is wrong with a state; a state is asked again when it comes up again."""
        key = _key(state)
        if key not in self.offered:
            self.offered[key] = tuple(one.offers(last_resorts=self.last_resorts) for one in self.broken(state))
        return self.offered[key]

    def _following(self, candidate: _Candidate, offers: Sequence[Offer]) -> Iterator[_Candidate]:
        """Yield the candidates that the repairs make: the first change of each alone, and all of it."""
        for one in independent(offers):
            for place, repair in enumerate(one.repairs):
                for change in (repair.change[:1], repair.change)[: len(repair.change)]:
                    yield self._changed(candidate, one.rule, change, repair.distance + place)

    def _changed(self, candidate: _Candidate, rule: str, change: Change, far: float) -> _Candidate:
        state, asked_by, distances = dict(candidate.state), dict(candidate.asked_by), dict(candidate.distances)
        for path, value in change:
            state[path], asked_by[path], distances[path] = value, rule, distance(self.deployment, path, value, far)
            if changed(self.deployment, ((path, value),)) == self.deployment:  # back to what it was
                del state[path], asked_by[path], distances[path]
        return _Candidate(
            fields=max(len(state), candidate.fields),
            preference=self._preference(state),
            distance=math.fsum(distances.values()),
            serial=next(self.serial),
            state=state,
            asked_by=asked_by,
            distances=distances,
        )

    def _preference(self, state: State) -> int:
        return sum(preference(self.deployment, path, value) for path, value in state.items())

    def _explained(self, candidate: _Candidate) -> tuple[Asked, ...]:
        """Return the changes that are needed, each with the rule that is broken without it."""
        state = self._needed(candidate.state)
        if len(state) > 1:
            state = self._single() or state
        before = {one.rule for one in self.broken({})}
        found = []
        for path, value in sorted(state.items(), key=lambda item: (preference(self.deployment, *item), item[0])):
            without = self.broken({other: new for other, new in state.items() if other != path})
            asked = candidate.asked_by.get(path)
            first = min(
                without,
                key=lambda one: (one.rule != asked, not path.startswith(one.where), one.rule not in before),
            )
            found.append(Asked(path=path, value=value, rule=first.rule, message=first.message))
        return tuple(found)

    def _single(self) -> State | None:
        """Return the best change of one field that is legal, if any is: also where no rule proposes it.

        A smaller degree can make a placement fit that no rule thought of, say.
        """
        states = [{path: value} for path, value in neighbours(self.deployment) if not self.broken({path: value})]
        if not states:
            return None
        return min(
            states,
            key=lambda state: (
                self._preference(state),
                *(distance(self.deployment, path, value, 0.0) for path, value in state.items()),
            ),
        )

    def _needed(self, state: State) -> State:
        """Return the smallest part of a legal state that is legal by itself."""
        for size in range(1, len(state)):
            parts = (dict(part) for part in combinations(state.items(), size))
            legal = [part for part in parts if not self.broken(part)]
            if legal:
                return min(legal, key=self._preference)
        return state


def _key(state: State) -> str:
    return json.dumps(state, sort_keys=True)
