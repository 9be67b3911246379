"""What is wrong with a deployment, and which of its fields may mend it: what a search for a legal one starts from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from clustersim.legality.check import examine
from clustersim.legality.deployment import Deployment, either
from clustersim.legality.mending import MOST_CANDIDATES
from clustersim.legality.repair import Fault, Repair, degree_change
from clustersim.legality.rule import Violation
from clustersim.plan.built import built_schemes, unbuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The changes that may mend one broken rule, those that its documents prefer first."""

    rule: str
    repairs: tuple[Repair, ...]

    @property
    def paths(self) -> set[str]:
        """Return the fields that any of the changes concerns."""
        return {path for repair in self.repairs for path, _ in repair.change}


class Offers(Protocol):
    """Finds what may mend a rule, which can be costly; ``last_resorts``: also what comes after all that would do."""

    def __call__(self, *, last_resorts: bool) -> Offer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that is broken at one place.

    Parameters
    ----------
    rule, where, message, advice : str
    offers : Offers
    """

    rule: str
    where: str
    message: str
    advice: str
    offers: Offers


def broken_rules(deployment: Deployment) -> tuple[Broken, ...]:
    """Return what the rules of level P find wrong with a deployment, or that nothing can be expanded for it."""
    found = tuple(
        _of_fault(deployment, rule, fault) for rule, finding in examine(deployment).items() for fault in finding.faults
    )
    return found or tuple(_unbuilt(deployment))


def _unbuilt(deployment: Deployment) -> Iterator[Broken]:
    """Yield a fault where a search came to a plan that is legal, and that it may not propose."""
    problem = unbuilt(deployment.plan, deployment.model)
    if problem is not None:
        rule = "EP-1" if problem.path == "plan.ep.routing" else "SP-1"
        values: list[str] = ["balanced"] if rule == "EP-1" else [*built_schemes(deployment.model)]
        repairs = tuple(Repair(text=value, change=((problem.path, value),)) for value in values)
        yield Broken(
            rule=rule,
            where=problem.path,
            message=problem.message,
            advice=f"use {either(values)}",
            offers=lambda *, last_resorts: Offer(rule=rule, repairs=repairs),
        )


def _of_fault(deployment: Deployment, rule: str, fault: Fault) -> Broken:
    def offers(*, last_resorts: bool) -> Offer:
        repairs: list[Repair] = []
        for repair in islice(fault.repairs(), MOST_CANDIDATES):
            if repair.last_resort and repairs and not last_resorts:
                break
            repairs.append(repair)
        if rule.startswith("SP-"):  # none of its own rules proposes to do without
            repairs.append(Repair(text="1", change=degree_change(deployment, sp=1)))
        return Offer(rule=rule, repairs=tuple(repairs))

    return Broken(rule=rule, where=fault.where, message=fault.message, advice=fault.advice, offers=offers)


def broken_by(violation: Violation) -> Broken:
    """Return what another check found; the only change that may mend it is the one that comes with it."""
    repairs = (Repair(text=violation.fix, change=violation.change),) if violation.change else ()
    return Broken(
        rule=violation.rule,
        where=violation.where,
        message=violation.message,
        advice=violation.fix,
        offers=lambda *, last_resorts: Offer(rule=violation.rule, repairs=repairs),
    )


def independent(offers: Sequence[Offer]) -> Sequence[Offer]:
    """Return a smallest part of the broken rules whose repairs share no field with those of the others.

    All of it must be mended anyway, and in no order with respect to the rest. A rule without repairs is no part: only
    the repair of another one can mend it.
    """
    parts: list[tuple[set[str], list[Offer]]] = []
    for one in offers:
        paths, together = one.paths, [one]
        for part in [part for part in parts if part[0] & paths]:
            parts.remove(part)
            paths, together = paths | part[0], part[1] + together
        if paths:
            parts.append((paths, together))
    return min((together for _, together in parts), key=len, default=[])


def fewest_more(offers: Sequence[Offer], changed: Set[str]) -> int:
    """Return how many more fields must change at least: rules whose repairs share no field need one each.

    A field that is ``changed`` already can be changed again for nothing.
    """
    taken: set[str] = set()
    needed = 0
    for one in offers:
        paths = one.paths
        if paths and not paths & taken:
            needed += not paths & changed
            taken |= paths
    return needed
