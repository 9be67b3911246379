"""What compiled lanes are told of stages whose sends share links: where collectives are, and what is on links how long.

It is put beside the prices of ``compiled.stage_prices``, and filled in at the same moments: what communications put on
links depends on the counts that their prices depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.compiled.prices import DECODE, MIXED, PREFILL, attending_of
from clustersim.replay.compiled.stage_prices import StagePrices
from clustersim.replay.lanes.pipelines.link_stage import PassKind, SharedStage
from clustersim.replay.links.uses import Counts

KINDS: Final = {PREFILL: "prefill", MIXED: "mixed", DECODE: "decode"}
"""Table of prices → kind of step."""


class LinkPrices(StagePrices):
    """Prices of one replica whose sends may meet collectives.

    Parameters
    ----------
    stages : sequence of StepPrices
    most : sequence of int
        As those of :class:`StagePrices`.
    shared : sequence of SharedStage
        One per stage.

    Attributes
    ----------
    classes : tuple of int64 arrays
        Nanoseconds and nanoseconds on links by class, of each part of a step and of decode steps: (kinds, 2, parts,
        count, 2, classes) and (kinds, count, 2, classes); the classes that attend, (kinds, 3, attending).
    told : tuple of int64 arrays
        How many operators of each class come before each collective, (stages, 3, collectives, classes); class and
        instance of each, (stages, 3, collectives, 2); how many there are and the class that sends, (stages, 3, 2).
    """

    def __init__(self, stages: Sequence[StepPrices], most: Sequence[int], shared: Sequence[SharedStage]) -> None:
        super().__init__(stages, most)
        if self.obstacle:
            return
        self.shared = [shared[self.of_stage.tolist().index(kind)] for kind in range(len(self.kinds))]
        programs = [uses.program for stage in shared for uses in stage.uses]
        width = max(len(program.classes) for program in programs)
        kinds, tables, parts, counts = self.arrays[4].shape
        part_classes = np.zeros((kinds, tables, parts, counts, 2, width), np.int64)
        decode_classes = np.zeros((*self.arrays[7].shape[:2], 2, width), np.int64)
        columns = np.zeros((kinds, 3, max(1, *(int(one.cores.max()) for one in self.kinds))), np.int64)
        for kind, one in enumerate(self.kinds):
            found = one.prices
            attending = found.prefill.columns, found.mixed.columns, attending_of(found.programs["decode"].classes)
            for table, each in enumerate(attending):
                columns[kind, table, : len(each)] = each
        self.classes = part_classes, decode_classes, columns
        self.told = _told(shared, width)

    def learn_decode(self, count: int) -> None:
        """Fill in what steps of so many decodes cost."""
        super().learn_decode(count)
        for kind, one in enumerate(self.kinds):
            row = one.prices.decode(count).row
            self._fill(1, (kind, count), DECODE, (count, count, 0, count), row)

    def learn_parts(self, table: int, counts: Sequence[int]) -> None:
        """Fill in what the parts of a step that are not known cost."""
        super().learn_parts(table, counts)
        told = counts[0], counts[1], counts[2], counts[3]
        for kind, one in enumerate(self.kinds):
            for number, part in enumerate(one.prompts[table].parts):
                row, _ = part.price(counts)
                at = counts[part.places[0]] if part.places else 0
                self._fill(0, (kind, table, number, at), table, told, row)

    def _fill(self, which: int, at: tuple[int, ...], table: int, counts: Counts, row: Int64Array) -> None:
        """Fill in what classes take, and for how much of it they are on links, at a place of one of the arrays."""
        into, uses = self.classes[which][at], self.shared[at[0]].uses[STEP_KINDS.index(KINDS[table])]
        into[0, : len(row)] = row
        for number in np.flatnonzero(row).tolist():
            if uses.program.classes[number].comm is not None:
                use = uses.of(number, counts, int(row[number]))
                into[1, number] = 0 if use is None else use.transfer_ns


def _told(shared: Sequence[SharedStage], width: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return where the collectives of each kind of pass are; see :class:`LinkPrices`."""
    found = [[PassKind(stage.uses[STEP_KINDS.index(kind)]) for kind in KINDS.values()] for stage in shared]
    most = max(len(one.instances) for each in found for one in each)
    before = np.zeros((len(shared), len(KINDS), most, width), np.int64)
    collectives = np.zeros((len(shared), len(KINDS), most, 2), np.int64)
    bounds = np.zeros((len(shared), len(KINDS), 2), np.int64)
    for stage, each in enumerate(found):
        for table, one in enumerate(each):
            count, sending = len(one.instances), one.uses.program.template.send_classes
            before[stage, table, :count, : one.before.shape[1]] = one.before
            collectives[stage, table, :count, 0], collectives[stage, table, :count, 1] = one.classes, one.instances
            bounds[stage, table] = count, sending[0] if sending else 0
    return before, collectives, bounds
