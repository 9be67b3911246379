"""The best legal plan at the rate that the scenario has, by a number of the summary: each is simulated once, as it is.

Of plans that can't meet the targets at that rate, by a bound that is proven, none is simulated. What meets them for
enough requests counts; where there are no targets, all do. The best ones are simulated again and checked (P, G, T).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from clustersim.errors import InputError, Problem, UnreachedError, nearest
from clustersim.report.metrics.latencies import LATENCIES, targets_ns
from clustersim.report.sweep.swept import is_better_low
from clustersim.search.load import check_targets, own_rate
from clustersim.search.plans.bounds.limits import RATE
from clustersim.search.plans.costs import expected_s
from clustersim.search.plans.fixed.plan_run import PlanRun, try_run
from clustersim.search.plans.fixed.result import NO_SHARE, Fixed, is_number, rate_words, tied
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.pools.plan_pools import PlanPools
from clustersim.search.plans.question import OBJECTIVES
from clustersim.search.plans.refusals import none_legal, none_serves
from clustersim.search.plans.search import Search
from clustersim.search.plans.trials import Told, Trials
from clustersim.search.plans.walk.walk import SPENT
from clustersim.search.queue import SHARE
from clustersim.units import format_asked, format_share, plural

SOME: Final = ("throughput.output_tokens_per_s", "goodput.requests_per_s", "energy.joules_per_output_token")
"""Numbers of the summary that a message shows besides latencies."""
_FEW: Final = 6


class FixedSearch(Trials):
    """Searches the plans of one scenario by a number of the summary, at its rate."""

    prepared_s = 0.0

    def prune(self, standings: Sequence[Standing]) -> None:
        """Leave out plans of which it is proven that they can't meet the targets at the rate of the scenario."""
        search = Search(self.deployments, replace(self.question, lasting_s=0.0), self.executors, self.journal)
        search.load = replace(search.load, part=None)  # the very requests of the scenario, and all of them
        search.sides = PlanPools(self.deployments, search.load, stand_in=False)
        for place in (1, 0):
            search.bound(standings, place)
        self.prepared_s = search.spent_s
        for one in standings:
            step = one.bound.step
            if step is not None and (one.bound.why != RATE or rate_of(step) <= search.load.first):
                one.fate, one.why = "pruned", one.bound.why

    def simulate(self, asked: Sequence[Standing], count: int, *, audit: bool = False, told: Told | None = None) -> None:
        """Simulate plans, cheapest first, and note what became of each."""
        left: list[Standing] = []
        for one in asked:
            if (row := self.not_launched(one)) is not None:
                one.fate, one.why, one.row = "failed", row["failed"], row
            else:
                left.append(one)
        played = [(one, self.deployments.scenario(one.candidate)) for one in left]
        runs = [
            PlanRun(
                scenario=scenario,
                number=self.question.objective,
                expected_s=expected_s(scenario, count),
                audit=audit,
            )
            for _, scenario in played
        ]
        order = sorted(range(len(runs)), key=lambda at: runs[at].expected_s)
        within = list(self._within_effort(order, runs))
        for at in order[len(within) :]:
            left[at].fate, left[at].why = "open", SPENT
        done = None if told is None else lambda rows: told(rows, len(within))
        for at, row in zip(within, self.rows((runs[at] for at in within), try_run, done), strict=True):
            one = left[at]
            one.row = row
            one.fate, one.why = ("simulated", "") if row["failed"] is None else ("failed", row["failed"])

    def _within_effort(self, order: Sequence[int], runs: Sequence[PlanRun]) -> Iterator[int]:
        """Yield those that can be simulated within the effort; one at least."""
        spent = self.prepared_s
        for place, at in enumerate(order):
            spent += runs[at].expected_s
            if place and not self.question.exhaustive and spent > self.question.effort_s:
                return
            yield at


