"""K/V entries on their way that may meet the collectives of lanes on links, without an event for each change.

What happens on links is :mod:`clustersim.replay.lanes.pipelines.link_traffic`'s: here a *stage* is a lane of one stage,
and what is sent at a *place* are the moves from one rank, one at a time (:mod:`clustersim.replay.pools.kv_moves`). Only
moves and collectives of these lanes are on the links, and moves from two ranks to two others share none.

**Why it equals events.** While nothing else is due, what changes on links and what follows from it (a move ends, so
another one starts; a layer is passed, so it leaves) is handled in the order in which the clock would, and the clock is
put forward. Where something else is due before, the clock is left to that, and goes on here afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clustersim.clock import FloatArray
from clustersim.replay.events.wiring import OnLayer
from clustersim.replay.instant import COMPLETION, HAND_OVER, at, now_ns
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.link_micro_batch import SharedSend
from clustersim.replay.lanes.pipelines.link_pipeline import SharedPipe
from clustersim.replay.lanes.pipelines.link_stage import MOST_ROWS, SharedPass, SharedStage
from clustersim.replay.lanes.pipelines.link_traffic import ON, QUIET, READY, WHOLE
from clustersim.replay.lanes.stretched_lane import StretchedLane
from clustersim.replay.links.sharing_by_lanes import SharedFlows, Use
from clustersim.replay.links.uses import Counts
from clustersim.replay.pools.lane_links import LaneLinks
from clustersim.replay.pools.layer_rounds import LayerEnds, Round, passed_layers
from clustersim.replay.pools.transfer_owner import TransferOwner

if TYPE_CHECKING:
    from simpy import Environment


class LanePass(NamedTuple):
    """What a pass is told by (``link_micro_batch.SharedMicro``)."""

    kind: int
    counts: Counts


class KvTraffic(SharedPipe):
    """What is on the links of lanes.

    Parameters
    ----------
    env : simpy.Environment
    lanes : mapping
        Replica → its lane and what of its stage says where its collectives are, of those that moves may meet.
    senders : sequence of int
        Ranks that K/V may leave.
    meeting : callable
        Returns the replicas that moves between a pair of devices may meet.
    capacity : float array of shape (links,)
    """

    def __init__(
        self,
        env: Environment,
        lanes: Mapping[int, tuple[StretchedLane, SharedStage]],
        senders: Sequence[int],
        meeting: Callable[[tuple[int, int]], Sequence[int]],
        capacity: FloatArray,
    ) -> None:
        count, numbers = len(lanes), {replica: stage for stage, replica in enumerate(lanes)}
        nobody: tuple[tuple[int, ...], ...] = ((),) * len(senders)
        super().__init__([stage for _, stage in lanes.values()], 1, nobody, SharedFlows(capacity), 2 * count)
        self.env = env
        self.lanes = [lane for lane, _ in lanes.values()]
        self.links = {replica: LaneLinks(self, stage) for replica, stage in numbers.items()}
        self.place_of = {rank: place for place, rank in enumerate(senders)}
        self.numbers, self.meeting = numbers, meeting
        self.may_meet: dict[tuple[int, int], tuple[int, ...]] = {}
        """Pair of devices → the lanes that moves between them may meet."""
        self.on_change: list[Callable[[], None]] = [_nobody] * count
        self.foreign = [0] * count
        """Moves on the links of each lane."""
        self.carried: list[tuple[Callable[[Any], None], Any]] = [(_nothing, None)] * len(senders)
        """Of each place whom to tell when what is sent has ended, and of what."""
        self.on_layer: list[OnLayer | None] = [None] * count
        """Of each pass who waits for its layers …"""
        self.layers: list[LayerEnds] = [LayerEnds([], [], [], [], [])] * count
        """… what these are …"""
        self.passed = [0] * count
        """… and how many of them it has passed."""
        self._known: list[dict[tuple[int, int], LayerEnds]] = [{} for _ in lanes]
        self.round: Round | None = None
        self.owner: TransferOwner | None = None
        self.runs = False
        """Whether it is at work, so that nothing needs to wait for its turn."""
        self._awaited = NEVER
        self._version = 0

    def send(
        self,
        rank: int,
        pair: tuple[int, int],
        duration: int,
        use: Use | None,
        done: Callable[[Any], None],
        value: Any,
    ) -> None:
        """Begin a move from a rank that takes so long if it is alone; call ``done(value)`` when it ends."""
        place, end = self.place_of[rank], now_ns(self.env) + duration
        if pair not in self.may_meet:
            self.may_meet[pair] = tuple([self.numbers[one] for one in self.meeting(pair)])
        self.meets[place] = self.may_meet[pair]
        self.carried[place] = done, value
        if use is None:
            self.sends[place] = SharedSend(end, end, use)
            self.states[place], self.changes[self.first_send + place] = QUIET, end
        else:
            self.sends[place] = send = SharedSend(end - use.transfer_ns, end, use)
            self.states[place], self.changes[self.first_send + place] = READY, send.enters
        self.wait()

    def mark(self, stage: int, on_layer: OnLayer) -> None:
        """Tell of the layers of the step of a lane that begins now."""
        self.attend(stage, now_ns(self.env))
        run = self.passes[stage]
        assert run is not None
        key, known = (run.micro.kind, run.number), self._known[stage]
        if key not in known:
            if len(known) >= MOST_ROWS:
                known.clear()
            known[key] = passed_layers(run, self._goes_on_alike)
        self.on_layer[stage], self.layers[stage], self.passed[stage] = on_layer, known[key], 0
        self._await_layer(stage)
        self.wait()

    def _goes_on_alike(self, layer: int, following: int) -> bool:
        """Whether what leaves with two layers is alike."""
        return self.owner is not None and self.owner.goes_on_alike(layer, following)

    def attend(self, stage: int, now: int) -> None:
        """Look at the step of a lane that is under way, if nobody does so yet."""
        if self.passes[stage] is not None:
            return
        step = self.lanes[stage].take_apart(now)
        if step is not None:
            micro: Any = LanePass(step.kind, step.counts)
            start, varying = step.start_ns, tuple(step.varying)
            run = SharedPass(self.shared[stage], micro, step.number, varying, start, step.end_ns - start)
            self._go_on_with(stage, run, now)
        self.on_change[stage]()

    def wait(self) -> None:
        """Wait for what changes next."""
        if self.runs:
            return
        end = min(self.changes)
        if end == self._awaited:
            return
        self._awaited = end
        self._version += 1
        if end != NEVER:
            at(self.env, end - now_ns(self.env), COMPLETION, self._run, self._version)

    def _run(self, version: int) -> None:
        """Handle what changes now, and what follows until something else is due."""
        owner = self.owner
        if version != self._version or owner is None:
            return
        env, changes = self.env, self.changes
        queue: list[Any] = env._queue
        now, self.runs = now_ns(env), True
        while True:
            while min(changes) == now:
                self.change(now)
            if owner.is_due:
                if queue and (queue[0][0], queue[0][1]) < (now, HAND_OVER):
                    break
                owner.settle()
                if self.round is not None and self.round.asked < 0:
                    self.round.asked = owner.asked
            following = min(changes)
            if following == NEVER:
                break
            if self.round is not None and following == changes[self.stages + self.round.stage]:
                following = self._repeat(self.round, following, queue[0][0] if queue else NEVER)
            if queue and queue[0][0] < following:
                break
            env._now = now = following
        self.runs, self._awaited = False, NEVER
        if owner.is_due:
            owner.settle_in_turn()  # waits for what changes then
        else:
            self.wait()

    def _change_stage(self, stage: int, now: int) -> None:
        """Let a pass end or go on with its collectives, or tell that it has passed a layer."""
        if stage >= self.stages:
            self._pass_layer(stage - self.stages, now)
        else:
            super()._change_stage(stage, now)
            self._await_layer(stage)

    def _pass_layer(self, stage: int, now: int) -> None:
        """Tell that a pass has passed a layer."""
        number, run, on_layer = self.passed[stage], self.passes[stage], self.on_layer[stage]
        assert run is not None
        assert on_layer is not None
        self.passed[stage] += 1
        assert self.owner is not None
        self.round = Round(stage, run, now, self.owner.asked) if self._is_quiet(stage) else None
        on_layer(self.layers[stage].layers[number])
        self._await_layer(stage)

    def _is_quiet(self, stage: int) -> bool:
        """Whether nothing is on links, and no other pass is looked at."""
        calm = self.phases[stage] == WHOLE and self.passes.count(None) == self.stages - 1
        return calm and self.sends.count(None) == len(self.sends)

    def _repeat(self, found: Round, now: int, due: int) -> int:
        """Let what happened since a layer was passed happen with further ones, where all is as it was when that was.

        Something else is ``due`` then. Returns when the next layer is passed, after those.
        """
        stage, number, run = found.stage, self.passed[found.stage], self.passes[found.stage]
        layers, on_layer = self.layers[stage], self.on_layer[stage]
        assert run is not None
        assert self.owner is not None
        later, lost = now - found.began, run.late - found.late
        times = min(layers.alike[number], (due - now) // later) if later else 0
        if times <= 0 or found.asked != self.owner.asked or not (found.is_whole and self._is_quiet(stage)):
            return now
        self.owner.repeat(on_layer, found.moves, layers.layers[number : number + times], later)
        length, some = layers.instances[number] - layers.instances[number - 1], run.stretches[found.stretches :]
        for time in range(1, times + 1):
            for instance, ns in zip(some[::2], some[1::2], strict=True):
                run.stretches += (instance + time * length, ns)
        run.late += times * lost
        self.passed[stage] += times
        self.changes[stage], self.round = run.end, None
        self._await_layer(stage)
        return self.changes[self.stages + stage]

    def _await_layer(self, stage: int) -> None:
        """Wait for the next layer of a pass that somebody waits for: none behind a collective that has not ended."""
        number, run, layers = self.passed[stage], self.passes[stage], self.layers[stage]
        self.changes[self.stages + stage] = NEVER
        if run is None or self.on_layer[stage] is None or number == len(layers.instances):
            return
        if self.phases[stage] != ON or layers.instances[number] < run.found.kind.instances[run.at]:
            self.changes[self.stages + stage] = layers.when(number, run)

    def _enter(self, stage: int, use: Use, since: int, end: int) -> None:
        super()._enter(stage, use, since, end)
        self._await_layer(stage)

    def _change_send(self, place: int, now: int) -> None:
        """Let a move enter its links, meet something, or end."""
        if self.states[place] == READY:
            for stage in self.meets[place]:
                self.foreign[stage] += 1
                self.attend(stage, now)
        super()._change_send(place, now)

    def _end(self, stage: int, now: int) -> None:
        """End a step of a lane."""
        run = self.passes[stage]
        assert run is not None
        self.passes[stage], self.changes[stage], self.on_layer[stage] = None, NEVER, None
        self.round = None
        self.lanes[stage].come_back(now, run.stretches)
        self.on_change[stage]()

    def _sent(self, place: int, now: int) -> None:
        """End a move."""
        send = self.sends[place]
        if send is not None and send.use is not None:
            for stage in self.meets[place]:
                self.foreign[stage] -= 1
        self.sends[place], self.changes[self.first_send + place] = None, NEVER
        done, value = self.carried[place]
        if self.round is not None:
            self.round.moves.append((value, now))
        done(value)


def _nobody() -> None:
    return None


def _nothing(value: Any) -> None:
    del value
