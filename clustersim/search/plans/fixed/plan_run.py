"""One plan with the requests of the scenario, simulated by whoever is asked; plain data in and out."""

from __future__ import annotations

from typing import Final

from clustersim.report.metrics.latencies import LATENCIES
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.grid import as_written
from clustersim.search.plans.trial import expected_s, numbers_at
from clustersim.search.point import Row, run_point
from clustersim.values import dataclass

SHARE: Final = "goodput.share"
OF_REQUESTS: Final = ("requests", "throughput", "makespan_s", *(f"{name}_ms" for name in LATENCIES))
_MEETING_S: Final = 28e-3
"""Of a request where what SP ranks send meets K/V on its way, or what other TP ranks send between stages: by events (TP
2 × SP 2 on one node: 26 to 31 ms) …"""
_STAGED_S: Final = 5e-3
"""… and where stages of a pool have K/V on their links (1 to 8 ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """A plan as it is, with the requests of the scenario, for a number of its summary."""

    scenario: Scenario
    number: str
    expected_s: float
    audit: bool = False

    @property
    def is_short(self) -> bool:
        """Whether the number follows from the requests alone, so that no whole summary is made."""
        return not self.audit and (self.number == SHARE or self.number.partition(".")[0] in OF_REQUESTS)

    @property
    def told(self) -> str:
        """Everything that its row depends on, as a text."""
        pools = [(one.plan, one.serving) for one in self.scenario.each_pool()]
        return repr((self.is_short, self.scenario.digest, self.scenario.seed, pools))


def expected_run_s(scenario: Scenario, count: int) -> float:
    """Return the seconds of CPU that a run of a scenario takes, roughly: more where communications meet on links."""
    plans = [one.plan for one in scenario.each_pool()]
    each_s = 0.0
    if len(plans) > 1 and _share_nodes(scenario):
        each_s = _MEETING_S if plans[0].sp.degree > 1 else _STAGED_S if any(one.pp > 1 for one in plans) else 0.0
    elif len(plans) == 1 and plans[0].sp.degree > 1 and plans[0].pp > 1 and plans[0].tp > 1:
        each_s = _MEETING_S
    return max(expected_s(plans, count), each_s * count)


def _share_nodes(scenario: Scenario) -> bool:
    """Whether the ranks of two pools are on the same nodes, so that K/V leaves by links that collectives use, too."""
    node_of = scenario.topology.node_of
    first, second = (one.plan for one in scenario.each_pool())
    ranks = first.placement or range(first.world), second.placement or range(first.world, first.world + second.world)
    return not {int(node_of[rank]) for rank in ranks[0]}.isdisjoint(int(node_of[rank]) for rank in ranks[1])


def try_run(played: PlanRun) -> Row:
    """Simulate a plan as it is, and return its row: with what follows from requests, or every number of the summary."""
    scenario = played.scenario
    requests = as_written(scenario)
    if played.is_short:
        return numbers_at(scenario, requests)
    row = run_point(scenario, requests, played.audit, None, None)
    del row["cpu_s"]
    return row
