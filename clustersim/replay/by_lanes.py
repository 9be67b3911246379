"""The replay by lanes: which runs it can take, decided by analysis before anything runs, and the run itself."""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import StallError
from clustersim.graph.step_prices import StepPrices
from clustersim.replay.given import Prepared, Progress, ReplayResult
from clustersim.replay.lane import Lane
from clustersim.replay.lane_log import LaneLog
from clustersim.replay.lanes import Lanes
from clustersim.replay.pipe_lane import PipeLane
from clustersim.serving.decision import ARRIVED, PREEMPTED, REJECTED
from clustersim.timeline.record import NOT_POOLED
from clustersim.timeline.timeline import timeline_of


def obstacle(prepared: Prepared) -> str:
    """Return why a run cannot be replayed by lanes, or an empty text.

    A lane needs passes and sends that nothing stretches, passes that are chains (one operator after the other, on
    ranks that do the same), and a token budget that every decoding sequence has its share of.
    """
    given, contention = prepared.given, prepared.contention
    if given.mode == "full":
        return "every operator is an event"
    if contention.stages or contention.boundaries:
        return "communications can meet on a link"
    if given.plan.sp.degree > 1:
        return "the ranks of an SP group do different work"
    if given.serving.max_batch_tokens < given.serving.max_batch_requests:
        return "max_batch_tokens may leave out sequences that decode"
    programs = [program for kinds in prepared.programs.values() for program in kinds.values()]
    if not all(program.even and program.template.is_chain for program in programs):
        return "operators of a pass overlap, or ranks of one group differ"
    return ""


class LaneReplay:
    """One run.

    Parameters
    ----------
    prepared : Prepared
        Of a run without :func:`obstacle`.
    progress : callable or None
    """

    def __init__(self, prepared: Prepared, progress: Progress | None) -> None:
        self.prepared = prepared
        self.given = given = prepared.given
        prices: dict[tuple[int, int, str], StepPrices] = {}
        self.lanes = [self._lane(replica, prices) for replica in range(given.plan.dp)]
        self.run_of = Lanes(self.lanes, given.requests, given.serving.router, given.horizon_ns, progress)

    def _lane(self, replica: int, prices: dict[tuple[int, int, str], StepPrices]) -> Lane | PipeLane:
        prepared, plan = self.prepared, self.given.plan
        found, templates = [], []
        for stage in range(plan.pp):
            kinds = prepared.programs[replica, stage]
            key = kinds["decode"].key
            if key not in prices:
                prices[key] = StepPrices(self.given.pricer, kinds)
            found.append(prices[key])
            templates.append({kind: prepared.numbers[program.key] for kind, program in kinds.items()})
        scheduler = prepared.schedulers[replica]
        rows = [one.rows for one in found]
        log = LaneLog(replica, templates, rows, scheduler.pool.total, plan.tp, prepared.recorder)
        return Lane(scheduler, found[0], log) if plan.pp == 1 else PipeLane(scheduler, found, log)

    def run(self) -> ReplayResult:
        """Simulate to the end.

        Raises
        ------
        StallError
            When nothing can happen any more although requests are unfinished.
        """
        given, run = self.given, self.run_of
        run.run()
        if run.ended < run.total and given.horizon_ns is None:
            raise StallError(self._story())
        replica, arrived = np.array(run.replica_of, np.int64), np.array(run.arrived, np.int64)
        self._record_arrivals(replica, arrived)
        for lane in self.lanes:
            lane.log.flush()
        plan = given.plan
        timeline = timeline_of(self.prepared.recorder, sp=plan.sp.degree, tp=plan.tp, stages=plan.pp)
        facts = timeline.facts
        preempted = facts["request"][facts["kind"] == PREEMPTED]
        return ReplayResult(
            timeline=timeline,
            replica=replica,
            reasons=run.reasons,
            arrived_ns=arrived,
            preemptions=np.bincount(preempted, minlength=run.total).astype(np.int64),
            contention=self.prepared.contention,
            obstacle="",
        )

    def _record_arrivals(self, replica: Int64Array, arrived: Int64Array) -> None:
        came = np.flatnonzero(arrived >= 0)
        kind = np.full(len(came), ARRIVED)
        kind[np.isin(came, list(self.run_of.reasons))] = REJECTED
        self.prepared.recorder.facts.extend_columns(
            replica=replica[came],
            time_ns=arrived[came],
            kind=kind,
            request=came,
            value=self.given.requests.prompt_tokens[came],
            used=np.full(len(came), NOT_POOLED),
        )

    def _story(self) -> str:
        run = self.run_of
        lines = [f"nothing can happen any more, but {run.total - run.ended} requests are unfinished"]
        for index, lane in enumerate(self.lanes):
            scheduler = lane.scheduler
            if scheduler.waiting or scheduler.running:
                lines.append(
                    f"replica {index}: {len(scheduler.waiting)} waiting, {len(scheduler.running)} running, "
                    f"{sum(scheduler.free)} of {scheduler.total} K/V blocks free"
                )
            if scheduler.waiting:
                head = scheduler.waiting[0]
                needed = scheduler.scheduler.pool.needed(head.to_compute)
                lines.append(f"request {head.request} waits for {needed} K/V blocks and a place in the batch")
        return "\n  ".join(lines)
