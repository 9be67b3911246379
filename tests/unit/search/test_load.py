"""How many requests there are at a rate, and that what is played has that rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from clustersim.limits import Limits
from clustersim.scenario.scenario import TraceWorkload
from clustersim.search.load import Load, load_of, rate_per_s
from clustersim.search.plans.costs import looks_s, work_s
from clustersim.search.plans.finals import OWN, REQUESTS
from clustersim.search.plans.grid import rate_of, requests_at, step_of
from clustersim.search.runs import Variants
from clustersim.workload.requests import Requests
from tests.unit.search.searching import SMALL, search

NO_LIMITS = Limits(memory_bytes=1e12, seconds=1e9)


def test_a_trace_is_played_again_where_more_requests_are_asked_for_than_it_has():
    trace = TraceWorkload(path=Path("some.csv"), requests=500, rate_scale=3.0)
    load = Load(workload=trace, first=2.0, requests=500, own=500, lasting_s=100.0)
    assert load.played(4.0) == replace(trace, rate_scale=1.0)
    long = replace(load, requests=1000)
    assert long.played(4.0) == replace(trace, rate_scale=1.0, requests=1000, repeat=True)
    short = replace(load, requests=100, lasting_s=10.0)
    assert short.played(4.0) == replace(trace, rate_scale=1.0, requests=100, repeat=True)


@pytest.fixture
def text(tmp_path: Path) -> str:
    """A scenario that plays the first 20 of 60 rows, which come twice as fast as the others."""
    at = [0.5 * row if row < 20 else 10.0 + 1.0 * (row - 20) for row in range(60)]
    path = tmp_path / "rows.csv"
    path.write_text("arrived_s,prompt_tokens,output_tokens\n" + "".join(f"{one},100,10\n" for one in at))
    trace = f"workload:\n  trace: {{path: {path}, requests: 20, rate_scale: 1.5}}\n"
    return SMALL[: SMALL.index("workload:")] + trace + SMALL[SMALL.index("targets:") :]


@pytest.mark.parametrize("rate", [0.1, 0.35, 5.0, 40.0])
def test_what_is_played_has_the_rate_that_is_said(tmp_path: Path, text: str, rate: float):
    file = tmp_path / "small.yaml"
    file.write_text(text)
    variants = Variants(str(file), limits=NO_LIMITS)
    load = load_of(variants.scenario(), variants.requests, 100.0)
    played = variants.requests(variants.scenario(load.changes(rate)))
    assert len(played) == max(20, -(-rate * 100 // 1))
    assert rate_per_s(played) == pytest.approx(rate, rel=1e-6)


def test_what_a_search_plays_has_the_rate_that_is_said(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch):
    repeat_to, counts = Requests.repeat_to, []
    monkeypatch.setattr(Requests, "repeat_to", lambda self, count: counts.append(count) or repeat_to(self, count))
    with search(tmp_path, text, devices=2) as opened:
        for step in (step_of(0.3), step_of(3.0), step_of(30.0)):
            load = replace(opened.load, lasting_s=100.0)
            assert rate_per_s(requests_at(opened.base, load, step, 1)) == pytest.approx(rate_of(step), rel=1e-6)
    with search(tmp_path, text.replace("requests: 20", "requests: 50000, repeat: true"), devices=2) as opened:
        step, (first, *_) = step_of(3.0), opened.standings()
        assert len(requests_at(opened.base, opened.load, step, 1)) == REQUESTS
        for long, count in ((False, REQUESTS), (True, OWN)):
            changes = opened.load_changes(first.candidate, 3.0, long)
            assert len(opened.deployments.variants.scenario(changes).requests()) == count
        assert max(counts) == OWN  # half a million would take gigabytes
        assert opened.load.first == pytest.approx(rate_per_s(opened.base.requests()), rel=1e-9)


def test_runs_that_go_by_events_are_expected_to_take_long_and_are_counted_by_what_their_clock_did(tmp_path: Path):
    text = SMALL.replace("model: llama-2-7b", "model: mixtral-8x7b").replace("requests: 40", "requests: 2")
    with search(tmp_path, text, devices=8) as found:
        plans = {one.words: one for one in found.standings()}
        alike, other = (plans[f"tp 4 × pp 2 × ep {degree} × dp 1"] for degree in (4, 2))
        assert found.cost(other, 0) > 20 * found.cost(alike, 0)  # not all ranks of a stage do the same
        taken = {  # lanes may be compiled, which makes no calls, and take a step of all stages at once
            (obstacle, rows): work_s(
                SimpleNamespace(
                    scenario=found.trial(other)[0],
                    timeline=SimpleNamespace(steps={"replica": np.zeros(rows, np.int64)}),
                    columns={"outcome": [""] * 2},
                    replayed=SimpleNamespace(calls=1_000_000, obstacle=obstacle),
                )
            )
            for obstacle in ("communications can meet on a link", "")
            for rows in (9, 10_000)
        }
        assert taken["communications can meet on a link", 9] > 5.0
        assert taken["", 9] < 1.0
        more, less = (
            taken[obstacle, 10_000] - taken[obstacle, 9] for obstacle in ("communications can meet on a link", "")
        )
        assert more > 3.0 * less > 1.5
        found.front_s, found.ends_s = 3.0, 1000.0  # all that may add something to the front takes no longer
        assert found.work()[1] == pytest.approx(3.0 + found.written_s)
    assert looks_s(400_000, 0) > 2 * looks_s(0, 400_000)


def test_a_scenario_with_experts_on_all_replicas_is_searched_from_one_replica(tmp_path):
    wide = SMALL.replace("model: llama-2-7b", "model: mixtral-8x7b").replace(
        "plan: {tp: 1}", "plan: {dp: 8, ep: {degree: 8, scope: global}}"
    )
    with search(tmp_path, wide, devices=8) as found:
        assert found.load.requests == 40
