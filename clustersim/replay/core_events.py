"""Steps of the core that run by events: operators, links and collectives on SimPy's clock, which the core waits for.

The core decides what a step carries and when it is launched. Here it passes the stages of its replica, operator by
operator or in closed form where nothing can disturb it, and its end is told the core as one of its own events.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequences
from functools import partial
from typing import Any, Final

from clustersim.compiled import logged
from clustersim.core import state as st
from clustersim.core.clock import next_instant
from clustersim.core.events import VERSIONS, expect
from clustersim.plan.mesh import Mesh
from clustersim.replay.core_groups import GroupBatch, GroupSteps, decision_of
from clustersim.replay.core_move_events import MoveEvents
from clustersim.replay.core_pools import KvRoutes
from clustersim.replay.events.clock import Clock
from clustersim.replay.events.pass_log import record_passes
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.swaps import Swaps
from clustersim.replay.events.wiring import MicroBatch, Shapes, wirings_of
from clustersim.replay.instant import now_ns
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.prepared import Prepared
from clustersim.replay.slowdown import WeakLinks
from clustersim.serving.decision import Decision, Swap
from clustersim.serving.sequence import Sequence

NEVER: Final = st.NEVER


class EventSteps:
    """The steps of some replicas, and their copies to and from hosts.

    Parameters
    ----------
    prepared : Prepared
    replicas : sequence of int
        By their places in the state.
    state : callable
        Returns the state of the core, which grows.
    make_room : callable
        Lets the core have room for another event.
    """

    def __init__(
        self, prepared: Prepared, replicas: Sequences[int], state: Callable[[], Any], make_room: Callable[[], None]
    ) -> None:
        inputs = prepared.input
        self.prepared = prepared
        self.pools = [prepared.pool_of(replica) for replica in replicas]
        self.moves: MoveEvents | None = None
        self.recorder = prepared.recorder
        self.replicas = replicas
        self.state = state
        self.make_room = make_room
        self.env = Clock(initial_time=0)
        weak = WeakLinks([fault for fault in prepared.slowing if fault.links], inputs.topology.link_capacity)
        self.network = Network(self.env, inputs.topology.link_capacity, weak if weak.faults else None)
        shapes: list[Shapes] = [{} for _ in prepared.pools]
        self.wirings = {
            replica: wirings_of(prepared, pool, replica, of_pool)
            for pool, of_pool in zip(prepared.pools, shapes, strict=True)
            for replica in pool.meshes
        }
        """Of replicas that take their steps alone, and of the first of each group."""
        self.pipelines = {r: self._pipeline(r) for r in self.wirings}
        self.swaps = [self._swaps(r) for r in range(len(replicas))]
        self.runs: dict[int, GroupSteps] = {}
        """Prices of calm replicas, by the first of each group."""
        self.outages = [-1] * len(replicas)
        """The last one of each replica."""
        self.armed = NEVER
        """When the core lets events go on, at the latest."""
        self.told_ns = -1
        """When something last happened that the core was told."""

    @property
    def calls(self) -> int:
        """What the clock was told to do."""
        return next(self.env._eid)

    def _pipeline(self, r: int) -> Pipeline:
        replica = self.replicas[r]
        return Pipeline(
            self.env, self.network, self.prepared.input.comm, replica, self.wirings[r],
            on_free=partial(self._free, r), on_step=partial(self._ended, r),
            slowdowns=self.prepared.slowdowns(replica),
        )  # fmt: skip

    def _swaps(self, r: int) -> Swaps | None:
        inputs, pool = self.prepared.input, self.pools[r]
        plan, host = pool.input.plan, pool.input.host
        if host is None:
            return None
        mesh = Mesh(plan=plan)
        devices = [mesh.stage_devices(self.replicas[r] - pool.first_replica, stage) for stage in range(plan.pp)]
        return Swaps(
            self.env, self.network, self.recorder, inputs.topology, host, self.replicas[r], devices, plan.tp,
            on_end=self._copied,
        )  # fmt: skip

    def move(self, routes: KvRoutes, lists: Callable[[], tuple[Any, Any]]) -> None:
        """Let K/V move between pools."""
        self.moves = MoveEvents(self.env, self.network, self.prepared, routes, lists, self._moved)

    # ---- what the core asks for -------------------------------------------------------------------------------------
    def launch(self, r: int) -> None:
        """Launch the step that a replica has decided."""
        s = self.state()
        rep, now = s.replicas[r], s.clock[0].now
        k = (rep.oldest + rep.flying) % rep.stages if rep.stages > 1 else 0
        flight = s.flights[r][k]
        self.env._now = now
        if flight.timed or self._is_told(r):
            self._price(r)
            return
        flight.limit = s.clock[0].answered = 1
        decisions = [decision_of(s, one, k) for one in range(r, r + rep.group_size)]
        pricer = self.pools[r].input.pricer
        batch = GroupBatch(decisions, self.pools[r].input).batch
        features = pricer.features(batch)
        decision = Decision(
            decodes=tuple(one for each in decisions for one in each.decodes),
            prefills=tuple(one for each in decisions for one in each.prefills),
        )
        micro = MicroBatch(
            step=flight.step, kind=batch.kind, program=batch.program, decision=decision, features=features,
            durations=[wiring.durations(batch, features) for wiring in self.wirings[r]], started_at=now,
        )  # fmt: skip
        opened = [one for one in range(r, r + rep.group_size) if rep.by_layer and s.flights[one][k].opens]
        if opened:
            most = s.clock[0].most_stages
            micro.on_layer = partial(self._passed, [(one * most + k, s.flights[one][k].version) for one in opened])
        self.pipelines[r].launch(micro)
        self._arm()

    def begin(self) -> None:
        """Let the core tell when links get weaker, whatever is decided until then."""
        self._arm()

    def is_calm(self, r: int) -> bool:
        """Whether nothing can disturb the steps of a replica, or group, of one stage, but what slows it."""
        return r in self.wirings and len(self.wirings[r]) == 1 and not self.wirings[r][0].as_events

    def _is_told(self, r: int) -> bool:
        """Whether it is told when the step that a replica has decided ends: nothing disturbs it, nobody waits in it."""
        s = self.state()
        members = range(r, r + s.replicas[r].group_size)
        waits = any(s.replicas[one].by_layer and s.flights[one][0].opens for one in members)
        return r in self.runs and not waits and not self.pipelines[r].is_slowed(0)

    def _price(self, r: int) -> None:
        """Price further steps of the step or run that a replica has decided, until something changes."""
        s = self.state()
        flight, slowdowns = s.flights[r][0], self.pipelines[r].slowdowns
        if not flight.timed:
            flight.timed, flight.steps, flight.end, s.free_at[r][0] = 1, 0, flight.start, 0
        self.runs[r].answer(s)
        change = None if slowdowns is None else slowdowns.next_change(flight.start)
        end, done = flight.end, flight.steps
        for step in range(done, done + s.clock[0].answered if change is not None else done):
            end += s.pending[r][(step + 1) * flight.width - 1]
            if change is not None and end >= change:
                s.clock[0].answered, flight.limit = step + 1 - done, step + 1
                break

    def go_on(self) -> None:
        """Let happen what is due, and what comes next as long as it is nothing to the core.

        First the copies and moves begin that were decided.
        """
        env, s = self.env, self.state()
        now = env._now = s.clock[0].now
        self.begin_copies()
        if self.moves is not None:
            self.moves.begin()
        if now < self.armed < NEVER:  # it was armed for now before something else was due earlier
            self._arm()
            return
        env.run_instant(now)
        self.armed = NEVER
        until = min(next_instant(s), s.clock[0].horizon + 1)
        while self.told_ns < now and env.peek() < until:
            now = int(env.peek())
            env.run_instant(now)
        self._arm()

    def begin_copies(self) -> None:
        """Begin the copies that were decided at this instant."""
        s = self.state()
        rows = logged(s.copies, s.clock[0].copies_at, len(st.COPY)).tolist()
        for r, _, request, out, computed, blocks, *_, owner in rows:
            swaps, sequence = self.swaps[r], Sequence(request, 0, 0, computed)
            assert swaps is not None
            sequence.owner = owner
            swaps.begin(Swap(sequence=sequence, out=bool(out), blocks=blocks))
        s.clock[0].copies_at = 0

    def break_off(self) -> None:
        """Forget what is under way at replicas that have failed just now."""
        s = self.state()
        self.env._now = s.clock[0].now
        if self.moves is not None:
            self.moves.drop()
        for r, before in enumerate(self.outages):
            if s.replicas[r].outage != before:
                self.outages[r] = s.replicas[r].outage
                if s.replicas[r].group_first == r:
                    self.pipelines[r].abandon()
                    self.pipelines[r] = self._pipeline(r)
                if (swaps := self.swaps[r]) is not None:
                    swaps.abandon()
                    self.swaps[r] = self._swaps(r)
        self._arm()  # who shared links with them goes on at another rate

    # ---- what is told the core --------------------------------------------------------------------------------------
    def _free(self, r: int) -> None:
        self.state().free_at[r][0] = now_ns(self.env)
        self._tell(r)

    def _ended(self, r: int, micro: MicroBatch) -> None:
        record_passes(self.recorder, self.replicas[r], self.wirings[r], self.pools[r].numbers, micro, now_ns(self.env))
        s = self.state()
        s.flights[r][s.replicas[r].oldest].end = now_ns(self.env)
        self._tell(r)

    def _tell(self, r: int) -> None:
        self._expect(now_ns(self.env), st.STEP_END, r, self.state().replicas[r].version)

    def _passed(self, opened: Sequences[tuple[int, int]], layer: int) -> None:
        del layer  # they are passed in their order
        for number, version in opened:
            self._expect(now_ns(self.env), st.LAYER, number, version)

    def _moved(self, path: int, version: int) -> None:
        self._expect(now_ns(self.env), st.TRANSFER, path, version & VERSIONS)

    def _copied(self, ended: list[Swap]) -> None:
        s = self.state()
        for request in [swap.sequence.request for swap in ended]:
            self._expect(now_ns(self.env), st.COPY_END, request, s.sequences[s.sequence_of[request]].copies)

    def _arm(self) -> None:
        """Let the core tell when the next event is due."""
        due = self.env.peek()
        if due < self.armed:
            self.armed = int(due)
            self._expect(self.armed, st.EVENTS, 0, 0)

    def _expect(self, time: int, kind: int, number: int, version: int) -> None:
        self.make_room()
        expect(self.state(), time, kind, number, version)
        if kind != st.EVENTS:
            self.told_ns = time


def copies_run_by_events(prepared: Prepared) -> bool:
    """Whether copies to host memory meet others on a link, or differ, so that they run by events."""
    copying = [number for number, pool in enumerate(prepared.input.pools) if pool.host is not None]
    weak = any(fault.links for fault in prepared.slowing)
    return any(weak or prepared.copies_of_stages[number] is None for number in copying)
