"""Lanes of which each runs on its own, from arrival to arrival: where a request goes, and when, depends on no replica.

What happens at one instant happens in the phases of :mod:`clustersim.replay.instant`: steps end, requests arrive,
schedulers decide. Between its own events a lane depends on nothing but arrivals, so there is no event queue. Some of
the lanes may run elsewhere (:mod:`clustersim.replay.shares`); those whose arrivals depend on one another
are :mod:`clustersim.replay.lanes.clocks.shared_clock`'s.
"""

from __future__ import annotations

import numpy as np

from clustersim.replay.compiled.choice import Compiled
from clustersim.replay.input import CompiledMode
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.serving.sequence import Sequence
from clustersim.workload.requests import Requests


def ask_nobody(requests: Requests, router: str, replicas: int) -> bool:
    """Whether where a request goes, and when, depends on no replica: then each can be replayed alone."""
    return requests.concurrency is None and (router == "round_robin" or replicas == 1)


def run_alone(intake: Intake, mode: CompiledMode = "auto", behind_s: float = 0.0) -> str:
    """Simulate one lane after the other to its end, or until the horizon, and hand on what each recorded.

    Returns
    -------
    str
        Why lanes were not compiled; empty where all were.
    """
    compiled = Compiled(intake, mode, behind_s)
    for index, lane in zip(intake.replicas, intake.lanes, strict=True):
        count = compiled.run([lane], index, intake.of)
        mine = _run(intake, lane, index) if count is None else slice(index, index + count * intake.of, intake.of)
        intake.arrived[mine] = intake.requests.arrived_at_ns[mine]
        intake.replica_of[mine] = index
        if count is None:
            lane.stop(intake.horizon)
        else:
            intake.explain_refused(mine)
        intake.record(lane, np.arange(mine.start, mine.stop, mine.step))
    return compiled.refused


def _run(intake: Intake, lane: Lane, index: int) -> slice:
    """Run one lane from arrival to arrival; its requests are every n-th one. Return those that arrived."""
    stream = intake.coming(slice(index, None, intake.of))
    horizon, stride, request = intake.horizon, intake.of, index
    last = horizon + 1
    begin, land, arrive = lane.begin, lane.land, lane.arrive
    time, prompt, output, refused = next(stream)
    while True:
        now = lane.end
        now = min(now, time)
        if now > horizon:
            break
        if now == lane.end:
            done = land()
            if done:
                intake.end(len(done), now)
        while time == now:
            if refused:
                intake.reject(request, now)
            else:
                arrive(now, Sequence(request, prompt, output))
            request += stride
            time, prompt, output, refused = next(stream)
        if lane.end == NEVER:
            begin(now, min(time, last))
    return slice(index, request, stride)
