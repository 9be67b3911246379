"""RUN-2: each duration that a timeline refers to is what its operator costs, worked out from what was declared.

Looked at is each row of durations with the contents of each step that refers to it, and each duration that varies from
step to step, and not each span: in a regular pass those last as long as these say.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.finding import NOTHING, Finding, judged, lacking, merged
from clustersim.legality.history import Declared
from clustersim.legality.prices.contents import Contents
from clustersim.legality.prices.features import Features
from clustersim.legality.prices.prices import Priced, Prices
from clustersim.legality.timeline_rules.operators.halves import as_split
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.memory import let_go
from clustersim.timeline.passes import Passes, by_template
from clustersim.timeline.passes import parts as blocks_of

COST: Final = "let an operator run for what it costs"
ROUNDING_NS: Final = 1.0
HALF_NS: Final = 0.501
"""Durations are whole nanoseconds: the nearest."""
ROUNDING: Final = 1e-9
AT_A_TIME: Final = 2
"""So many parts of passes (:func:`clustersim.timeline.passes.parts`) are looked at together, where there is a stage."""


Firsts = dict[tuple[str, int], FloatArray]
"""Feature → what it was for the first visit of each row of durations."""


class Visits:
    """Which rows of durations were visited, template by template, and with what first: also in ranges before.

    What prices are of pools and of templates is worked out once for all ranges.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[int, int], tuple[BoolArray, Firsts]] = {}
        self._prices: dict[int, Prices] = {}

    def prices(self, declared: Declared) -> Prices:
        """Return the prices of a pool."""
        assert declared.deployment is not None
        if declared.first_replica not in self._prices:
            self._prices[declared.first_replica] = Prices(declared.deployment, declared.first_replica)
        return self._prices[declared.first_replica]

    def of(self, first_replica: int, template: int, rows: int) -> tuple[BoolArray, Firsts]:
        """Return which of so many rows were seen by the passes of a template, and with what first; both grow."""
        return self._of.setdefault((first_replica, template), (np.zeros(rows, bool), {}))


def as_priced(reading: Reading, seen: Visits | None = None) -> Finding:
    """RUN-2: operators last as long as they cost on what was declared, with what their steps had.

    ``seen`` is what was visited in the ranges of a history before this one.
    """
    seen = Visits() if seen is None else seen
    history = reading.history
    tables, runs, pieces = history.folded, reading.runs, reading.pieces
    if tables is None:
        return NOTHING
    if runs is None or pieces is None or history.chunks is None or history.declared.deployment is None:
        return lacking("whether durations are what operators cost (what they run on, or with, was not declared)")
    findings: list[Finding] = []
    let_go()
    passes = Passes(tables)
    for declared in history.pools:
        assert declared.deployment is not None
        contents = Contents(declared.deployment, runs, pieces, history.chunks, reading.owners)
        prices = seen.prices(declared)
        replica = tables.passes["replica"]
        mine = (replica >= declared.first_replica) & (replica < declared.first_replica + declared.dp)
        steps = _Steps(contents, declared.pp)
        for number, rows in by_template(tables, mine):
            known = seen.of(declared.first_replica, number, len(tables.rows["at"]))
            of_template = _OfTemplate(passes, tables.templates[number], steps, prices, declared, known)
            findings.extend(of_template.findings(rows))
    return merged(*findings)


class _Steps:
    """What steps have that passes begin with: worked out once for all stages, as these take the same steps."""

    def __init__(self, contents: Contents, stages: int) -> None:
        self.contents, self._stages = contents, stages
        self._of_kind: dict[str, tuple[Int64Array, Int64Array, Features]] = {}

    def at(self, kind: str, replica: Int64Array, step: Int64Array) -> Features:
        """Return the features of all passes of one kind of step on one stage."""
        if kind in self._of_kind:
            replicas, steps, features = self._of_kind[kind]
            if np.array_equal(replicas, replica) and np.array_equal(steps, step):
                return features
        features = self.contents.at(replica, step)
        if self._stages > 1:
            self._of_kind[kind] = replica, step, features
        return features


