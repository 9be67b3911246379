"""The replay by lanes alone, without a clock: where requests come as declared, and nothing but loads is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.replay.by_core import ask_nobody
from clustersim.replay.input import Progress
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.clocks.alone import run_alone
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.part import Part


class LaneReplay:
    """One run, or some of its replicas where the router asks nobody.

    Parameters
    ----------
    builder : LaneBuilder
        Of a run of which all replicas can be lanes.
    progress : callable or None
    replicas : range, optional
        By default all.
    """

    def __init__(self, builder: LaneBuilder, progress: Progress | None, replicas: range | None = None) -> None:
        self.prepared = prepared = builder.prepared
        self.input = inputs = prepared.input
        self.router, self.count = str(inputs.entry.serving.router), inputs.entry.plan.dp
        mine = range(self.count) if replicas is None else replicas
        self.lanes = [builder.lane(one, prepared.schedulers[one], builder.log(one)) for one in mine]
        self.intake = Intake(self.lanes, mine, self.count, inputs.requests, self.router, inputs.horizon_ns, progress)

    def part(self) -> Part:
        """Simulate these replicas to the end; what they record is in the recorder."""
        run = self.intake
        if ask_nobody(self.input.requests, self.router, self.count):
            run_alone(run)
        else:
            SharedClock(run).run()
        return Part(
            replica=run.replica_of,
            arrived_ns=run.arrived,
            reasons=run.reasons,
            ended=run.ended,
            unfinished=tuple(self._unfinished()),
        )

    def _unfinished(self) -> Iterator[str]:
        for index, lane in zip(self.intake.replicas, self.lanes, strict=True):
            scheduler = lane.scheduler
            if scheduler.waiting or scheduler.running:
                yield (
                    f"replica {index}: {len(scheduler.waiting)} waiting, {len(scheduler.running)} running, "
                    f"{sum(scheduler.free)} of {scheduler.total} K/V blocks free"
                )
            if scheduler.waiting:
                head = scheduler.waiting[0]
                needed = scheduler.scheduler.pool.needed(head.to_compute)
                yield f"request {head.request} waits for {needed} K/V blocks and a place in the batch"
