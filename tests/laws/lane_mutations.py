"""Ways to break the lanes: each replaces a piece of one function, for as long as a test runs."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from clustersim.graph import longest_path
from clustersim.graph.expand import step_blueprints
from clustersim.graph.longest_path import LongestPath
from clustersim.graph.operators import single_device
from clustersim.graph.prices.counts import SplitCounts
from clustersim.graph.prices.step_table import Part, PlacedPart, StepTable
from clustersim.graph.prices.steps import SplitPrices
from clustersim.replay.lanes import owner_lane
from clustersim.replay.lanes.clocks.shared_clock import SharedClock
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines import pipelined
from clustersim.replay.lanes.pipelines.link_lane import LinkLane
from clustersim.replay.lanes.pipelines.link_traffic import LinkTraffic
from clustersim.replay.lanes.pipelines.pipelined import PipeLane
from clustersim.replay.lanes.pipelines.split_pass import SplitPass
from clustersim.replay.lanes.pipelines.split_pipe import SplitPipe
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.replay.lanes.pipelines.staged import StagedLane
from clustersim.replay.lanes.prices import LanePrices
from clustersim.serving.grouped import decode_group
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
    # lane.py, lane_prices.py
    # pipe_lane.py
    "the first stage is not looked at when it is free": Mutation(StagedLane, "_earliest", "return free_at", "pass"),
    "the first stage takes two at a time": Mutation(PipeLane, "_is_free", "self.free_at[0] <= now", "True"),
    # shared_lane.py, shared_pipe.py
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
    "a rejected request holds its place in a closed loop": Mutation(SharedClock, "_arrive", "self.freed += 1", "pass"),
    # decode_group.py
    "who joins enters blocks one step late": Mutation(
        DecodeGroup, "join", "clock - computed)", "clock - computed + 1)"
    ),
    "who finishes still enters blocks": Mutation(DecodeGroup, "advance", "% size] -= 1", "% size] -= 0"),
    "a run counts the growth of its first step": Mutation(DecodeGroup, "growth_after_first", "clock + 1", "clock"),
    "who finishes is still attended to": Mutation(DecodeGroup, "advance", "-= sequence.computed", "-= 0"),
    "a refresh forgets blocks": Mutation(decode_group, "_bring", "sequence.blocks = ", "_ = "),
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
    # asked_scheduler.py
    # swapping_lane.py, host_copies.py
    # prompt_queue.py
    "max_batch_requests is ignored": Mutation(
        PromptQueue, "_admit_from_queue", "len(running) < self.max_requests", "True"
    ),
    "prompts are cut that wait for a step of their own": Mutation(
        PromptQueue, "_admit_from_queue", "and (chunks or need <= self.max_tokens)", "and False"
    ),
    # link_watch.py
    # layers.py
    # decode_rounds.py
    "decodes go round with their last token": Mutation(GroupedScheduler, "again", "group.left < 2", "group.left < 1"),
    "decodes that go round take no blocks": Mutation(GroupedScheduler, "_takes", "self.free[0] = free", "pass"),
    "decodes of owners that go round take no blocks": Mutation(
        OwnerScheduler, "_takes", "self.free[:] = map(sub, self.free, growths)", "pass"
    ),
    "decodes that go round open no episodes": Mutation(
        GroupedScheduler, "again", "batch.slot, batch.previous = self.slots.carry(group, batch.step)", "pass"
    ),
    "sends of decodes that go round wait for nobody": Mutation(pipelined, "pass_through", "max(at, free[0])", "at"),
    # prices of steps with SP
    "the context of a chunk is not attended to": Mutation(SplitCounts, "_chunk", "start * (", "0 * ("),
    "prompts beside each other are one": Mutation(SplitCounts, "of", "chunks[1:]", "chunks[:0]"),
    "decodes on SP ranks take no tokens": Mutation(
        SplitCounts, "of", "tokens = list(map(add, prefill, decodes))", "tokens = prefill"
    ),
    "decodes beside split prompts attend to nothing": Mutation(LanePrices, "_split", "= (attended,)", "= (0,)"),
    "a row grows with every step": Mutation(StepTable, "price", "base.copy()", "base"),
    "attention of SP ranks takes no time": Mutation(StepTable, "price", "+= times * ns", "+= 0 * ns"),
    "an SP rank waits for nobody": Mutation(longest_path, "walk", "if end > start", "if False"),
    "layers that are not walked take no time": Mutation(longest_path, "walk", "left * later", "0 * later"),
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
    # prices of steps of all members
    "a member's price is its neighbour's": Mutation(PlacedPart, "fill", "in self.picks]", "in self.picks[::-1]]"),
    "values near one cost what it costs": Mutation(
        Part, "_price", "for key in each", "for key in [each[0]] * len(each)"
    ),
    "a series has each of its classes once": Mutation(LongestPath, "terms", "* times", "* 1"),
    # ready_decodes.py
    "who waits is sorted by chance": Mutation(ReadyDecodes, "dissolve", "ready.sort(key=by_place)", "pass"),
    # decode_slots.py
    "decodes go to the wrong slot": Mutation(DecodeSlots, "_slot_of", "return first.slot", "return 0"),
}
