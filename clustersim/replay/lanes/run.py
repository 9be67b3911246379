"""The replay by lanes: which runs it can take, decided by analysis before anything runs, and the run itself."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.input import Progress
from clustersim.replay.lanes.alone import ask_nobody, run_alone
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.link_pipeline import SharedPipe
from clustersim.replay.lanes.link_sharing import SharedLane
from clustersim.replay.lanes.link_stage import SharedStage
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.one_stage import RunLane
from clustersim.replay.lanes.part import Part
from clustersim.replay.lanes.pipelined import PipeLane
from clustersim.replay.lanes.shared_clock import SharedClock
from clustersim.replay.links.flows import SharedFlows
from clustersim.replay.links.within_replica import find_shared_links
from clustersim.replay.prepared import Prepared
from clustersim.serving.scheduler import Scheduler


def obstacle(prepared: Prepared) -> str:
    """Return why a run cannot be replayed by lanes, or an empty text.

    A lane needs passes and sends that nothing stretches, or that only stretch one another
    (``replay.links.within_replica``), passes that are chains (one operator after the other, on ranks that do the same),
    and a token budget that every decoding sequence has its share of.
    """
    given, contention = prepared.given, prepared.contention
    if given.mode == "full":
        return "every operator is an event"
    if given.hand_over is not None:
        return "requests go from a prefill pool to a decode pool"
    if contention.crowded:
        return "collectives can meet on a link"
    if given.plan.is_lockstep:
        return "replicas that share experts take their steps together"
    if given.plan.is_two_batch:
        return "steps run as two halves that overlap"
    if given.plan.sp.degree > 1:
        return "the ranks of an SP group do different work"
    if given.requests.cancel_after_ns is not None and (given.requests.cancel_after_ns >= 0).any():
        return "clients give up requests"
    if given.faults:
        return "devices or links fail or get slower"
    decisions = given.serving.lanes_lack
    if decisions:
        return decisions
    if given.serving.max_batch_tokens < given.serving.max_batch_requests:
        return "max_batch_tokens may leave out sequences that decode"
    programs = [program for kinds in prepared.programs.values() for program in kinds.values()]
    if not all(program.even and program.template.is_chain for program in programs):
        return "operators of a pass overlap, or ranks of one group differ"
    return find_shared_links(prepared).obstacle if contention.boundaries else ""


class LaneReplay:
    """One run, or some of its replicas where the router asks nobody.

    Parameters
    ----------
    prepared : Prepared
        Of a run without :func:`obstacle`.
    progress : callable or None
    replicas : range, optional
        By default all.
    """

    def __init__(self, prepared: Prepared, progress: Progress | None, replicas: range | None = None) -> None:
        self.prepared = prepared
        self.given = given = prepared.given
        prices: dict[tuple[int, int, str], StepPrices] = {}
        self.shared = find_shared_links(prepared) if prepared.contention.boundaries else None
        mine = range(given.plan.dp) if replicas is None else replicas
        self.lanes = [self._lane(replica, prices) for replica in mine]
        self.intake = Intake(
            self.lanes, mine, given.plan.dp, given.requests, str(given.serving.router), given.horizon_ns, progress
        )

    def _lane(self, replica: int, prices: dict[tuple[int, int, str], StepPrices]) -> Lane:
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
        senders = [prepared.programs[replica, stage]["decode"] for stage in range(plan.pp - 1)]
        token_bytes = [payload_bytes(one, {"tokens": (1.0,)}, one.template.send_classes[0]) for one in senders]
        log = LaneLog(replica, templates, rows, scheduler.pool.total, plan.tp, token_bytes, prepared.recorder)
        if self.shared is not None:
            return self._shared_lane(replica, scheduler, found, log)
        return RunLane(scheduler, found, log) if plan.pp == 1 else PipeLane(scheduler, found, log)

    def _shared_lane(self, replica: int, scheduler: Scheduler, prices: list[StepPrices], log: LaneLog) -> SharedLane:
        prepared, given = self.prepared, self.given
        assert self.shared is not None
        devices = [prepared.mesh.stage_devices(replica, stage) for stage in range(given.plan.pp)]
        stages = [
            SharedStage(prices[stage], prepared.programs[replica, stage], given.comm, mine, after)
            for stage, (mine, after) in enumerate(zip(devices, [*devices[1:], ()], strict=True))
        ]
        flows = SharedFlows(given.topology.link_capacity)
        pipe = SharedPipe(stages, given.plan.tp, self.shared.meets[replica], flows)
        return SharedLane(scheduler, prices, log, pipe)

    def part(self) -> Part:
        """Simulate these replicas to the end; what they record is in the recorder."""
        run, given = self.intake, self.given
        if ask_nobody(given.requests, str(given.serving.router), given.plan.dp):
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
