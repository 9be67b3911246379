"""One plan with the requests of the scenario, simulated by whoever is asked; plain data in and out."""

from __future__ import annotations

from typing import Final

from clustersim.report.metrics.latencies import LATENCIES
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.grid import as_written
from clustersim.search.plans.trial import numbers_at
from clustersim.search.point import Row, run_point
from clustersim.search.queue import SHARE
from clustersim.values import dataclass

OF_REQUESTS: Final = ("requests", "throughput", "makespan_s", *(f"{name}_ms" for name in LATENCIES))


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


def try_run(played: PlanRun) -> Row:
    """Simulate a plan as it is, and return its row: with what follows from requests, or every number of the summary."""
    scenario = played.scenario
    requests = as_written(scenario)
    if played.is_short:
        return numbers_at(scenario, requests)
    row = run_point(scenario, requests, played.audit, None, None)
    del row["cpu_s"]
    return row
