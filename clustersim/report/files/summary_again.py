"""``summary.json`` of a run directory, worked out anew from its timeline and scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.input import ReplayResult
from clustersim.replay.links.contention import Contention
from clustersim.report.files.recorded import RecordedRun
from clustersim.report.files.summary import ALSO, summary_of
from clustersim.simulation.simulate import RunResult


def run_again(recorded: RecordedRun) -> RunResult:
    """Return what simulating brought, as far as a run directory tells, for figures to be worked out from it.

    Why requests were rejected, given up or lost is taken from ``requests.parquet``: it is not in the timeline.
    """
    run = recorded.run
    requests = dict(recorded.requests)
    words = run.requests["reason"]
    requests["reason"] = words if len(words) == len(requests["request"]) else np.full(len(requests["request"]), None)
    return RunResult(
        scenario=recorded.scenario,
        requests=requests,
        times=recorded.times,
        replayed=_replayed(recorded, requests),
        input=recorded.input,
        simulate_s=0.0,
    )


def summary_again(recorded: RecordedRun, result: RunResult | None = None) -> dict[str, Any]:
    """Return what ``summary.json`` should say.

    What the rules answered is taken from ``verdict.json``. Counts of steps and spans, and the digest, are those of the
    tables.

    Parameters
    ----------
    recorded : RecordedRun
    result : RunResult, optional
        What :func:`run_again` returns, where it is at hand.
    """
    timeline = recorded.run.timeline
    result = run_again(recorded) if result is None else result
    return summary_of(result, also=[name for name in ALSO if name in recorded.run.summary]) | {
        "steps": timeline.count_steps(),
        "spans": timeline.count_spans(),
        "timeline_digest": recorded.digest,
        "legal": recorded.verdict.word == "legal",
        "legality": dict(recorded.verdict.levels),
    }


def _replayed(recorded: RecordedRun, requests: Mapping[str, Any]) -> ReplayResult:
    """Return the timeline as what a replay brings, for figures to be made from; of contention they need nothing."""
    replica, arrived_ns, preemptions = (
        _by_request(recorded, requests, name) for name in ("replica", "arrived_ns", "preemptions")
    )
    return ReplayResult(
        timeline=recorded.run.timeline,
        replica=replica,
        reasons={},
        arrived_ns=arrived_ns,
        preemptions=preemptions,
        contention=Contention(
            crowded=frozenset(), watched={}, boundaries=frozenset(), alone=frozenset(), copies_meet=False, shared=()
        ),
        obstacle="",
    )


def _by_request(recorded: RecordedRun, requests: Mapping[str, Any], name: str) -> Int64Array:
    found = np.full(len(recorded.arrivals), -1, np.int64)
    found[requests["request"]] = requests[name]
    return found
