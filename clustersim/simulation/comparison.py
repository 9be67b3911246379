"""Whether two runs can be compared, and what comparing their timelines brings, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.errors import InputError, Problem
from clustersim.legality.deployment import counted
from clustersim.legality.history import History
from clustersim.legality.timeline_rules.operators.tensor import outcome_of
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.scenario.resolve import replaced
from clustersim.scenario.scenario import Scenario
from clustersim.timeline.first_difference import first_difference
from clustersim.timeline.timeline import Timeline
from clustersim.workload.requests import Requests

NO_MATTER: Final = ("name", "run.replay", "targets", "expect")
"""What no timeline depends on."""
OTHER_PLAN: Final = ("plan", "topology")
"""What may differ where the same requests ran under another plan."""


def differing(one: Scenario, other: Scenario) -> list[str]:
    """Return the dotted paths in which two scenarios differ, but for what no timeline depends on."""
    return [path for path in _paths(_by_content(one), _by_content(other)) if not _under(path, NO_MATTER)]


def differences(one: Scenario, other: Scenario) -> list[tuple[str, Any, Any]]:
    """Return (path, value of one, value of the other) where two resolved scenarios differ; None where there is none.

    A name and what is expected say nothing about a deployment, and are left out. Where another model, topology or
    engine is named, what it consists of comes last, and where it is from behind that.
    """
    documents = _by_content(one), _by_content(other)
    odd = [path for path in _paths(*documents) if not _under(path, ("name", "expect"))]
    named = {path.removesuffix(".name") for path in odd if path.endswith(".name")}
    odd.sort(key=lambda path: (path.endswith(".source"), not path.endswith(".name") and _under(path, tuple(named))))
    return [(path, *(_at(portable, path) for portable in (one.portable, other.portable))) for path in odd]


def _at(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _by_content(scenario: Scenario) -> Any:
    """Return the resolved document, in which a file that it names counts by its content and not by its path."""
    return replaced(scenario.document, {text: f"sha256 {file.sha256}" for text, file in scenario.files.items()})


def _under(path: str, parts: tuple[str, ...]) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def _paths(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from _paths(one.get(key), other.get(key), f"{path}.{key}" if path else str(key))
    elif one != other:
        yield path


def refuse_incomparable(one: tuple[Scenario, Requests], other: tuple[Scenario, Requests], name: str) -> None:
    """Refuse to compare runs that are not of the same requests and, but for the plan, of the same scenario.

    Parameters
    ----------
    one, other : (Scenario, Requests)
    name : str
        Of the other run.

    Raises
    ------
    InputError
    """
    odd = [path for path in differing(one[0], other[0]) if not _under(path, OTHER_PLAN)]
    if odd:
        more = f" and {counted(len(odd) - 3, 'more value')}" if len(odd) > 3 else ""
        what = f"of another scenario: {', '.join(odd[:3])}{more} {'differs' if len(odd) == 1 else 'differ'}"
    elif not same_requests(one[1], other[1]):
        what = "of other requests: a file that the scenario names has changed"
    else:
        return
    message = f"is {what}; not comparable: expected a run of the same scenario, whose replay and plan may differ"
    raise InputError(Problem(path="--against", message=f"{name} {message}"))


def same_requests(one: Requests, other: Requests) -> bool:
    """Tell whether two runs are of the same requests: when they arrive, and how long they are."""
    columns = ("prompt_tokens", "output_tokens", "arrived_at_ns", "follows")
    return one.concurrency == other.concurrency and all(
        np.array_equal(getattr(one, column), getattr(other, column)) for column in columns
    )


def same_or_first_difference(one: tuple[Timeline, str], other: tuple[Timeline, str]) -> tuple[bool, str]:
    """Compare two timelines of one scenario, which must be equal bit for bit.

    Parameters
    ----------
    one, other : (Timeline, str)
        And the digest of its tables.

    Returns
    -------
    (bool, str)
        Whether they are equal, and the result in words.
    """
    if one[1] == other[1]:
        timeline = one[0]
        return True, (
            f"same timeline: digest {one[1][:12]}; {timeline.count_spans():,} spans, {timeline.count_steps():,} steps, "
            f"{len(timeline.facts['kind']):,} facts"
        )
    found = first_difference(one[0], other[0])
    return False, f"another timeline: digest {other[1][:12]}, not {one[1][:12]}; {found}"


def under_another_plan(one: History, other: History, paths: list[str]) -> str:
    """Say what was compared of two runs of the same requests under different plans.

    Parameters
    ----------
    one, other : History
    paths : list of str
        Where their scenarios differ.
    """
    what = f"the same requests under another plan ({', '.join(paths[:4])}{', …' if len(paths) > 4 else ''})"
    rules = [
        f"{rule} ({degree} {getattr(one.declared, degree)} and {getattr(other.declared, degree)})"
        for rule, degree in (("TP-9", "tp"), ("DP-4", "dp"))
        if getattr(one.declared, degree) != getattr(other.declared, degree)
    ]
    if not rules:
        return f"{what}: not compared: TP-9 asks for another tp and DP-4 for another dp, and both are the same"
    outcomes = [outcome_of(Reading(history)) for history in (one, other)]
    if outcomes[0] is None or outcomes[1] is None:
        return f"{what}: not compared: what requests came to was not recorded"
    tokens, entries = zip(outcomes[0], outcomes[1], strict=True)
    both = (tokens[0] >= 0) & (tokens[1] >= 0)
    differ = np.flatnonzero(both & ((tokens[0] != tokens[1]) | (entries[0] != entries[1])))
    count = counted(int(both.sum()), "request")
    looked = f"{what}, as {' and '.join(rules)} ask: of {count} that finished in both"
    if not len(differ):
        return f"{looked}, each got as many tokens and ended with as many K/V entries"
    return f"{looked}, {len(differ):,} did not come to the same, the first of them request {differ[0]}"


__all__ = [
    "differences",
    "differing",
    "refuse_incomparable",
    "same_or_first_difference",
    "same_requests",
    "under_another_plan",
]
