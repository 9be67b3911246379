"""An adversary of timelines: one field of one row of a record is another, its digest fits, and the rules look at it.

Every field of every table and list that a run directory keeps is changed, row by row, on runs of each kind, and every
column of the same runs as tables from elsewhere. ``python -m tests.legality.timeline.adversary --help`` counts what
the rules find, what a reader refuses, and what stays legal; :data:`HARMLESS` says of the latter why it changes nothing.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.errors import InputError
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.template import PassTemplate
from clustersim.legality.audit import check_history
from clustersim.legality.history import FACTS, History
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.recorded import refuse_other_plan
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.digest import digest_of
from clustersim.timeline.files import load_timeline, save_timeline
from clustersim.timeline.soundness import refuse_unsound
from clustersim.timeline.stretch import Stretch
from clustersim.timeline.tables import TABLES, VECTORS
from clustersim.timeline.timeline import Timeline
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import EXPERTS, PIPE, RING, document

HARMLESS: Final = {
    "passes.varying_at": "where no class varies, nothing is read there; the canonical form is the same",
    "passes.starts_at": "the starts that are read there are those that follow from the durations",
    "passes.row": "an equal row of durations",
}
"""Field → why some changes of it change nothing, which their canonical form shows."""
UNSEEN: Final = {
    "row_values.value": "a duration",
    "varying.value": "a duration",
    "rows.at": "durations",
    "rows.columns": "durations",
    "column_sets.value": "durations",
    "passes.row": "durations",
    "passes.varying_at": "durations",
    "transfer_times.value": "a duration",
    "irregular.value": "a duration",
    "moves.start_ns": "a duration, where links may be shared",
    "moves.end_ns": "a duration, where links may be shared",
    "moves.bytes": "a part of a shard",
    "moves.layer": "a part of a shard",
    "steps.waiting": "who waits somewhere else since a replica failed",
    "facts.used": "between decisions of one instant that something else comes between",
    "facts.value": "what is set aside layer by layer",
    "templates.variant": "a number of a placement, from which nothing is computed",
    "templates.symbols": "of an operator that takes no time, which no pass runs",
    "templates.class_symbol": "of a class that no operator has",
    "templates.exits": "none where nothing is sent",
    "templates.instance_class": "another class of the same shape: a duration",
    "passes.steps": "a pass behind the last step, as there is where a horizon cuts a run",
    "passes.first_step": "passes of replicas in lockstep, of equal steps",
}
"""Field of a table or vector → what stays legal in it although it says something else."""
_NUMBERS: Final = ("start_ns", "end_ns", "rank", "stream", "layer", "step", "replica", "stage", "half")
WHOLE_ROW, DROPPED, TWICE = "whole row", "dropped", "twice"
SMALL: Final[dict[str, Any]] = {
    "workload": {
        "requests": 5, "prompt_tokens": {"uniform": {"low": 20, "high": 60}},
        "output_tokens": {"uniform": {"low": 3, "high": 9}},
    },
}  # fmt: skip
POOLS: Final[dict[str, Any]] = {
    "plan": {"prefill": {"dp": 2, "tp": 2}, "decode": {"pp": 2}},
    "serving": {"scheduler": "disaggregated", "kv_blocks": 40},
}
RUNS: Final[dict[str, dict[str, Any]]] = {
    "dense TP": {"plan": {"tp": 2}},
    "TP × PP, mixed steps": {"plan": {"tp": 2, "pp": 2}},
    "SP prefill": {"plan": RING},
    "MoE EP": {"plan": {"tp": 2, "ep": 2}, "model": EXPERTS},
    "EP over replicas": {"plan": {"tp": 1, "dp": 2, "ep": {"degree": 2, "scope": "global"}}, "model": EXPERTS},
    "two pools": POOLS,
    "layer by layer": POOLS | {"serving": POOLS["serving"] | {"transfer": "layerwise"}},
    "preemption": {"plan": PIPE, "serving": {"kv_blocks": 24}},
    "swap": {
        "plan": {"tp": 2, "pp": 2}, "serving": {"kv_blocks": 30, "preemption": "swap", "host_kv": "1 GiB"},
        "workload": {"output_tokens": {"uniform": {"low": 20, "high": 30}}},
    },
    "prefix caching": {
        "serving": {"prefix_caching": True},
        "workload": {"shared_prefixes": {"groups": 2, "tokens": 16}},
    },
    "faults": {
        "plan": {"tp": 1, "dp": 2},
        "faults": [
            {"device": 1, "at": "2 ms", "until": "5 ms"},
            {"device": 0, "at": "1 ms", "until": "4 ms", "slowdown": 2.0},
        ],
    },
    "faults of a decode pool": {
        "topology": {"name": "l40s-node"}, "plan": {"prefill": {"dp": 2}, "decode": {"dp": 2}},
        "serving": POOLS["serving"], "workload": {"requests": 6},
        "faults": [
            {"device": 2, "at": "6090 us", "until": "9 ms"},
            {"device": 3, "at": "13 ms", "until": "14 ms"},
        ],
    },
    "cancellation": {"workload": {"cancel_after": {"share": 0.5, "exponential": "3 ms"}}},
}  # fmt: skip


def document_of(name: str) -> dict[str, Any]:
    """Return a small scenario."""
    changes = dict(RUNS[name])
    for section, value in SMALL.items():
        changes[section] = value | changes.get(section, {})
    return document(**changes)


@cache
def run_of(name: str, replay: str = "folded") -> RunResult:
    """Return a run that is legal."""
    return simulate(scenario_of(document_of(name), replay=replay))


@dataclass(frozen=True, slots=True)
class Change:
    """One value of a record: ``table`` and ``column``, the row, and what stands there instead.

    ``exchanged`` is a row that gets what stood there.
    """

    table: str
    column: str
    row: int
    value: Any
    exchanged: int = -1

    @property
    def field(self) -> str:
        """Return what was changed, whatever the row."""
        return f"{self.table.partition('[')[0]}.{self.column}"


def _numbers(values: Any, row: int, random: random.Random) -> Iterator[int]:
    """Yield other values for one of a list: one more, one less, that of another row, none."""
    own = int(values[row])
    yield own + 1
    yield own - 1
    others = [value for value in {int(value) for value in values} if abs(value - own) > 1]
    if others:
        yield random.choice(sorted(others))


def events_of(timeline: Timeline, most: int, random: random.Random) -> Iterator[Change]:
    """Yield changes of facts of each kind, of moves and of owners, of up to ``most`` rows of each.

    Of each row every value is one more, one less, or that of another row and the other way round; and the row lacks,
    or is there twice.
    """
    kinds = timeline.facts["kind"]
    tables = {f"facts of {FACTS[kind]}": ("facts", np.flatnonzero(kinds == kind)) for kind in np.unique(kinds).tolist()}
    tables |= {name: (name, np.arange(len(getattr(timeline, name)["request"]))) for name in ("moves", "owners")}
    for table, rows in tables.values():
        for row in sorted(random.sample(rows.tolist(), min(most, len(rows)))):
            yield Change(table, WHOLE_ROW, row, DROPPED)
            yield Change(table, WHOLE_ROW, row, TWICE)
            for column in TABLES[table]:
                values = getattr(timeline, table)[column]
                yield from (Change(table, column, row, int(values[row]) + by) for by in (1, -1))
                others = rows[values[rows] != values[row]]
                if len(others):
                    other = random.choice(others.tolist())
                    yield Change(table, column, row, int(values[other]), exchanged=other)


def changes_of(timeline: Timeline, most: int, random: random.Random) -> Iterator[Change]:
    """Yield changes of every field of a timeline, of up to ``most`` rows of each."""

    def some(count: int) -> list[int]:
        return sorted(random.sample(range(count), min(most, count)))

    for table, columns in TABLES.items():
        for column in columns:
            values = getattr(timeline, table)[column]
            for row in some(len(values)):
                yield from (Change(table, column, row, value) for value in _numbers(values, row, random))
    for name in VECTORS:
        values = getattr(timeline, name)
        for row in some(len(values)):
            yield from (Change(name, "value", row, value) for value in _numbers(values, row, random))
    for at in some(len(timeline.irregular)):
        found = timeline.irregular[at]
        flat = found.pairs.ravel() if isinstance(found, Stretch) else np.concatenate(found)
        for row in some(len(flat)):
            yield from (Change(f"irregular[{at}]", "value", row, value) for value in _numbers(flat, row, random))
    for at, sets in enumerate(timeline.column_sets):
        for row in range(len(sets)):
            yield Change("column_sets", "value", at, tuple(sorted({*sets[:row], sets[row] + 1, *sets[row + 1 :]})))
            yield Change("column_sets", "value", at, sets[:row] + sets[row + 1 :])
    for at, pool in enumerate(timeline.layout.pools):
        for name in ("sp", "tp", "stages", "first_replica", "first_rank", "lockstep"):
            for by in (1, -1):
                yield Change("pools", name, at, getattr(pool, name) + by)
    for at in some(len(timeline.templates)):
        yield from _of_template(timeline.templates[at], f"templates[{at}]", some, random)


def _of_template(template: PassTemplate, table: str, some: Any, random: random.Random) -> Iterator[Change]:
    yield from (Change(table, "kind", -1, kind) for kind in STEP_KINDS if kind != template.kind)
    yield Change(table, "receives", -1, not template.receives)
    for name in ("stage", "variant", "ranks"):
        yield from (Change(table, name, -1, getattr(template, name) + by) for by in (1, -1))
    for row in some(len(template.symbols)):
        for word in range(3):
            own = template.symbols[row]
            for other in random.sample(sorted({one[word] for one in template.symbols} - {own[word]} | {"other"}), 1):
                yield Change(table, "symbols", row, (*own[:word], other, *own[word + 1 :]))
    for name in (
        "class_symbol", "instance_class", "instance_stream", "exits", "node_instance", "node_symbol", "node_layer",
        "send_classes", "node_half",
    ):  # fmt: skip
        values = getattr(template, name)
        for row in some(len(values)):
            yield from (Change(table, name, row, value) for value in _numbers(values, row, random))
    for name in ("instance_s", "after", "members"):
        rows = getattr(template, name)
        for row in some(len(rows)):
            own = rows[row]
            for at in range(len(own)):
                yield Change(table, name, row, own[:at] + own[at + 1 :])
                yield Change(table, name, row, (*own[:at], own[at] + 1, *own[at + 1 :]))
            yield Change(table, name, row, (*own, max(own, default=-1) + 1))


def changed(timeline: Timeline, change: Change) -> Timeline:
    """Return a timeline with one field changed."""
    table, column, row, value = change.table, change.column, change.row, change.value
    name = table.partition("[")[0]
    at = int(table.partition("[")[2][:-1] or -1)
    new: Any
    if name in TABLES:
        columns = dict(getattr(timeline, name))
        if column == WHOLE_ROW:
            many = np.arange(len(columns["request"]))
            rows = np.delete(many, row) if value == DROPPED else np.insert(many, row, row)
            return replace(timeline, **{name: {each: values[rows] for each, values in columns.items()}})
        if change.exchanged >= 0:
            value = columns[column][change.exchanged]
            columns[column] = _with(columns[column], change.exchanged, columns[column][row])
        columns[column] = _with(columns[column], row, value)
        return replace(timeline, **{name: columns})
    if name in VECTORS:
        return replace(timeline, **{name: _with(getattr(timeline, name), row, value)})
    if name == "column_sets":
        return replace(timeline, column_sets=_put(timeline.column_sets, row, value))
    if name == "pools":
        pools = _put(timeline.layout.pools, row, replace(timeline.layout.pools[row], **{column: value}))
        return replace(timeline, layout=replace(timeline.layout, pools=pools))
    if name == "irregular":
        found = timeline.irregular[at]
        if isinstance(found, Stretch):
            new = Stretch.of(_with(found.pairs.ravel(), row, value))
        else:
            flat = _with(np.concatenate(found), row, value)
            new = (flat[: len(flat) // 2], flat[len(flat) // 2 :])
        return replace(timeline, irregular=_put(timeline.irregular, at, new))
    template = timeline.templates[at]
    own = getattr(template, column)
    new = value if row < 0 else _with(own, row, value) if isinstance(own, np.ndarray) else _put(own, row, value)
    return replace(timeline, templates=_put(timeline.templates, at, replace(template, **{column: new})))


def _with(values: Any, row: int, value: int) -> Any:
    found = values.copy()
    found[row] = value
    return found


def _put(values: tuple[Any, ...], row: int, value: Any) -> tuple[Any, ...]:
    return (*values[:row], value, *values[row + 1 :])


def history_of(timeline: Timeline, result: RunResult, change: Change) -> History:
    """Return a changed timeline as an audit of its run directory would judge it, or raise an InputError as that would.

    Tables keep their types, so that a change which a reader of files refuses for its type is none; what is not in a
    table is written and read.
    """
    history = history_of_run(result)
    if change.table in TABLES or change.table in VECTORS:
        refuse_unsound(timeline, Path("timeline"))
    else:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "timeline").mkdir()
            told = replace(timeline, told_digest=result.timeline.digest)  # of what can't be, none can be computed
            save_timeline(told, Path(folder) / "timeline")
            timeline = replace(load_timeline(Path(folder)), told_digest=None)
    assert history.requests is not None
    refuse_other_plan(timeline, result.scenario, len(history.requests["prompt_tokens"]), Path())
    return replace(
        history, folded=timeline, steps=timeline.steps, chunks=timeline.chunks, decodes=timeline.decodes,
        facts=timeline.facts, moves=timeline.moves,
    )  # fmt: skip


def verdict_on(change: Change, result: RunResult) -> str:
    """Return ``found``, ``refused``, ``legal``, or ``defect`` where looking at it ends in an error.

    ``same`` is what says the same: its canonical form is that of what was recorded, span by span and fact by fact, or
    it is of a template that no pass runs, or from which the same spans unfold: that no operator is of a symbol, or that
    a number of a placement is another, is in none.
    """
    try:
        history = history_of(changed(result.timeline, change), result, change)
        if check_history(history).violations:
            return "found"
        assert history.folded is not None
        same = change.table != "steps" and digest_of(history.folded) == result.timeline.digest
        if change.table.startswith("templates"):
            runs = int(change.table[len("templates[") : -1]) in result.timeline.passes["template"]
            same = not runs or spans_of(history.folded) == spans_of(result.timeline)
        return "same" if same else "legal"
    except InputError:
        return "refused"
    except Exception as error:  # what it is counts
        return f"defect {type(error).__name__}"


def spans_of(timeline: Timeline) -> list[tuple[Any, ...]]:
    """Return all that is told of every span, sorted."""
    spans = timeline.unfold()
    numbers = zip(*(getattr(spans, name).tolist() for name in _NUMBERS), strict=True)
    names, ops = (
        [told[at] for at in which.tolist()] for told, which in ((spans.names, spans.name), (spans.ops, spans.op))
    )
    return sorted(zip(numbers, names, ops, strict=True))


def main() -> None:
    """Count, and print what stays legal by field."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=6, help="rows of each field")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=RUNS)
    chosen = parser.parse_args()
    total: Counter[str] = Counter()
    by_field: dict[str, Counter[str]] = {}
    examples: dict[str, list[str]] = {}
    for name in [chosen.only] if chosen.only else RUNS:
        started, draw = time.perf_counter(), random.Random(f"{chosen.seed} {name}")
        result, counts = run_of(name), Counter[str]()
        every = (*changes_of(result.timeline, chosen.rows, draw), *events_of(result.timeline, chosen.rows, draw))
        for change in every:
            what = verdict_on(change, result)
            counts[what] += 1
            by_field.setdefault(change.field, Counter())[what] += 1
            if what not in ("found", "refused", "same"):
                examples.setdefault(change.field, []).append(f"{what}: {name}: {change}")
        total += counts
        print(f"{name}: {dict(counts)} ({time.perf_counter() - started:.0f} s)", flush=True)
    for field, found in sorted(by_field.items()):
        print(f"{field:32} {dict(found)}")
    for field, lines in sorted(examples.items()):
        for line in lines[:3]:
            print("   ", field, line)
    print(dict(total))


if __name__ == "__main__":
    main()
