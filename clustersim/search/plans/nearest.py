"""What comes nearest where no plan reaches the share that is asked for: the most that any reaches, and at which rate.

Requests that come one by one meet as many targets as they ever do. So plans serve them like that, as many plans as
there is time for: those with most devices in a replica first, since these take least for one request. Then the same
search looks for the highest rate at which about the largest of these shares is reached; where that is none, the plan
that comes nearest is told as it serves them one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from clustersim.errors import InputError, Problem, UnreachedError
from clustersim.search.plans.finals import Finalist
from clustersim.search.plans.grid import SLOWEST
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.result import Found
from clustersim.search.plans.search import Search, found_by, found_of
from clustersim.search.plans.trial import try_rate
from clustersim.search.plans.trials import Told
from clustersim.search.queue import lowered, share_of
from clustersim.search.rate import limiting, reason
from clustersim.units import format_asked, format_share

_LEAST: Final = 8
"""Plans that serve requests one by one, whatever the effort."""
_TRIES: Final = 3
_LOWER: Final = 0.05
"""So many shares are looked for, each by so much less than the one before: by chance fewer requests do (assumed)."""
_HALF: Final = 0.5
"""Of the effort, that what was spent may be for a search that looks for less."""


def nearest_of(search: Search, unreached: UnreachedError, told: Told | None = None) -> tuple[Search, Found]:
    """Search for the most that any plan reaches, once it is known that none reaches what is asked for.

    Parameters
    ----------
    search : Search
        That ended.
    unreached : UnreachedError
        How.
    told : callable, optional
        See :func:`~clustersim.search.plans.search.found_by`.

    Returns
    -------
    Search
        The one that found it.
    Found
        With what was not reached (``unreached``), and the share that counts in its place (``share``).

    Raises
    ------
    InputError
        When no plan finishes any request.
    """
    able = _one_by_one(search)
    if not any(one.numbers.get("requests.finished") for one in able):
        raise InputError(unreached.problems)
    best = max(able, key=lambda one: (one.share, -_misses(one), -one.candidate.devices))
    most, message = best.share, f"{unreached.problems[0].message}; {_words(search, best)}"
    (short,) = search.rows([search.trial_at(best, SLOWEST, 0.0)], try_rate)  # as those that are compared first
    less = lowered(min(most, share_of(short)))
    for _ in range(_TRIES if less > 0.0 else 0):
        again = Search(search.deployments, replace(search.question, share=less), search.executors, search.journal)
        again.prepared_s += min(search.spent_s, _HALF * search.question.effort_s)
        try:
            found = found_by(again, told)
        except UnreachedError:  # by chance: of other requests less are able to
            less = max(0.01, lowered(less - _LOWER))
            continue
        reached = f"{format_asked(less)} at {found.best.capacity:g} requests/s by {found.best.standing.words}"
        return again, replace(found, unreached=_error(f"{message}; {reached}"))
    for one in able:
        one.fate, one.why, one.passed, one.passing = "simulated", "", SLOWEST, {SLOWEST: one.row or {}}
    search.question = replace(search.question, share=most, front=None)
    alone = Finalist(standing=best, step=SLOWEST, shares=[most], row=best.row)
    return search, replace(found_of(search, search.known, [alone], shorter=0), unreached=_error(message))


def _error(message: str) -> UnreachedError:
    return UnreachedError(Problem(path="targets", message=message))


def _one_by_one(search: Search) -> list[Standing]:
    """Return plans with the row of requests that come one by one, as many as there is time for."""
    kinds = {(one.candidate.setting, one.candidate.replicas): one for one in reversed(search.known)}
    some = sorted(
        kinds.values(),
        key=lambda one: (
            -one.is_plain,
            -max(each.devices for each in one.candidate.replicas),
            search.long_s(one, SLOWEST),
            one.words,
        ),
    )
    search.ends_s, found, taken_s = search.question.effort_s, list[Standing](), 0.0
    for one in some:
        taken_s += search.long_s(one, SLOWEST)
        if len(found) >= _LEAST and search.is_spent(taken_s):
            break
        if search.not_launched(one) is None:
            found.append(one)
    trials = (replace(search.own_trials(one, SLOWEST)[0], share=0.0) for one in found)  # not cut short
    rows = search.rows(trials, try_rate)
    for one, row in zip(found, rows, strict=True):
        one.row = row
    return [one for one in found if one.row is not None and one.row["failed"] is None]


def _misses(one: Standing) -> float:
    """Return the latency whose target most requests miss, one by one, in the median."""
    return float(one.numbers.get(f"{limiting(one.numbers)}_ms.p50", 0.0))


def _words(search: Search, best: Standing) -> str:
    """Say which share the nearest plan reaches one by one, and what limits it."""
    numbers = best.numbers
    name = limiting(numbers)
    p50, p99 = (numbers.get(f"{name}_ms.{one}") for one in ("p50", "p99"))
    if p50 is None:
        limit = reason(name, numbers, search.base)
    else:
        limit = f"limited by {name.upper()}: {p50:,.4g} ms in the median, {p99:,.4g} ms at p99"
        limit += f" (target: {search.base.targets[name]})"
    return f"the most that any reaches is {format_share(best.share)}, by {best.words} one by one, {limit}"
