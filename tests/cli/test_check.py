"""``clustersim check`` and ``rules``: verdicts, places, exit statuses; and plans that are larger than the cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import clustersim
from clustersim import catalog
from clustersim.cli import main
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.legality.rulebook import RULES
from clustersim.scenario.load import load
from clustersim.simulation import legality
from clustersim.simulation.legality import check_scenario, problem

SCENARIO = """\
name: small
topology: dgx-h100
model: llama-3.1-70b
plan:
  dp: 1
  tp: 4
serving:
  engine: ideal
workload:
  arrivals: {process: constant, rate: 4/s}
  prompt_tokens: 100
  output_tokens: 2
  requests: 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def edited(old: str, new: str) -> None:
    """Write the scenario with one line changed."""
    assert SCENARIO.count(old) == 1
    Path("s.yaml").write_text(SCENARIO.replace(old, new))


def test_check_of_a_legal_plan_says_what_it_looked_at() -> None:
    result = invoke("check", "s.yaml")
    assert result.exit_code == 0
    assert result.stdout == (
        "legal: 6 rules found nothing wrong with the plan of small; "
        "7 have no say in such a plan: SP-1, SP-3, SP-7, SP-9, EP-1, EP-6, EP-8\n"
        "legal: 18 rules found nothing wrong with the step graphs of small; 16 have no say in such a plan: "
        "SP-1, SP-2, SP-3, SP-4, SP-5, SP-6, SP-8, PP-2, PP-5, EP-2, EP-4, EP-5, EP-6, EP-7, EP-8, DP-3\n"
        "memory: a rank has 32.86 GiB of weights (embedding bf16 0.49, lm_head bf16 0.49, attention bf16 5.62, "
        "ffn bf16 26.25, norms bf16 0.00), 1.08 of buffers, 0.00 that the engine keeps and 37.26 of K/V "
        "(30,522 blocks of 16); 90% of 79.10 GiB\n"
    )


def test_check_places_a_violation_and_names_what_would_be_legal() -> None:
    edited("tp: 4", "tp: 6")
    result = invoke("check", "s.yaml")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:4] == [
        "illegal: 1 rule broken at 1 place in the plan of small",
        "s.yaml:6:7: plan.tp: 6 does not divide 64 attention heads (llama-3.1-70b); use 2, 4, 8 or 16 [TP-1]",
        "   |   tp: 6",
        "   |       ^",
    ]


@pytest.mark.parametrize(
    ("setting", "fixes"),
    [
        ("plan.tp=3", ["use 1, 2, 4 or 8"]),  # 16 and more would be more ranks than the 16 devices
        ("plan.stages.cuts=[40,60]", ["use balanced stages or cuts: [40]"]),  # pp 3 would be 24 ranks
        ("plan.pp=200", ["use plan.pp 2", "use plan.pp 2"]),  # 160 stages would be legal by PP-1 alone
    ],
)
def test_every_value_that_is_offered_is_legal_with_all_else_as_it_is(setting: str, fixes: list[str]) -> None:
    checked = json.loads(invoke("check", "quickstart", "--set", setting, "--json").stdout)
    assert [found["fix"] for found in checked["violations"]] == fixes


def test_fix_that_leaves_another_rule_broken_says_so_and_what_mends_all() -> None:
    lines = invoke("check", "quickstart", "--set", "plan.tp=3", "--set", "plan.pp=100").stdout
    assert "; by this rule alone, use " in lines
    assert "\nTogether: " in lines


def test_check_points_at_the_degree_where_it_is_written_out() -> None:
    edited("tp: 4", "tp: {embedding: hidden, degree: 6}")
    assert "s.yaml:6:35: plan.tp: 6 does not divide" in invoke("check", "s.yaml").stdout


def test_check_points_at_the_override_that_breaks_a_rule() -> None:
    assert "--set #1: plan.ep: expert parallelism" in invoke("check", "s.yaml", "--set", "plan.ep=2").stdout


def test_check_json_is_the_contract() -> None:
    edited("tp: 4", "tp: 6")
    result = invoke("check", "s.yaml", "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert list(verdict) == [
        "verdict", "levels", "violations", "rules", "memory", "simulates", "not_simulated", "left_out", "fix",
    ]  # fmt: skip
    assert (verdict["verdict"], verdict["levels"]) == ("illegal", {"P": "illegal"})
    assert verdict["violations"] == [
        {
            "rule": "TP-1",
            "level": "P",
            "where": "plan.tp",
            "message": "6 does not divide 64 attention heads (llama-3.1-70b)",
            "fix": "use 2, 4, 8 or 16",
            "file": "s.yaml",
            "line": 6,
            "column": 7,
            "node": None,
        }
    ]
    assert verdict["rules"][0] == {"id": "KV-4", "level": "P", "looked_at": 0}


