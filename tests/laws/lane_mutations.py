"""Ways to break the lanes: each replaces a piece of one function, for as long as a test runs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from clustersim.graph.expand import step_blueprints
from clustersim.graph.operators import single_device
from clustersim.graph.prices.lockstep_parts import BatchPart, ReplicaAttention, StepPart
from clustersim.graph.prices.lockstep_prices import LockstepPrices
from clustersim.graph.prices.lockstep_steps import LockstepSteps
from clustersim.graph.prices.split_features import SplitFeatures
from clustersim.graph.prices.split_steps import SplitPrices, SplitPrompts
from clustersim.graph.series_walk import SeriesWalk
from clustersim.replay import prepared
from clustersim.replay.events.chain import ChainPass
from clustersim.replay.lanes import owner_lane
from clustersim.replay.lanes import prices as lane_prices
from clustersim.replay.lanes.clocks import alone
from clustersim.replay.lanes.clocks.decision_clock import ClockLane, DecisionClock
from clustersim.replay.lanes.clocks.lockstep_clock import LockstepClock, LockstepPasses
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.host_copies import HostCopies
from clustersim.replay.lanes.lane import Lane
from clustersim.replay.lanes.layers import Layers
from clustersim.replay.lanes.link_watch import LinkWatch
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.member_lane import MemberLane
from clustersim.replay.lanes.pipelines import pipelined
from clustersim.replay.lanes.pipelines.link_lane import LinkLane
from clustersim.replay.lanes.pipelines.link_pipeline import SharedPipe
from clustersim.replay.lanes.pipelines.link_traffic import LinkTraffic
from clustersim.replay.lanes.pipelines.pipelined import PipeLane
from clustersim.replay.lanes.pipelines.shared_lane import SharedLane
from clustersim.replay.lanes.pipelines.split_pass import SplitPass
from clustersim.replay.lanes.pipelines.split_pipe import SplitPipe
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.replay.lanes.prices import LanePrices
from clustersim.replay.lanes.replica import LaneReplica
from clustersim.replay.lanes.stretched_lane import StretchedLane
from clustersim.replay.lanes.swapping_lane import SwappingLane
from clustersim.serving.grouped import decode_group
from clustersim.serving.grouped.asked_scheduler import AskedGroup, AskedScheduler
from clustersim.serving.grouped.caching_queue import CachingQueue
from clustersim.serving.grouped.caching_scheduler import CachingScheduler
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.decode_slots import DecodeSlots
from clustersim.serving.grouped.owner_group import OwnerGroup, OwnerSums
from clustersim.serving.grouped.owner_queue import OwnerQueue
from clustersim.serving.grouped.owner_scheduler import OwnerScheduler
from clustersim.serving.grouped.prompt_queue import PromptQueue
from clustersim.serving.grouped.ready_decodes import ReadyDecodes
from clustersim.serving.grouped.scheduler import GroupedScheduler
from clustersim.serving.grouped.window_sum import WindowSum


@dataclass(frozen=True, slots=True)
class Mutation:
    """One function of ``owner``, a class or a module, in which ``old`` becomes ``new``."""

    owner: Any
    function: str
    old: str
    new: str


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Break something; raise AssertionError where ``old`` is not in the function exactly once."""
    found = getattr(mutation.owner, mutation.function)
    function = inspect.unwrap(getattr(found, "fget", found))  # of what is cached, what is called
    source = textwrap.dedent(inspect.getsource(function))
    count = source.count(mutation.old)
    assert count == 1, f"{mutation.function} has {count} times {mutation.old!r}: adapt this mutation"
    replaced = source.replace(mutation.old, mutation.new)
    within = f"def made(__class__):\n{textwrap.indent(replaced, '    ')}\n    return {mutation.function}"  # for super()
    code = compile(within, "mutated", "exec", flags=annotations.compiler_flag, dont_inherit=True)
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)
    try:
        _forget()
        with mock.patch.object(mutation.owner, mutation.function, names["made"](mutation.owner)):
            yield
    finally:
        _forget()


