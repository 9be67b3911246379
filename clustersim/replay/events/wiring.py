"""What a pipeline moves (micro-batches), and what each of its stages knows of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import Features, StepBatch
from clustersim.graph.blueprint import STEP_KINDS, STREAMS, StepKind
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.steps import StepPrices, step_prices
from clustersim.graph.program import StageProgram
from clustersim.replay.events.chain import ChainPass, ChainShape, chain_shape
from clustersim.replay.events.joined import joined
from clustersim.replay.events.pass_program import (
    EventProgram,
    contracted_program,
    contraction_is_exact,
    expanded_program,
)
from clustersim.replay.events.slow_chain import SlowChain
from clustersim.replay.events.stage_pass import EventPass
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.replay.slowdown import Slowdown
from clustersim.serving.decision import Decision
from clustersim.values import dataclass

OnLayer = Callable[[int], None]
"""Called with a layer whose attention over prompts has ended, on all ranks of the pass."""


@dataclass(slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One step of one replica on its way through the stages, and what is recorded of it.

    It is of one kind, and runs as the program of that name, or of its halves (``StepBatch.program``).
    """

    step: int
    kind: StepKind
    program: str
    decision: Decision
    features: Features
    durations: list[Int64Array]
    started_at: int
    starts: list[int] = field(default_factory=list)
    passes: list[EventPass | ChainPass | None] = field(default_factory=list)
    send_starts: list[Int64Array] = field(default_factory=list)
    send_ends: list[Int64Array] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    came: int = 0
    """The last stage at which it has arrived."""
    slowdowns: dict[int, Slowdown] = field(default_factory=dict)
    slowed: dict[int, SlowChain] = field(default_factory=dict)
    """By stage, of passes on slow devices that are chains."""
    on_layer: OnLayer | None = None
    """None where nobody waits for single layers."""


Shapes = dict[tuple[int, int, str, bool], ChainShape | EventProgram]


@dataclass(frozen=True, kw_only=True, eq=False)
class StageWiring:
    """What a stage of a replica needs to know.

    Parameters
    ----------
    programs : dict
        Kind of step, or its halves' (``decode+decode``) → program.
    devices : tuple of int
        Device of each rank.
    as_events : bool
        Whether passes can be disturbed (or everything is asked for), so that they cannot be one event.
    send_as_events : bool
        The same of the sends to the next stage.
    full : bool
        Whether every operator of every rank is an event.
    watched : tuple of int or None
        Links on which sends may disturb a pass; None when passes may meet each other.
    shapes : dict
        How programs run as events; shared by all stages of a run.
    pricer : Pricer
    prices : StepPrices or None
        What the pricer says, remembered; None where it is to be asked itself.
    """

    programs: dict[str, StageProgram]
    devices: tuple[int, ...]
    as_events: bool
    send_as_events: bool
    full: bool
    watched: tuple[int, ...] | None
    shapes: Shapes
    pricer: Pricer
    prices: StepPrices | None

    def durations(self, batch: StepBatch, features: Features) -> Int64Array:
        """Return nanoseconds per cost class of a step, int64 of shape (classes,)."""
        if self.prices is None:
            return self.pricer.durations(self.programs[batch.program], batch, features)
        return self.prices.by_class(batch, features)

    def expanded(self, name: str) -> EventProgram:
        """Return how a pass runs node by node."""
        program = self.programs[name]
        key = (*program.key, True)
        if key not in self.shapes:
            self.shapes[key] = expanded_program(program)
        found = self.shapes[key]
        assert isinstance(found, EventProgram)
        return found

    def chain(self, name: str) -> ChainShape | None:
        """Return how a pass runs as a chain, where that is exact; None where it is not."""
        if self.full or not self.programs[name].template.is_chain or not contraction_is_exact(self.programs[name]):
            return None
        found = self.shape(name)
        return found if isinstance(found, ChainShape) else None

    def shape(self, name: str) -> ChainShape | EventProgram:
        """Return how a pass runs as events: as a chain where that is exact, else in rows of operators or each."""
        program = self.programs[name]
        key = (*program.key, self.full)
        if key not in self.shapes:
            contract = not self.full and contraction_is_exact(program)
            if contract and program.template.is_chain:
                self.shapes[key] = chain_shape(program)
            else:
                found = contracted_program(program) if contract else expanded_program(program)
                self.shapes[key] = found if self.full else _in_rows(program, found, program.plan.tp if contract else 1)
        return self.shapes[key]


def _in_rows(program: StageProgram, found: EventProgram, ranks: int) -> EventProgram:
    """Join operators, each of which stands for so many ranks.

    Those with which a layer's attention over prompts ends are not joined with what follows: ``on_layer`` tells of them.
    """
    template = program.template
    rank = np.array([members[0] // ranks for members in template.members], np.int64)
    streams = np.zeros(len(found.indegree), np.int64)
    streams[found.node_of] = rank * len(STREAMS) + template.instance_stream[template.node_instance]
    told = {operator for _, nodes in template.prompt_layers for operator in found.node_of[nodes].tolist()}
    return joined(found, streams.tolist(), told)


def wirings_of(prepared: Prepared, pool: PreparedPool, replica: int, shapes: Shapes) -> list[StageWiring]:
    """Return what the stages of a replica (or of all of a pool in lockstep) need to know."""
    contention, full, wirings = prepared.contention, prepared.input.mode == "full", []
    for stage in range(pool.input.plan.pp):
        here = pool.programs[replica, stage]
        uneven = not pool.is_even(replica, stage)
        wirings.append(
            StageWiring(
                programs=here,
                devices=pool.stage_devices(replica, stage),
                as_events=full or uneven or (replica, stage) in contention.stages,
                send_as_events=full or (replica, stage) in contention.boundaries,
                full=full,
                watched=None if uneven else contention.watched.get((replica, stage)),
                shapes=shapes,
                pricer=pool.input.pricer,
                prices=None if full else _prices(pool, here),
            )
        )
    return wirings


def _prices(pool: PreparedPool, programs: dict[str, StageProgram]) -> StepPrices | None:
    """Return the prices of a stage, one object for replicas placed alike; None where they do not say all."""
    if pool.input.pricer.sp.degree > 1 or set(programs) != set(STEP_KINDS):  # in halves
        return None
    found = step_prices(pool.input.pricer, programs)
    return found if found.supported else None
