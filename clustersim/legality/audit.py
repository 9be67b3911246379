"""Level T: whether what was recorded is legal, as a pure function of a history.

Every rule reads the record anew and knows nothing of the code that decided, priced or replayed it. A rule that finds
nothing to look at in a history says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from clustersim.copies import in_turn
from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.history import History
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.legality.timeline_rules.blocks import cache, pool
from clustersim.legality.timeline_rules.links import capacity as links
from clustersim.legality.timeline_rules.links import lost
from clustersim.legality.timeline_rules.operators import (
    exchange,
    execution,
    expert,
    order,
    pipeline,
    priced,
    programs,
    ready,
    sequence,
    streams,
    tensor,
)
from clustersim.legality.timeline_rules.policy import followed
from clustersim.legality.timeline_rules.requests import account, data, phases, spent
from clustersim.legality.timeline_rules.requests.references import unfounded
from clustersim.legality.timeline_rules.requests.work import works
from clustersim.legality.timeline_rules.transfers import carried, moves
from clustersim.legality.timeline_rules.views.ranges import in_ranges, is_divisible
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import Sheet
from clustersim.memory import MANY, give_back, let_go

HISTORY_CHECKS: Final[Mapping[str, Callable[[Reading], Finding]]] = {
    "PH-1": phases.boundary,
    "PH-2": phases.one_token,
    "PH-3": phases.in_turn,
    "PH-4": phases.own_steps,
    "KV-1": cache.append_only,
    "KV-2": moves.reads_what_is_there,
    "KV-3": cache.one_entry,
    "KV-5": cache.own_entries,
    "KV-6": pool.within_pool,
    "KV-7": pool.all_return,
    "TP-9": tensor.neutral,
    "PP-2": pipeline.after_arrival,
    "PP-3": pipeline.stages_in_order,
    "PP-4": pipeline.in_one_batch,
    "EP-2": expert.top_k,
    "EP-3": expert.by_token,
    "DP-2": data.stays,
    "DP-4": data.neutral,
    "RUN-2": execution.as_recorded,
    "RUN-3": streams.stages_and_links,
    "RUN-4": account.none_lost,
    "RUN-5": account.repeatable,
}
"""Rule → what it makes of the history as a whole."""

DROPPED: Final = ("KV-5", "KV-7", "RUN-4")
"""Those after which memory is given back: the next ones take much."""

REPLICA_RULES: Final = ("PP-2", "PP-3", "RUN-2", "RUN-3")
"""Those that look at one replica at a time, and are asked about each pool: they need its plan."""

SHEET_CHECKS: Final[Mapping[str, Callable[[Sheet], Finding]]] = {
    "KV-2": order.reads_written,
    "KV-3": order.writes_once,
    "TP-5": tensor.everybody_once,
    "TP-6": tensor.together,
    "TP-7": tensor.inside,
    "SP-2": sequence.exposed,
    "SP-3": sequence.prefill_only,
    "SP-5": sequence.at_attention,
    "SP-8": sequence.moved,
    "PP-6": order.layers_in_order,
    "EP-4": order.expert_order,
    "EP-5": order.experts_after_attention,
    "EP-8": exchange.by_all_ranks,
    "DP-3": data.apart,
    "RUN-2": execution.waits,
    "RUN-3": streams.one_at_a_time,
}
"""Rule → what it makes of operators, span by span."""

FAMILIES: Final = ("PH", "KV", "TP", "SP", "PP", "EP", "DP", "RUN")
MOST_FAULTS: Final = 5
"""So many faults of a rule are reported; each represents all of its kind in one table or sheet."""


def _order(rule: str) -> tuple[int, int]:
    family, _, number = rule.partition("-")
    return FAMILIES.index(family), int(number)


TIMELINE_RULES: Final = tuple(sorted({*HISTORY_CHECKS, *SHEET_CHECKS}, key=_order))


def check_history(history: History, without: Collection[str] = ()) -> Verdict:
    """Check a history against every rule of level T.

    Parameters
    ----------
    history : History
    without : collection of str
        Rules to leave out.
    """
    reading = Reading(history)
    looked = dict.fromkeys((rule for rule in TIMELINE_RULES if rule not in without), 0)
    lacks: dict[str, dict[str, None]] = {rule: {} for rule in looked}
    violations: dict[str, list[Violation]] = {rule: [] for rule in looked}

    def take(rule: str, finding: Finding) -> None:
        looked[rule] += finding.looked_at
        lacks[rule].update(dict.fromkeys(finding.lacks))
        told = violations[rule]
        for fault in finding.faults[: max(0, MOST_FAULTS - len(told))]:
            told.append(Violation(rule=rule, level="T", where=fault.where, message=fault.message, fix=fault.fix))

    groundless = unfounded(history)
    for rule, finding in groundless.items():
        if rule in looked:
            take(rule, finding)
    if groundless:  # what names something that is not there can't be looked at
        return _verdict(violations, looked, lacks)
    parts = [Reading(part) for part in history.apart()] if history.hands_over else [reading]
    many = 0 if history.facts is None else len(history.facts["kind"])
    give_back(many)
    known = _in_ranges(history, looked, reading)

    def ask(check: Callable[..., Finding], *about: Any) -> Finding:
        return known[check] if check in known else check(*about)

    as_priced = ask(priced.as_priced, reading) if "RUN-2" in looked else NOTHING  # first, while few views are made
    reading.forget()
    give_back(many)
    for part in parts if "RUN-2" in looked else ():
        take("RUN-2", execution.durations(part))
    for rule, check in HISTORY_CHECKS.items():
        if rule in looked:
            for one in parts if rule in REPLICA_RULES else (reading,):
                take(rule, ask(check, one))
                one.forget(*(("use",) if rule == "KV-7" else ()))
            if rule in DROPPED:
                give_back(many)
    if "RUN-2" in looked:
        take("RUN-2", as_priced)
    traffic, untold = links.traffic_in(reading, parts) if {"RUN-2", "RUN-3"} & set(looked) else (None, NOTHING)
    if "RUN-3" in looked:
        take("RUN-3", streams.over_pools(reading, ask))
        take("RUN-3", merged(links.within_capacity(traffic, history.declared.carriage), untold))
    if "RUN-2" in looked:
        take("RUN-2", carried.moves_take(history))
    looks = {rule: look for rule, look in SHEET_CHECKS.items() if rule in looked}
    for part in parts if looks else ():
        for sheet in part.sheets():
            for rule, look in looks.items():
                take(rule, look(sheet))
    if "RUN-2" in looked and not any(violations.values()):  # what a rule has a word for is told by that
        for part in parts:
            take("RUN-2", programs.as_graphs(part))
            take("RUN-2", ready.stages_start(part))
        let_go()
        take("RUN-2", lost.lost_to_others(reading, traffic))
    reading.forget()
    if "RUN-4" in looked and not any(violations.values()):
        take("RUN-4", ask(spent.time_is_spent, reading))
        reading.forget()
        give_back(many)
    if "RUN-5" in looked and not any(violations.values()):
        take("RUN-5", followed.as_declared(reading, parts, ask))
    return _verdict(violations, looked, lacks)


def _in_ranges(history: History, rules: Collection[str], whole: Reading) -> dict[Callable[..., Finding], Finding]:
    """Return what rules say that look at each replica by itself, asked range by range of a long history.

    And of the whole, first, what takes longest of that. Nothing where the history has one range or can't be divided, or
    where something is wrong: then the whole is asked.
    """
    found: dict[Callable[..., Finding], list[Finding]] = {}
    seen, divided = priced.Visits(), in_ranges(history) if is_divisible(history) else []

    def of(number: int) -> list[tuple[Callable[..., Finding], Finding]]:
        """Return what is found in a range, up to the first thing that is wrong; before the first one, in the whole."""
        told = []
        for each in _in_range(Reading(divided[number - 1]()), rules, seen) if number else _of_whole(whole, rules):
            told.append(each)
            if each[1].faults:
                break
        give_back(MANY)
        return told

    with in_turn(of, len(divided) + 1 if divided else 0) as ranges:
        for check, finding in chain.from_iterable(ranges):
            if finding.faults:
                return {}
            found.setdefault(check, []).append(finding)
    return {check: merged(*each) for check, each in found.items()}


def _of_whole(reading: Reading, rules: Collection[str]) -> Iterable[tuple[Callable[..., Finding], Finding]]:
    """Return the rule that takes longest of the whole, and what it finds; nothing where others have a word for that."""
    with suppress(Exception):  # something is wrong that it does not expect, since others are asked before it
        return list(followed.over_replicas(reading) if "RUN-5" in rules else ())
    return ()


def _in_range(
    reading: Reading, rules: Collection[str], seen: priced.Visits
) -> Iterator[tuple[Callable[..., Finding], Finding]]:
    """Yield rules that look at each replica by itself, and what they find in a range."""
    if "RUN-2" in rules:
        yield priced.as_priced, priced.as_priced(reading, seen)
        reading.forget()
    for rule, check in HISTORY_CHECKS.items():
        if rule in rules and check is not account.repeatable:
            yield check, check(reading)
            reading.forget(*(("use",) if rule == "KV-7" else ()))
    if "RUN-3" in rules:
        yield works, works(reading)
    if "RUN-4" in rules:
        yield spent.time_is_spent, spent.time_is_spent(reading)
        reading.forget()
    if "RUN-5" in rules:
        yield from followed.in_replicas(reading)


def _verdict(
    violations: Mapping[str, list[Violation]], looked: Mapping[str, int], lacks: Mapping[str, Mapping[str, None]]
) -> Verdict:
    return Verdict(
        violations=tuple(violation for told in violations.values() for violation in told),
        rules=tuple(
            LookedAt(id=rule, level="T", looked_at=count, lacks=tuple(lacks[rule])) for rule, count in looked.items()
        ),
    )
