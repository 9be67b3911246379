"""``clustersim check --fix`` and the stable JSON of ``check``: files, exit statuses, what is never overwritten."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.legality.check import PLAN_CHECKS
from clustersim.legality.rule import LookedAt, Verdict, Violation, together
from clustersim.scenario.load import load
from clustersim.simulation.legality import check_scenario
from tests.architecture.documents import ROOT

SCENARIO = """\
# a study of ours
topology: dgx-h100
model: llama-3.1-70b       # 64 heads
plan:
  tp: 6                    # too clever
workload:
  trace: {path: data/own.csv, format: csv}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0.0,10,2\n"
TYPES = {"text": str, "number": (int, float), "list": list, "true or false": bool, "object": dict,
         "text or null": (str, type(None)), "number or null": (int, type(None))}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "s.yaml").write_text(SCENARIO)
    (tmp_path / "study" / "data").mkdir()
    (tmp_path / "study" / "data" / "own.csv").write_text(TRACE)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_the_fixed_scenario_lies_beside_the_first_one_and_keeps_its_text() -> None:
    result = invoke("check", "study/s.yaml", "--fix")
    assert result.exit_code == 0, result.output
    assert Path("study/s.legal.yaml").read_text() == SCENARIO.replace("tp: 6 ", "tp: 4 ")
    assert Path("study/s.yaml").read_text() == SCENARIO
    assert check_scenario(load("study/s.legal.yaml")).verdict == "legal"
    lines = result.stdout.splitlines()
    assert lines[0] == "illegal: 1 rule broken at 1 place in the plan of s"
    at = lines.index("fixed: 1 change, written to study/s.legal.yaml")
    assert lines[at + 1] == "  plan.tp: 6 → 4"
    assert lines[at + 2].startswith("    TP-1: Only decomposable dimensions are split, and they divide")
    assert lines[at + 3] == "    without it: 6 does not divide 64 attention heads (llama-3.1-70b)"
    assert lines[at + 4] == "also legal, at distance 1.915 rather than 1.731: plan.tp: 6 → 8"


def test_nothing_that_is_there_is_overwritten_unless_out_names_it() -> None:
    Path("study/s.legal.yaml").write_text("precious\n")
    result = invoke("check", "study/s.yaml", "--fix")
    assert result.exit_code == 2
    assert "study/s.legal.yaml: is there already and is not overwritten" in result.stderr
    assert Path("study/s.legal.yaml").read_text() == "precious\n"
    result = invoke("check", "study/s.yaml", "--fix", "--out", "study/s.yaml")
    assert result.exit_code == 0
    assert "   |   tp: 6                    # too clever\n" in result.stdout  # as it was when it was checked
    assert "tp: 4 " in Path("study/s.yaml").read_text()
    assert sorted(path.name for path in Path("study").iterdir()) == ["data", "s.legal.yaml", "s.yaml"]


def test_check_advises_what_fix_writes() -> None:
    arguments = ("study/s.yaml", "--set", "plan.pp=81", "--set", "plan.dp=9")
    advice = invoke("check", *arguments).stdout.splitlines()[-1]
    assert advice.startswith("Together: plan.")
    fixed = json.loads(invoke("check", *arguments, "--fix", "--json").stdout)["fix"]["changes"]
    told = re.findall(r"([a-z.]+): \S+ → (\S+?)(?:,| \()", advice)
    assert told == [(change["path"].removesuffix(".degree"), str(change["new"])) for change in fixed]
    assert advice.endswith(" (clustersim check study/s.yaml --set plan.pp=81 --set plan.dp=9 --fix writes it)")


def test_check_says_why_nothing_mends_all_places() -> None:
    arguments = ("study/s.yaml", "--set", "topology={name: rtx-4090-node, nodes: 1}", "--set", "model=deepseek-v3")
    assert "Together: no change of plan or limits makes it legal: " in invoke("check", *arguments).stdout


def test_a_legal_scenario_is_left_as_it_is() -> None:
    result = invoke("check", "study/s.yaml", "--set", "plan.tp=8", "--fix")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "nothing was written: it is legal as it is"
    assert not Path("study/s.legal.yaml").exists()


def test_what_has_no_legal_neighbour_is_rejected_with_the_reason() -> None:
    arguments = ("check", "study/s.yaml", "--set", "topology={name: rtx-4090-node, nodes: 1}", "--set",
                 "model=deepseek-v3", "--fix")  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("no fix: no change of plan or limits makes it legal: a rank of ")
    assert not Path("study/s.legal.yaml").exists()
    found = json.loads(invoke(*arguments, "--json").stdout)["fix"]
    assert (found["legal"], found["file"], found["changes"]) == (False, None, [])
    assert "[KV-6]" in found["reason"]


