"""Programs of stages and least times of their operators, kept for all plans of a search.

Plans that differ in the number of their stages, or of their replicas, run the same operators on as many tokens: what a
stage of one runs is told by the bodies of its units and by where its devices lie, so that each is compiled and priced
once. Nothing depends on what is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Any, Final

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective import plan_collective
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import STEP_KINDS, Blueprint, Body
from clustersim.graph.prices.pricer import Pricer
from clustersim.plan.mesh import Mesh
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.bounds.short_programs import ShortProgram, short_program, short_units
from clustersim.search.plans.bounds.stage_times import Asked, ClassTimes, StageTimes, class_times, stage_times
from clustersim.simulation.priced import Priced, priced
from clustersim.simulation.replay_input import cost_models

_KINDS: Final = 4
"""Scenarios and kinds of devices of which anything is kept."""
_MOST: Final = 256
"""Programs on some columns whose times are kept: some 100 KB each."""


class StagePrices:
    """What is kept of plans that have their communications in common.

    Parameters
    ----------
    comm : CommTable
    """

    def __init__(self, comm: CommTable) -> None:
        self.comm = comm
        self._bodies: dict[Body, int] = {}
        self._numbers: dict[int, tuple[Body, int]] = {}
        self._programs: dict[Hashable, ShortProgram] = {}
        self._times: OrderedDict[Hashable, list[ClassTimes]] = OrderedDict()

    def stages(self, mesh: Mesh, pricer: Pricer, blueprints: dict[str, Blueprint], asked: Asked) -> list[StageTimes]:
        """Return the least times of each stage of a plan.

        Parameters
        ----------
        mesh : Mesh
        pricer : Pricer
        blueprints : dict
            Kind of step → what the plan runs.
        asked : Asked
        """
        known: dict[Hashable, StageTimes] = {}
        mark = blake2b(asked.prompt.tobytes() + asked.decodes.tobytes()).digest()
        told = repr((pricer.engine, asked.context, asked.several, asked.ranks, asked.whole, mark))
        kinds = [kind for kind in STEP_KINDS if asked.columns_of(kind).any()]
        found = []
        for stage in range(mesh.plan.pp):
            place = self._place(mesh, stage)
            short = {kind: self._short(blueprints[kind], stage) for kind in kinds}
            alike = place, tuple((numbers, tuple(times.tolist())) for numbers, times in short.values())
            if alike not in known:
                programs = {
                    kind: (self._program(mesh, blueprints[kind], stage, (kind, numbers, place)), times)
                    for kind, (numbers, times) in short.items()
                }
                known[alike] = stage_times(partial(self._counted, pricer, asked, programs, told), asked)
            found.append(known[alike])
        return found

    def _program(self, mesh: Mesh, blueprint: Blueprint, stage: int, key: Hashable) -> ShortProgram:
        if key not in self._programs:
            self._programs[key] = short_program(mesh, blueprint, self.comm, stage)
        return self._programs[key]

    def _counted(
        self,
        pricer: Pricer,
        asked: Asked,
        programs: Mapping[Any, tuple[ShortProgram, Int64Array]],
        told: str,
        kind: str,
    ) -> tuple[list[ClassTimes], FloatArray, FloatArray]:
        """Return the times of the classes of a kind of step, those that are known as they were, and their counts."""
        short, times = programs[kind]
        key = short.program, told
        found = self._times.pop(key, None)
        if found is None:
            found = class_times(pricer, short.program, short.path, kind, asked)
        self._times[key] = found
        if len(self._times) > _MOST:
            self._times.popitem(last=False)
        return found, *short.counts(times)

    def _short(self, blueprint: Blueprint, stage: int) -> tuple[tuple[int, ...], Int64Array]:
        """Return the numbers of the bodies of a short stage, inverted where one counts nothing, and the counts."""
        units, times = short_units(blueprint.stages[stage])
        numbers = (self._number(unit.body) for unit in units)
        return tuple([number if some else ~number for number, some in zip(numbers, times, strict=True)]), times

    def _number(self, body: Body) -> int:
        """Return a number that bodies have in common which are equal."""
        found = self._numbers.get(id(body))
        if found is None:  # the body is kept, so that its identity stays its own
            found = self._numbers[id(body)] = body, self._bodies.setdefault(body, len(self._bodies))
        return found[1]

    def _place(self, mesh: Mesh, stage: int) -> Hashable:
        """Return what stages have in common whose ranks are parted alike, on devices that lie alike."""
        plan = mesh.plan
        devices = mesh.stage_devices(0, stage)
        after = mesh.stage_devices(0, stage + 1) if stage + 1 < plan.pp else ()
        nodes = self.comm.topology.node_of[[*devices, *after]].tolist()
        names = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
        whole = self.comm.number("all_reduce", devices) if len(devices) > 1 else -1
        sends = self.comm.number("send", (devices[0], after[0])) if after else -1
        lie = tuple([names[node] for node in nodes]), whole, sends
        return plan.tp, plan.sp.degree, plan.sp.whole, plan.expert_tp, lie


class _Deployed:
    """A scenario by what its communications and prices depend on, but for its plan."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._key = repr((scenario.digest, scenario.topology.device, scenario.collectives, scenario.precision))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Deployed) and self._key == other._key


@lru_cache(maxsize=_KINDS)
def _comm(deployed: _Deployed) -> CommTable:
    scenario = deployed.scenario
    return CommTable(scenario.topology, scenario.collectives, plan_collective)


@lru_cache(maxsize=_KINDS)
def stage_prices(comm: CommTable) -> StagePrices:
    """Return what is kept of plans with these communications."""
    return StagePrices(comm)


def priced_alike(scenario: Scenario) -> Priced:
    """Return what prices a scenario, with communications that others have, too, which differ in their plan alone."""
    return priced(scenario, cost_models(scenario), _comm(_Deployed(scenario)))