@pytest.mark.parametrize(
    ("overrides", "places"),
    [
        (("plan.tp=6",), [("plan.tp", "--set #1", None, None)]),
        (("plan.sp={degree: 2, scheme: ring, partition: zigzag}",), [("plan.sp.decode", "--set #1", None, None)]),
        (("plan.pp=3", "plan.dp=4"), [("plan.dp", "--set #2", None, None)]),
        (("serving={kv_blocks: 100000000}", "plan.tp=8"), [("serving.kv_blocks", "--set #1", None, None)]),
    ],
)
def test_check_json_says_where_each_value_is_written(overrides: tuple[str, ...], places: list[Any]) -> None:
    arguments = [word for override in overrides for word in ("--set", override)]
    found = json.loads(invoke("check", "s.yaml", *arguments, "--json").stdout)["violations"]
    assert [tuple(one[key] for key in ("where", "file", "line", "column")) for one in found] == places


def test_check_asks_step_graphs_of_a_legal_plan_alone() -> None:
    legal = json.loads(invoke("check", "s.yaml", "--json").stdout)
    assert legal["levels"] == {"P": "legal", "G": "legal"}
    assert {rule["level"] for rule in legal["rules"]} == {"P", "G"}
    illegal = json.loads(invoke("check", "s.yaml", "--set", "plan.tp=6", "--json").stdout)
    assert {rule["level"] for rule in illegal["rules"]} == {"P"}


def test_check_of_a_scenario_that_cannot_be_read_exits_with_2() -> None:
    edited("tp: 4", "tq: 4")
    result = invoke("check", "s.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "s.yaml:6:3: plan.tq" in result.stderr


def test_five_ways_to_be_illegal_are_all_told_at_once() -> None:
    result = invoke("check", "illegal-five-ways", "--json")
    assert result.exit_code == 1
    assert [(found["rule"], found["where"]) for found in json.loads(result.stdout)["violations"]] == [
        ("KV-6", "serving.kv_blocks"),
        ("TP-1", "plan.tp"),
        ("SP-3", "plan.sp.decode"),
        ("PP-1", "plan.stages.cuts[0]"),
        ("EP-1", "plan.ep"),
    ]
    lines = [line for line in invoke("check", "illegal-five-ways").stdout.splitlines() if ".yaml:" in line]
    places = [line.split(".yaml:")[1].split(": ")[0] for line in lines]
    assert places == ["17:14", "9:7", "10:7", "12:19", "11:7"]


def test_a_model_that_does_not_fit_is_told_at_the_model_where_nobody_wrote_a_plan() -> None:
    text = re.sub("plan:\n(  .*\n)*", "", SCENARIO)
    Path("large.yaml").write_text(re.sub("model: .*", "model: llama-3.1-405b", text))
    line = 1 + text[: text.index("model:")].count("\n")
    assert f"large.yaml:{line}:8: plan.tp: a rank of stage 0 needs" in invoke("check", "large.yaml").stdout


def test_changes_of_the_five_violations_applied_as_overrides_make_the_plan_legal() -> None:
    verdict = check_scenario(load("illegal-five-ways"))
    shape = [found for found in verdict.violations if found.rule != "KV-6"]
    changes = [f"{path}={json.dumps(value)}" for found in shape for path, value in found.change]
    (left,) = check_scenario(load("illegal-five-ways", changes)).violations  # the pool, for the tp that is now right
    changes += [f"{path}={json.dumps(value)}" for path, value in left.change]
    assert check_scenario(load("illegal-five-ways", changes)).verdict == "legal"


@pytest.mark.parametrize("name", catalog.names("scenarios"))
def test_shipped_scenario_is_as_legal_as_it_expects(name: str) -> None:
    scenario = load(name)
    expected = [test.tests[0][1] for test in scenario.expect if test.key == "legal"]
    verdict = check_scenario(scenario)
    assert (verdict.verdict == "legal") == (expected[0] if expected else True), verdict.violations


@pytest.mark.parametrize(
    ("old", "new", "line", "choice"),
    [
        ("dp: 1", "dp: 5", "s.yaml:5:7: plan.dp: dp 5 × pp 1 × sp 1 × tp 4 = 20 ranks, but {CLUSTER}",
         "use plan.dp 4"),
        ("tp: 4", "tp: 32", "s.yaml:6:7: plan.tp: dp 1 × pp 1 × sp 1 × tp 32 = 32 ranks, but {CLUSTER}",
         "use plan.tp 16"),
        ("dp: 1", "pp: 8", "s.yaml:5:7: plan.pp: dp 1 × pp 8 × sp 1 × tp 4 = 32 ranks, but {CLUSTER}",
         "use plan.pp 4 or plan.tp 2"),
    ],
)  # fmt: skip
def test_plan_larger_than_the_cluster_is_illegal_to_check_and_to_run(
    old: str, new: str, line: str, choice: str
) -> None:
    edited(old, new)
    checked = invoke("check", "s.yaml")
    assert checked.exit_code == 1
    line = line.format(CLUSTER="dgx-h100 of 2 nodes (topology.nodes) has 16 devices")
    assert f"{line}; {choice} [DP-1]\n" in checked.stdout
    ran = invoke("run", "s.yaml")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert f"{line}; {choice} [DP-1]\n" in ran.stderr


def test_run_of_an_illegal_plan_simulates_nothing(folder: Path) -> None:
    edited("tp: 4", "tp: 6")
    result = invoke("run", "s.yaml")
    assert result.exit_code == 1
    assert "plan.tp: 6 does not divide 64 attention heads" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]