class _OfTemplate:
    """Looks at the passes of one template."""

    def __init__(
        self, passes: Passes, template: PassTemplate, steps: _Steps, prices: Prices, declared: Declared,
        known: tuple[BoolArray, Firsts],
    ) -> None:  # fmt: skip
        self.passes, self.tables = passes, passes.tables
        self.template, self.contents, self.prices, self.declared = template, steps.contents, prices, declared
        self.steps = steps
        self._seen, self._firsts = known
        self.classes, self.unknown = prices.of_template(template)

    def findings(self, passes: Int64Array) -> Iterator[Finding]:
        """Yield what is wrong with the durations that some passes refer to."""
        if self.unknown:
            yield lacking(f"what {', '.join(sorted(self.unknown))} should last")
        table = self.tables.passes
        for some in blocks_of(len(passes), AT_A_TIME) if self.declared.pp == 1 else (slice(None),):
            these = passes[some]
            begin = self.steps.at(self.template.kind, table["replica"][these], table["first_step"][these])
            yield from self._rows(these, begin)
            yield from self._varying(these, begin)

    def _visits(self, passes: Int64Array, begin: Features) -> tuple[Int64Array, Int64Array, Features]:
        """Return passes, steps and what these have: of each pass the first, and all where decodes change."""
        table = self.tables.passes
        step, many = table["first_step"][passes].astype(np.int64), table["steps"][passes].astype(np.int64)
        if (many == 1).all():
            return passes, step, begin
        chosen = begin.changes_within(self.contents.at(table["replica"][passes], step + many - 1))
        found = [(passes, step)]
        for block in self.passes.blocks(passes[chosen]):
            here = block.runs[block.of]
            at = table["first_step"][here].astype(np.int64) + block.index
            found.append((here[block.index > 0], at[block.index > 0]))
        visited, steps = (np.concatenate(column) for column in zip(*found, strict=True))
        return visited, steps, self.contents.at(table["replica"][visited].astype(np.int64), steps)

    def _rows(self, passes: Int64Array, begin: Features) -> Iterator[Finding]:
        table, rows = self.tables.passes, self.tables.rows
        visited, step, features = self._visits(passes, begin)
        if not features.recorded.all():
            visited, step = visited[features.recorded], step[features.recorded]
            features = self.contents.at(table["replica"][visited].astype(np.int64), step)
        replica, row = (table[name][visited].astype(np.int64) for name in ("replica", "row"))
        yield as_split(self.template, features, replica, step)
        sets = rows["columns"][row]
        for columns in np.flatnonzero(np.bincount(sets)).tolist():
            varies = set(self.tables.column_sets[columns])
            priced = {cls: some for cls, some in self.classes.items() if cls not in varies}
            some = np.flatnonzero(sets == columns)
            chosen = self._distinct(features, replica, row, some, priced)
            also, some = len(some) - len(chosen), some[chosen]
            found = self.contents.at(replica[some], step[some])
            at = rows["at"][row[some]].astype(np.int64)
            lasts = {cls: self.tables.row_values[at + cls] for cls in priced}
            gap = self._gap(found)
            for cls, operators in priced.items():
                yield self._judged(operators, found, gap, lasts[cls], replica[some], step[some], also)
            yield from self._by_sum(found, lasts, replica[some], step[some], also)

    def _distinct(
        self, features: Features, replica: Int64Array, row: Int64Array, some: Int64Array,
        priced: dict[int, list[Priced]],
    ) -> Int64Array:  # fmt: skip
        """Return the first visit of each row, earlier ones included, and all that differ from it in what prices it.

        Whose replica alone differs, and whose links are alike, cost the same.
        """
        at, of = np.arange(len(some)), row[some]
        first_of = np.zeros(int(of.max(initial=-1)) + 1, np.int64)
        first_of[of[::-1]] = at[::-1]  # what is assigned last stays
        first = np.flatnonzero((first_of[of] == at) & ~self._seen[of])
        self._seen[of[first]] = True
        differs, elsewhere, unknown = (np.zeros(len(some), bool) for _ in range(3))
        differs[first] = True

        def compare(name: tuple[str, int], values: Any, found: BoolArray = differs) -> None:
            of_first = self._firsts.setdefault(name, np.zeros(len(self._seen)))
            of_first[of[first]] = values[first]
            np.logical_or(found, values != of_first[of], out=found)

        every = [one for operators in priced.values() for one in operators]
        if joins := [one for one in every if one.groups]:
            compare(("replica", 0), replica[some], elsewhere)
            compare(("links", 0), self.prices.alike_at(joins, replica[some], self.template.stage))
        for name, s in {(name, one.s) for one in every for name in one.work.features}:
            values = features.get(name, s)[some]
            if np.isnan(values).any():
                unknown |= np.isnan(values)
                values = np.nan_to_num(values, nan=-1.0)
            compare((name, s), values)
        differs |= elsewhere & unknown
        return np.flatnonzero(differs)

    def _varying(self, passes: Int64Array, of_passes: Features) -> Iterator[Finding]:
        table, at = self.tables.passes, 0
        for block in self.passes.blocks(passes):
            replicas, firsts, many = (
                table[name][block.runs].astype(np.int64) for name in ("replica", "first_step", "steps")
            )
            begin, as_one = of_passes.part(slice(at, at + len(block.runs))), False
            at += len(block.runs)
            if len(block.of) > 2 * len(block.runs) and begin.recorded.all():
                as_one = bool((begin.run == self.contents.at(replicas, firsts + many - 1).run).all())
            for _, columns, steps, values in self.passes.varying(block):
                of, index = block.of[steps], block.index[steps]
                replica, step = replicas[of], firsts[of] + index
                if block.is_single and len(steps) == len(block.of):
                    features = begin
                else:
                    features = begin.going_on(of, index) if as_one else self.contents.at(replica, step)
                if not features.recorded.all():
                    known = np.flatnonzero(features.recorded)
                    replica, step, values = replica[known], step[known], values[known]
                    features = self.contents.at(replica, step)
                gap = self._gap(features)
                lasts = {cls: values[:, number] for number, cls in enumerate(columns)}
                for cls, took in lasts.items():
                    yield self._judged(self.classes.get(cls, []), features, gap, took, replica, step)
                yield from self._by_sum(features, lasts, replica, step)

    def _by_sum(
        self, features: Features, lasts: dict[int, Int64Array], replica: Int64Array, step: Int64Array, also: int = 0
    ) -> Iterator[Finding]:
        """Judge whether parts of a step attend to as many keys as the step has, where it is not told which to which."""
        parts: dict[tuple[int, str, str], list[tuple[Int64Array, Priced]]] = {}
        for cls, values in lasts.items():
            for one in self.classes.get(cls, [])[:1]:
                if one.work.op == "attention_decode":
                    window, _, half = one.work.keys.partition("~")
                    if half:
                        parts.setdefault((one.s, window, repr(one.work.shape)), []).append((values, one))
        gap = self._gap(features)
        for (s, window, _), some in parts.items():
            _, keys = features.decoding(s, int(window.partition("@")[2]) if "@" in window else None)
            least, most = np.zeros(len(step)), np.zeros(len(step))
            for values, one in some:
                batch = self.prices.amount(one.work, features, one.s)
                for total, sign in ((least, -1.0), (most, 1.0)):
                    seconds = (values + sign * ROUNDING_NS) / NS_PER_S - gap
                    found = self.prices.kernels.keys_attended(one.work.shape, batch, seconds)
                    total += np.where(batch == 0, 0.0, found if sign > 0 else np.nan_to_num(np.maximum(found, 0.0)))
            yield judged(
                int(np.isfinite(most).sum()) + also,
                (least > keys * (1 + ROUNDING) + 1) | (most < keys * (1 - ROUNDING) - 1), self._where(some[0][1]),
                "the parts of attention_decode last as if they attended to {least:,.0f} keys or more, and the step has "
                "{keys:,.0f}",
                COST, replica=replica, step=step, least=least, keys=keys,
            )  # fmt: skip

    def _gap(self, features: Features) -> FloatArray:
        """Return the gap before kernels, in seconds."""
        engine = self.prices.deployment.engine
        found: FloatArray = np.where(
            self.prices.in_graph(self.template.kind, features), engine.graph_launch_s, engine.launch_s
        )
        return found

    def _judged(
        self, operators: list[Priced], features: Features, gap: FloatArray, values: Int64Array, replica: Int64Array,
        step: Int64Array, also: int = 0,
    ) -> Finding:  # fmt: skip
        """Compare durations of a class with what its operators cost, on every group that is of the class.

        ``also`` more are known to be as one of these, or as an earlier one.
        """
        stage = self.template.stage
        findings = []
        for one in operators:
            if one.groups:
                each = self.prices.collective_ns(one, features, replica, stage)
            else:
                each = [self.prices.kernel_ns(one, features, gap)]
            apart = [np.abs(values - cost) - ROUNDING * cost for cost in each]
            off = reduce(np.maximum, apart)
            known = int(np.isfinite(off).sum())
            if known < len(off):
                findings.append(
                    lacking(
                        "which sequences decode in which half of a step (not recorded): attention is compared by sum"
                    )
                )
            findings.append(judged(
                known + also, off > HALF_NS, self._where(one),
                "{one.name} ({one.work.op}) is recorded with {values:,} ns, and costs {cost:,.0f} ns by the declared "
                "cost model with what the step has",
                COST, replica=replica, step=step, one=one, values=values, cost=partial(_farthest, apart, each),
            ))  # fmt: skip
        return merged(*findings)

    def _where(self, one: Priced) -> str:
        layer = f", layer {one.layer}" if one.layer >= 0 else ""
        return f"replica {{replica}}, stage {self.template.stage}, step {{step}}{layer}"


def _farthest(apart: list[FloatArray], costs: list[FloatArray], at: int) -> float:
    """Return which of several costs a duration is farthest from."""
    return float(costs[int(np.argmax([values[at] for values in apart]))][at])
