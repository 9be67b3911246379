"""Legal scenarios near one that is not: the plans that a search finds, each proven by a check of the whole scenario."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clustersim.cluster.topology import Topology
from clustersim.errors import InputError
from clustersim.legality.deployment import Deployment, counted
from clustersim.legality.repair.conflicts import LIMITS, State
from clustersim.legality.repair.distance import DEGREES
from clustersim.legality.repair.nearest import Asked, Legal, Scope, Search
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.build.plan import written_plan
from clustersim.scenario.document import parse_json
from clustersim.scenario.load import build_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.scenario.text.flow import flow
from clustersim.simulation.legality import check_scenario, deployment_of
from clustersim.simulation.replay_input import refusals
from clustersim.units import plural
from clustersim.values import dataclass

MOST_OFFERED: Final = 5
MOST_ALIKE: Final = 2
"""Proposals that change the same fields; of more, the nearest are told."""
MOST_REFUSED: Final = 50
"""Candidates that another check than a search's refuses, after which it ends."""
MOST_FURTHER: Final = 2.5
"""How much further than the nearest one a proposal may be."""
HURRY: Final = 3.0
MOST_LONGER: Final = 500
"""Candidates that are looked at for further ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A legal scenario nearby.

    Parameters
    ----------
    changes : tuple of Asked
    distance : float
    why : str
        What it keeps of the plan, and what it costs.
    simulates : bool
        Whether ``run`` would simulate it.
    """

    changes: tuple[Asked, ...]
    distance: float
    why: str
    simulates: bool


def _as_asked(scenario: Scenario) -> str:
    """Return the resolved document in JSON, without the exchanges of experts that are the engine's own."""
    document = json.loads(json.dumps(scenario.document))
    for pool in scenario.pools:
        if pool.plan.ep.exchange_by_engine:
            written_plan(document, pool.name)["ep"]["exchange"] = None
    return json.dumps(document)


