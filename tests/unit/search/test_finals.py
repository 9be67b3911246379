"""Finalists at length: their capacities go up as well as down from those of short runs, and no farther than is said."""

from __future__ import annotations

import pytest

from clustersim.search.plans.bounds.limits import Bound
from clustersim.search.plans.deployments import Candidate
from clustersim.search.plans.finals import at_length
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import Standing


def at(step: int) -> Standing:
    bound = Bound(step=None, why="", tpot_ms=None)
    return Standing(candidate=Candidate(replicas=(), counts=(), setting=0), words="", bound=bound, passed=step)


@pytest.mark.parametrize(("short", "bears"), [(100, 100), (100, 101), (100, 107), (100, 115), (100, 99), (100, 61)])
def test_a_finalist_reaches_at_length_what_it_bears(short: int, bears: int):
    asked = []

    def run(all_asked):
        asked.extend(step for _, step, _ in all_asked)
        return [
            {"failed": None, "numbers": {"goodput.share": 0.95 if step <= bears else 0.5}} for _, step, _ in all_asked
        ]

    (found,) = at_length([at(short)], run, seeds=1, share=0.9)
    assert found.step == bears
    assert found.capacity == rate_of(bears)
    assert len(asked) == len(set(asked))


def test_the_mean_of_seeds_decides(monkeypatch: pytest.MonkeyPatch):
    def run(all_asked):
        return [
            {"failed": None, "numbers": {"goodput.share": (1.0, 0.86, 0.85)[seed] - 0.01 * (step - 100)}}
            for _, step, seed in all_asked
        ]

    (found,) = at_length([at(100)], run, seeds=3, share=0.9)
    assert (found.step, found.shares) == (100, [1.0, 0.86, 0.85])


def test_who_meets_its_targets_at_any_rate_is_tried_no_higher_than_a_sixth_above():
    def run(all_asked):
        return [{"failed": None, "numbers": {"goodput.share": 1.0}} for _ in all_asked]

    (found,) = at_length([at(100)], run, seeds=1, share=0.9)
    assert found.step == 115
