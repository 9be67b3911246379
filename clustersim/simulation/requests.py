"""What became of the requests of a run: the columns of ``requests.parquet``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.column import by_parts, constant
from clustersim.replay.input import ReplayInput, ReplayResult
from clustersim.serving.decision import ADMITTED, ARRIVED, CANCELLED, FINISHED, LOST, PREEMPTED, REJECTED
from clustersim.simulation.prefixes import cached_tokens, first_of
from clustersim.timeline.columns import as_one, shelved, taken, worded
from clustersim.timeline.tables import Table
from clustersim.timeline.tokens import TokenTimes
from clustersim.workload.requests import Requests

OUTCOMES: Final = ("unfinished", "finished", "rejected", "cancelled", "lost")
_ENDS: Final = (FINISHED, REJECTED, CANCELLED, LOST)
"""Facts that say one after the other of these but for the first."""


def request_columns(
    requests: Requests, inputs: ReplayInput, replayed: ReplayResult, times: TokenTimes, front_end_ns: int = 0
) -> dict[str, Any]:
    """Return a row per request that arrived.

    Parameters
    ----------
    requests : Requests
    inputs : ReplayInput
    replayed : ReplayResult
    times : TokenTimes
        Of its timeline.
    front_end_ns : int
        Time of each request in front of and behind the replicas.

    Returns
    -------
    dict
        Column → values; what did not happen is masked.
    """
    count, came_ns = len(requests.prompt_tokens), replayed.arrived_ns
    arrived = came_ns >= 0
    chosen = None if arrived.all() else np.flatnonzero(arrived)
    facts, outcome = replayed.timeline.facts, np.zeros(count, np.int8)
    admitted, finished = (shelved({"": first_of(facts, (kind,), count)})[""] for kind in (ADMITTED, FINISHED))
    reasons = np.broadcast_to(np.array(None), count)
    if replayed.reasons:
        reasons = np.full(count, None, object)
        reasons[list(replayed.reasons)] = list(replayed.reasons.values())
    for number, kind in enumerate(_ENDS, 1):
        outcome[facts["request"][facts["kind"] == kind]] = number

    def lasted(since: Int64Array, until: Int64Array) -> Int64Array:
        return by_parts("int64", count, lambda some: np.where(until[some] < 0, -1, until[some] - since[some]))

    replica = _last_at(facts, replayed.replica, inputs.entry.plan.dp) if inputs.faults else replayed.replica

    def those(values: Any) -> Any:
        return values if chosen is None else taken(values, chosen)

    return {
        "request": those(by_parts("int64", count, lambda some: np.arange(some.start, some.stop))),
        "replica": as_one(those(by_parts("int32", count, lambda some: replica[some].astype(np.int32)))),
        "arrived_ns": those(came_ns),
        "admitted_ns": _nullable(those(admitted)),
        "first_token_ns": _nullable(those(times.first_ns)),
        "finished_ns": _nullable(those(finished)),
        "queueing_ns": _nullable(those(lasted(came_ns, admitted))),
        "prefill_ns": _nullable(those(lasted(admitted, times.first_ns))),
        "front_end_ns": those(constant(np.int64(front_end_ns), count)),
        "prompt_tokens": those(requests.prompt_tokens),
        "output_tokens": those(requests.output_tokens),
        "generated_tokens": those(times.count),
        "preemptions": as_one(those(replayed.preemptions).astype(np.int32)),
        "cached_tokens": as_one(those(cached_tokens(facts, count))),
        "outcome": worded(OUTCOMES, those(outcome)),
        "reason": those(reasons),
    }


def _last_at(facts: Table, routed: Int64Array, entries: int) -> Int64Array:
    """Return at which of the replicas where requests arrive each of them was last, as far as it was recorded.

    One that was moved and has waited since counts where it was before. Of facts of one instant those come last that
    say what became of a request after its replica had failed.
    """
    rows = np.flatnonzero(facts["replica"] < entries)
    kind = facts["kind"][rows]
    later = np.where(kind == ARRIVED, 0, np.where(kind == PREEMPTED, 1, 2))
    rows = rows[np.lexsort((later, facts["time_ns"][rows]))]
    found = routed.copy()
    found[facts["request"][rows]] = facts["replica"][rows]  # the last of several is the one that stays
    return found


def _nullable(times: Int64Array) -> np.ma.MaskedArray[Any, Any]:
    lacks = times < 0
    return np.ma.MaskedArray(times, lacks if lacks.any() else np.ma.nomask)
