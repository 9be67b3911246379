"""What communicates in the passes of a pool: which operators put how many bytes on which links, step by step.

Bytes are those of capacity, the protocol's share included (:mod:`clustersim.report.metrics.link_traffic`). The halves
of a step that runs as two take half of what the whole one would, each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.collective.communications import CommTable
from clustersim.collective.price import CommPlan, choose
from clustersim.graph.blueprint import Terms
from clustersim.graph.program import StageProgram
from clustersim.graph.template import PassTemplate
from clustersim.plan.mesh import Mesh
from clustersim.replay.input import PoolInput
from clustersim.replay.programs import programs_of
from clustersim.report.metrics.step_features import lockstep_features, step_features, tells_features
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

Amount = tuple[Terms, Terms, int]
"""A payload as linear forms of what a step carries: bytes, the least, and the SP coordinate."""


class Ways:
    """The ways that bytes take, each once: its links, and bytes of their capacity per byte of payload."""

    def __init__(self) -> None:
        self.loads: list[tuple[Int64Array, FloatArray]] = []
        self._numbers: dict[tuple[bytes, bytes], int] = {}

    def number(self, plan: CommPlan) -> int:
        """Return the number of the way of a plan."""
        key = plan.links.tobytes(), plan.load_per_byte.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.loads)
            self.loads.append((plan.links, plan.load_per_byte))
        return self._numbers[key]

    def breaks(self, plans: Sequence[CommPlan], payloads: FloatArray) -> list[list[float]]:
        """Return from which of some payloads on which way is taken: [bytes, way], ascending; the first from 0."""
        sizes = np.unique(payloads[payloads > 0])
        if not plans or not len(sizes):
            return []
        chosen, _ = choose(plans, sizes)
        opens = np.flatnonzero(np.append(True, chosen[1:] != chosen[:-1]))
        found = [[float(sizes[at]), self.number(plans[int(chosen[at])])] for at in opens.tolist()]
        return [[0.0, found[0][1]], *found[1:]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """Operators of one class of a program on the same ranks.

    Parameters
    ----------
    cls : int
    members : tuple of int
        Local ranks.
    count : int
        Of them in a pass.
    amount : int
        Its payload, a column of the payloads of the pool.
    share : float
        Of that payload: half in each half of a step.
    breaks : list
        See :meth:`Ways.breaks`.
    """

    cls: int
    members: tuple[int, ...]
    count: int
    amount: int
    share: float
    breaks: list[list[float]]

    def ways(self, payloads: FloatArray) -> Int64Array:
        """Return the way that each payload takes."""
        sizes, ways = zip(*self.breaks, strict=True)
        found: Int64Array = np.array(ways, np.int64)[np.searchsorted(sizes, payloads, side="right") - 1]
        return found


class PoolLoad:
    """What the steps of one pool put on links.

    Parameters
    ----------
    pool : PoolInput
    tables : Tables
        Of that pool alone, its replicas numbered from 0.
    comm : CommTable
    ways : Ways
        Of all pools.
    """

    def __init__(self, pool: PoolInput, tables: Tables, comm: CommTable, ways: Ways) -> None:
        plan = pool.plan.lockstep
        self.mesh, self.comm, self.ways, self.tables = Mesh(plan=plan), comm, ways, tables
        self.programs: Mapping[tuple[int, int], Mapping[str, StageProgram]] = programs_of(pool, comm)
        self.known = plan.sp.whole or tells_features(plan.sp)
        self._whole = plan.sp.whole
        self._amounts: dict[Amount, int] = {}
        self._columns: list[int] = []
        self._made: dict[tuple[int, int, str], list[Exchange]] = {}

    @cached_property
    def rows(self) -> dict[int, tuple[Int64Array, FloatArray]]:
        """Replica → the first step of each row, and the payloads of its steps, of shape (rows, amounts)."""
        features = lockstep_features(self.tables) if self._whole else step_features(self.tables, self.mesh.plan.sp)
        amounts = self._needed()
        parts: dict[int, list[tuple[Int64Array, FloatArray]]] = {}
        for (replica, _), steps in features.items():
            made = [np.maximum(steps.amount(terms, s), steps.amount(least, s)) for terms, least, s in amounts]
            parts.setdefault(replica, []).append((steps.first, np.stack(made, axis=1)))
        return {replica: _merged(some) for replica, some in sorted(parts.items())}

    def _needed(self) -> list[Amount]:
        """Return the amounts of all that communicates, each once, and number them."""
        for kinds in self.programs.values():
            for program in kinds.values():
                if len(program.template.node_half) == 0:
                    for cls, _ in program.exchanged:
                        self._amounts.setdefault(_amount(program, cls), len(self._amounts))
        return list(self._amounts) or [((), (), 0)]

    def exchanges(self, replica: int, template: PassTemplate) -> list[Exchange]:
        """Return what communicates in a pass of a replica."""
        key = replica, template.stage, f"{template.kind} {len(template.node_half)}"
        if key not in self._made:
            self._made[key] = list(self._exchanges(replica, template))
        return self._made[key]

    def _exchanges(self, replica: int, template: PassTemplate) -> Iterator[Exchange]:
        kinds = self.programs[replica, template.stage]
        whole = next(one for one in kinds.values() if _is(one, template.kind, 0))
        devices = self.mesh.stage_devices(replica, template.stage)
        if not len(template.node_half):
            yield from (
                self._exchange(replica, devices, whole, at, at, count, 1.0) for at, count in whole.exchanged.items()
            )
            return
        alike = {(whole.template.class_symbol[cls], members): (cls, members) for cls, members in whole.exchanged}
        names = {whole.template.symbols[symbol]: symbol for symbol in set(whole.template.class_symbol)}
        halved = next(one for one in kinds.values() if _is(one, template.kind, len(template.node_half)))
        for (cls, members), count in halved.exchanged.items():
            symbol = names.get(halved.template.symbols[halved.template.class_symbol[cls]], -1)
            if (symbol, members) in alike:
                of = alike[symbol, members]
                yield self._exchange(replica, devices, whole, of, (cls, members), count, 0.5)

    def _exchange(
        self, replica: int, devices: tuple[int, ...], program: StageProgram, of: tuple[int, tuple[int, ...]],
        at: tuple[int, tuple[int, ...]], count: int, share: float,
    ) -> Exchange:  # fmt: skip
        cls, members = of
        plans = self.comm.plans(program.classes[cls].node.communication, tuple(devices[member] for member in members))
        amount = self._amounts[_amount(program, cls)]
        breaks = self.ways.breaks(plans, share * self.rows[replica][1][:, amount]) if replica in self.rows else []
        return Exchange(cls=at[0], members=at[1], count=count, amount=amount, share=share, breaks=breaks)


def _amount(program: StageProgram, cls: int) -> Amount:
    chosen = program.classes[cls]
    return chosen.node.amount, chosen.node.least or (), chosen.s


def _is(program: StageProgram, kind: str, halves: int) -> bool:
    return program.template.kind == kind and len(program.template.node_half) == halves


def _merged(parts: Sequence[tuple[Int64Array, Any]]) -> tuple[Int64Array, FloatArray]:
    """Return rows in order of their first step, those that say the same as one."""
    first, values = (np.concatenate(some) for some in zip(*parts, strict=True))
    order = np.argsort(first, kind="stable")
    first, values = first[order], np.rint(values[order])
    opens = np.append(True, (values[1:] != values[:-1]).any(axis=1))
    return first[opens], values[opens]
