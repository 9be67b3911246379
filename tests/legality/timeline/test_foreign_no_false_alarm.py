"""No false alarm on tables: what a run of any scenario recorded, written as plain tables from elsewhere, is legal.

``pytest tests/legality/timeline/test_foreign_no_false_alarm.py --long`` hunts for longer.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from clustersim.legality.audit import check_history
from clustersim.legality.history import FACTS, KINDS, STREAMS, History
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.foreign.declared import NUMBERS, WORDS
from clustersim.simulation.foreign.history import read_history
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.passes import within
from clustersim.timeline.steps import Steps
from tests.effort import examples
from tests.laws.random_scenarios import documents, scenario_of

UNTOLD = ("prefix_caching",)
"""What need not be declared: a history says what was taken over, or that can't be held against it."""


def as_steps(history: History) -> dict[str, Any]:
    """Return the steps one by one, with what is the same in all steps of a run of them."""
    table, folded = history.steps, history.folded
    assert table is not None
    assert folded is not None
    count = table["count"].astype(np.int64)
    found = {name: np.repeat(table[name], count) for name in ("replica", "slot", "prefill_tokens", "decode_tokens")}
    index = within(count)
    steps = Steps(folded)
    found["step"] = np.repeat(table["step"], count) + index
    at = steps.at(found["replica"], found["step"])
    found["end_ns"] = steps.end_ns[at]
    found["start_ns"] = np.where(index == 0, np.repeat(table["start_ns"], count), steps.end_ns[at - 1])
    found["kind"] = [KINDS[kind] for kind in np.repeat(table["kind"], count).tolist()]
    return found


def as_decodes(history: History, steps: dict[str, Any]) -> dict[str, Any]:
    """Return whom each step decoded."""
    rows = []
    decodes = history.decodes
    assert decodes is not None
    names = ("replica", "slot", "request", "first_step", "last_step")
    for replica, slot, request, first, last in zip(*(decodes[name].tolist() for name in names), strict=True):
        inside = (steps["replica"] == replica) & (steps["slot"] == slot)
        inside &= (steps["step"] >= first) & (steps["step"] <= last)
        rows += [(replica, slot, request, step) for step in steps["step"][inside].tolist()]
    return dict(zip(("replica", "slot", "request", "step"), np.array(rows, np.int64).reshape(-1, 4).T, strict=True))


def exported(result: RunResult, folder: Path) -> list[Path]:
    """Write a run as another simulator might."""
    history, spans = history_of_run(result), result.timeline.unfold()
    facts, chunks, requests = history.facts, history.chunks, history.requests
    assert facts is not None
    assert chunks is not None
    assert requests is not None
    modules = {name: module for template in result.timeline.templates for name, _, module in template.symbols}
    inner = spans.stream < len(STREAMS)  # K/V entries move on streams of their own, which tables do not have
    names = [spans.names[at] for at in spans.name[inner].tolist()]
    steps = as_steps(history)
    tables: dict[str, dict[str, Any]] = {
        "spans": {name: getattr(spans, name)[inner] for name in ("start_ns", "end_ns", "rank", "layer", "step")}
        | {"name": names, "module": [modules.get(name, "") for name in names]}
        | {"stream": [STREAMS[stream] for stream in spans.stream[inner].tolist()]},
        "facts": {name: facts[name] for name in ("time_ns", "request", "replica", "used", "value")}
        | {"kind": [FACTS[kind] for kind in facts["kind"].tolist()], "reason": ["too long"] * len(facts["kind"])},
        "chunks": {name: chunks[name] for name in ("replica", "step", "request", "start", "count", "sampled")},
        "requests": {name: requests[name] for name in ("prompt_tokens", "output_tokens")}
        | {"request": np.arange(len(requests["prompt_tokens"]))},
        "steps": steps,
        "decodes": as_decodes(history, steps),
    }
    for name, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return [folder / f"{name}.parquet" for name in tables]


def test_what_a_run_recorded_is_legal_as_tables_from_elsewhere() -> None:
    looked: Counter[str] = Counter()

    @examples(12)
    @given(documents(), st.sets(st.sampled_from(sorted((*NUMBERS, *WORDS)))))
    def legal(document: dict[str, Any], untold: set[str]) -> None:
        result = simulate(scenario_of(document))
        told = history_of_run(result).declared
        names = [name for name in (*NUMBERS, *WORDS) if getattr(told, name) is not None and name not in UNTOLD]
        words = [f"{name}={getattr(told, name)}".lower() for name in names]
        with tempfile.TemporaryDirectory() as folder:
            files = exported(result, Path(folder))
            verdict = check_history(read_history(files, words))
            some = [word for word in words if word.partition("=")[0] not in untold - {"horizon_ns"}]
            assert check_history(read_history(files, some)).violations == (), some
        assert verdict.violations == ()
        looked.update(rule.id for rule in verdict.rules if rule.looked_at)

    legal()
    assert {"PH-1", "PH-3", "PH-4", "KV-1", "KV-2", "KV-3", "PP-6", "DP-2", "RUN-3", "RUN-4"} <= set(looked)
