"""What runs have in common that are priced alike: communications, blueprints and prices, kept for the next run.

A workload, its limits and faults cost nothing: so many scenarios of a sweep or a search differ in nothing that prices
depend on. What they share is told by its content, never by a name, and the oldest is dropped first. No result depends
on what was kept: prices are functions of what they price, and rows are numbered in order of use.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Final

from clustersim.collective import plan_collective
from clustersim.collective.communications import CommTable
from clustersim.cost.protocol import CostModel
from clustersim.graph.blueprint import Blueprint
from clustersim.graph.expand import step_blueprints
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.steps import rows_made
from clustersim.scenario.scenario import Scenario
from clustersim.values import dataclass

MOST: Final = 16
"""How many are kept; one of 61 layers holds some MB."""
MOST_ROWS: Final = 200_000
"""One that has more rows of durations than this is not kept: they are 100 to 300 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """What prices the steps of one deployment.

    Parameters
    ----------
    comm : CommTable
    pools : tuple of (dict, Pricer)
        Blueprints and prices of each pool.
    """

    comm: CommTable
    pools: tuple[tuple[dict[str, Blueprint], Pricer], ...]


class KeptPrices:
    """Those of the deployments that a process has simulated last.

    Attributes
    ----------
    behind_s : float
        Seconds of work, as expected, of the runs before: where there are many, the core is compiled.
    """

    def __init__(self) -> None:
        self.behind_s = 0.0
        self._kept: OrderedDict[str, Priced] = OrderedDict()

    def of(self, scenario: Scenario, costs: dict[str, CostModel]) -> Priced:
        """Return what prices a scenario, that of an earlier one where the same things cost the same.

        Parameters
        ----------
        scenario : Scenario
        costs : dict
            Name of a device → its cost model.
        """
        if scenario.cost_table is not None:  # such a model counts what lay outside of its table
            return priced(scenario, costs)
        key = _content(scenario)
        found = self._kept.pop(key, None)
        if found is None or sum(rows_made(pricer) for _, pricer in found.pools) > MOST_ROWS:
            found = priced(scenario, costs)
        self._kept[key] = found
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return found


def _content(scenario: Scenario) -> str:
    """Return everything that prices depend on, as a text."""
    written = {name: scenario.document[name] for name in ("topology", "model")}
    each = [repr((one.plan, one.engine, one.precision, one.topology.device.name)) for one in scenario.each_pool()]
    return json.dumps([written, repr(scenario.collectives), each], sort_keys=True, default=repr)


def priced(scenario: Scenario, costs: dict[str, CostModel], comm: CommTable | None = None) -> Priced:
    """Return what prices a scenario, with nothing priced yet but what goes over links, where that is given."""
    comm = comm or CommTable(scenario.topology, scenario.collectives, plan_collective)
    return Priced(comm=comm, pools=tuple(_of_pool(one, comm, costs) for one in scenario.each_pool()))


def _of_pool(scenario: Scenario, comm: CommTable, costs: dict[str, CostModel]) -> tuple[dict[str, Blueprint], Pricer]:
    plan, model = scenario.plan, scenario.model
    windows = dict.fromkeys(
        layer.attention.sliding_window for layer in model.layers if layer.attention.sliding_window is not None
    )
    pricer = Pricer(
        cost=costs[scenario.topology.device.name],
        engine=scenario.engine.of_stages(plan.pp),
        comm=comm,
        sp=plan.lockstep.sp,
        windows=tuple(windows),
    )
    return step_blueprints(model, plan.lockstep, scenario.precision), pricer
