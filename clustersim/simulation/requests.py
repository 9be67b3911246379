"""What became of the requests of a run: the columns of ``requests.parquet``."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.input import ReplayInput, ReplayResult
from clustersim.serving.decision import ADMITTED, ARRIVED, CANCELLED, FINISHED, LOST, PREEMPTED, REJECTED
from clustersim.simulation.prefixes import cached_tokens, first_of
from clustersim.timeline.columns import as_one, shelved
from clustersim.timeline.tables import Table
from clustersim.timeline.tokens import TokenTimes
from clustersim.workload.requests import Requests

OUTCOMES: Final = np.array(["unfinished", "finished"], object)
"""Whether a request finished → what is said of it; each of the words is there once, however many requests there are."""


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
    count = len(requests.prompt_tokens)
    arrived = replayed.arrived_ns >= 0
    chosen = slice(None) if arrived.all() else np.flatnonzero(arrived)
    every = np.arange(count)[chosen]
    facts = replayed.timeline.facts
    admitted, finished = (first_of(facts, (kind,), count) for kind in (ADMITTED, FINISHED))
    reasons = np.broadcast_to(np.array(None), count)
    if replayed.reasons:
        reasons = np.full(count, None, object)
        reasons[list(replayed.reasons)] = list(replayed.reasons.values())
    outcome = OUTCOMES[(finished >= 0).astype(np.int8)]
    for kind, word in ((REJECTED, "rejected"), (CANCELLED, "cancelled"), (LOST, "lost")):
        outcome[facts["request"][facts["kind"] == kind]] = word
    made = shelved({
        "request": every,
        "admitted_ns": admitted[chosen],
        "finished_ns": finished[chosen],
        "queueing_ns": np.where(admitted < 0, -1, admitted - replayed.arrived_ns)[chosen],
        "prefill_ns": np.where(times.first_ns < 0, -1, times.first_ns - admitted)[chosen],
    })  # fmt: skip
    replica = _last_at(facts, replayed.replica, inputs.entry.plan.dp) if inputs.faults else replayed.replica
    return {
        "request": made["request"],
        "replica": as_one(replica[chosen].astype(np.int32)),
        "arrived_ns": replayed.arrived_ns[chosen],
        "admitted_ns": _nullable(made["admitted_ns"]),
        "first_token_ns": _nullable(times.first_ns[chosen]),
        "finished_ns": _nullable(made["finished_ns"]),
        "queueing_ns": _nullable(made["queueing_ns"]),
        "prefill_ns": _nullable(made["prefill_ns"]),
        "front_end_ns": np.broadcast_to(np.int64(front_end_ns), len(every)),
        "prompt_tokens": requests.prompt_tokens[chosen],
        "output_tokens": requests.output_tokens[chosen],
        "generated_tokens": times.count[chosen],
        "preemptions": as_one(replayed.preemptions[chosen].astype(np.int32)),
        "cached_tokens": as_one(cached_tokens(facts, count)[chosen]),
        "outcome": as_one(outcome[chosen]),
        "reason": reasons[chosen],
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
