"""One replica stands for all: also where a trace is played again whose rows share a factor with the replicas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clustersim.search.plans import plan_runs as plans
from clustersim.search.plans.bounds.limits import Bound
from clustersim.search.plans.finals import REQUESTS
from clustersim.search.plans.grid import prime_up_to, requests_at, step_of
from clustersim.search.plans.legal import candidates
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.search import Search, found_by
from clustersim.search.plans.space import Refused
from clustersim.search.plans.trial import Trial, try_rate
from tests.effort import some
from tests.unit.search.searching import SMALL, search

ROWS = 48
REPLICAS = 8
WITHIN = 0.04
"""What the certificate says."""


def traced(folder: Path, rows: int) -> str:
    """Return a scenario with a trace of so many rows: every eighth request is long."""
    lines = ["arrived_s,prompt_tokens,output_tokens"]
    lines += [f"{0.05 * row},{1000 if row % 8 == 0 else 300},{40 if row % 8 == 0 else 10}" for row in range(rows)]
    path = folder / "rows.csv"
    path.write_text("\n".join(lines) + "\n")
    trace = f"workload:\n  trace: {{path: {path}}}\n"
    return SMALL[: SMALL.index("workload:")] + trace + SMALL[SMALL.index("targets:") :]


def standing(opened: Search, words: str) -> Standing:
    found = candidates(opened.deployments.settings, opened.question.room, Refused())
    one = next(one for one, _ in found if one.words() == words)
    return Standing(candidate=one, words=words, bound=Bound(step=None, why="", tpot_ms=None))


def whole_of(opened: Search, one: Standing, trial: Trial) -> Trial:
    """Return the run of all replicas at the rate of a run of one that stands for them."""
    return replace(trial, scenario=opened.deployments.scenario(one.candidate), every=1)


@pytest.mark.parametrize(("most", "prime"), [(600, 599), (599, 599), (500, 499), (48, 47), (9, 7), (2, 2), (1, 1)])
def test_the_largest_prime_up_to_a_number(most: int, prime: int):
    assert prime_up_to(most) == prime


def test_a_replica_gets_all_rows_that_are_repeated_though_rows_and_replicas_share_a_factor(tmp_path: Path):
    with search(tmp_path, traced(tmp_path, ROWS), devices=REPLICAS) as opened:
        load = replace(opened.load, requests=20 * REPLICAS * ROWS)
        mine = requests_at(opened.base, load, step_of(load.first), REPLICAS)
        part = requests_at(opened.base, opened.load, step_of(load.first), 1).take(47)
        assert opened.load.part == len(part) == 47
        assert mine.prompt_tokens.mean() == pytest.approx(part.prompt_tokens.mean(), rel=0.01)
        assert mine.output_tokens.mean() == pytest.approx(part.output_tokens.mean(), rel=0.01)
        assert set(mine.prompt_tokens[:47].tolist()) == {300, 1000}
        biased = requests_at(opened.base, replace(load, part=None), step_of(load.first), REPLICAS)
        assert set(biased.prompt_tokens.tolist()) == {1000}


@pytest.mark.parametrize("rate", some([600.0, 650.0, 700.0]))
def test_the_share_of_one_replica_is_that_of_all(tmp_path: Path, rate: float):
    with search(tmp_path, traced(tmp_path, ROWS), devices=REPLICAS) as opened:
        one = standing(opened, f"tp 1 × dp {REPLICAS}")
        opened.load = replace(opened.load, requests=REPLICAS * 200)
        trial = opened.trial_at(one, step_of(rate), 0.0)
        assert trial.every == REPLICAS
        mine, whole = (try_rate(run)["numbers"]["goodput.share"] for run in (trial, whole_of(opened, one, trial)))
        assert 0.5 < whole < 1.0
        assert mine == pytest.approx(whole, abs=WITHIN)


def test_a_finalist_of_a_trace_is_simulated_once_at_its_capacity_and_checked(tmp_path: Path, monkeypatch):
    with search(tmp_path, traced(tmp_path, ROWS), devices=1) as opened:
        opened.load = replace(opened.load, requests=REQUESTS)  # as many as finalists get
        one, step = standing(opened, "tp 1 × dp 1"), step_of(40.0)
        (short,) = opened.run([(one, step)])
        assert short["numbers"]["goodput.share"] > 0.9
        simulated, tried = [], plans.try_rate
        monkeypatch.setattr(plans, "try_rate", lambda trial: simulated.append(trial) or tried(trial))
        assert opened.run_at_length([(one, step, 0)]) == [short]
        assert not simulated
        (failing,) = opened.run_at_length([(one, step_of(400.0), 0)])
        assert failing["numbers"]["cut"] < 1.0
        assert [trial.audit for trial in simulated] == [True]
        monkeypatch.setattr(plans, "broken_rules", lambda scenario: "illegal: TP-1")
        assert opened.run_at_length([(one, step, 0)])[0]["failed"] == "illegal: TP-1"


def test_of_more_replicas_than_rows_none_stands_for_the_others_and_the_certificate_says_so(tmp_path: Path):
    with search(tmp_path, traced(tmp_path, 4), devices=3) as opened:
        three = standing(opened, "tp 1 × dp 3")
        both = replace(three, candidate=replace(three.candidate, counts=(2,)))
        assert opened.trial(both)[1] == 2
        scenario, every = opened.trial(three)
        assert (scenario.plan.dp, every) == (3, 1)
        opened.question = replace(opened.question, effort_s=0.0)  # what is said of rows does not wait for runs
        told = found_by(opened).certificate()["uncertain"]
    assert any("play its first 3 again and again, never the last 1: dealt" in text for text in told)
    assert any("of 3 replicas and more" in text for text in told)
