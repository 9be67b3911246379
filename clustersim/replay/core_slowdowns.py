"""Steps of the core on slow devices, or over weak links: what they take longer, and when their operators ran.

What a pass suffers is settled when it starts, and between two changes that is the same (``replay.slowdown``). So a run
of steps ends where something changes, and steps that suffer something are priced one by one.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from typing import Any, NamedTuple

import numpy as np

from clustersim.clock import Int64Array, too_late
from clustersim.compiled import field_of, set_field
from clustersim.core.state import NEVER
from clustersim.replay.core_custom import fields_of
from clustersim.replay.core_groups import is_grouped
from clustersim.replay.events.chain import ChainShape, chain_shape
from clustersim.replay.events.pass_program import contraction_is_exact
from clustersim.replay.events.slow_chain import SlowChain
from clustersim.replay.events.wiring import Shapes, wirings_of
from clustersim.replay.prepared import Prepared
from clustersim.replay.slowdown import Slowdowns
from clustersim.serving.decision import Decision, batch_of
from clustersim.serving.sequence import Sequence
from clustersim.timeline.record import MAX_INT32
from clustersim.timeline.stretch import Irregular, Stretch

KNOWN = ("request", "prompt", "output", "computed", "generated", "taken")


class ClosedPass(NamedTuple):
    """A pass that meets nothing: what each of its instances takes."""

    by_instance: Int64Array

    def instance_times(self) -> tuple[Int64Array, Int64Array]:
        """Return start and end of every instance, from the start of the pass."""
        ends: Int64Array = np.cumsum(self.by_instance)
        return ends - self.by_instance, ends


class SlowSteps:
    """Those of replicas of one stage, whose passes are chains.

    Parameters
    ----------
    prepared : Prepared
    replicas : sequence of int
        By their places in the state.
    """

    def __init__(self, prepared: Prepared, replicas: Sequences[int]) -> None:
        shapes: list[Shapes] = [{} for _ in prepared.pools]
        places = [prepared.pools.index(prepared.pool_of(replica)) for replica in replicas]
        self.pools = [prepared.pools[at] for at in places]
        self.comm = prepared.input.comm
        self.wirings = [
            wirings_of(prepared, prepared.pools[at], replica, shapes[at])[0]
            for replica, at in zip(replicas, places, strict=True)
        ]
        self.slowdowns: list[Slowdowns | None] = [prepared.slowdowns(replica) for replica in replicas]
        self.chains: dict[tuple[int, tuple[int, int, str]], ChainShape] = {}
        self.outages = [-1] * len(self.wirings)
        self.found: list[tuple[int, int, Irregular | None]] = []
        """Replica, step and when its operators ran; None: from that step on they never ended."""

    def answer(self, s: Any, r: int) -> None:
        """Find out what changes at a replica now, or what the step that it has decided takes longer."""
        now, slowdowns = int(field_of(s.clock, 0, "now")), self.slowdowns[r]
        assert slowdowns is not None
        if now < int(field_of(s.replicas, r, "change")):
            self._slow(s, r, now, slowdowns)
            return
        change = slowdowns.next_change(now)
        set_field(s.replicas, r, "slow", int(slowdowns.of(0, now) is not None))
        set_field(s.replicas, r, "change", NEVER if change is None else change)

    def _slow(self, s: Any, r: int, now: int, slowdowns: Slowdowns) -> None:
        """Let the step that a replica has decided take as long as it does."""
        flights, wiring, slowdown = s.flights[r], self.wirings[r], slowdowns.of(0, now)
        decodes, chunks, step, end = (int(field_of(flights, 0, name)) for name in ("decodes", "chunks", "step", "end"))
        columns = fields_of(s.sequences, s.members[r][: decodes + chunks], KNOWN)
        seen = [Sequence(*known) for known in zip(*columns[:-1], strict=True)]
        prefills = zip(seen[decodes:], columns[-1][decodes:], strict=True)
        decision = Decision(tuple(seen[:decodes]), tuple(prefills))
        pool = self.pools[r]
        pricer = pool.input.pricer
        batch = batch_of(decision, 1, pricer.windows)
        features, program = pricer.features(batch), wiring.programs[batch.program]
        key = pool.first_replica, program.key
        if key not in self.chains:
            self.chains[key] = chain_shape(program)
        assert slowdown is not None
        slowed = SlowChain(self.chains[key], program, slowdown, pricer.durations(program, batch, features))
        longer = slowed.longer(self.comm, wiring.devices, features)
        lost = sum(longer.tolist())  # which 64 bits may not hold
        if lost >= NEVER - end:
            raise too_late()
        set_field(flights, 0, "end", end + lost)
        some = np.flatnonzero(longer)
        if len(some) and slowdown.slow:
            starts, ends = slowed.node_times(ClosedPass(slowed.alone + longer))
            if ends.max() <= MAX_INT32:  # for half of the memory
                starts, ends = starts.astype(np.int32), ends.astype(np.int32)
            self.found.append((r, step, (starts, ends)))
        elif len(some):
            self.found.append((r, step, Stretch.of(np.stack((some, longer[some]), axis=1).ravel())))

    def break_off(self, s: Any) -> None:
        """Forget the steps that were under way at replicas that have failed just now."""
        for r, before in enumerate(self.outages):
            outage = int(field_of(s.replicas, r, "outage"))
            if outage != before:
                self.outages[r] = outage
                self.found.append((r, int(field_of(s.replicas, r, "step")), None))

    def taken(self) -> list[tuple[int, int, Irregular | None]]:
        """Return what was found since the last time."""
        found, self.found = self.found, []
        return found


def slowdown_obstacle(prepared: Prepared) -> str:
    """Return why the core can't simulate what gets slower, empty if it can, or nothing does."""
    if not prepared.slowing:
        return ""
    pools, contention = prepared.pools, prepared.contention
    waits = any(pool.input.plan.pp > 1 or is_grouped(pool.input.plan) for pool in pools)
    waits = waits or bool(contention.stages or contention.boundaries)
    moves = len(pools) > 1 and (
        any(fault.links for fault in prepared.slowing) or pools[0].input.serving.transfer == "layerwise"
    )
    if waits or moves:
        return "devices or links get slower, and stages, pools, replicas or halves of steps wait for each other"
    if not all(contraction_is_exact(program) for pool in pools for program in pool.distinct.values()):
        return "devices or links get slower, and not all ranks do the same"
    return ""
