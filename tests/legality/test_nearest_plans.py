"""The nearest legal plan against every plan in its neighbourhood (``brute_force``): none that is legal is nearer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from brute_force import BruteForce
from click.testing import CliRunner
from further_plans import FURTHER
from illegal_plans import FAST, PLANS

from clustersim.cli import main
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.text.flow import flow
from clustersim.simulation.repair.fix import Fix, fix_scenario
from tests.effort import is_long

ALL = PLANS | FURTHER
SOME = tuple(ALL) if is_long() else (
    *FAST, "all-to-all of 6", "ep 24 of 256", "overlap with a dense model", "the larger kind twice, and only that fits",
    "pools of 9", "a share of memory of both pools", "three at once",
)  # fmt: skip
"""Those that are compared with every plan in the neighbourhood each time."""
SLOW = (
    "an expert nowhere", "overlap with a dense model", "the larger kind twice, and only that fits",
    "a share of memory of both pools", "ep 24 of 256", "pools of 9", "three at once", "tp 3 of 32 heads",
)  # fmt: skip
"""Those whose alternatives take long on level G, or change what others change: the nearest is applied each time."""
MOST_CHECKED = 2000 if is_long() else 10
"""Candidates of one plan that ``check`` judges."""


def overrides_of(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the scenario that a plan changes, and how."""
    (base, given), written = ALL[name]
    return base, (*given, *written)


def scenario_of(name: str) -> Scenario:
    return load(*overrides_of(name))


def fixed(name: str, alternatives: int = 1) -> Fix:
    return fix_scenario(scenario_of(name), alternatives=alternatives)


@pytest.mark.parametrize("name", SOME)
def test_no_legal_plan_is_nearer(name: str) -> None:
    scenario = scenario_of(name)
    (best,) = fixed(name).alternatives
    told = {change.path: change.new for change in best.changes}
    around = BruteForce(scenario, most_checked=MOST_CHECKED)
    assert not around.is_legal({})
    assert around.is_legal(told)
    for total, changes in around.nearer(told, best.distance):
        pytest.fail(f"{changes} at {total:.3f} rather than {best} at {best.distance}")


def checked(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return exit status and document of ``clustersim check … --json``."""
    result = CliRunner().invoke(main, ["check", *arguments, "--json"], catch_exceptions=False)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("name", SOME if is_long() else [name for name in SOME if name not in SLOW])
def test_a_program_that_applies_any_alternative_has_a_legal_plan(name: str, tmp_path: Path) -> None:
    base, given = overrides_of(name)
    sets = [word for one in given for word in ("--set", one)]
    status, found = checked(base, *sets, "--fix", "--out", str(tmp_path / "legal.yaml"))
    alternatives = found["fix"]["alternatives"]
    assert (status, found["verdict"], checked(str(tmp_path / "legal.yaml"))[0]) == (0, "illegal", 0)
    counts = [found["fix"][name] for name in ("proven", "tried", "examined")]
    assert 0 < len(alternatives) == counts[0] <= counts[1] <= counts[2]
    assert alternatives[0]["distance"] == min(one["distance"] for one in alternatives)
    for one in alternatives if is_long() else alternatives[1:2]:
        changes = [word for change in one["changes"] for word in ("--set", f"{change['path']}={flow(change['new'])}")]
        status, again = checked(base, *sets, *changes)
        assert (status, set(again["levels"].values())) == (0, {"legal"}), one


@pytest.mark.parametrize("name", [name for name in PLANS if name not in SOME])
def test_something_legal_is_offered_for_every_plan(name: str) -> None:
    found = fixed(name)
    assert 0 < len(found.alternatives) == found.proven <= found.tried <= found.examined


def test_a_limit_that_is_written_once_for_two_pools_is_changed_once() -> None:
    (best,) = fixed("blocks of both pools").alternatives
    assert [(change.path, change.old, change.new) for change in best.changes] == [("serving.kv_blocks", 900000, 3716)]
    (best,) = fixed("a pool's blocks").alternatives
    assert [change.path for change in best.changes] == ["serving.decode.kv_blocks"]


def test_ranks_stay_on_their_kind_of_devices() -> None:
    (best,) = fixed("the larger kind twice, and only that fits").alternatives
    assert [(change.path, change.new) for change in best.changes] == [("plan.placement", "h200-sxm-141gb")]
    assert best.distance == 0.5


def test_a_declaration_is_added_rather_than_a_degree_lowered() -> None:
    (best,) = fixed("sp that says nothing").alternatives
    assert best.distance == 0.03
    assert {change.path for change in best.changes} == {"plan.sp.scheme", "plan.sp.partition", "plan.sp.decode"}


def test_experts_over_the_ranks_of_all_replicas_are_offered_where_these_are_what_ep_divides() -> None:
    (best, second, *_) = fixed("ep over dp", alternatives=3).alternatives
    assert [(change.path, change.new) for change in best.changes] == [("plan.ep.scope", "global")]
    assert [(change.path, change.new) for change in second.changes] == [("plan.ep.degree", 4)]


def test_a_search_that_gives_up_still_finds_a_legal_plan_and_says_that_it_may_not_be_the_nearest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clustersim.legality.repair.nearest.MOST_EXAMINED", 10)
    (found,) = fixed("stages and replicas").alternatives
    assert "nothing shows that it is the nearest" in found.why
    monkeypatch.undo()
    (best,) = fixed("stages and replicas").alternatives
    assert best.distance < found.distance