def test_overrides_are_part_of_what_is_written() -> None:
    assert invoke("check", "study/s.yaml", "--set", "plan.tp=5", "--set", "seed=9", "--fix").exit_code == 0
    text = Path("study/s.legal.yaml").read_text()
    assert "  tp: 4                    # too clever\n" in text
    assert "seed: 9\n" in text


def test_references_to_files_hold_in_another_folder() -> None:
    Path("elsewhere").mkdir()
    assert invoke("check", "study/s.yaml", "--fix", "--out", "elsewhere/new.yaml").exit_code == 0
    assert "path: ../study/data/own.csv" in Path("elsewhere/new.yaml").read_text()
    assert len(load("elsewhere/new.yaml").requests()) == 1


SCHEDULER = "class Idle:\n    def decide(self, view): ...\n"
ROUTER = "class First:\n    def route(self, *views): return 0\n"
MIXTURE = {
    "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "hidden_size": 4096,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "intermediate_size": 14336,
    "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "serving", "relocated"),
    [
        ({"ep": {"degree": 3, "routing": {"file": "f.csv"}}}, {}, "file: ../study/f.csv"),
        ({}, {"scheduler": "own.py:Idle"}, "scheduler: ../study/own.py:Idle"),
        ({}, {"router": "own.py:First"}, "router: ../study/own.py:First"),
    ],
)
def test_files_of_experts_schedulers_and_routers_are_found_from_another_folder(
    plan: dict[str, Any], serving: dict[str, Any], relocated: str
) -> None:
    Path("elsewhere").mkdir()
    Path("study/f.csv").write_text("1,2,3,4,5,6,7,8\n")
    Path("study/own.py").write_text(SCHEDULER + ROUTER)
    scenario = {
        "topology": "dgx-h100",
        "model": {"name": "few", "source": "a test", "config": MIXTURE},
        "plan": {"tp": 3} | plan,
        "serving": {"kv_blocks": 64} | serving,
        "workload": {"arrivals": "all_at_once", "prompt_tokens": 8, "output_tokens": 2, "requests": 2},
    }
    Path("study/own.yaml").write_text(yaml.safe_dump(scenario))
    result = invoke("check", "study/own.yaml", "--fix", "--out", "elsewhere/new.yaml")
    assert result.exit_code == 0, result.output
    assert relocated in Path("elsewhere/new.yaml").read_text().replace('"', "").replace("'", "")
    assert check_scenario(load("elsewhere/new.yaml")).verdict == "legal"


