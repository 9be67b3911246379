"""What rows of a history name is there: without that no rule can look at them, and whoever wrote it contradicts itself.

Readers of files refuse most of this with the line; a history need not come from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.graph.template import PassTemplate
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import FACTS, KINDS, STREAMS, History, SpanTable
from clustersim.legality.timeline_rules.requests.columns import misshapen
from clustersim.memory import let_go
from clustersim.timeline.head import MOST_LAYERS
from clustersim.timeline.passes import parts
from clustersim.timeline.soundness import misplaced
from clustersim.timeline.tables import Table

LEAST: Final[Mapping[str, tuple[str, Mapping[str, int]]]] = {
    "steps": (
        "RUN-2",
        {
            "replica": 0, "step": 0, "count": 1, "slot": -1, "kind": 0,
            **dict.fromkeys(("start_ns", "end_ns", "batch_requests", "prefill_tokens", "decode_tokens"), 0),
            **dict.fromkeys(("context_tokens", "waiting", "running", "kv_blocks_used", "kv_blocks_total"), 0),
        },
    ),
    "chunks": ("KV-3", {"replica": 0, "step": 0, "request": 0, "start": 0, "count": 0, "sampled": 0}),
    "decodes": ("PH-2", {"replica": 0, "slot": 0, "request": 0, "first_step": 0, "last_step": 0}),
    "facts": ("RUN-4", {"replica": 0, "kind": 0, "request": 0, "time_ns": 0}),
    "moves": (
        "DP-2",
        {
            "request": 0, "from_replica": 0, "to_replica": 0, "from_rank": -1, "to_rank": -1, "layer": -1, "head": -1,
            "heads": -1, "tokens": 0, "first": 0, "bytes": 0, "start_ns": 0, "end_ns": 0,
        },
    ),
    "routes": ("EP-2", {"replica": 0, "step": 0, "layer": 0, "request": 0, "token": 0, "expert": 0}),
    "held": ("KV-5", {"replica": 0, "block": 0, "request": 0}),
    "requests": ("RUN-4", {"prompt_tokens": 0, "output_tokens": 0}),
}  # fmt: skip
"""Table → the rule that needs it most, and the least value of columns that name or count something."""
MOST: Final[Mapping[tuple[str, str], int]] = {
    ("steps", "kind"): len(KINDS) - 1, ("facts", "kind"): len(FACTS) - 1, ("chunks", "sampled"): 1,
    ("steps", "count"): 1 << 26, ("moves", "layer"): MOST_LAYERS,
    **{("moves", name): (1 << 15) - 1 for name in ("head", "heads")},
    **{(table, "replica"): 1 << 20 for table in ("steps", "chunks", "decodes", "facts")},
}  # fmt: skip
CARRIED: Final = ("chunks", "decodes", "facts", "moves")
OF_LISTS: Final = {"transfers": "PP-2", "steps": "RUN-2", "chunks": "KV-3", "decodes": "PH-2", "facts": "RUN-4"}
FIX: Final = "name only what the record has"


def unfounded(history: History) -> dict[str, Finding]:
    """Return by rule what a history names that is not there; nothing more can be said of one that does."""
    found: dict[str, list[Finding]] = {}
    for judge in (misshapen, _all):
        for rule, finding in () if found else judge(history):  # what names rows relies on columns
            if finding.faults:
                found.setdefault(rule, []).append(finding)
    return {rule: merged(*findings) for rule, findings in found.items()}


def _all(history: History) -> Iterator[tuple[str, Finding]]:
    replicas = None if history.folded is None else sum(declared.dp for declared in history.pools)
    for name, (rule, least) in LEAST.items():
        table: Table | None = getattr(history, name)
        for column, low in least.items() if table is not None else ():
            let_go()
            assert table is not None
            if column in table:
                high = MOST.get((name, column), np.iinfo(np.int64).max)
                if column == "request" and name in CARRIED and history.requests is not None:
                    high = len(history.requests["prompt_tokens"]) - 1
                if column == "replica" and replicas is not None:
                    high = replicas - 1
                yield rule, _inside(f"{name}, {column}", table[column], low, high)
    if history.steps is not None:
        yield "RUN-2", _once(history.steps)
    if history.spans is not None:
        yield from (("RUN-3", finding) for finding in _of_spans(history.spans))
    if history.folded is not None:
        yield "RUN-2", _placed(history)
        templates = [finding for one in history.folded.templates for finding in _of_template(one)]
        yield "RUN-2", merged(*templates)
        if any(finding.faults for finding in templates):
            return
        for wrong in misplaced(history.folded):
            where = f"{wrong.table}, {wrong.column}"
            yield OF_LISTS.get(wrong.table, "RUN-2"), _told(where, wrong.message)


def _placed(history: History) -> Finding:
    """Judge whether replicas, stages and ranks are where the plan has them."""
    assert history.folded is not None
    told = [
        (pool.sp, pool.tp, pool.stages, pool.lockstep, pool.first_replica, pool.first_rank)
        for pool in history.folded.layout.pools
    ]
    due = [
        (
            declared.sp, declared.tp, declared.pp,
            declared.dp if declared.ep_scope == "global" and declared.ep > 1 else 1,
            declared.first_replica, declared.first_rank,
        )
        for declared in history.pools
    ]  # fmt: skip
    if told == due:
        return Finding(looked_at=0)
    names = "sp, tp, stages, replicas that share passes, first replica, first rank"
    return _told("pools", f"{names} are told as {told}; by the plan they are {due}")


def _told(where: str, message: str) -> Finding:
    return judged(0, np.ones(1, bool), "{where}", "{message}", FIX, where=where, message=message)


def _inside(where: str, values: Any, low: int, high: int) -> Finding:
    """Judge whether values are from ``low`` to ``high``."""
    values = np.asarray(values)
    return judged(
        0, (values < low) | (values > high), "{where}, row {row}",
        "{value:,} can't be; expected {low:,} " + ("to {high:,}" if high < 1 << 62 else "or more"), FIX, where=where,
        row=range(1, len(values) + 1), value=values, low=low, high=high,
    )  # fmt: skip


def _once(steps: Table) -> Finding:
    """Judge whether each step of a replica is told once."""
    if _follow(steps):
        return NOTHING
    replica, step = (steps[name].astype(np.int64) for name in ("replica", "step"))
    count = steps["count"].astype(np.int64) if "count" in steps else np.ones(len(step), np.int64)
    order = np.lexsort((step, replica))
    before, after = order[:-1], order[1:]
    return judged(
        0, (replica[before] == replica[after]) & (step[before] + count[before] > step[after]),
        "replica {replica}, step {step}",
        "is told more than once", "tell each step of a replica once", replica=Rows(replica, after),
        step=Rows(step, after),
    )  # fmt: skip


def _follow(steps: Table) -> bool:
    """Return whether all steps are in order of (replica, step), and none begins before the one before it ends."""
    for some in parts(len(steps["step"]), 8):
        rows = slice(max(0, some.start - 1), some.stop)
        replica, step = steps["replica"][rows], steps["step"][rows].astype(np.int64)
        past = step + (steps["count"][rows] if "count" in steps else 1)
        if not ((replica[1:] > replica[:-1]) | ((replica[1:] == replica[:-1]) & (step[1:] >= past[:-1]))).all():
            return False
    return True


def _of_spans(spans: SpanTable) -> Iterator[Finding]:
    for name, low, high in (
        ("rank", 0, 1 << 40), ("stream", 0, len(STREAMS) - 1), ("symbol", 0, len(spans.symbols) - 1),
        ("layer", -1, 1 << 40), ("step", 0, 1 << 40), ("replica", 0, 1 << 40), ("stage", 0, 1 << 40),
        ("group", -1, 1 << 62),
    ):  # fmt: skip
        yield _inside(f"spans, {name}", spans.columns[name], low, high)
    for rows in spans.after or ():
        yield _inside("spans, after", rows, 0, len(spans.columns["rank"]) - 1)


def _of_template(template: PassTemplate) -> Iterator[Finding]:
    """Yield what of a template refers to operators, classes, symbols and ranks that it does not have."""
    instances, nodes, classes = len(template.instance_class), len(template.members), template.num_classes
    where = f"template ({template.kind}, stage {template.stage})"
    for name, length in (
        ("instance_stream", instances), ("instance_s", instances), ("after", instances),
        ("node_instance", nodes), ("node_symbol", nodes), ("node_layer", nodes),
        *((name, nodes if len(getattr(template, name)) else 0) for name in ("node_half", "node_class")),
    ):  # fmt: skip
        if len(getattr(template, name)) != length:
            yield _told(f"{where}, {name}", f"has {len(getattr(template, name)):,} values; expected {length:,}")
    latest = np.full(len(template.after), -1, np.int64)
    np.maximum.at(latest, *template.flat("after"))
    yield judged(
        0, latest >= np.arange(len(latest)), "{where}, operator {at}",
        "needs operator {latest}, which comes after it", "start an operator when all that it needs has ended",
        where=where, latest=latest,
    )  # fmt: skip
    degree = len(template.exits)
    for name, low, high in (
        ("class_symbol", 0, len(template.symbols) - 1), ("instance_class", 0, classes - 1),
        ("instance_stream", 0, len(STREAMS) - 1), ("exits", -1, instances - 1), ("node_instance", 0, instances - 1),
        ("node_symbol", 0, len(template.symbols) - 1), ("node_layer", -1, 1 << 20), ("send_classes", 0, classes - 1),
        ("node_class", 0, classes - 1),
    ):  # fmt: skip
        yield _inside(f"{where}, {name}", np.array(getattr(template, name), np.int64), low, high)
    for name, high in (("instance_s", degree - 1), ("after", instances - 1), ("members", template.ranks - 1)):
        rows = getattr(template, name)
        yield _inside(f"{where}, {name}", template.flat(name)[1], 0, high)
        if name != "after":
            repeats = {row for row in set(rows) if not row or len(set(row)) < len(row)}
            odd = np.fromiter(map(repeats.__contains__, rows), bool)
            yield judged(0, odd, "{where}, {name}", "names nothing, or one twice", FIX, where=where, name=name)