class Proposals:
    """The search for legal scenarios near one."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        each = scenario.each_pool()
        self.kinds = [_kind(scenario, number) for number in range(len(each))]
        self.scopes = [
            Scope(deployment=self._deployment(one, number), pool=one.pools[0].name, shared=_written_once(scenario))
            for number, one in enumerate(each)
        ]
        self.search = Search(self.scopes, self._crowded)
        self.written = parse_json(_as_asked(scenario), "a legal scenario nearby")
        self.tried = self.proven = self.given_up = 0
        self.is_nearest = True

    @property
    def examined(self) -> int:
        """How many candidates were judged by the rules of plans."""
        return self.given_up + self.search.examined

    def each(self) -> Iterator[Proposal]:
        """Yield proposals, the nearest first: none has a change that it could do without."""
        offered = False
        for one in self._found():
            offered = True
            yield one
        if not offered and self.search.gave_up:
            self.given_up = self.search.examined
            self.search = Search(self.scopes, self._crowded, hurry=HURRY)
            self.is_nearest = False
            yield from self._found()

    def _found(self) -> Iterator[Proposal]:
        found: list[State] = []
        nearest, longest = None, 0
        for one in self.search.legal():
            fields = sorted(one.state)
            if nearest is not None and (one.distance > nearest + MOST_FURTHER or self.search.examined > longest):
                return
            alike = sum(sorted(known) == fields for known in found)
            needless = any(known.items() <= one.state.items() for known in found)
            found.append(one.state)
            if needless or alike >= MOST_ALIKE:
                continue
            made = self._made(one.state)
            if made is None:
                found.pop()
                if self.tried - self.proven >= MOST_REFUSED:
                    return
                continue
            if nearest is None:
                nearest, longest = one.distance, self.search.examined + MOST_LONGER
            yield self._proposal(one, made)

    def _proposal(self, found: Legal, made: Scenario) -> Proposal:
        named = self._named(found.state)
        changes = [replace(one, value=named[one.path]) for one in self.search.explained(found.state)]
        return Proposal(
            changes=tuple(changes),
            distance=round(found.distance, 3),
            why=self._why(found.state),
            simulates=not refusals(made),
        )

    def _made(self, state: State) -> Scenario | None:
        """Return the scenario with a state's changes, as ``--set`` makes them; None if a check finds anything wrong."""
        self.tried += 1
        try:
            made = build_scenario(apply_overrides(self.written, overrides(self._named(state)), SHORTHANDS))
        except InputError:
            return None
        if set(check_scenario(made).levels.values()) != {"legal"}:
            return None
        self.proven += 1
        return made

    def _named(self, state: State) -> State:
        """Return a state with the kind of devices that ranks were on where they are packed: they stay on that kind."""
        kinds = {scope.qualified("plan.placement"): kind for scope, kind in zip(self.scopes, self.kinds, strict=True)}
        return {path: kinds.get(path) or value for path, value in state.items()}

    def _why(self, state: State) -> str:
        """Say what a state's changes are, and which devices they leave idle."""
        kept = [scope.local(state) for scope in self.scopes]
        declared = sum(
            path.startswith("plan.sp.") and path not in DEGREES and getattr(scope.deployment.plan.sp, path[8:]) is None
            for scope, local in zip(self.scopes, kept, strict=True)
            for path in local
        )
        degrees = [path.removesuffix(".degree") for path in state if path.rpartition(".")[2] in _DEGREE_KEYS]
        others = len(state) - declared - len(degrees)
        words = [f"declares {counted(declared, 'choice')} that the plan left out"] if declared else []
        words.append(f"changes {_listed(degrees)}" if degrees else "keeps every degree")
        words += [f"changes {counted(others, 'other value')}"] if others else []
        world = sum(scope.after(state).plan.world for scope in self.scopes)
        devices = len(self.scenario.topology.devices)
        words += [] if self.is_nearest else ["is legal, but nothing shows that it is the nearest"]
        return f"{', '.join(words)}; uses {world} of {counted(devices, 'device')}"

    def _deployment(self, one: Scenario, number: int) -> Deployment:
        """Return a plan as if it were alone: on the first devices, or on those of its kind, unless it lists them."""
        deployment = deployment_of(one)
        kind = self.kinds[number]
        named = kind is not None and _placement(self.scenario, number) == kind
        if kind is not None and named:
            deployment = replace(deployment, num_devices=len(self.scenario.topology.of_kind(kind)))
        if named or not one.pools[0].is_placed:
            deployment = replace(deployment, plan=replace(deployment.plan, placement=None))
        return deployment

    def _crowded(self, plans: Sequence[ParallelPlan]) -> str | None:
        """Say that plans do not fit beside each other, or not on devices of one kind each; None: they do."""
        topology = self.scenario.topology
        taken: set[int] = set()
        order = sorted(range(len(plans)), key=lambda number: plans[number].placement is None)
        for number in order:
            plan, kind = plans[number], self.kinds[number]
            if plan.placement is not None:
                seats = set(plan.placement)
            else:
                free = topology.of_kind(kind) if isinstance(kind, str) else range(len(topology.devices))
                seats = set([device for device in free if device not in taken][: plan.world])
            if len(seats) < plan.world or seats & taken or _mixed(topology, seats):
                names = [
                    f"{one.pool} {plural(plan.world, 'rank')}".strip()
                    for one, plan in zip(self.scopes, plans, strict=True)
                ]
                return f"{' and '.join(names)} find no devices of their own, and of one kind, on {topology.name}"
            taken |= seats
        return None


_DEGREE_KEYS: Final = {"dp", "pp", "degree"}


def overrides(state: Mapping[str, Any]) -> list[str]:
    """Return changes as ``--set`` takes them."""
    return [f"{path}={flow(value)}" for path, value in state.items()]


def _placement(scenario: Scenario, number: int) -> Any:
    return written_plan(scenario.document, scenario.pools[number].name).get("placement", "packed")


def _kind(scenario: Scenario, number: int) -> str | None:
    """Return the kind of device that a plan's placement names, or of which those are that it lists among others."""
    placement, topology = _placement(scenario, number), scenario.topology
    if isinstance(placement, str):
        return None if placement == "packed" else placement
    seats = scenario.each_pool()[number].plan.placement
    several = seats is not None and len(topology.device_names()) > 1
    return topology.seen_from(seats[0]).device.name if several and seats else None


def _written_once(scenario: Scenario) -> frozenset[str]:
    """Return the limits that no pool has for itself: what is written once is changed once."""
    serving = scenario.document["serving"]
    own = {key for pool in scenario.pools for key, value in (serving.get(pool.name) or {}).items() if value is not None}
    return frozenset(path for path in LIMITS if path.removeprefix("serving.") not in own)


def _mixed(topology: Topology, seats: set[int]) -> bool:
    names = topology.device_names()
    return len(names) > 1 and not any(seats <= set(topology.of_kind(name)) for name in names)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
