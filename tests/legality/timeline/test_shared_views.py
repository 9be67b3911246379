"""What an audit works out once for all rules: counts that do not grow with preemptions or templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.legality.timeline_rules.operators.layers import every_layer_once
from clustersim.legality.timeline_rules.operators.order import writes_once
from clustersim.legality.timeline_rules.operators.tensor import inside
from clustersim.legality.timeline_rules.requests.data import apart
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.scenario.load import load
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.passes import Passes

CRAMPED = ("serving.router=least_outstanding", "serving.prefix_caching=false", "workload.shared_prefixes=null",
           "serving.kv_blocks=400", "expect={}")  # fmt: skip


def cramped(requests: int) -> RunResult:
    """A run that is short of blocks: who has come last is computed anew, again and again."""
    return simulate(load("shared-prefixes", (*CRAMPED, f"workload.requests={requests}")))


def calls_in_audit(patch: pytest.MonkeyPatch, of: type, name: str, result: RunResult) -> int:
    """Count the calls of a method while a run is audited."""
    own: Callable[..., Any] = getattr(of, name)
    count = 0

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        return own(*given, **named)

    with patch.context() as patched:
        patched.setattr(of, name, counted)
        assert audit_run(result).verdict == "legal"
    return count


def test_columns_of_steps_are_taken_as_often_for_many_preemptions_as_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = cramped(150), cramped(600)
    gone = [int((one.timeline.facts["kind"] == 3).sum()) for one in (few, many)]
    assert 0 < gone[0] < gone[1]
    assert len({calls_in_audit(monkeypatch, Runs, "column", one) for one in (few, many)}) == 1


def test_passes_are_read_as_often_for_many_templates_as_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        simulate(load("pp-on-one-node", (f"plan={{pp: {stages}, tp: 2}}", "workload.trace.requests=40",
                                         "expect={}")))
        for stages in (2, 4)
    )  # fmt: skip
    assert len(few.timeline.templates) < len(many.timeline.templates)
    assert len({calls_in_audit(monkeypatch, Passes, "__init__", one) for one in (few, many)}) == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_pieces_before_an_instant_are_those_that_a_look_at_each_finds(*, in_order: bool) -> None:
    pieces = object.__new__(Pieces)
    draw = np.random.default_rng(7)
    pieces.request = np.sort(draw.integers(0, 40, 200))
    begin = draw.integers(0, 500, 200)
    order = np.lexsort((begin, pieces.request))
    pieces.begin = begin[order] if in_order else begin
    pieces.end = pieces.begin + draw.integers(1, 50, 200)
    pieces.count, pieces.start = draw.integers(0, 3, 200), np.full(200, -1)
    pieces._sampled = pieces.start
    asked, time = draw.integers(-1, 45, 300), draw.integers(0, 500, 300)
    owned = [np.flatnonzero(pieces.request == one) for one in asked.tolist()]
    nexts = []
    for mine, now in zip(owned, time.tolist(), strict=True):
        later = mine[pieces.begin[mine] >= now]
        nexts.append(int(later[np.argmin(pieces.begin[later])]) if len(later) else -1)
    assert pieces.next_of(asked, time).tolist() == nexts
    ended = [int((pieces.end[mine] <= now).sum()) for mine, now in zip(owned, time.tolist(), strict=True)]
    assert pieces.ended_before(asked, time).tolist() == ended


def test_rules_of_structure_say_of_one_pass_what_they_say_of_all() -> None:
    sheets = list(Reading(history_of_run(cramped(6))).sheets())
    assert max(sheet.copies for sheet in sheets) > 1
    for sheet in sheets:
        joined = replace(sheet, group=np.repeat(np.arange(sheet.copies), len(sheet.one)))  # over all layers
        twice = replace(sheet, symbol=np.full(len(sheet), sheet.symbol[np.argmax(sheet.named("kv_write"))]))
        for rule in (every_layer_once, writes_once, inside, apart):
            for one in (sheet, joined, twice):
                assert rule(one) == rule.__wrapped__(one)
        assert inside(joined).faults
        assert writes_once(twice).faults
