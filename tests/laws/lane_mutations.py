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
from clustersim.replay.lanes.log import LaneLog
from clustersim.replay.lanes.pipelines.link_lane import LinkLane
from clustersim.replay.lanes.pipelines.link_traffic import LinkTraffic
from clustersim.replay.lanes.pipelines.split_pass import SplitPass
from clustersim.replay.lanes.pipelines.split_shared_pipe import SplitSharedPipe
from clustersim.replay.lanes.pipelines.split_stage import SplitStage
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.decode_slots import DecodeSlots
from clustersim.serving.grouped.owner_group import OwnerGroup, OwnerSums
from clustersim.serving.grouped.owner_queue import OwnerQueue
from clustersim.serving.grouped.ready_decodes import ReadyDecodes
from clustersim.serving.grouped.scheduler import GroupedScheduler


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
    # lane.py, lane_prices.py
    # pipe_lane.py
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
    # decode_group.py
    "who joins enters blocks one step late": Mutation(
        DecodeGroup, "join", "clock - computed)", "clock - computed + 1)"
    ),
    # window_sum.py
    # grouped.py
    "decodes take no blocks": Mutation(GroupedScheduler, "next", "group.phases[group.clock % self.size]", "0"),
    "blocks are taken twice": Mutation(GroupedScheduler, "next", "self.free[0] = free", "self.free[0] = free - growth"),
    "blocks are not given back": Mutation(GroupedScheduler, "_finish", "self._release(sequence)", "pass"),
    "micro-batches take all decodes": Mutation(GroupedScheduler, "_decodes", "// self.stages)", "// 1)"),
    # asked_scheduler.py
    # swapping_lane.py, host_copies.py
    # prompt_queue.py
    # link_watch.py
    # layers.py
    # decode_rounds.py
    # prices of steps with SP
    "the context of a chunk is not attended to": Mutation(SplitCounts, "_chunk", "start * (", "0 * ("),
    "prompts beside each other are one": Mutation(SplitCounts, "of", "chunks[1:]", "chunks[:0]"),
    "a row grows with every step": Mutation(StepTable, "price", "base.copy()", "base"),
    "attention of SP ranks takes no time": Mutation(StepTable, "price", "+= times * ns", "+= 0 * ns"),
    "an SP rank waits for nobody": Mutation(longest_path, "walk", "if end > start", "if False"),
    # SP ranks that keep whole sequences
    "contexts of an owner do not grow": Mutation(OwnerGroup, "advance", "own.computed += steps * own.count", "pass"),
    "who leaves is attended to by its owner": Mutation(OwnerSums, "leave", "self.computed -= ", "_ = "),
    "who leaves takes blocks of its owner": Mutation(
        OwnerSums, "leave", "% len(self.phases)] -= 1", "% len(self.phases)] -= 0"
    ),
    "the first owner keeps all": Mutation(OwnerQueue, "_admit", "self.pool.emptiest()", "0"),
    "nobody says who keeps a sequence": Mutation(LaneLog, "kept", "self._kept.extend((request, time, owner))", "pass"),
    # stages of SP ranks
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