def test_problem_of_a_violation_is_placed_at_what_holds_an_absent_value() -> None:
    edited("tp: 4", "sp: {degree: 2, scheme: ring, partition: zigzag}")
    scenario = load("s.yaml")
    (found,) = [found for found in check_scenario(scenario).violations if found.rule == "SP-3"]
    placed = problem(scenario, found)
    assert (placed.line, placed.column, placed.path) == (6, 7, "plan.sp.decode")


def test_the_pool_that_a_run_takes_is_the_largest_legal_one() -> None:
    found = json.loads(invoke("run", "s.yaml", "--json", "--no-dashboard", "--out", "run").stdout)
    pool = found["kv_blocks"]
    assert invoke("check", "s.yaml", "--set", f"serving.kv_blocks={pool}").exit_code == 0
    larger = invoke("check", "s.yaml", "--set", f"serving.kv_blocks={pool + 1}")
    assert larger.exit_code == 1
    assert f"use at most {pool} blocks" in larger.stdout


def test_a_run_says_which_levels_were_asked() -> None:
    everything = ("run", "s.yaml", "--out", "run")
    for options, levels, words in (
        ((), ["P", "G", "T"], "legal: plan, graph and timeline"),
        (("--no-audit",), ["P", "G"], "plan and graph legal, timeline not audited"),
    ):
        result = invoke(*everything, *options)
        assert f"legality    {words}\n" in result.stdout
        asked = dict.fromkeys(levels, "legal")
        verdict = json.loads(Path("run/verdict.json").read_text())
        assert (verdict["levels"], {rule["level"] for rule in verdict["rules"]}) == (asked, set(levels))
        assert json.loads(Path("run/summary.json").read_text())["legality"] == asked
        assert f">{words}</span>" in Path("run/dashboard.html").read_text(encoding="utf-8")


def test_step_graphs_that_are_illegal_are_not_simulated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    wrong = Violation(rule="TP-2", level="G", where="node 3", message="is partial", fix="sum it")
    graphs = Verdict(violations=(wrong,), rules=(LookedAt(id="TP-2", level="G", looked_at=1),))
    monkeypatch.setattr("clustersim.simulation.legality._check_steps", lambda *_: graphs)
    ran = invoke("run", "s.yaml")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert (
        "illegal: 1 rule broken at 1 place in the step graphs of small\n"
        "node 3: is partial; sum it [TP-2]\n" in ran.stderr
    )
    assert [path.name for path in folder.iterdir()] == ["s.yaml"]
    assert clustersim.check("s.yaml").levels == {"P": "legal", "G": "illegal"}


def test_one_plan_is_expanded_and_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    legality._check_steps.cache_clear()
    monkeypatch.setattr(legality, "check_steps", lambda *given: asked.append(given) or Verdict(violations=(), rules=()))
    try:
        for overrides in ((), ("seed=3", "workload.requests=5"), ("plan.tp=8",)):
            check_scenario(load("s.yaml", overrides))
    finally:
        legality._check_steps.cache_clear()
    assert len(asked) == 2