def test_a_scenario_that_ships_is_fixed_into_the_working_directory() -> None:
    result = invoke("check", "illegal-five-ways", "--fix")
    assert result.exit_code == 0, result.output
    shipped = (ROOT / "scenarios" / "illegal-five-ways.yaml").read_text(encoding="utf-8").splitlines()
    written = Path("illegal-five-ways.legal.yaml").read_text(encoding="utf-8").splitlines()
    assert len(shipped) == len(written)
    assert sum(one != other for one, other in zip(shipped, written, strict=True)) == 5
    assert "Its expect still says legal: false" in result.stdout
    told = json.loads(invoke("check", "illegal-five-ways", "--json").stdout)["fix"]["expect"]
    assert told.startswith("Its expect still says legal: false")
    assert not (ROOT / "scenarios" / "illegal-five-ways.legal.yaml").exists()
    assert invoke("check", "quickstart", "--set", "plan.tp=3", "--fix").exit_code == 0
    assert "scenarios/traces/azure-conv-sample.csv" in Path("quickstart.legal.yaml").read_text()
    assert load("quickstart.legal.yaml").requests().prompt_tokens.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("study/s.yaml", "--out", "x.yaml"), "add --fix"),
        (("study/missing.yaml", "--fix"), "study/missing.yaml: no such file"),
        (("study/s.yaml", "--fix", "--out", "x.json"), "x.json: expected a name that ends in .yaml or .yml"),
        (("study/s.yaml", "--fix", "--out", "x"), "x: expected a name that ends in .yaml or .yml"),
    ],
)
def test_unusable_input_exits_with_2_and_leaves_nothing(arguments: tuple[str, ...], words: str) -> None:
    before = sorted(Path().rglob("*"))
    result = invoke("check", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert sorted(Path().rglob("*")) == before


def test_step_graphs_that_are_wrong_though_the_plan_is_legal_have_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Violation(rule="TP-2", level="G", where="node 3", message="is partial", fix="sum it")
    graphs = Verdict(violations=(wrong,), rules=(LookedAt(id="TP-2", level="G", looked_at=1),))
    monkeypatch.setattr(
        "clustersim.cli.commands.check.check_scenario", lambda made: together([check_scenario(made), graphs])
    )
    result = invoke("check", "study/s.yaml", "--set", "plan.tp=8", "--fix")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("no fix: the plan is legal")
    assert not Path("study/s.legal.yaml").exists()


def test_json_says_what_was_changed_and_why() -> None:
    found = json.loads(invoke("check", "study/s.yaml", "--fix", "--json").stdout)
    assert found["verdict"] == "illegal"
    assert found["fix"] == {
        "legal": True,
        "file": "study/s.legal.yaml",
        "changes": [
            {
                "path": "plan.tp.degree",
                "old": 6,
                "new": 4,
                "rule": "TP-1",
                "message": "6 does not divide 64 attention heads (llama-3.1-70b)",
                "statement": found["fix"]["changes"][0]["statement"],
            }
        ],
        "reason": None,
        "alternatives": found["fix"]["alternatives"],
        "examined": found["fix"]["examined"],
        "tried": found["fix"]["tried"],
        "proven": len(found["fix"]["alternatives"]),
        "expect": None,
    }
    best, second, *_ = found["fix"]["alternatives"]
    assert best == {
        "changes": [{"path": "plan.tp.degree", "old": 6, "new": 4, "rule": "TP-1"}],
        "distance": 1.731,  # a degree 1, log2(6/4) octaves, and a quarter of these for devices left idle
        "why": "changes plan.tp; uses 4 of 16 devices",
        "legal": True,
        "simulates": True,
    }
    assert [(one["path"], one["new"]) for one in second["changes"]] == [("plan.tp.degree", 8)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("study/s.yaml",),
        ("study/s.yaml", "--fix"),
        ("illegal-five-ways", "--fix"),
        ("quickstart",),
        ("quickstart", "--fix"),
        ("study/s.yaml", "--set", "model=deepseek-v3", "--set", "topology={name: l40s-node, nodes: 1}", "--fix"),
    ],
    ids=" ".join,
)
def test_json_has_the_keys_and_types_that_are_promised(arguments: tuple[str, ...]) -> None:
    found = json.loads(invoke("check", *arguments, "--json").stdout)
    assert shape(found, "") == {path: kind for path, kind in PROMISED.items() if present(path, found)}
    assert [rule["id"] for rule in found["rules"] if rule["level"] == "P"] == list(PLAN_CHECKS)
    assert ("fix" in found) == ("--fix" in arguments or found["verdict"] == "illegal")
    assert (found["verdict"] == "illegal") == bool(found["violations"])


PROMISED = {
    "verdict": "text", "levels": "object", "violations": "list", "rules": "list",
    "violations[].rule": "text", "violations[].level": "text", "violations[].where": "text",
    "violations[].message": "text", "violations[].fix": "text", "violations[].file": "text or null",
    "violations[].line": "number or null", "violations[].column": "number or null",
    "violations[].node": "any",
    "rules[].id": "text", "rules[].level": "text", "rules[].looked_at": "number",
    "fix.legal": "true or false", "fix.file": "text or null", "fix.changes": "list", "fix.reason": "text or null",
    "fix.examined": "number", "fix.tried": "number", "fix.proven": "number",
    "fix.expect": "text or null",
    "fix.alternatives": "list", "fix.alternatives[].changes": "list", "fix.alternatives[].distance": "number",
    "fix.alternatives[].why": "text", "fix.alternatives[].legal": "true or false",
    "fix.alternatives[].simulates": "true or false", "fix.alternatives[].changes[].path": "text",
    "fix.alternatives[].changes[].old": "any", "fix.alternatives[].changes[].new": "any",
    "fix.alternatives[].changes[].rule": "text",
    "fix.changes[].path": "text", "fix.changes[].old": "any", "fix.changes[].new": "any",
    "simulates": "true or false", "not_simulated": "list",
    "not_simulated[].path": "text", "not_simulated[].message": "text", "not_simulated[].file": "text or null",
    "not_simulated[].line": "number or null", "not_simulated[].column": "number or null",
    "left_out": "list",
    "memory": "list", "memory[].pool": "text or null", "memory[].stage": "number", "memory[].weights": "list",
    "memory[].weights[].module": "text", "memory[].weights[].format": "text",
    "memory[].weights[].parameters": "number", "memory[].weights[].bytes": "number",
    "memory[].weights_bytes": "number", "memory[].buffers_bytes": "number", "memory[].outside_bytes": "number",
    "memory[].kv_bytes": "number", "memory[].kv_blocks": "number", "memory[].kv_block_tokens": "number",
    "memory[].device_bytes": "number", "memory[].memory_utilization": "number",
    "fix.changes[].rule": "text", "fix.changes[].message": "text", "fix.changes[].statement": "text",
}  # fmt: skip
"""Key of ``check --json`` → its type. Other programs rely on these: keys may be added, none is renamed or removed."""


