"""What some replicas brought besides what they recorded, and the result that all of them come to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import StallError
from clustersim.replay.input import ReplayResult
from clustersim.replay.prepared import Prepared
from clustersim.serving.decision import PREEMPTED, SWAPPED_OUT
from clustersim.timeline.columns import as_one, is_any, shelved
from clustersim.timeline.timeline import timeline_of
from clustersim.units import plural
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """What some replicas of a run brought.

    Parameters
    ----------
    replica, arrived_ns : int64 array of shape (requests,)
        Where requests of the run went and when they arrived; −1 for those that did not arrive at these replicas.
    reasons : dict
        Request → why it was rejected.
    ended : int
        Requests that finished or were rejected.
    unfinished : tuple of str
        What is left on these replicas, for people to read.
    """

    replica: Int64Array
    arrived_ns: Int64Array
    reasons: dict[int, str]
    ended: int
    unfinished: tuple[str, ...]


def result_of(prepared: Prepared, parts: Sequence[Part], processes: int = 1, undivided: str = "") -> ReplayResult:
    """Put together what all replicas brought; what they recorded is in the recorder, in order of replicas.

    Parameters
    ----------
    prepared : Prepared
    parts : sequence of Part
        In order of replicas.
    processes : int
        How many processes took part.
    undivided : str
        Why there were not more.

    Raises
    ------
    StallError
        When requests are unfinished although there is no horizon.
    """
    inputs = prepared.input
    left = len(inputs.requests) - sum(part.ended for part in parts)
    if left and inputs.horizon_ns is None:
        head = f"nothing can happen any more, but {plural(left, 'request is', 'requests are')} unfinished"
        raise StallError("\n  ".join([head, *(line for part in parts for line in part.unfinished)]))
    replica, arrived = parts[0].replica, parts[0].arrived_ns
    for part in parts[1:]:
        replica, arrived = np.maximum(replica, part.replica), np.maximum(arrived, part.arrived_ns)
    reasons = {request: reason for part in parts for request, reason in part.reasons.items()}
    for table in (prepared.recorder.steps, prepared.recorder.passes):  # which large logs hand on several times
        table.put_in_order("replica")
    timeline = timeline_of(prepared.recorder, prepared.layout)
    facts = timeline.facts
    preempted = facts["request"][is_any(facts["kind"], (PREEMPTED, SWAPPED_OUT))]
    many = np.bincount(preempted, minlength=len(inputs.requests)).astype(np.int64, copy=False)
    return ReplayResult(
        timeline=timeline,
        reasons=reasons,
        **shelved({"replica": replica, "arrived_ns": arrived, "preemptions": as_one(many)}),
        contention=prepared.contention,
        obstacle="",
        processes=processes,
        undivided=undivided,
    )
