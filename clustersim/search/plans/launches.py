"""What the plans that a search tells are started by: a legal plan may be one that no engine starts, such as ring SP."""

from __future__ import annotations

from clustersim.interop.launch.launch import TARGETS, refusal_of
from clustersim.search.plans.deployments import Deployments
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.standings import Standings


def launches_of(deployments: Deployments, one: Standing) -> list[str]:
    """Return what a plan can be launched for: what an engine refuses is legal, and nothing to start a server with."""
    scenario = deployments.scenario(one.candidate)
    return [target for target in TARGETS if refusal_of(scenario, target) is None]


def launch_words(deployments: Deployments, one: Standing) -> str:
    """Return what a plan can be launched for, in words."""
    found = launches_of(deployments, one)
    return "all" if len(found) == len(TARGETS) else ", ".join(found) or "none"


def not_started(deployments: Deployments, found: Standings, before: str = "") -> str:
    """Return that no engine starts the best plan, and the first tie that one does; empty where one starts it."""
    best, *ties = found.answers()
    if launches_of(deployments, best.standing):
        return ""
    for one in ties:
        if engines := launches_of(deployments, one.standing):
            apart = abs(one.value / best.value - 1.0) if best.value else 0.0
            tie = f"{one.standing.words}, {apart:.1%} from it, is started by {', '.join(engines)}"
            return f"{before}no engine starts it; {tie}"
    none = " nor a plan that ties with it" if ties else ""
    others = (one.standing for one in found.shown() if one.rank in ("", "next"))
    first = next((f"; the next that one starts is {one.words}" for one in others if launches_of(deployments, one)), "")
    return (
        f"{before}no engine starts it{none}{first} (--for {TARGETS[0]}, or another one, searches those that it starts)"
    )
