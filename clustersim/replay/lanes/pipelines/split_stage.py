"""A stage whose prompts are split over SP ranks: where its collectives are in time, and what they put on links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clustersim.clock import Int64Array, to_ns
from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.longest_path import LongestPath
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.steps import SplitPrices
from clustersim.graph.program import StageProgram
from clustersim.graph.template import PassTemplate
from clustersim.replay.lanes.lane import NEVER
from clustersim.replay.lanes.pipelines.split_micro_batch import SplitMicro
from clustersim.replay.links.sharing_by_lanes import Use
from clustersim.replay.links.uses import MOST_USES

MOST_LEADS: Final = 10_000
"""Rows of durations of which it is remembered when their first collective may be."""
MOST_ENDS: Final = 1_000
"""Passes of which it is remembered when their collectives end: prompts of a trace come again and again."""


class SplitStage:
    """A stage whose collectives sends may meet.

    Parameters
    ----------
    prices : SplitPrices
    programs : mapping
        Kind of step → program.
    comm : CommTable
    devices, after : tuple of int
        Of this stage and of the next one, which the last one has not.
    """

    def __init__(
        self,
        prices: SplitPrices,
        programs: Mapping[str, StageProgram],
        comm: CommTable,
        devices: tuple[int, ...],
        after: tuple[int, ...],
    ) -> None:
        self.prices, self.comm, self.devices, self.after = prices, comm, devices, after
        self.programs = [programs[kind] for kind in STEP_KINDS]
        self.templates = [program.template for program in self.programs]
        self.collectives = [_collectives(program) for program in self.programs]
        together = zip(self.templates, self.collectives, strict=True)
        self.classes = [template.instance_class[instances].tolist() for template, instances in together]
        self.paths = [
            _to_collectives(template, some) for template, some in zip(self.templates, self.collectives, strict=True)
        ]
        """Of each kind of step, to the ends of its collectives."""
        self._leads, self._ends = prices.leads, prices.collective_ends
        self._uses: dict[tuple[int, int, int, float, int], Use | None] = {}

    def send(self, micro: SplitMicro, rank: int, duration_ns: int) -> Use | None:
        """Return what the send of a rank puts on links; None when nothing, or for no time."""
        return self.use(micro, self.templates[micro.kind].send_classes[rank], duration_ns, rank)

    def use(self, micro: SplitMicro, cls: int, duration_ns: int, rank: int = -1) -> Use | None:
        """Return what a class of communications puts on links; None when nothing, or for no time."""
        program = self.programs[micro.kind]
        payload = self._payload(micro, cls)
        key = micro.kind, cls, rank, payload, duration_ns
        if key not in self._uses:
            if len(self._uses) >= MOST_USES:
                self._uses.clear()
            group = self.devices if rank < 0 else (self.devices[rank], self.after[rank])
            plan = self.comm.chosen(program.classes[cls].node.communication, group, payload)
            transfer_ns = 0 if plan is None else min(duration_ns, to_ns(payload * plan.seconds_per_byte))
            self._uses[key] = None
            if plan is not None and transfer_ns:
                links = frozenset(plan.links.tolist())
                loads = ((plan.links, plan.load_per_byte * payload),)
                self._uses[key] = Use(transfer_ns=transfer_ns, links=links, loads=loads)
        return self._uses[key]

    def _payload(self, micro: SplitMicro, cls: int) -> float:
        """Return the bytes of a class of communications."""
        prices, carries, program = self.prices, micro.carries, self.programs[micro.kind]
        if not carries.chunks:
            return payload_bytes(program, prices.pricer.features(carries), cls)
        if prices not in micro.told:
            chunks = [(one.start, one.count, one.owner) for one in carries.chunks]
            micro.told[prices] = prices.counts.of(chunks, carries.decode_sequences)
        prompts = prices.mixed if any(carries.decode_sequences) else prices.prefill
        return prompts.payload_bytes(micro.told[prices], cls)

    def by_class(self, kind: int, number: int, varying: tuple[int, ...]) -> Int64Array:
        """Return the nanoseconds of every class of a pass."""
        row, columns = self.prices.rows[STEP_KINDS[kind]][number]
        found = row.copy()
        found[list(columns)] = varying
        return found

    def ends(self, kind: int, by_class: Int64Array) -> list[int]:
        """Return when the collectives of a pass end, from its start."""
        path = self.paths[kind]
        return list(path.ends(path.terms(by_class).tolist())[1])

    def undisturbed(self, kind: int, number: int, varying: tuple[int, ...]) -> list[int]:
        """Return when the collectives of a pass that meets nothing end, from its start."""
        key = kind, number, varying
        found = self._ends.get(key)
        if found is None:
            if len(self._ends) >= MOST_ENDS:
                self._ends.clear()
            found = self._ends[key] = self.ends(kind, self.by_class(*key))
        return found

    def stretched(
        self, kind: int, by_class: Int64Array, lost: Mapping[int, int], ranks: int
    ) -> tuple[int, list[int], list[int]]:
        """Return when a pass ends, the output of each rank leaves, and each collective ends, from its start, where some
        of the collectives lost time."""
        template = self.templates[kind]
        tp, durations = self.programs[kind].plan.tp, by_class[template.instance_class]
        for at, ns in lost.items():
            durations[self.collectives[kind][at]] += ns
        every = template.ends(durations)
        leaves = every[[template.exits[rank // tp] for rank in range(ranks)]].tolist()
        return int(every.max()), leaves, every[self.collectives[kind]].tolist()

    def lead(self, kind: int, number: int) -> int:
        """Return for how long a pass with this row of durations has no collective on its way, whatever varies."""
        found = self._leads.get((kind, number))
        if found is None:
            if len(self._leads) >= MOST_LEADS:
                self._leads.clear()
            none = (0,) * len(self.prices.rows[STEP_KINDS[kind]][number][1])
            by_class = self.by_class(kind, number, none)
            ends = self.ends(kind, by_class)
            first = by_class[self.classes[kind][:1]].tolist()
            found = self._leads[kind, number] = ends[0] - first[0] if ends else NEVER
        return found


def _collectives(program: StageProgram) -> list[int]:
    """Return the instances that communicate, in their order."""
    order = program.template.instance_class.tolist()
    return [at for at, cls in enumerate(order) if program.classes[cls].comm is not None]


def _to_collectives(template: PassTemplate, instances: list[int]) -> LongestPath:
    """Return the longest path to some instances of a template, worked out once."""
    if SplitStage not in template.made:
        template.made[SplitStage] = LongestPath(
            template.waits, template.instance_class, template.num_classes, instances
        )
    found: LongestPath = template.made[SplitStage]
    return found
