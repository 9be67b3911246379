"""What an audit works out once for all rules: counts that do not grow with preemptions or templates."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from clustersim.legality.timeline_rules.operators.layers import every_layer_once
from clustersim.legality.timeline_rules.operators.order import writes_once
from clustersim.legality.timeline_rules.operators.tensor import inside
from clustersim.legality.timeline_rules.requests.data import apart
from clustersim.legality.timeline_rules.views.pieces import Pieces
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.legality.timeline_rules.views.runs import Runs
from clustersim.report.files.run_directory import dashboard_of
from clustersim.report.files.summary import ALSO, summary_of
from clustersim.report.layouts import overview
from clustersim.scenario.load import load
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline import rows_of
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


class Counting(np.ndarray[Any, Any]):
    """A column that counts how many rows are compared with a number, or copied, by the place of the program."""

    visited: ClassVar[Counter[str]] = Counter()

    @staticmethod
    def visit(rows: int) -> None:
        """Count rows at the line that looks at them, not at that of a helper."""
        frame = sys._getframe(2)
        while "clustersim/" not in frame.f_code.co_filename or frame.f_code.co_filename.endswith(HELPERS):
            assert frame.f_back is not None
            frame = frame.f_back
        Counting.visited[f"{frame.f_code.co_filename}:{frame.f_lineno}"] += rows

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        sizes = [np.size(one) for one in inputs]
        if ufunc in (np.equal, np.not_equal) and min(sizes) == 1:
            Counting.visit(max(sizes))
        plain = [np.asarray(one) if isinstance(one, Counting) else one for one in inputs]
        named |= {"out": tuple(map(np.asarray, named["out"]))} if "out" in named else {}
        return getattr(ufunc, method)(*plain, **named)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.searchsorted and args[0] is self and np.asarray(args[1]).dtype != self.dtype:
            Counting.visit(len(self))
        return super().__array_function__(func, types, args, kwargs)

    def astype(self, *types: Any, **named: Any) -> Any:
        Counting.visit(len(self))
        return super().astype(*types, **named)


HELPERS = ("columns.py", "views/runs.py", "test_shared_views.py")


def visits(replicas: int) -> tuple[Counter[str], int]:
    """Return how many rows each line visits while a run is judged, summed up and drawn, and how many there are."""
    fleet = (f"plan={{tp: 8, dp: {replicas}}}", f"topology={{name: dgx-h100, nodes: {replicas}}}", "expect={}",
             f"workload={{trace: {{path: traces/azure-conv-sample.csv, requests: {50 * replicas}, "
             f"rate_scale: {2 * replicas}}}}}")  # fmt: skip
    result = simulate(load("azure-hour-fleet", fleet))
    timeline, told = result.timeline, ("facts", "steps", "chunks", "decodes", "passes")
    tables = {name: dict(getattr(timeline, name)) for name in told}
    for table in tables.values():
        table.update({name: column.view(Counting) for name, column in table.items()})
    counting = replace(result, replayed=replace(result.replayed, timeline=replace(timeline, **tables)))
    Counting.visited.clear()
    verdict = audit_run(counting)
    assert verdict.verdict == "legal"
    summary = summary_of(counting, verdict, also=ALSO)
    figures = counting.table_columns, counting.step_rows, counting.timeline, counting.token_gaps
    assert dashboard_of(summary, *figures, overview(), inputs=counting.input)
    return Counting.visited.copy(), sum(len(table["replica"]) for table in tables.values())


def test_no_line_visits_rows_more_often_for_many_replicas_than_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of, "FEW", 2)  # all are put in order in one way
    (few, rows), (many, more) = visits(3), visits(12)
    often = {where: seen for where, seen in many.items() if seen / more > 1.3 * max(few[where] / rows, 0.1)}
    assert many
    assert not often


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
