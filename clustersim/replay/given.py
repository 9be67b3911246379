"""What a replay is a function of, what it brings, and what both replays prepare alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from clustersim.clock import Int64Array
from clustersim.cluster.topology import Topology
from clustersim.graph.blueprint import Blueprint, StepKind
from clustersim.graph.pricing import Pricer
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.comm import CommTable
from clustersim.replay.compile import compile_programs
from clustersim.replay.contention import Contention, find_contention
from clustersim.serving.blocks import BlockPool
from clustersim.serving.config import ServingConfig
from clustersim.serving.make import make_scheduler
from clustersim.serving.scheduler import Scheduler
from clustersim.timeline.record import Recorder
from clustersim.timeline.timeline import Timeline
from clustersim.workload.requests import Requests

Mode = Literal["full", "folded"]
Progress = Callable[[int, int, int], None]
"""(now in ns, requests accounted for, requests)"""

UNREACHED: Final = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayInput:
    """Everything that a replay is a function of.

    Parameters
    ----------
    topology : Topology
    plan : ParallelPlan
    blueprints : dict
        Kind of step → its blueprint.
    pricer : Pricer
    comm : CommTable
        The one that the pricer prices with.
    serving : ServingConfig
    kv_blocks : int
        Blocks of each owner's pool.
    requests : Requests
    mode : str
        ``full`` or ``folded``.
    horizon_ns : int or None
        Nothing after this instant is simulated.
    seed : int
        Of the scenario.
    """

    topology: Topology
    plan: ParallelPlan
    blueprints: dict[StepKind, Blueprint]
    pricer: Pricer
    comm: CommTable
    serving: ServingConfig
    kv_blocks: int
    requests: Requests
    mode: Mode = "folded"
    horizon_ns: int | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayResult:
    """What a replay brought.

    Parameters
    ----------
    timeline : Timeline
    replica : int64 array of shape (requests,)
        Where each request went; −1 for those that did not arrive.
    reasons : dict
        Request → why it was rejected.
    arrived_ns : int64 array of shape (requests,)
        −1 for those that did not arrive before the horizon.
    preemptions : int64 array of shape (requests,)
    contention : Contention
    obstacle : str
        Why the replicas could not be replayed as lanes (``replay.by_lanes``); empty where they were.
    processes : int
        How many processes took part.
    undivided : str
        Why there were not more; empty where there was one per replica.
    """

    timeline: Timeline
    replica: Int64Array
    reasons: dict[int, str]
    arrived_ns: Int64Array
    preemptions: Int64Array
    contention: Contention
    obstacle: str
    processes: int = 1
    undivided: str = "the events of all replicas are in one queue"


class Prepared:
    """Programs, their templates and what can meet, before anything happens.

    Parameters
    ----------
    given : ReplayInput
    """

    def __init__(self, given: ReplayInput) -> None:
        self.given = given
        self.mesh = Mesh(plan=given.plan)
        self.programs: dict[tuple[int, int], dict[StepKind, StageProgram]] = compile_programs(
            self.mesh, given.blueprints, given.comm
        )
        by_stage = {at: list(kinds.values()) for at, kinds in self.programs.items()}
        self.contention = find_contention(self.mesh, by_stage, given.comm)
        distinct = {p.key: p for kinds in self.programs.values() for p in kinds.values()}
        self.numbers = {key: number for number, key in enumerate(distinct)}
        """``StageProgram.key`` → number of its template."""
        self.recorder = Recorder([p.template for p in distinct.values()], slots=given.plan.pp)

    @cached_property
    def schedulers(self) -> list[Scheduler]:
        """A scheduler per replica, nothing in it."""
        given, plan = self.given, self.given.plan
        owners = plan.sp.degree if plan.sp.decode == "dp" else 1
        tokens, overlap = given.serving.kv_block_tokens, plan.decode_overlap == "per_sequence"
        return [
            make_scheduler(
                given.serving,
                BlockPool(blocks=given.kv_blocks, block_tokens=tokens, owners=owners),
                stages=plan.pp,
                decode_overlap=overlap,
            )
            for _ in range(plan.dp)
        ]
