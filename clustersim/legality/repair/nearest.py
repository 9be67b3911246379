"""The nearest legal deployments: all that no rule of level P finds anything wrong with, in order of their distance.

Best first over the fields that broken rules read (:mod:`clustersim.legality.repair.conflicts`): one of them must
change, to any value (:mod:`clustersim.legality.repair.levers`). A field that one branch changes stays as it is in the
branches behind it, so that every combination is met once. What a branch has changed, and what its broken rules ask for
at least, is no more than the distance (:mod:`clustersim.legality.repair.distance`) of whatever it leads to: the first
legal one is the nearest.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from functools import cached_property
from itertools import count
from typing import Any, Final

from clustersim.legality.check import examine
from clustersim.legality.deployment import Deployment
from clustersim.legality.repair.candidates import changed
from clustersim.legality.repair.conflicts import DP, PATHS, PP, SP, TP, Conflict, Judge, State, faults_of
from clustersim.legality.repair.distance import LIMIT, STATED, distance, idle_distance, kind_order, value_at
from clustersim.legality.repair.levers import LATEST, Option, latest_value, options
from clustersim.plan.built import unbuilt
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

MOST_EXAMINED: Final = 20_000
"""Candidates after which a search gives up: some seconds."""
SHARED: Final = ("precision.weights", "serving.kv_block_tokens")
"""Fields that two pools have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One of the plans that are searched together.

    Parameters
    ----------
    deployment : Deployment
    pool : str
        Its name, where there are two.
    shared : collection of str
        Fields that two pools have in common, beside :data:`SHARED`: limits that are written for both at once.
    """

    deployment: Deployment
    pool: str = ""
    shared: Collection[str] = ()

    def is_shared(self, path: str) -> bool:
        """Whether a field is that of both pools."""
        return path in SHARED or path in self.shared

    def qualified(self, path: str) -> str:
        """Return the path of a field as the scenario has it: ``plan.decode.dp``."""
        head, _, rest = path.partition(".")
        return path if not self.pool or self.is_shared(path) else f"{head}.{self.pool}.{rest}"

    def local(self, state: State) -> dict[str, Any]:
        """Return what a state changes of this plan, with the paths of a plan that is alone."""
        if not self.pool:
            return dict(state)
        return {path: state[self.qualified(path)] for path in PATHS if self.qualified(path) in state}

    def after(self, state: State) -> Deployment:
        """Return the deployment with a state's changes."""
        return changed(self.deployment, tuple(self.local(state).items()))


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
class Legal:
    """Changes that leave no rule of level P broken, and how far they lead away."""

    state: State
    distance: float


@dataclass(order=True, slots=True, kw_only=True)
class _Entry:
    """What the queue holds: a state to look at or to branch from, by the least distance that it can lead to.

    Of equal ones the legal are last, so that their turn decides.
    """

    bound: float
    last: bool = False
    turn: int
    serial: int
    state: dict[str, Any] = field(compare=False)
    far: float = field(compare=False)
    frozen: frozenset[str] = field(compare=False, default=frozenset())
    conflicts: tuple[Conflict, ...] | None = field(compare=False, default=None)
    sibling: tuple[_Entry, str, int] | None = field(compare=False, default=None)


