"""Lanes of which each runs on its own, from arrival to arrival: where a request goes, and when, depends on no replica.

What happens at one instant happens in the phases of :mod:`clustersim.replay.instant`: steps end, requests arrive,
schedulers decide. Between its own events a lane depends on nothing but arrivals, so there is no event queue. Some of
the lanes may run elsewhere (:mod:`clustersim.replay.shares`); those whose arrivals depend on one another
are :mod:`clustersim.replay.lanes.clocks.shared_clock`'s.
"""

from __future__ import annotations

import numpy as np

from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import NEVER, Lane
from clustersim.serving.sequence import Sequence


def run_alone(intake: Intake) -> None:
    """Simulate one lane after the other to its end, or until the horizon, and hand on what each recorded."""
    for index, lane in zip(intake.replicas, intake.lanes, strict=True):
        mine = _run(intake, lane, index)
        intake.arrived[mine] = intake.requests.arrived_at_ns[mine]
        intake.replica_of[mine] = index
        lane.stop(intake.horizon)
        intake.record(lane.log, np.arange(mine.start, mine.stop, mine.step))


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