def present(path: str, found: dict[str, Any]) -> bool:
    """Whether the list or mapping that holds a key has anything in it."""
    holder: Any = found
    for part in path.split(".")[:-1]:
        name = part.removesuffix("[]")
        if name not in holder:
            return False
        holder = holder[name]
        if part.endswith("[]"):
            if not holder:
                return False
            holder = holder[0]
    return True


def shape(value: Any, path: str) -> dict[str, str]:
    """Return the type of every key, by its path; items of one list must be alike."""
    if isinstance(value, dict) and not re.search(r"(\.old|\.new|^levels)$", path):
        inner = {}
        for key, item in value.items():
            inner |= shape(item, f"{path}.{key}" if path else key)
        return inner
    known = PROMISED.get(path, "unknown")
    if known != "any":
        assert isinstance(value, TYPES[known]), (path, value)
    found = {path: known}
    if known == "list":
        items = [shape(item, f"{path}[]") for item in value]
        assert all(item == items[0] for item in items)
        found |= items[0] if items else {}
    return found


def test_the_promised_keys_are_those_that_the_reference_lists() -> None:
    text = (ROOT / "docs/reference/check.md").read_text(encoding="utf-8")
    listed = dict(
        re.findall(
            r"^\| `((?:verdict|levels|memory|violations|rules|fix|simulates|not_simulated|left_out)[^`]*)` \|"
            r" ([a-z ]+?) \|",
            text,
            re.MULTILINE,
        )
    )
    assert listed == PROMISED


@pytest.mark.parametrize(
    ("change", "fixed"),
    [
        ("plan.prefill.tp=3", {"plan.prefill.tp.degree": 2}),
        ("plan.decode={dp: 20}", {"plan.decode.dp": 6}),
        ("plan={prefill: {tp: 8}, decode: {tp: 8}}", {"plan.prefill.tp.degree": 4, "plan.decode.tp.degree": 4}),
        ("model=llama-3.1-70b", {"plan.decode.tp.degree": 2}),
    ],
)
def test_each_of_two_pools_is_fixed_on_the_devices_that_the_other_one_leaves(
    change: str, fixed: dict[str, int]
) -> None:
    result = invoke("check", "distserve-tp2-tp1", "--set", change, "--fix", "--json", "--out", "legal.yaml")
    assert result.exit_code == 0, result.output
    found = {one["path"]: one["new"] for one in json.loads(result.stdout)["fix"]["changes"]}
    assert found == fixed
    assert check_scenario(load("legal.yaml")).verdict == "legal"


def test_pools_that_share_a_device_are_placed_anew() -> None:
    shared = "plan={prefill: {tp: 2, placement: [0, 1]}, decode: {placement: [1]}}"
    result = invoke("check", "distserve-tp2-tp1", "--set", shared, "--json")
    assert result.exit_code == 1
    fix = json.loads(result.stdout)["fix"]
    assert fix["file"] is None
    assert [(one["path"], one["new"]) for one in fix["changes"]] == [("plan.prefill.placement", "packed")]


def test_pools_that_no_change_makes_legal_are_rejected_with_what_is_wrong() -> None:
    large = ("--set", "topology={name: rtx-4090-node, nodes: 1}", "--set", "model=deepseek-v3")
    result = invoke("check", "distserve-tp2-tp1", *large, "--fix")
    assert result.exit_code == 1
    assert "no fix: no change of the plans or limits of the pools makes both legal: a rank of stage 0" in result.stdout


def test_advice_for_a_pool_says_nothing_of_a_placement_that_nobody_asked_for() -> None:
    result = invoke("check", "distserve-tp2-tp1", "--set", "model=llama-3.1-70b")
    assert "use plan.decode.tp 2, plan.decode.pp 2 or fp8 weights [KV-6]" in result.stdout
    assert "packed" not in result.stdout