def rules_json(*arguments: str) -> Any:
    return json.loads(invoke("rules", *arguments, "--json").stdout)


def test_rules_lists_every_rule_of_every_level() -> None:
    listed = rules_json()
    keys = ["id", "level", "levels", "statement", "why", "source", "document", "section", "catches", "examples"]
    assert [list(rule) for rule in listed] == [keys] * len(RULES)
    assert all(list(one) == ["level", "where", "message", "fix"] for rule in listed for one in rule["examples"])
    told = [[one["level"] for one in rule["examples"]] for rule in listed]
    assert told == [[level for level in rule["levels"] if level != "X"] for rule in listed]
    assert all(rule["why"] and rule["document"].endswith(".md") and rule["section"] for rule in listed)
    assert not any("- " in rule["statement"] for rule in listed)  # a word that was cut at the end of a line
    families = ["PH", "KV", "TP", "SP", "PP", "EP", "DP", "RUN"]
    counts = [sum(rule["id"].startswith(f"{family}-") for rule in listed) for family in families]
    assert counts == [5, 7, 9, 9, 6, 8, 4, 5]
    assert all(rule["statement"] and ".md: " in rule["source"] for rule in listed)
    assert {level for rule in listed for level in rule["level"].split()} == {"P", "G", "T", "X"}


def test_rules_shows_one_rule_and_a_family() -> None:
    (found,) = rules_json("kv-4")
    examples = found.pop("examples")
    assert found == next(rule.as_json() for rule in RULES if rule.id == "KV-4")
    assert [rule["id"] for rule in rules_json("DP")] == ["DP-1", "DP-2", "DP-3", "DP-4"]
    shown = invoke("rules", "KV-4").stdout
    assert "checked on  the plan (P), the step graph (G)" in shown
    assert "catches     an orphaned head; an undeclared copy" in shown
    assert all(f"  {one['where']}: {one['message']};\n  {one['fix']}\n" in shown for one in examples)
    assert shown.count("broken on the plan, it reads") == shown.count("broken on the step graph, it reads") == 1


def test_rules_of_an_unknown_id_suggests_one() -> None:
    result = invoke("rules", "KV-9")
    assert result.exit_code == 2
    assert "no rule 'KV-9'; did you mean 'KV-" in result.stderr


@pytest.mark.parametrize("name", ["dp", "pp", "tp", "sp"])
def test_a_degree_beyond_any_cluster_is_refused_without_a_look_at_each_rank(name: str) -> None:
    result = invoke("check", "s.yaml", "--set", f"plan.{name}=9000000000000000")
    assert result.exit_code == 1
    assert f"plan.{name}" in result.stdout
    assert "DP-1" in result.stdout


def test_one_absurd_limit_of_serving_is_mended_by_fix() -> None:
    result = invoke("check", "s.yaml", "--set", "serving.kv_block_tokens=9007199254740991", "--fix", "--out", "t.yaml")
    assert "serving.kv_block_tokens: 9007199254740991 → " in result.stdout
    assert invoke("check", "t.yaml").exit_code == 0


SHARED = ("plan.tp=1", "plan.dp=2", "plan.pp=2", "plan.ep={degree: 2, scope: global}", "model=mixtral-8x7b")


def test_check_says_of_a_legal_scenario_that_run_refuses_it() -> None:
    sets = [text for change in SHARED for text in ("--set", change)]
    told = "legal, but it can't be simulated: plan.ep.scope: experts over the ranks of all replicas can be simulated at"
    result = invoke("check", "s.yaml", *sets)
    assert (result.exit_code, told in result.stdout) == (0, True), result.output
    document = json.loads(invoke("check", "s.yaml", *sets, "--json").stdout)
    assert (document["verdict"], document["simulates"]) == ("legal", False)
    (why,) = document["not_simulated"]
    assert why["path"] == "plan.ep.scope"
    (instead,) = re.findall(r"write instead (\S+): \S+ → (\S+?),? ", why["message"])
    assert invoke("check", "s.yaml", *sets, "--set", "=".join(instead)).exit_code == 0
    assert json.loads(invoke("check", "s.yaml", "--json").stdout)["simulates"] is True
    fixed = invoke("check", "s.yaml", *sets, "--set", "serving.max_batch_tokens=2147483647", "--fix")
    assert "it can't be simulated" not in fixed.stdout  # a fix is checked as a whole, step graphs too
    assert fixed.exit_code == 0
    refused = invoke("run", "s.yaml", *sets, "--out", "r")
    assert refused.exit_code == 2
