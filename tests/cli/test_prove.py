"""``clustersim prove``: what it prints, the contract of ``--json``, exit statuses, the recorded order."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.catalog import names
from clustersim.cli import main
from clustersim.proof import execution
from clustersim.proof.order import orders_from_spans, program_order
from clustersim.proof.proof import RULES, graphs_of
from clustersim.proof.shrink import shrunk
from clustersim.proof.wiring import wired
from clustersim.scenario.load import load
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.proof import prove_scenario, recorded, small_run
from tests.effort import some

SCENARIO = """\
name: small
topology: dgx-h100
model: mixtral-8x7b
plan:
  tp: 2
  pp: 2
  sp: {degree: 2, scheme: ring, partition: zigzag, decode: dp}
  ep: 2
serving:
  engine: ideal
workload:
  arrivals: {process: constant, rate: 4/s}
  prompt_tokens: 100
  output_tokens: 2
  requests: 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_prove_says_what_was_executed_and_what_each_rule_looked_at() -> None:
    result = invoke("prove", "s.yaml", "--orders", "1")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "legal: executed, the step graphs of small compute what the unsharded model does"
    assert lines[2] == "plan    tp 2, sp 2, pp 2, ep 2: 8 ranks"
    assert "program order, random order 0, recorded order" in result.stdout
    assert "20 greedy ones, all equal" in result.stdout
    assert "not checkable" not in result.stdout


def test_prove_json_is_the_contract() -> None:
    result = invoke("prove", "s.yaml", "--json", "--orders", "0")
    assert result.exit_code == 0
    verdict = json.loads(result.stdout)
    assert list(verdict) == ["verdict", "levels", "violations", "rules"]
    assert (verdict["verdict"], verdict["violations"]) == ("legal", [])
    assert [(rule["id"], rule["level"]) for rule in verdict["rules"]] == [(rule, "X") for rule in RULES]
    assert all(rule["looked_at"] > 0 for rule in verdict["rules"])


def test_rules_that_looked_at_nothing_say_so() -> None:
    result = invoke("prove", "quickstart", "--json", "--orders", "0", "--set", "plan={}", "--set", "model=llama-3.1-8b")
    looked = {rule["id"]: rule["looked_at"] for rule in json.loads(result.stdout)["rules"]}
    assert [rule for rule, count in looked.items() if count] == ["PH-5", "KV-2"]


def test_illegal_plan_is_told_as_check_tells_it_and_not_executed() -> None:
    result = invoke("prove", "s.yaml", "--set", "plan.tp=3", "--json")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["violations"] == check_scenario(load("s.yaml", ("plan.tp=3",))).as_json()["violations"]
    assert {rule["looked_at"] for rule in verdict["rules"] if rule["level"] == "X"} == {0}
    words = invoke("prove", "s.yaml", "--set", "plan.tp=3")
    assert words.exit_code == 1
    assert "--set #1: plan.tp: 3 does not divide 32 attention heads" in words.stdout


def test_wrong_number_is_named_with_its_place_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = execution.TOGETHER["all_reduce"]

    def first_alone(ats, arrived):
        return plain(ats, [arrived[0], *([] for _ in arrived[1:])]) if ats[0].layer == 1 else plain(ats, arrived)

    monkeypatch.setitem(execution.TOGETHER, "all_reduce", first_alone)
    result = invoke("prove", "s.yaml")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("illegal: executed, the step graphs of small do not compute")
    assert lines[1].startswith("step 0, rank 4, layer 1, attention o_proj_all_reduce: the value is missing")
    assert lines[1].endswith("[TP-2]")
    (violation,) = json.loads(invoke("prove", "s.yaml", "--json").stdout)["violations"]
    assert (violation["rule"], violation["level"]) == ("TP-2", "X")


def test_scenario_that_cannot_be_read_exits_with_2() -> None:
    assert invoke("prove", "nowhere.yaml").exit_code == 2
    assert invoke("prove", "s.yaml", "--set", "plan.tq=3").exit_code == 2


def test_experts_over_all_replicas_are_proven_together() -> None:
    plan = "plan={dp: 2, tp: 2, ep: {degree: 4, scope: global, redundant: 4}}"
    result = invoke("prove", "mixtral-ep", "--set", plan, "--orders", "1")
    assert result.exit_code == 0, result.output
    assert "tp 2, dp 2 in lockstep, pp 1, ep 4: 4 ranks" in result.stdout
    assert "program order, random order 0; " in result.stdout
    assert "no recorded order: no small run is made of replicas that share experts" in " ".join(result.stdout.split())


def test_experts_over_replicas_with_stages_are_refused_where_they_are_written() -> None:
    plan = "plan={dp: 2, pp: 2, tp: 2, ep: {degree: 4, scope: global}}"
    result = invoke("prove", "mixtral-ep", "--set", plan)
    assert result.exit_code == 2
    assert "plan.ep.scope" in result.stderr


