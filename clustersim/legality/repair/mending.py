"""From a fault to a violation with a fix: which of the repairs that a rule names hold when they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from clustersim.legality.deployment import Deployment, either
from clustersim.legality.repair.candidates import Fault, Finding, Repair, changed, degree_words
from clustersim.legality.repair.distance import change_distance, idle_distance, turn
from clustersim.legality.rule import Change, Violation
from clustersim.plan.built import unbuilt
from clustersim.values import dataclass

Findings = Mapping[str, Finding]

SIZE_RULES: Final = {"DP-1", "KV-6"}
"""A fix for the shape of a plan may leave to these whether it fits the cluster, where nothing nearer does."""

MOST_CANDIDATES: Final = 100
ALONE: Final = "by this rule alone, "
"""Begins a fix that no single change can be: what mends the place leaves, or breaks, another rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A repair that mends its fault and keeps the shape legal.

    ``unfit``: the plan then no longer fits the cluster. ``left``: faults of other rules that stay. ``legal``: no rule
    finds anything any more.
    """

    repair: Repair
    unfit: bool
    left: int
    legal: bool


def mended(deployment: Deployment, before: Findings, examine: Callable[[Deployment], Findings]) -> Iterator[Violation]:
    """Yield every fault as a violation: the fix names every repair that makes all legal.

    The change is the nearest. Where no repair that its rule knows makes all
    legal, the fix is what another rule knows for the same place; where there is none either, it says what would mend
    this place, and that it is by this rule alone.
    """
    faults = [(rule, fault) for rule, finding in before.items() for fault in finding.faults]
    tried = [tuple(_tried(deployment, rule, fault, before, examine)) for rule, fault in faults]
    for (rule, fault), own in zip(faults, tried, strict=True):
        change: Change = ()
        if own:
            change = min(own, key=lambda one: _late(deployment, one)).repair.change
        here = [
            one for (_, other), found in zip(faults, tried, strict=True) if other.where == fault.where for one in found
        ]
        fix = _fix(fault, own, [one for one in here if one.legal], len(faults))
        yield Violation(rule=rule, level="P", where=fault.where, message=fault.message, fix=fix, change=change)


def _late(deployment: Deployment, one: Tried) -> tuple[bool, bool, int, float, int]:
    """Return what orders repairs: those that make most legal, then the nearest."""
    change = one.repair.change
    used, after = min(deployment.plan.world, deployment.num_devices), changed(deployment, change).plan.world
    far = change_distance(deployment, change) + idle_distance(used, after)
    return not one.legal, one.unfit, one.left, round(far, 9), sum(turn(deployment, *pair) for pair in change)


def _fix(fault: Fault, own: Sequence[Tried], legal: Sequence[Tried], faults: int) -> str:
    if any(one.legal for one in own):
        return f"use {either(_texts([one for one in own if one.legal]))}"
    if legal:
        return f"use {either(list(dict.fromkeys(degree_words(one.repair.change) for one in legal)))}"
    if own and (texts := _texts(own)):
        return f"{ALONE}use {either(texts)}"
    return f"{ALONE}{fault.advice}" if faults > 1 else fault.advice


def _tried(
    deployment: Deployment, rule: str, fault: Fault, before: Findings, examine: Callable[[Deployment], Findings]
) -> Iterator[Tried]:
    """Apply each repair, run every rule, and yield those that hold."""
    done: list[str] = []
    any_held = False
    for repair in islice(_candidates(fault.repairs(), done), MOST_CANDIDATES):
        if repair.last_resort and any_held:
            return
        other_plan = changed(deployment, repair.change)
        if unbuilt(other_plan.plan, other_plan.model) and not unbuilt(deployment.plan, deployment.model):
            continue
        after = examine(other_plan)
        broken = {other for other, finding in after.items() if finding.faults and not before[other].faults}
        if broken - SIZE_RULES or not _mends(rule, fault, before, after):
            continue
        any_held = True
        if repair.kind and not broken:
            done.append(repair.kind)
        left = sum(len(finding.faults) for other, finding in after.items() if other not in SIZE_RULES)
        legal = not any(finding.faults for finding in after.values())
        yield Tried(repair=repair, unfit=bool(broken), left=left, legal=legal)


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
        if not one.repair.kind and one.left == fewest and (not one.unfit or not fitting):
            listed.setdefault(one.repair.text, one.repair.text)
        elif one.repair.kind and (not one.unfit or not fitting):
            listed.setdefault(f"{one.repair.kind}:", one.repair.text)
    return list(listed.values())
