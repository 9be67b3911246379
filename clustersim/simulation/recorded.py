"""What a timeline says of the requests of its scenario: worked out from its facts and tokens alone, as an auditor does.

Nothing here is shared with what wrote the tables of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import by_parts, constant
from clustersim.errors import InputError, Problem
from clustersim.legality.history import ADMITTED, ARRIVED, CANCELLED, FINISHED, LOST, PREEMPTED, REJECTED, SWAPPED_OUT
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.simulation.prefixes import cached_tokens, first_of
from clustersim.timeline.columns import as_one, is_any, is_one, shelved, taken, worded
from clustersim.timeline.parts import of_ranges
from clustersim.timeline.rows_of import in_order
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import TokenTimes
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.requests import Requests

NEVER = -1
OUTCOMES: Final = ("unfinished", "rejected", "finished", "cancelled", "lost")
MOST_BEYOND = 100_000
"""Requests beyond those of a record that are drawn, all the same …"""
MOST_AFTER = 10_000_000
"""… and of a run that ended at its horizon (1 GB)."""


def requests_of(scenario: Scenario, recorded: int, run_dir: Path) -> Requests:
    """Return the requests of a scenario of which a run has recorded so many; who changed it may ask for any number.

    Raises
    ------
    InputError
        When it asks for far more than that, before they are drawn; or when they can't be read.
    """
    asked = scenario.num_requests
    most = MOST_BEYOND if scenario.run.horizon_ns is None else MOST_AFTER
    if asked is not None and asked - recorded > most and _is_made(scenario.workload):
        has = f"requests.parquet has {recorded:,}"
        message = f"asks for {asked:,} requests, and {has}; put back the scenario of the run, or run this one again"
        raise InputError(Problem(file=str(run_dir / "scenario.yaml"), path="workload.requests", message=message))
    return scenario.requests()


def _is_made(workload: TraceWorkload | DrawnWorkload) -> bool:
    """Return whether there are as many requests as are asked for: they are drawn, or repeated."""
    return isinstance(workload, DrawnWorkload) or bool(workload.repeat)


def refuse_other_plan(timeline: Timeline, scenario: Scenario, count: int, run_dir: Path) -> None:
    """Refuse a timeline that can't be one of a scenario: of other degrees, or with replicas or requests it has not.

    Parameters
    ----------
    timeline : Timeline
    scenario : Scenario
    count : int
        Requests of the scenario.
    run_dir : Path
        Where both were read.

    Raises
    ------
    InputError
    """
    problems = [
        Problem(file=str(run_dir / "timeline" / file), path=path, message=message)
        for file, path, message in _misfits(timeline, scenario, count)
    ]
    if problems:
        raise InputError(problems)


def _misfits(timeline: Timeline, scenario: Scenario, count: int) -> Iterator[tuple[str, str, str]]:
    """Yield file, place in it, and what was found and expected."""
    plans = [one.plan for one in scenario.each_pool()]
    told = [[shape.sp, shape.tp, shape.stages, shape.lockstep] for shape in timeline.layout.pools]
    wanted = [[plan.sp.degree, plan.tp, plan.pp, plan.dp if plan.is_lockstep else 1] for plan in plans]
    if told != wanted:
        message = f"found sp, tp, stages and lockstep {told}; expected {wanted}, as the plan in scenario.yaml has it"
        yield "templates.json", "pools", message
    for name, most in (("replica", sum(plan.dp for plan in plans)), ("request", count)):
        for table in ("passes", "transfers", "steps", "chunks", "decodes", "facts"):
            values = getattr(timeline, table).get(name, np.empty(0, np.int64))
            odd = np.flatnonzero(values >= most)
            if len(odd):
                has = f"{most:,} {name if most == 1 else f'{name}s'}"
                message = f"{values[odd[0]]:,} in row {odd[0] + 1} can't be; scenario.yaml has {has}, from 0"
                yield f"{table}.parquet", name, message


def request_columns(
    timeline: Timeline, requests: Mapping[str, Any], times: TokenTimes, front_end_ns: int = 0
) -> dict[str, Any]:
    """Return what ``requests.parquet`` should say, but for the words of rejections.

    Parameters
    ----------
    timeline : Timeline
    requests : mapping
        ``prompt_tokens`` and ``output_tokens`` of those of its scenario.
    times : TokenTimes
        Of its tokens.
    front_end_ns : int
        Time of each request in front of and behind the replicas.

    Returns
    -------
    dict
        A row per request that arrived; what did not happen is NaN.
    """
    count, facts = len(requests["prompt_tokens"]), timeline.facts
    kinds = (ARRIVED, REJECTED), (ADMITTED,), (FINISHED,), (REJECTED,)
    arrived, admitted, finished, rejected = (shelved({"": first_of(facts, kind, count)})[""] for kind in kinds)
    chosen = None if (arrived > NEVER).all() else np.flatnonzero(arrived > NEVER)
    outcome = np.where(finished > NEVER, np.int8(2), rejected > NEVER)
    for number, kind in enumerate((CANCELLED, LOST), 3):
        outcome[facts["request"][facts["kind"] == kind]] = number
    preempted = facts["request"][is_any(facts["kind"], (PREEMPTED, SWAPPED_OUT))]

    def those(values: Any) -> Any:
        return values if chosen is None else taken(values, chosen)

    def lasted(since: Int64Array, until: Int64Array) -> Int64Array:
        return by_parts("int64", count, lambda some: np.where(until[some] == NEVER, NEVER, until[some] - since[some]))

    return {
        "request": those(by_parts("int64", count, lambda some: np.arange(some.start, some.stop))),
        "replica": those(shelved({"": _last_heard_of(timeline, count)})[""]),
        "arrived_ns": those(arrived),
        "admitted_ns": _or_nan(those(admitted)),
        "first_token_ns": _or_nan(those(times.first_ns)),
        "finished_ns": _or_nan(those(finished)),
        "front_end_ns": those(constant(np.int64(front_end_ns), count)),
        "prompt_tokens": those(requests["prompt_tokens"]),
        "output_tokens": those(requests["output_tokens"]),
        "generated_tokens": those(times.count),
        "preemptions": as_one(those(np.bincount(preempted, minlength=count))),
        "cached_tokens": those(cached_tokens(facts, count)),
        "queueing_ns": _or_nan(those(lasted(arrived, admitted))),
        "prefill_ns": _or_nan(those(lasted(admitted, times.first_ns))),
        "outcome": worded(OUTCOMES, those(outcome)),
    }


def _last_heard_of(timeline: Timeline, count: int) -> Int64Array:
    """Return, by request, the replica of its last fact in the pool in which requests arrive.

    A request that leaves a replica and comes to another one at the same instant has a fact at both: it is where it
    was admitted, or ended, and not where it had arrived or lost its K/V.
    """
    found = np.full(count, NEVER, np.int64)
    for part in of_ranges(timeline):
        facts = part.facts
        rows = np.flatnonzero(timeline.layout.of_replica(facts["replica"]) == 0)
        if is_one(facts["replica"]):
            found[facts["request"][rows]] = facts["replica"][:1]
            continue
        request, time, kind = (facts[name][rows].astype(np.int64) for name in ("request", "time_ns", "kind"))
        leaves = np.isin(kind, (ARRIVED, PREEMPTED))
        stays_behind = leaves * (1 + (kind == ARRIVED))
        order = in_order(request, time, -stays_behind)
        last = np.flatnonzero(np.append(np.diff(request[order]) != 0, True)[: len(order)])
        found[request[order[last]]] = facts["replica"][rows[order[last]]]
    return found


def _or_nan(times: Int64Array) -> Any:
    """Return times with NaN for what never was; whole numbers where nothing is missing, which are exact."""
    return np.where(times == NEVER, np.nan, times) if (times == NEVER).any() else times
