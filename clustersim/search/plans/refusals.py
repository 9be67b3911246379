"""Why a search has no answer: no plan is legal, or none can serve the workload."""

from __future__ import annotations

from collections.abc import Sequence

from clustersim.errors import InputError, Problem, UnreachedError
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.deployments import plan_words
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.room import Room
from clustersim.search.plans.space import Refused
from clustersim.simulation.legality import check_scenario_plan
from clustersim.units import format_asked, plural


def none_legal(scenario: Scenario, refused: Refused, room: Room) -> InputError:
    """Return the error for a space without a legal plan: which rule leaves none, and what would be legal."""
    rules = ", ".join(f"{rule} refuses {plural(count, 'plan')}" for rule, count in refused.counts.most_common())
    message = f"no plan of {scenario.model.name} is legal on {plural(room.devices, 'device')}"
    message += "" if room.usd is None else f" for at most {room.usd:g} USD/h (--budget)"
    if not refused.counts:
        return InputError(Problem(message=f"{message} within what is asked: allow other numbers of them"))
    rule = refused.counts.most_common(1)[0][0]
    plan = refused.example[rule]
    if refused.why[rule]:
        return InputError(Problem(message=f"{message}: {rules}; nearest: {plan_words(plan)} ({refused.why[rule]})"))
    verdict = check_scenario_plan(scenario.with_entry(plan=plan))
    found = next((one for one in verdict.violations if one.rule == rule), None)
    nearest = "" if found is None else f"; nearest: {plan_words(plan)} ({found.message}), {found.fix}"
    return InputError(Problem(message=f"{message}: {rules}{nearest}"))


def none_serves(standings: Sequence[Standing], share: float, at: str = "any rate that was tried") -> UnreachedError:
    """Return the error for a workload that no plan can serve: the bound, and what broke."""
    reasons: dict[str, int] = {}
    for one in standings:
        reasons[one.why or one.fate] = reasons.get(one.why or one.fate, 0) + one.same
    told = ", ".join(
        f"{plural(count, 'plan')}: {reason}" for reason, count in sorted(reasons.items(), key=lambda p: -p[1])[:3]
    )
    tpots = [one.bound.tpot_ms for one in standings if one.bound.tpot_ms is not None and one.why != "least TTFT"]
    whose = "no plan has" if len(tpots) == len(standings) else "no plan that this rules out has"
    least = f"; {whose} a TPOT below {min(tpots):,.1f} ms, even with one request" if tpots else ""
    if ttfts := [one.bound.ttft_ms for one in standings if one.bound.ttft_ms is not None]:
        least += f"; so many reach a TTFT of {min(ttfts):.4g} ms at best, even one by one"
    message = f"no plan serves {format_asked(share)} of the requests within their targets at {at} ({told}){least}"
    return UnreachedError(Problem(message=message, path="targets"))
