"""What a scenario says that decides what requests wait for: limits of serving, and when replicas are down."""

from __future__ import annotations

from clustersim.replay.input import ReplayInput
from clustersim.replay.outages import Outage
from clustersim.replay.prepared import Prepared
from clustersim.scenario.scenario import Scenario
from clustersim.serving.config import ServingConfig
from clustersim.simulation.replay_input import replay_input
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Serving of each pool, in order of replicas, and every outage."""

    serving: tuple[ServingConfig, ...]
    outages: tuple[Outage, ...] = ()


def conditions_of(scenario: Scenario, requests: Requests, inputs: ReplayInput | None = None) -> Conditions:
    """Return the conditions of a scenario; its replay's ``inputs`` are made anew where they are not at hand."""
    outages: tuple[Outage, ...] = ()
    if scenario.faults:
        outages = Prepared(replay_input(scenario, requests) if inputs is None else inputs).outages
    return Conditions(serving=tuple(one.serving for one in scenario.each_pool()), outages=outages)