POOLS = ("distserve-tp2-tp1", "distserve-tp2-pp2", "splitwise-h100-a100")
LOCKSTEP = ("deepseek-v3-wide-ep", "deepseek-v3-redundant-experts", "deepseek-v3-two-batch")
UNPROVEN = ("illegal-five-ways", *LOCKSTEP, "deepseek-v3-pools", *POOLS)
"""Illegal; 16 or 32 replicas in lockstep (smaller ones above); two pools (below)."""


@pytest.mark.parametrize("name", POOLS)
def test_two_pools_prove_together(name: str) -> None:
    found = prove_scenario(load(name, ()), orders=1)
    assert found.verdict.verdict == "legal"
    assert found.proof is not None
    assert found.proof.orders == ("program order", "random order 0", "recorded order")
    assert (found.proof.tokens_equal, found.proof.max_relative_error < 1e-9) == (True, True)


def test_two_pools_that_share_experts_prove_together() -> None:
    shared = "{dp: 2, ep: {degree: 2, scope: global}}"
    plan = f"plan={{prefill: {shared}, decode: {shared}}}"
    result = invoke("prove", "splitwise-h100-a100", "--set", "model=mixtral-8x7b", "--set", plan)
    assert "prefill  tp 1, dp 2 in lockstep, pp 1, ep 2: 2 ranks" in result.stdout.splitlines()
    assert result.stdout.startswith("legal: executed")


@pytest.mark.parametrize("pool", [0, 1])
def test_order_of_a_pool_that_ran_a_read_too_early_does_not_prove(pool: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prove_scenario.__globals__["recorded"]

    def early(*given, replica):
        script, starts = plain(*given, replica=replica)
        if replica == pool:
            starts = [{at: (0, 1) if "attention_" in at[2] else span for at, span in step.items()} for step in starts]
        return script, starts

    monkeypatch.setitem(prove_scenario.__globals__, "recorded", early)
    found = prove_scenario(load(POOLS[1], ()), orders=0)
    (violation,) = found.verdict.violations
    orders = ("recorded order", "program order")  # what decodes too early finds less than was moved, in any order
    assert violation.message.endswith(f"({('prefill', 'decode')[pool]}, {orders[pool]})")


def test_prove_shows_both_plans() -> None:
    lines = invoke("prove", "distserve-tp2-pp2").stdout.splitlines()
    assert lines[0] == "legal: executed, the step graphs of distserve-tp2-pp2 compute what the unsharded model does"
    assert "prefill  tp 2, sp 1, pp 1, ep 1: 2 ranks" in lines
    assert "decode   tp 1, sp 1, pp 2, ep 1: 2 ranks" in lines


@pytest.mark.parametrize("name", some([name for name in names("scenarios") if name not in UNPROVEN]))
def test_every_legal_scenario_that_ships_proves(name: str) -> None:
    found = prove_scenario(load(name, ()), orders=0)
    assert found.verdict.as_json()["violations"] == []
    assert found.verdict.verdict == "legal"
    assert found.proof is not None
    assert found.proof.orders == ("program order", "recorded order")


@pytest.mark.parametrize("replay", ["full", "folded"])
def test_recorded_order_is_that_of_the_timeline_and_mixes_steps_in_flight(replay: str) -> None:
    scenario = load("s.yaml", (f"run.replay={replay}",))
    model, plan = shrunk(scenario.model, scenario.plan)
    script, starts = recorded(small_run(scenario, model, plan), plan, model.vocab, 0)
    graphs = {kind: wired(graph) for kind, graph in graphs_of(model, plan, script).items()}
    order = orders_from_spans(script, graphs, starts)
    assert sorted(order) == sorted(program_order(script, graphs))
    steps = [step for step, _ in order]
    assert any(later < earlier for earlier, later in pairwise(steps))  # two micro-batches in flight
    assert sum(part.count for parts in script.steps for part in parts) == 37 + 9 + 23 + 14 + 4 * 4


def test_order_of_a_timeline_that_ran_a_read_too_early_does_not_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load("s.yaml", ())
    plain = prove_scenario.__globals__["recorded"]

    def early(*given):
        script, starts = plain(*given)
        late = {place: time for place, time in starts[1].items() if place[1:3] == (0, "attention_prefill_0")}
        starts[1] |= {place: (start - 10**6, end) for place, (start, end) in late.items()}
        return script, starts

    monkeypatch.setattr("clustersim.simulation.proof.recorded", early)
    found = prove_scenario(scenario, orders=0)
    (violation,) = found.verdict.violations
    assert violation.message.endswith("(recorded order)")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "g.json",
            '{"format": 1, "nodes": [], "edges": []}',
            "is a step graph, for clustersim check; expected a scenario",
        ),
        (
            "spans.csv",
            "start_ns,end_ns,rank\n",
            "is a table of what happened, for clustersim audit; expected a scenario",
        ),
        ("broken.json", "{", "not valid JSON"),
    ],
)
def test_prove_says_what_it_takes(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    result = CliRunner().invoke(main, ["prove", str(tmp_path / name)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
