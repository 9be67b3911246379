"""Single changes of recorded timelines: each is found, refused, says the same, or is of a field that is known for it.

``pytest tests/legality/timeline/test_adversary.py --long=30`` tries thirty times as many on each run;
``python -m tests.legality.timeline.adversary`` counts by field.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from clustersim.column import PART
from clustersim.legality.audit import check_history
from clustersim.legality.timeline_rules.requests.present import as_present
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.simulation.audit import history_of_run
from clustersim.timeline.tables import TABLES, VECTORS
from tests.effort import some, times
from tests.legality.timeline.adversary import RUNS, UNSEEN, changed, changes_of, events_of, run_of, verdict_on

CHANGES = times(16)


@pytest.mark.parametrize("name", RUNS)
def test_changed_field_is_found(name: str) -> None:
    result, draw = run_of(name), random.Random(name)
    assert check_history(history_of_run(result)).violations == ()
    every = [*changes_of(result.timeline, 3, draw), *events_of(result.timeline, 1, draw)]
    for change in draw.sample(every, min(CHANGES, len(every))):
        what = verdict_on(change, result)
        assert what in ("found", "refused", "same") or (what == "legal" and change.field in UNSEEN), change


@pytest.mark.parametrize("name", RUNS)
def test_who_waits_and_runs_is_counted_in_every_step(name: str) -> None:
    history = history_of_run(run_of(name))
    assert history.steps is not None
    assert as_present(Reading(history)).faults == ()
    for column in (
        ("running",) if name.startswith("faults") else ("waiting", "running")
    ):  # who moves, and waits, is open
        for row in some(range(len(history.steps["step"]))):
            for by in (1, -1):
                counts = history.steps[column].copy()
                counts[row] += by
                found = as_present(Reading(replace(history, steps={**history.steps, column: counts})))
                assert found.faults, (column, row, by)


@pytest.mark.parametrize("name", RUNS)
def test_no_change_of_a_history_that_no_reader_saw_leads_to_a_defect(name: str) -> None:
    result, draw = run_of(name), random.Random(name)
    history, every = history_of_run(result), list(changes_of(result.timeline, 4, draw))
    for change in draw.sample(every, min(CHANGES, len(every))):
        whole = changed(result.timeline, change)
        parts = {table: getattr(whole, table) for table in ("steps", "chunks", "decodes", "facts", "moves")}
        check_history(replace(history, folded=whole, **parts))
        assert change.table.partition("[")[0] in (*TABLES, *VECTORS, "irregular", "column_sets", "pools", "templates")


@pytest.mark.parametrize("name", ["TP × PP, mixed steps", "preemption", "swap", "two pools", "prefix caching"])
def test_what_is_told_is_the_same_however_many_rows_are_looked_at_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, draw = run_of(name), random.Random(name)
    history, every = history_of_run(result), list(changes_of(result.timeline, 4, draw))
    for change in draw.sample(every, min(CHANGES, len(every))):
        whole = changed(result.timeline, change)
        tables = {table: getattr(whole, table) for table in ("steps", "chunks", "decodes", "facts", "moves")}
        other = replace(history, folded=whole, **tables)
        told = []
        for rows in (PART, 3):
            monkeypatch.setattr("clustersim.column.PART", rows)
            told.append(check_history(other))
        assert told[0] == told[1], change
        monkeypatch.undo()
