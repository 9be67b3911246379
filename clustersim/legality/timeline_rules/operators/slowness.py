"""What operators cost on ranks that are slow, and over links that are weak, as long as declared faults last (RUN-2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.declared.faults import WeakGroup
from clustersim.legality.finding import Finding, Rows, judged, merged
from clustersim.legality.history import Declared
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.sheet import COMPUTE, Sheet
from clustersim.timeline.passes import Passes
from clustersim.timeline.tables import Tables

COST = "let an operator run for its cost"
SURELY_SLOWER = 1.5
SURELY_LONGER_NS = 2


def on_slow_ranks(sheet: Sheet, least: Int64Array) -> Int64Array:
    """Return what spans cost, kernels on ranks that are slow when their pass starts so many times as much."""
    if not sheet.declared.slow:
        return least
    begun, kernel = sheet.pass_begins, (sheet.stream == COMPUTE) & (sheet.group < 0) & (least >= 0)
    times = np.ones(len(sheet))
    for rank, since, until, slowdown in sheet.declared.slow:
        times[kernel & (sheet.global_ranks == rank) & (begun >= since) & (begun < until)] *= slowdown
    found: Int64Array = np.where(times != 1.0, np.rint(least * times).astype(np.int64), least)
    return found


def of_weak_groups(sheet: Sheet, least: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return what spans cost at least and at most, collectives over links that are weak when their pass starts longer.

    How much longer is read between two payloads, the lower of both counts (or the higher), and a tenth is let go: the
    algorithm may change between them. One that ends when its links are as they should be again, and may share these,
    may take less.
    """
    if not sheet.declared.weak_groups:
        return least, least
    grouped = np.flatnonzero((sheet.group >= 0) & (least >= 0))
    _, of = np.unique(sheet.group[grouped], return_inverse=True)
    of = of.reshape(-1)
    size = np.bincount(of)[of] if len(of) else of
    lowest = np.full(int(of.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, of, sheet.global_ranks[grouped])
    np.maximum.at(highest, of, sheet.global_ranks[grouped])
    begun, found, most = sheet.pass_begins[grouped], least.copy(), least.copy()
    for op, first, last, ranks, since, until, told, name in sheet.declared.weak_groups:
        meant = [symbol[1] == op and name == (symbol[0] if symbol[0] in sheet.declared.apart else "")
                 for symbol in sheet.symbols]  # fmt: skip
        named = np.array(meant, bool)[sheet.symbol[grouped]]
        theirs = named & (lowest[of] == first) & (highest[of] == last) & (size == ranks)
        mine = grouped[theirs & (begun >= since) & (begun < until)]
        costs = least[mine]
        least_longer, most_longer = longer_over(told, costs)
        found[mine] = costs + np.where(_as_settled(sheet, mine, until), least_longer, 0)
        most[mine] = costs + most_longer
    return found, most


def longer_over(told: Sequence[tuple[float, float]], costs: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return how much longer collectives take at least and at most that cost so much over links as they should be."""
    cost, longer = np.array(told).T
    at, to = (
        np.clip(np.searchsorted(cost, costs + by, side="right"), 1, len(cost) - 1) for by in (-1, 1)
    )  # costs are rounded to ns
    least = np.floor(np.maximum(0.0, 0.9 * np.minimum(longer[at - 1], longer[at]) - 1)).astype(np.int64)
    most = np.ceil(1.1 * np.maximum(longer[at - 1], longer[to]) + 1).astype(np.int64)
    return least, most


def _as_settled(sheet: Sheet, spans: Int64Array, until: int) -> BoolArray:
    """Return which collectives take weak links as these were when their pass began, all the time."""
    found: BoolArray = sheet.end[spans] <= until
    carriage = sheet.declared.carriage
    for at in np.flatnonzero(~found).tolist():
        place = int(sheet.replica[spans[at]]), int(sheet.stage[spans[at]])
        found[at] = carriage is not None and carriage.alone(*place)
    return found


def as_slow_as_told(reading: Reading) -> Finding:
    """Judge whether each pass that starts on a stage with a slow rank was slowed down.

    Only from half as slow again on: a kernel of 1 ns that takes a third longer takes 1 ns.
    """
    tables, declared = reading.history.folded, reading.declared
    assert tables is not None
    findings = []
    passes, table = Passes(tables), tables.passes
    for rank, since, until, slowdown in declared.slow:
        if slowdown < SURELY_SLOWER:
            continue
        number, local = divmod(rank - declared.first_rank, declared.stage_ranks)
        replica, stage = divmod(number, declared.pp)
        replica = declared.first_replica + (0 if tables.lockstep > 1 else replica)  # whose the passes of all are
        mine = (table["replica"] == replica) & (table["stage"] == stage) & (table["start_ns"] < until)
        local = rank - declared.first_rank if tables.lockstep > 1 else local
        works = np.array([local in {r for m in one.members for r in m} for one in tables.templates], bool)
        regular = np.flatnonzero(mine & (table["irregular"] < 0) & works[table["template"]])  # some idle in decode
        last = np.array([int(passes.starts(block)[-1]) for row in regular for block in passes.blocks(np.array([row]))])
        broken = last >= since if len(regular) else np.empty(0, bool)
        findings.append(judged(
            int(mine.sum()), broken, "replica {replica}, stage {stage}, step {table.first_step}",
            "is as fast as if rank {rank} were not slow", COST, replica=replica, stage=stage,
            table=Rows(table, regular), rank=rank,
        ))  # fmt: skip
    return merged(*findings)


def as_weak_as_told(reading: Reading) -> Finding:
    """Judge whether each pass that starts while links of its collectives are weak was slowed down.

    Only where one of them surely takes some nanoseconds longer: a pass that does not is recorded like any other.
    """
    tables, declared = reading.history.folded, reading.declared
    assert tables is not None
    findings = []
    passes, table = Passes(tables), tables.passes
    for weak in declared.weak_groups:
        replica, stage, local = place_of(weak, declared, tables)
        mine = (table["replica"] == replica) & (table["stage"] == stage)
        mine &= (table["start_ns"] < weak.until_ns) & (table["irregular"] < 0)
        for template in np.unique(table["template"][mine]).tolist():
            classes = classes_of(tables.templates[template], weak, local, declared.apart)
            rows = np.flatnonzero(mine & (table["template"] == template))
            for block in passes.blocks(rows) if len(classes) else ():
                starts = passes.starts(block)
                within = (starts >= weak.since_ns) & (starts < weak.until_ns)
                longer = _surely_longer(weak, passes.durations(block, template, classes)[within]).max(axis=1)
                findings.append(judged(
                    int(within.sum()), longer > SURELY_LONGER_NS, "replica {replica}, stage {stage}, step {step}",
                    "is as fast as if its links were not weak: a collective of it takes {longer:,} ns longer then",
                    COST, replica=replica, stage=stage,
                    step=table["first_step"][block.runs[block.of]][within] + block.index[within], longer=longer,
                ))  # fmt: skip
    return merged(*findings)


def place_of(weak: WeakGroup, declared: Declared, tables: Tables) -> tuple[int, int, int]:
    """Return the replica and stage whose passes have a group, and its first rank there; of all together, the first."""
    local = weak.first - declared.first_rank
    if tables.lockstep > 1:
        return declared.first_replica, 0, local
    number, local = divmod(local, declared.stage_ranks)
    replica, stage = divmod(number, declared.pp)
    return declared.first_replica + replica, stage, local


def classes_of(template: PassTemplate, weak: WeakGroup, first: int, apart: tuple[str, ...]) -> list[int]:
    """Return the cost classes of the collectives of a group, which begins at a local rank."""
    found = set()
    for node, (symbol, members) in enumerate(zip(template.node_symbol.tolist(), template.members, strict=True)):
        name, op, _ = template.symbols[symbol]
        named = op == weak.op and weak.name == (name if name in apart else "")
        if named and (min(members), max(members) - min(members), len(members)) == (
            first, weak.last - weak.first, weak.ranks
        ):  # fmt: skip
            found.add(int(template.class_of_node[node]))
    return sorted(found)


def _surely_longer(weak: WeakGroup, costs: Int64Array) -> Int64Array:
    """Return how much longer collectives take at least that cost so much over links as they should be, ns."""
    cost, longer = np.array(weak.costs).T
    at = np.clip(np.searchsorted(cost, costs - 1, side="right"), 1, len(cost) - 1)
    least: Int64Array = np.floor(0.9 * np.minimum(longer[at - 1], longer[at])).astype(np.int64)
    return least