def fixed_by(search: FixedSearch, told: Told | None = None) -> Fixed:
    """Search, and return what was found.

    Raises
    ------
    InputError
        When no plan is legal, the objective is no number of the summary, or no plan meets the targets.
    """
    question, base = search.question, search.base
    if "." not in question.objective and (meant := nearest(question.objective, OBJECTIVES)) is not None:
        raise _no_number(question.objective, f"did you mean {meant!r}?")
    if targets_ns(base.targets):
        check_targets(base)
    standings = search.standings()
    if not standings:
        raise none_legal(base, search.refused, question.room)
    count, rate_per_s = _rate_of(search)
    share = question.share if targets_ns(base.targets) and question.objective != SHARE else None
    if share is not None and not question.exhaustive and rate_per_s is not None:
        search.prune(standings)
    left = [one for one in standings if one.fate == "open"]
    unreached = None
    if not left:  # what comes nearest is told all the same
        unreached = none_serves(standings, question.share, rate_words(rate_per_s))
        for one in standings:
            one.fate, one.why = "open", ""
        left = standings
    first = list({len(one.candidate.replicas): one for one in reversed(left)}.values())
    search.simulate(first, count)
    _refuse_no_number(question.objective, first)
    search.simulate(left, count, told=told)
    simulated = [one for one in standings if one.fate == "simulated"]
    if simulated and not any(map(_finishes, simulated)):
        message = f"no plan finishes any of {plural(count, 'request')}; `clustersim run` says why"
        raise InputError(Problem(path="serving", message=message))
    _refuse_no_number(question.objective, simulated)
    sign = 1.0 if is_better_low(question.objective) else -1.0
    counting = _counting(simulated, question.objective, share)
    if not counting and share is not None and simulated:
        unreached = unreached or _none_in_time(simulated, share, rate_per_s)
        share = max(one.share for one in simulated)
        counting = _counting(simulated, question.objective, share)
    found = Fixed(
        standings=standings,
        objective=question.objective,
        ranked=[],
        share=share,
        rate_per_s=rate_per_s,
        runs=0,
        unreached=unreached,
    )
    ranked = sorted(counting, key=lambda one: sign * found.value(one))
    while ranked:
        best = [ranked[0], *tied(ranked, found.value)]
        search.simulate(best, count, audit=True)
        if all(one.fate == "simulated" for one in best):
            return replace(found, ranked=ranked, runs=search.ran)
        ranked = [one for one in ranked if one.fate == "simulated"]
    raise InputError(Problem(path="plan", message="no plan could be simulated"))


def _rate_of(search: FixedSearch) -> tuple[int, float | None]:
    """Return how many requests there are, and the rate that they have, per second; None where they have none."""
    requests = search.deployments.variants.requests(search.base)
    try:
        return len(requests), own_rate(search.base, lambda _: requests)
    except InputError:
        return len(requests), None


def _counting(simulated: Sequence[Standing], objective: str, share: float | None) -> list[Standing]:
    """Return the plans that count: those that have the number, and of whose requests enough meet the targets."""
    found = []
    for one in simulated:
        assert one.row is not None
        numbers = one.row["numbers"]
        if share is not None and numbers.get(SHARE, 0.0) < share:
            one.why = NO_SHARE
        elif is_number(numbers.get(objective)):
            one.passing, one.why = {0: one.row}, ""
            found.append(one)
        else:
            one.why = "it has no such number"
    return found


def _finishes(one: Standing) -> bool:
    return bool(one.numbers.get("requests.finished"))


def _refuse_no_number(objective: str, simulated: Sequence[Standing]) -> None:
    """Refuse an objective that no run has; one that no request is finished in has not all numbers."""
    rows = [one.numbers for one in simulated if _finishes(one)]
    known = dict.fromkeys(key for row in rows for key, value in row.items() if is_number(value))
    if not known or objective in known:
        return
    alike = nearest(objective, [*OBJECTIVES, *known])
    holding = [key for key in known if objective.lower() in key]
    some = [key for key in (*(f"{name}_ms.p99" for name in LATENCIES), *SOME) if key in known]
    if alike is not None:
        hint = f"did you mean {alike!r}?"
    elif few := sorted(holding, key=lambda key: (key.count("."), key not in some))[:_FEW]:
        hint = f"did you mean one of {', '.join(few)}?"
    else:
        hint = f"expected {', '.join(OBJECTIVES)}, or one such as {', '.join(some)}"
    raise _no_number(objective, hint)


def _no_number(objective: str, hint: str) -> InputError:
    return InputError(Problem(path="--objective", message=f"{objective!r} is no number of the summary; {hint}"))


def _none_in_time(simulated: Sequence[Standing], share: float, rate_per_s: float | None) -> UnreachedError:
    """Return the error for a rate at which no plan meets the targets: how near the best one is."""
    one = max(simulated, key=lambda one: one.share)
    message = (
        f"no plan serves {format_asked(share)} of the requests within their targets at {rate_words(rate_per_s)}; "
        f"the nearest, {one.words}, serves {format_share(one.share)}"
    )
    return UnreachedError(Problem(path="targets", message=message))
