"""From a fault to a violation with a fix: which of the repairs that a rule names hold when they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from clustersim.legality.deployment import Deployment, either
from clustersim.legality.repair import Fault, Finding, Repair, changed
from clustersim.legality.rule import Change, Violation

Findings = Mapping[str, Finding]

SIZE_RULES: Final = {"DP-1", "KV-6"}
"""A fix for the shape of a plan may leave to these whether it fits the cluster, where nothing nearer does."""

MOST_CANDIDATES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A repair that mends its fault and keeps the shape legal.

    ``unfit``: the plan then no longer fits the cluster. ``left``: faults of other rules that stay.
    """

    repair: Repair
    unfit: bool
    left: int


def mended(
    deployment: Deployment, rule: str, fault: Fault, before: Findings, examine: Callable[[Deployment], Findings]
) -> Violation:
    """Return the fault as a violation: the fix names every repair that holds, the change is the nearest one."""
    tried = list(_tried(deployment, rule, fault, before, examine))
    fix = fault.advice
    change: Change = ()
    if tried:
        fix = f"use {either(_texts(tried))}"
        change = min(tried, key=lambda one: (one.unfit, one.left, one.repair.distance)).repair.change
    return Violation(rule=rule, level="P", where=fault.where, message=fault.message, fix=fix, change=change)


def _tried(
    deployment: Deployment, rule: str, fault: Fault, before: Findings, examine: Callable[[Deployment], Findings]
) -> Iterator[Tried]:
    """Apply each repair, run every rule, and yield those that hold."""
    done: list[str] = []
    any_held = False
    for repair in islice(_candidates(fault.repairs(), done), MOST_CANDIDATES):
        if repair.last_resort and any_held:
            return
        after = examine(changed(deployment, repair.change))
        broken = {other for other, finding in after.items() if finding.faults and not before[other].faults}
        if broken - SIZE_RULES or not _mends(rule, fault, before, after):
            continue
        any_held = True
        if repair.kind and not broken:
            done.append(repair.kind)
        left = sum(len(finding.faults) for other, finding in after.items() if other not in SIZE_RULES)
        yield Tried(repair=repair, unfit=bool(broken), left=left)


def _candidates(repairs: Iterable[Repair], done: Sequence[str]) -> Iterator[Repair]:
    return (repair for repair in repairs if repair.kind not in done)


def _mends(rule: str, fault: Fault, before: Findings, after: Findings) -> bool:
    """Whether the fault is gone, and its rule is broken nowhere else instead."""
    known = [other.where for other in before[rule].faults]
    places = [other.where for other in after[rule].faults]
    return fault.where not in places and all(place in known for place in places)


def _texts(tried: Sequence[Tried]) -> list[str]:
    """Return what the fix lists: of one value all that mend most, of several kinds one each, if they fit."""
    fewest = min(one.left for one in tried)
    fitting = any(not one.unfit for one in tried)
    listed: dict[str, str] = {}
    for one in tried:
        if not one.repair.kind and one.left == fewest:
            listed.setdefault(one.repair.text, one.repair.text)
        elif one.repair.kind and (not one.unfit or not fitting):
            listed.setdefault(f"{one.repair.kind}:", one.repair.text)
    return list(listed.values())