def _forget() -> None:
    """Expand anew what was expanded before."""
    step_blueprints.cache_clear()
    single_device.cache_clear()


MUTATIONS: Final[dict[str, Mutation]] = {
    # run_lane.py
    "a run is cut one step late": Mutation(
        DecodeJumpLane, "_cut", "now)) + 1", "now)) + 1 + (self.steps > bisect_left(ends, now) + 1)"
    ),
    "an arrival at the end of a step falls into the next": Mutation(
        DecodeJumpLane, "_cut", "bisect_left(", "bisect_right("
    ),
    "a run is not cut": Mutation(DecodeJumpLane, "_cut", "self.steps > 1", "False"),
    "a run goes on when the next request arrives": Mutation(
        DecodeJumpLane, "_extend", "end >= until and len(ns)", "False and len(ns)"
    ),
    "a run jumps over a finish": Mutation(
        DecodeJumpLane, "begin", "group.left, decode_run", "group.left + 1, decode_run"
    ),
    "a run takes blocks that are not there": Mutation(
        DecodeJumpLane, "begin", "scheduler.affordable(group, limit)", "limit"
    ),
    "a run has a block more than there is": Mutation(
        GroupedScheduler, "affordable", "self.free[0])", "self.free[0] + 1)"
    ),
    "a run attends to the keys of its first step": Mutation(
        DecodeJumpLane, "_extend", "took = attention(keys)", "took = attention(first)"
    ),
    "a run goes on when a window is full": Mutation(DecodeJumpLane, "begin", "group.unchanged_windows", "NEVER"),
    "windows do not grow": Mutation(DecodeJumpLane, "_extend", "step * growth", "0 * growth"),
    "a run goes on from its first step": Mutation(
        DecodeJumpLane,
        "_extend",
        "first + begun * count, first + self.limit * count",
        "first, first + (self.limit - begun) * count",
    ),
    "a run goes on though a request has arrived": Mutation(DecodeJumpLane, "arrive", "self.limit = self.steps", "pass"),
    "a step that ends at the horizon has not happened": Mutation(
        DecodeJumpLane, "_log_ended", "bisect_right(", "bisect_left("
    ),
    "a horizon forgets the steps of a run": Mutation(DecodeJumpLane, "_log_ended", "if steps:", "if False:"),
    "a run jumps over who was given up": Mutation(Lane, "cancel", "self.reconsider(now)", "pass"),
    "a run is not ended where something departs": Mutation(
        DecodeJumpLane, "ends_step", "now not in self._ends()", "True"
    ),
    "a run has taken no blocks when somebody leaves the queue": Mutation(
        DecodeJumpLane, "taken", "self.steps < 2", "True"
    ),
    "a failure forgets the steps of a run": Mutation(DecodeJumpLane, "fail", "batch.group.clock += steps", "pass"),
    "a run goes on when a request goes to the head of the queue": Mutation(
        DecodeJumpLane, "arrive", "self.scheduler.waiting[0] is sequence", "len(self.scheduler.waiting) == 1"
    ),
    "a place in the order of the queue is not kept": Mutation(
        LaneReplica, "_begin_with", "lane.put = self.scheduler.add", "pass"
    ),
    "what no longer ends at its instant ends": Mutation(LaneReplica, "_ended", "version != self._version", "False"),
    # lane.py, lane_prices.py
    "outstanding tokens of finished requests stay": Mutation(
        Lane, "_complete", "-= sequence.prompt", "-= 0 * sequence.prompt"
    ),
    "a chunk attends to itself only": Mutation(lane_prices, "prompt_sums", "count * start + ", ""),
    # pipe_lane.py
    "sends do not queue": Mutation(PipeLane, "_launch", "at = max(at, before[0])", "pass"),
    "micro-batches do not queue": Mutation(PipeLane, "_launch", "max(at, free_at[stage])", "at"),
    "sends take no time": Mutation(PipeLane, "_launch", "at += sends[0]", "pass"),
    "an idle first stage ignores arrivals": Mutation(PipeLane, "reconsider", "self.end = NEVER", "pass"),
    "the first stage is not looked at when it is free": Mutation(StagedLane, "_earliest", "return free_at", "pass"),
    "the first stage takes two at a time": Mutation(PipeLane, "_is_free", "self.free_at[0] <= now", "True"),
    # shared_lane.py, shared_pipe.py
    "a stage whose links are shared ignores arrivals": Mutation(SharedLane, "reconsider", "self.end = NEVER", "pass"),
    "a scheduler is not asked again after an arrival": Mutation(SharedLane, "reconsider", "self.asked = False", "pass"),
    "a collective that met a send loses no time": Mutation(SharedPipe, "_prolong", "end - run.leaves(run.at))", "0)"),
    # link_traffic.py, link_lane.py, split_shared_pipe.py, split_pass.py
    "sends that enter their links later are there at once": Mutation(
        LinkTraffic, "_meet", "if send.enters <= now", "if True"
    ),
    "passes do not know what is on their links": Mutation(LinkTraffic, "_share", "self.near[stage] += 1", "pass"),
    "a first stage that is free is not offered a step": Mutation(LinkLane, "land", "self.asked = False", "pass"),
    "an output leaves before what stretches it": Mutation(
        SplitSharedPipe, "_leave", "if self.phases[stage] == ON:", "if False:"
    ),
    "SP ranks lose no time on shared links": Mutation(SplitSharedPipe, "_prolong", "run.prolong(end)", "pass"),
    "a step arrives with its first SP rank": Mutation(SplitSharedPipe, "_receive", "and coming[0].came == stage", ""),
    "what follows a stretched collective is not late": Mutation(SplitPass, "prolong", "+ later", "+ 0 * later"),
    "collectives are where those of another pass are": Mutation(
        SplitStage, "undisturbed", "self._ends.get(key)", "next(iter(self._ends.values()), None)"
    ),
    # lanes.py
    "the router goes by old loads": Mutation(SharedClock, "_route", "!= loads[0][0]", "is None"),
    "a scheduler of one's own is not told who comes": Mutation(
        ClockLane, "__init__", "lane.put = self.scheduler.add", "pass"
    ),
    "who gives up waits on in the loads that the router compares": Mutation(
        DecisionClock, "_give_up", "if self.all.balanced:", "if False:"
    ),
    "who is given up frees no place in a closed loop": Mutation(DecisionClock, "_reject", "self.freed += 1", "pass"),
    "a step that ends as a client gives up has not ended": Mutation(
        DecisionClock, "change", "if lane.ends_step(now):", "if False:"
    ),
    "a run goes on as it was when a client gives up": Mutation(
        DecisionClock, "change", "if lane.end not in (before, NEVER):", "if False:"
    ),
    "deadlines pass when something else happens": Mutation(
        DecisionClock, "_before", "return min(instant, self.deadline)", "return instant"
    ),
    "what ends at the horizon has not happened": Mutation(alone, "_run", "now > horizon", "now >= horizon"),
    "the horizon cuts a closed loop short": Mutation(SharedClock, "_run", "now > run.horizon", "now >= run.horizon"),
    "a rejected request holds its place in a closed loop": Mutation(SharedClock, "_arrive", "self.freed += 1", "pass"),
    # decode_group.py
    "who joins enters blocks one step late": Mutation(
        DecodeGroup, "join", "clock - computed)", "clock - computed + 1)"
    ),
    "who finishes still enters blocks": Mutation(DecodeGroup, "advance", "% size] -= 1", "% size] -= 0"),
    "a run counts the growth of its first step": Mutation(DecodeGroup, "growth_after_first", "clock + 1", "clock"),
    "who finishes is still attended to": Mutation(DecodeGroup, "advance", "-= sequence.computed", "-= 0"),
    "a refresh forgets blocks": Mutation(decode_group, "_bring", "sequence.blocks = ", "_ = "),
    "who leaves a group still enters blocks": Mutation(DecodeGroup, "leave", "% size] -= 1", "% size] -= 0"),
    "who leaves a group is still attended to": Mutation(DecodeGroup, "leave", "-= sequence.computed", "-= 0"),
    "who leaves a group still has it end": Mutation(DecodeGroup, "leave", "is not sequence", "is not None"),
    # window_sum.py
    "who leaves still fills a window": Mutation(WindowSum, "leave", "self.total -=", "_ ="),
    "windows are full one step late": Mutation(WindowSum, "advance", "<= clock", "< clock"),
    # grouped.py
    "decodes take no blocks": Mutation(GroupedScheduler, "next", "group.phases[group.clock % self.size]", "0"),
    "blocks are taken twice": Mutation(GroupedScheduler, "next", "self.free[0] = free", "self.free[0] = free - growth"),
    "runs take no blocks": Mutation(GroupedScheduler, "repeat", "self.free[0] -=", "_ ="),
    "blocks are not given back": Mutation(GroupedScheduler, "_finish", "self._release(sequence)", "pass"),
    "prompts beside decodes see the blocks that those take": Mutation(
        GroupedScheduler, "next", "choose(now, budget, free)", "choose(now, budget, self.free[0])"
    ),
    "decodes cost no tokens of the budget": Mutation(GroupedScheduler, "next", "- group.count", "- 0"),
    "a step is steady though somebody gave way": Mutation(
        GroupedScheduler, "_careful", "steady = False", "steady = True"
    ),
    "micro-batches take all decodes": Mutation(GroupedScheduler, "_decodes", "// self.stages)", "// 1)"),
    "decode steps overlap though they may not": Mutation(GroupedScheduler, "_decodes", "not self.overlap", "False"),
    "one token left is a prompt": Mutation(
        GroupedScheduler, "_compute", "elif left == 1 and sequence.generated:", "elif False:"
    ),
    "tokens computed anew leave their episode open": Mutation(
        GroupedScheduler, "_compute", "self.slots.close(sequence, sequence.last_step)", "pass"
    ),
    "who is given up in a step stays": Mutation(GroupedScheduler, "_let_go", "if sequence.leaving and", "if False and"),
    "who is given up keeps its blocks": Mutation(GroupedScheduler, "cancel", "self._release(sequence)", "pass"),
    "who is given up leaves its episode open": Mutation(
        GroupedScheduler, "cancel", "self.slots.close(", "(lambda *_: 0)("
    ),
    "who is given up counts as decoding": Mutation(
        GroupedScheduler, "_take_out", "group.leave(sequence)\n            self.decoding -= 1", "group.leave(sequence)"
    ),
    "steps that a failure cut off used their slots": Mutation(
        GroupedScheduler, "evict", "= batch.previous", "= batch.step"
    ),
    "a step that a failure cut off has a number": Mutation(GroupedScheduler, "evict", "self.step = batch.step", "pass"),
    "a step that a failure cut off took no blocks": Mutation(
        GroupedScheduler, "evict", "sequence.computed + 1", "sequence.computed"
    ),
    "who fails begins anew with its slots": Mutation(GroupedScheduler, "follow", "self.slots.last_steps =", "_ ="),
    # asked_scheduler.py
    "a run that its scheduler decided counts as one step": Mutation(
        AskedScheduler, "complete", "complete(now, decision, steps)", "complete(now, decision)"
    ),
    "a run that its scheduler decided goes on without blocks": Mutation(
        AskedScheduler, "affordable", "self.scheduler.affordable(self._decision, limit)", "limit"
    ),
    "a run that its scheduler decided has taken no blocks": Mutation(
        AskedGroup, "growth_after_first", "max(0, -", "0 * max(0, -"
    ),
    "who finishes leaves the episode open": Mutation(
        AskedScheduler,
        "complete",
        "episodes.close([",
        "([].append)([",
    ),
    "steps that ended before a failure were none": Mutation(
        AskedScheduler, "_count_ended", "self.step > batch.first", "False"
    ),
    "a step that a failure cut off counts": Mutation(
        AskedScheduler, "_count_ended", "self.step = batch.previous + 1", "pass"
    ),
    "steps begin anew after a failure": Mutation(AskedScheduler, "follow", "predecessor.step", "0"),
    "who is given up leaves what was decided open": Mutation(
        AskedScheduler, "cancel", "self.episodes.close((sequence.request,))", "pass"
    ),
    # swapping_lane.py, host_copies.py
    "who comes beside a copy waits for its end": Mutation(SwappingLane, "arrive", "self.end = NEVER", "pass"),
    "copies end with the step beside them": Mutation(
        SwappingLane,
        "begin",
        "min(self.step_end, self.copies.end)",
        "self.step_end if self.steps else self.copies.end",
    ),
    "a run that has ended goes on with a copy": Mutation(SwappingLane, "go_on", "self.copies.end == NEVER and", ""),
    "a step ends with a copy beside it": Mutation(SwappingLane, "land", "self.step_end == now", "True"),
    "copies in one direction overlap": Mutation(HostCopies, "begin", "len(queue) == 1", "True"),
    "a copy that waits never begins": Mutation(HostCopies, "ended", "if queue:", "if False:"),
    "copies that meet others take what they take alone": Mutation(
        prepared, "find_contention", 'copies_meet |= kind == "swap"', "pass"
    ),
    # prompt_queue.py
    "long prompts are not cut": Mutation(PromptQueue, "_admit_from_queue", "count < longest", "True"),
    "max_batch_requests is ignored": Mutation(
        PromptQueue, "_admit_from_queue", "len(running) < self.max_requests", "True"
    ),
    "prompts are cut that wait for a step of their own": Mutation(
        PromptQueue, "_admit_from_queue", "and (chunks or need <= self.max_tokens)", "and False"
    ),
    "prompts are admitted without blocks": Mutation(
        PromptQueue, "_admit_from_queue", "(missing if self.first_chunk else -(-need // size)) > free or ", ""
    ),
    "room is kept for nobody": Mutation(PromptQueue, "_promise", "self.promised = promised", "pass"),
    "room is kept for the prompt alone": Mutation(
        PromptQueue, "_promise", "sequence.most_tokens", "sequence.prompt_tokens"
    ),
    "room is kept for those who left": Mutation(PromptQueue, "part_from", "sequence.most_tokens", "0"),
    "room is kept a block short": Mutation(
        PromptQueue, "_promise", "promised > self.total", "promised > self.total + 1"
    ),
    "prompts go on in another order": Mutation(PromptQueue, "put_back", "self.begun.sort(key=by_place)", "pass"),
    # link_watch.py
    "K/V that gets on a link is not noticed": Mutation(LinkWatch, "disturb", "self.meet()", "pass"),
    "a step that begins beside K/V meets none": Mutation(LaneReplica, "schedule", "watch.meet()", "pass"),
    "a step that met K/V took what it takes alone": Mutation(LinkWatch, "_ended", "chain.lost()", "[]"),
    "a step that meets K/V begins anew": Mutation(
        ChainPass, "go_on", 'int(np.searchsorted(self.ends, now_ns(self.env), side="right"))', "0"
    ),
    "a run that meets K/V goes on without its last step": Mutation(
        StretchedLane, "take_apart", "bisect_right(starts, now, 1)", "bisect_left(starts, now, 1)"
    ),
    "a run that met K/V has no step but the last": Mutation(StretchedLane, "_log", "super()._log(last, start)", "pass"),
    "what meets K/V at the horizon has ended": Mutation(StretchedLane, "_log_ended", "self.apart is not None", "False"),
    "an arrival cuts what meets K/V": Mutation(StretchedLane, "_cut", "self.apart is None", "True"),
    "who comes after a decision cuts the step before it": Mutation(DecodeJumpLane, "_cut", " + self.begun(now)", ""),
    # layers.py
    "a layer leaves late": Mutation(Layers, "begin", "int(passes[layer])", "int(passes[layer]) + 1"),
    "layers of a step that meets K/V leave twice": Mutation(Layers, "take", "self._version += 1", "pass"),
    "layers of a step that meets K/V never leave": Mutation(Layers, "take", "list(self.marks)", "[]"),
    # decode_rounds.py
    "decodes go round past an arrival": Mutation(PipeLane, "_go_round", "start >= until or ", ""),
    "decodes go round with their last token": Mutation(GroupedScheduler, "again", "group.left < 2", "group.left < 1"),
    "decodes go round without blocks": Mutation(GroupedScheduler, "_takes", "if free >= 0", "if True"),
    "decodes that go round take no blocks": Mutation(GroupedScheduler, "_takes", "self.free[0] = free", "pass"),
    "decodes of owners that go round take no blocks": Mutation(
        OwnerScheduler, "_takes", "self.free[:] = map(sub, self.free, growths)", "pass"
    ),
    "decodes that go round open no episodes": Mutation(
        GroupedScheduler, "again", "batch.slot, batch.previous = self.slots.carry(group, batch.step)", "pass"
    ),
    "sends of decodes that go round wait for nobody": Mutation(pipelined, "pass_through", "max(at, free[0])", "at"),
    "stages of decodes that go round take two at a time": Mutation(
        pipelined, "pass_through", "max(at, free_at[stage])", "at"
    ),
    # prices of steps with SP
    "the context of a chunk is not attended to": Mutation(SplitFeatures, "_chunk", "start * (", "0 * ("),
    "prompts beside each other are one": Mutation(SplitFeatures, "of", "chunks[1:]", "chunks[:0]"),
    "decodes on SP ranks take no tokens": Mutation(
        SplitFeatures, "of", "tokens = list(map(add, prefill, decodes))", "tokens = prefill"
    ),
    "decodes beside split prompts attend to nothing": Mutation(LanePrices, "_split", "= (attended,)", "= (0,)"),
    "a row grows with every step": Mutation(SplitPrompts, "price", "bases.copy()", "bases"),
    "attention of SP ranks takes no time": Mutation(SplitPrompts, "price", "+= times * ns", "+= 0 * ns"),
    "an SP rank waits for nobody": Mutation(
        SeriesWalk, "_whole", "self._walks[0]((), told)", "[*told, *told[self.before :]]"
    ),
    "layers that are not walked take no time": Mutation(SeriesWalk, "_last", "left * more", "0 * more"),
    # SP ranks that keep whole sequences
    "an owner's blocks are taken from another one": Mutation(
        OwnerGroup, "growths", "for own in self.of", "for own in self.of[::-1]"
    ),
    "a run counts the growth of its first step, by owner": Mutation(
        OwnerGroup, "growths_after_first", "self.clock + 1", "self.clock"
    ),
    "a run goes on without a block of an owner": Mutation(OwnerGroup, "affordable_by_owner", "left < 0", "left < -1"),
    "contexts of an owner do not grow": Mutation(OwnerGroup, "advance", "own.computed += steps * own.count", "pass"),
    "contexts of an owner do not grow in a run": Mutation(OwnerGroup, "keys", "own.count, own.count", "own.count, 0"),
    "windows of an owner are never full": Mutation(OwnerGroup, "advance", "window.advance(self.clock)", "pass"),
    "who leaves is attended to by its owner": Mutation(OwnerSums, "leave", "self.computed -= ", "_ = "),
    "who leaves takes blocks of its owner": Mutation(
        OwnerSums, "leave", "% len(self.phases)] -= 1", "% len(self.phases)] -= 0"
    ),
    "the first owner keeps all": Mutation(OwnerQueue, "_admit", "self.pool.emptiest()", "0"),
    "prompts take blocks of another owner": Mutation(
        OwnerQueue, "choose_beside", "left[sequence.owner] < 0", "sum(left) < 0"
    ),
    "decodes beside prompts take no blocks of owners": Mutation(OwnerQueue, "choose_beside", "there - taken", "there"),
    "one owner's room is kept for all": Mutation(OwnerQueue, "_promise", "self.pool.blocks", "self.total"),
    "room is kept by owners for those who left": Mutation(OwnerQueue, "part_from", "sequence.most_tokens", "0"),
    "nobody says who keeps a sequence": Mutation(LaneLog, "kept", "self._kept.extend((request, time, owner))", "pass"),
    "runs take no blocks of owners": Mutation(OwnerScheduler, "repeat", "self.free[owner] -= taken", "pass"),
    "a run goes on though another owner has room": Mutation(OwnerScheduler, "_launch", "batch.steady = False", "pass"),
    "the last SP rank holds a step": Mutation(owner_lane.OwnerLane, "_extend", "if length > longest", "if True"),
    # stages of SP ranks
    "the output of SP ranks leaves when the pass ends": Mutation(SplitPipe, "_launch", "start + left", "start + total"),
    "sends of SP ranks do not queue": Mutation(SplitPipe, "_launch", "max(start + left, before)", "start + left"),
    "sends of SP ranks take no time": Mutation(SplitPipe, "_launch", "begin + took for", "begin for"),
    "the first SP rank's send is waited for alone": Mutation(SplitPipe, "_launch", "max(ended)", "ended[0]"),
    "stages of SP ranks take two at a time": Mutation(SplitPipe, "_launch", "max(at, self.free_at[stage])", "at"),
    "idle SP ranks send": Mutation(SplitPipe, "_launch", "*ended, *idle)", "*ended, *(ended[:1] * len(idle)))"),
    "SP ranks attend for nothing on several stages": Mutation(
        SplitPrices, "decoded", "price.paths, took", "price.paths, [0] * len(took)"
    ),
    # hand-overs
    "nothing is set aside": Mutation(GroupedScheduler, "next", "self.scheduler.arriving", "False"),
    "blocks are given back before K/V has left": Mutation(
        GroupedScheduler, "_finish", "not sequence.hands_over", "True"
    ),
    "who was received does not count as decoding": Mutation(GroupedScheduler, "receive", "self.decoding += 1", "pass"),
    "who was received comes before all others": Mutation(
        GroupedScheduler, "receive", "self.prompts.number(sequence)", "pass"
    ),
    "who gives up while its last chunk is computed leaves all the same": Mutation(
        GroupedScheduler, "_compute", "and not (sequence.hands_over and sequence.leaving)", ""
    ),
    "a run goes on when K/V has arrived": Mutation(Lane, "receive", "self.reconsider(now)", "pass"),
    "a run goes on when K/V is about to arrive": Mutation(Lane, "take_over", "self.reconsider(now)", "pass"),
    "a run goes on only if nobody waits for K/V": Mutation(
        Lane, "take_over", "arriving[0] is sequence", "len(arriving) > 1"
    ),
    "a run has taken no blocks when K/V arrives": Mutation(Lane, "receive", "self.taken(now)", "0"),
    "who has not arrived weighs nothing": Mutation(Lane, "take_over", "self.outstanding += ", "_ = "),
    "who has not arrived does not wait": Mutation(LaneReplica, "waiting", " + len(scheduler.arriving)", ""),
    "whose K/V is on its way does not run": Mutation(LaneReplica, "running", " + self.scheduler.receiving", ""),
    "who does not come weighs as ever": Mutation(Lane, "expect_no_more", "self.outstanding -= ", "_ = "),
    # member_lane.py, lockstep_clock.py
    "a run of all jumps over a finish": Mutation(MemberLane, "reach", "group.left,", "group.left + 1,"),
    "a run of all takes blocks that are not there": Mutation(
        MemberLane, "reach", "self.scheduler.affordable(group, limit)", "limit"
    ),
    "a run of all goes on when a window is full": Mutation(MemberLane, "reach", "group.unchanged_windows", "9999"),
    "who brings nothing takes no step": Mutation(MemberLane, "launch", "scheduler.step += 1", "pass"),
    "who brings nothing takes one step of a run": Mutation(
        MemberLane, "land", "self.scheduler.step += steps - 1", "pass"
    ),
    "a horizon ends a member's episodes with the run": Mutation(MemberLane, "stop_after", "+ steps - 1", "- 1"),
    "all go on when the next request arrives": Mutation(LockstepPasses, "begin", "until) + 1]", "until) + 2]"),
    "all go on when one would decide otherwise": Mutation(LockstepPasses, "_reach", " if lane.is_steady else 1", ""),
    "who has a step alone ends with a later one": Mutation(MemberLane, "land", "group.left > 1", "group.left > 0"),
    "members go on past prompts that came": Mutation(MemberLane, "begin", "scheduler.repeats and ", ""),
    "contexts of members stay as they are": Mutation(ReplicaAttention, "ns", "step * growth[at]", "0"),
    "windows of members do not grow": Mutation(MemberLane, "brings", "grows.get(one, 0)", "0"),
    "passes of all are numbered run by run": Mutation(
        LockstepPasses, "record", "self.steps += steps", "self.steps += 1"
    ),
    "a run of all is priced to the horizon": Mutation(
        LockstepClock, "_run", "until if closed else min(self.coming[0], until)", "until"
    ),
    "what ends at the horizon has not ended": Mutation(
        LockstepClock, "_run", "bisect_right(passes.ends, run.horizon)", "bisect_right(passes.ends, run.horizon - 1)"
    ),
    "passes that ended at the horizon are not recorded": Mutation(
        LockstepClock, "_run", "passes.record(ended)", "pass"
    ),
    "a member's decodes do not attend to themselves": Mutation(
        MemberLane, "brings", "(group.computed + decodes, decodes)", "(group.computed, decodes)"
    ),
    # prices of steps of all members
    "a member's price is its neighbour's": Mutation(
        StepPart, "price", "map(self.pick, counts)", "map(self.pick, counts[::-1])"
    ),
    "values near one cost what it costs": Mutation(
        BatchPart, "learn", "tuple(map(float, values))", "(float(first),) * NEAR"
    ),
    "exchanges carry all members' tokens": Mutation(
        LockstepSteps, "row", "sum(tokens), max(tokens)", "sum(tokens), sum(tokens)"
    ),
    "captured graphs of members are not padded": Mutation(LockstepSteps, "row", "size or own[0]", "own[0]"),
    "members' decodes are never captured": Mutation(LockstepPrices, "decodes", "self.graphs if graph else ", ""),
    "long runs of members attend to what they began with": Mutation(
        LockstepPrices, "_keys", "each.growth[at] * grown", "0 * grown"
    ),
    "who has nothing brings a token of a prompt": Mutation(
        LockstepPasses, "_brought", "self.decode if decodes else self.prompt", "self.prompt"
    ),
    "a series has each of its classes once": Mutation(SeriesWalk, "_durations", "* times", "* 1"),
    # ready_decodes.py
    "a late sequence overtakes those that wait": Mutation(ReadyDecodes, "first", "s.place > group.latest", "True"),
    "who waits is sorted by chance": Mutation(ReadyDecodes, "dissolve", "ready.sort(key=by_place)", "pass"),
    # decode_slots.py
    "decodes go to the wrong slot": Mutation(DecodeSlots, "_slot_of", "return first.slot", "return 0"),
    "an episode goes on though a step left it out": Mutation(
        DecodeSlots, "_open", "or last_steps[slot] != sequence.last_step)", ")"
    ),
    "a prompt computes what it takes over": Mutation(CachingQueue, "_admit_from_queue", " - cached * self.size", ""),
    "what is taken over takes no free blocks": Mutation(
        CachingQueue, "_admit_from_queue", "not pool.fits(sequence, cached, missing if", "pool.free[0] < (missing if"
    ),
    "nobody forgets before a prompt is admitted": Mutation(
        CachingQueue, "_admit_from_queue", "pool.catch_up()", "pass"
    ),
    "the last token of a cached prompt decodes for nobody": Mutation(
        CachingScheduler, "_launch", "+= sum(", "+= 0 * sum("
    ),
    "a step fills blocks when the next one ends": Mutation(
        CachingScheduler, "complete", "sequence.computed + count", "sequence.computed"
    ),
    "a router sees what a run of steps has forgotten": Mutation(
        CachingScheduler, "cached_tokens", "catch_up(taken)", "catch_up()"
    ),
    "a step at the horizon ends what it goes on with": Mutation(
        DecodeSlots, "carry", "= last_steps[slot]", "= group.last_step"
    ),
}