class Search:
    """One search; :meth:`legal` yields what it finds.

    Parameters
    ----------
    scopes : sequence of Scope
    crowded : callable, optional
        Says that plans which fit the cluster each by itself do not fit on it together.
    hurry : float
        Above 0, candidates of which fewer rules are broken come first, and what is found need not be the nearest: for
        where the exact search gives up.
    """

    def __init__(
        self,
        scopes: Sequence[Scope],
        crowded: Callable[[Sequence[ParallelPlan]], str | None] = lambda _: None,
        *,
        hurry: float = 0.0,
    ) -> None:
        self.scopes, self.crowded, self.hurry = scopes, crowded, hurry
        self.judges = [Judge(scope.deployment) for scope in scopes]
        self.owners = {scope.qualified(path): (scope, path) for scope in reversed(scopes) for path in PATHS}
        self.known: dict[str, list[Option]] = {}
        self.serial = count()
        self.examined = 0
        self.closest: tuple[int, State] | None = None
        self.used = min(sum(one.deployment.plan.world for one in scopes), scopes[0].deployment.num_devices)

    def legal(self) -> Iterator[Legal]:
        """Yield what is legal, the nearest first, until all was looked at or :data:`MOST_EXAMINED` candidates were."""
        self.queue: list[_Entry] = []
        self._look({}, 0.0, 0, frozenset())
        while self.queue:
            entry = heapq.heappop(self.queue)
            if entry.sibling is not None:
                if self.examined >= MOST_EXAMINED:
                    return
                self._next(*entry.sibling)
                self._look(entry.state, entry.far, entry.turn, entry.frozen)
            elif entry.conflicts:
                self._branch(entry)
            else:
                yield Legal(state=entry.state, distance=entry.bound)

    @property
    def gave_up(self) -> bool:
        """Whether there may be more than what was found."""
        return self.examined >= MOST_EXAMINED

    def conflicts(self, state: State) -> list[Conflict]:
        """Return what is wrong with a state, with the paths of the scenario."""
        found = []
        for scope, judge in zip(self.scopes, self.judges, strict=True):
            for one in judge.conflicts(scope.local(state)):
                levers = tuple(scope.qualified(path) for path in one.levers)
                found.append(Conflict(rule=one.rule, levers=levers, least=one.least))
        alone = not any(one.rule == "DP-1" for one in found)
        if alone and self.crowded([scope.after(state).plan for scope in self.scopes]):
            paths = [one.qualified(path) for one in self.scopes for path in (DP, PP, SP, TP, "plan.placement")]
            found.append(Conflict(rule="DP-1", levers=tuple(paths)))
        return found

    def _look(self, state: dict[str, Any], far: float, turn: int, frozen: frozenset[str]) -> None:
        """Queue a state as legal, or as something to branch from."""
        self.examined += 1
        conflicts = tuple(self.conflicts(state))
        if self.closest is None or len(conflicts) < self.closest[0]:
            self.closest = len(conflicts), state
        if not conflicts:
            worlds = [scope.after(state).plan.world for scope in self.scopes]
            self._push(far + idle_distance(self.used, sum(worlds)), turn, state, far, frozen, ())
            return
        least = self._least(state, frozen, conflicts)
        if least is not None:
            self._push(far + least + self.hurry * len(conflicts), turn, state, far, frozen, conflicts)

    def _push(
        self,
        bound: float,
        turn: int,
        state: dict[str, Any],
        far: float,
        frozen: frozenset[str],
        conflicts: tuple[Conflict, ...],
    ) -> None:
        entry = _Entry(
            bound=round(bound, 9), last=not conflicts, turn=turn, serial=next(self.serial), state=state, far=far,
            frozen=frozen, conflicts=conflicts,
        )  # fmt: skip
        heapq.heappush(self.queue, entry)

    def _least(self, state: State, frozen: frozenset[str], conflicts: Sequence[Conflict]) -> float | None:
        """Return how far it is at least to mend all: rules that read no common field add up. None: it can't be."""
        asked = []
        for one in conflicts:
            levers = [path for path in one.levers if path not in state and path not in frozen and self._options(path)]
            if not levers:
                return None
            asked.append((max(one.least, min(self._options(path)[0][0] for path in levers)), levers))
        taken: set[str] = set()
        least = 0.0
        for far, levers in sorted(asked, key=lambda one: -one[0]):
            if taken.isdisjoint(levers):
                least += far
                taken.update(levers)
        return least

    def _branch(self, entry: _Entry) -> None:
        """Queue the first value of every field that may mend one of the broken rules."""

        def free(conflict: Conflict) -> list[str]:
            return [path for path in conflict.levers if path not in entry.state and path not in entry.frozen]

        conflict = min(entry.conflicts or (), key=lambda one: (one.rule == "KV-6", len(free(one))))
        levers = sorted(
            (path for path in free(conflict) if self._options(path)),
            key=lambda path: (self.owners[path][1] in LATEST, self._options(path)[0][:2]),
        )
        for number, path in enumerate(levers):
            base = _Entry(
                bound=entry.bound, turn=entry.turn, serial=0, state=entry.state, far=entry.far,
                frozen=entry.frozen.union(levers[:number]),
            )  # fmt: skip
            self._next(base, path, -1)

    def _next(self, base: _Entry, path: str, place: int) -> None:
        """Queue the next value of a field, beside what ``base`` changes."""
        place += 1
        found = self._values(path, base.state) if self.owners[path][1] in LATEST else self._options(path)
        if place >= len(found):
            return
        far, turn, value = found[place]
        entry = _Entry(
            bound=round(max(base.bound, base.far + far), 9),
            turn=base.turn + turn,
            serial=next(self.serial),
            state=base.state | {path: value},
            far=base.far + far,
            frozen=base.frozen,
            sibling=(base, path, place),
        )
        heapq.heappush(self.queue, entry)

    def _options(self, path: str) -> list[Option]:
        if path not in self.known:
            scope, local = self.owners[path]
            if local in LATEST:  # at least so far; what value it is follows later
                stated = value_at(scope.deployment, local)
                far = STATED if local == "plan.devices" else LIMIT
                self.known[path] = [] if stated is None else [(far, 0, stated)]
            else:
                self.known[path] = options(scope.deployment, local)
        return self.known[path]

    def _values(self, path: str, state: State) -> list[Option]:
        """Return the value of a field that follows from all others: the least of those of its plans."""
        owner, local = self.owners[path]
        each = [latest_value(scope.after(state), local) for scope in self.scopes if scope.qualified(local) == path]
        least = min((value for value in each if value is not None), default=None)
        return [] if least is None else [(distance(owner.deployment, local, least), 0, least)]

    @cached_property
    def broken(self) -> set[str]:
        """The rules that are broken where nothing is changed."""
        return {one.rule for one in self.conflicts({})}

    def explained(self, state: State) -> tuple[Asked, ...]:
        """Return the changes of a legal state in the order that they are told, each with the rule that asks for it."""

        def order(path: str) -> tuple[str, int, str]:
            scope, local = self.owners[path]
            shared = bool(scope.pool) and scope.is_shared(local)
            place = 3 if shared else kind_order(scope.deployment, local, state[path])
            return ("z" if shared else {"decode": "b"}.get(scope.pool, "a")), place, path

        return tuple(self._asked(state, path) for path in sorted(state, key=order))

    def _asked(self, state: State, path: str) -> Asked:
        without = {other: value for other, value in state.items() if other != path}
        owner, local = self.owners[path]
        found: list[tuple[str, str, str]] = []
        for scope in sorted(self.scopes, key=lambda one: one is not owner):
            after = scope.after(without)
            found += [
                (rule, fault.where, fault.message)
                for rule, finding in examine(after).items()
                for fault in finding.faults
            ]
            problem = unbuilt(after.plan, after.model)
            if problem is not None:
                rule = "SP-1" if problem.path.startswith("plan.sp.") else "EP-1"
                found.append((rule, problem.path, problem.message))
            if after.plan.is_lockstep and (after.plan.pp > 1 or after.plan.sp.degree > 1):
                built = "experts over the ranks of all replicas have step graphs at pp 1 and sp 1"
                found.append(("EP-1", "plan.ep.scope", built))
        crowd = self.crowded([scope.after(without).plan for scope in self.scopes])
        found.append(("DP-1", "", crowd or "the whole scenario is not legal without it"))
        rule, _, message = min(
            found,
            key=lambda one: (
                not one[1] or not local.startswith(one[1]),
                not one[1],
                one[0][:2].lower() != local.split(".")[1],
                one[0] not in self.broken,
            ),
        )
        return Asked(path=path, value=state[path], rule=rule, message=message)

    def left(self) -> list[str]:
        """Return what is wrong with the candidate that comes closest."""
        state = self.closest[1] if self.closest is not None else {}
        return [text for scope in self.scopes for text in faults_of(scope.deployment, scope.local(state))]
