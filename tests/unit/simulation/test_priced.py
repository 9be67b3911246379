"""Prices that are kept from run to run change nothing but how long a run takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from unittest import mock

import pytest

from clustersim.replay.by_core import expected_s
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation import priced as under_test
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.replay_input import replay_input
from clustersim.simulation.simulate import RunResult, simulate
from tests.core_storage import BOTH, Storage, core

ONE = ("plan.pp=1", "plan.tp=8", "workload.trace.requests=30", "expect=null", "targets=null")
VARIANTS = {
    "a pipeline": ("quickstart", ("workload.trace.requests=30", "expect=null", "targets=null")),
    "one stage": ("quickstart", ONE),
    "by prompts": ("quickstart", (*ONE, "serving.scheduler=continuous")),
    "other requests": ("quickstart", (*ONE, "workload.trace.requests=45")),
    "by events": ("quickstart", (*ONE, "serving.scheduler=static")),
    "two pools": ("splitwise-h100-a100", ("workload.trace.requests=20", "expect=null", "targets=null")),
}


def scenario(name: str, *more: str) -> Scenario:
    of, overrides = VARIANTS[name]
    return load(of, [*overrides, *more])


@cache
def fresh(name: str, storage: Storage) -> RunResult:
    """Return a run that nothing was kept for."""
    with core(storage):
        return simulate(scenario(name))


def tables(result: RunResult) -> dict[str, bytes]:
    """Return all columns of a timeline, and what its rows hold."""
    line = result.timeline
    found = {name: getattr(line, name).tobytes() for name in ("varying", "row_values", "starts")}
    for table in ("steps", "passes", "rows", "facts", "chunks", "decodes"):
        found |= {f"{table}.{name}": column.tobytes() for name, column in getattr(line, table).items()}
    return found


@pytest.mark.parametrize("storage", BOTH)
def test_a_run_is_the_same_whatever_was_kept(storage: Storage) -> None:
    kept = KeptPrices()
    for name in (*VARIANTS, *reversed(VARIANTS)):
        first = fresh(name, storage)
        with core(storage):
            again = simulate(scenario(name), kept=kept)
        assert first.timeline.digest == again.timeline.digest, name
        assert tables(first) == tables(again), name  # rows are numbered in order of use, not of what was known


def test_what_costs_the_same_is_priced_once() -> None:
    kept = KeptPrices()
    inputs = [replay_input(scenario(name), scenario(name).requests(), kept) for name in VARIANTS]
    pricers = {name: one.entry.pricer for name, one in zip(VARIANTS, inputs, strict=True)}
    assert pricers["one stage"] is pricers["by prompts"] is pricers["other requests"] is pricers["by events"]
    assert len({id(pricer) for pricer in pricers.values()}) == 3


@pytest.mark.parametrize(
    "change",
    ["plan.tp=4", "precision.weights=fp8", "serving.engine=ideal", "model=llama-3.1-8b"],
)
def test_what_costs_something_else_is_not_shared(change: str) -> None:
    kept = KeptPrices()
    one, other = (
        replay_input(each, each.requests(), kept) for each in (scenario("one stage"), scenario("one stage", change))
    )
    assert one.entry.pricer is not other.entry.pricer
    assert one.comm is not other.comm


def test_the_oldest_and_the_largest_are_dropped() -> None:
    kept = KeptPrices()
    one = scenario("one stage")

    def pricer() -> object:
        return replay_input(one, one.requests(), kept).entry.pricer

    first = pricer()
    assert pricer() is first
    assert kept.behind_s == 0.0
    with mock.patch.object(under_test, "MOST", 1):
        two = scenario("a pipeline")
        replay_input(two, two.requests(), kept)
        second = pricer()
    assert second is not first
    simulate(one, kept=kept)
    simulate(two, kept=kept)
    works = expected_s(one.requests(), staged=False), expected_s(two.requests(), staged=True)
    assert kept.behind_s == pytest.approx(sum(works))
    with mock.patch.object(under_test, "MOST_ROWS", 1):
        assert pricer() is not second


def test_a_table_of_measured_points_counts_for_one_run_alone(tmp_path) -> None:
    one = replace(scenario("one stage"), cost_table=tmp_path / "points.csv")
    (tmp_path / "points.csv").write_text("op,m,n,k,seconds\ngemm,1,2,3,1e-6\ngemm,2,2,3,1e-6\n", encoding="utf-8")
    kept = KeptPrices()
    first, second = (replay_input(one, one.requests(), kept) for _ in range(2))
    assert first.entry.pricer is not second.entry.pricer
