"""Messages name the item, the option or the file of the mistake, in words of their reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.compiled import COMPILE_S, READ_S
from clustersim.replay.by_core import waits_for_compiler
from clustersim.scenario import load

SERVE = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("[0,1e20,-1]", "expected the EP rank of expert 1, a whole number from 0, but found 1e+20"),
        ("[0,0,-1]", "expert 2, a whole number from 0, but found -1"),
        ("[0,a]", "expert 1, a whole number from 0, but found "),
        ("packd", "expected contiguous, strided, or a list with the EP rank of each expert"),
    ],
)
def test_a_list_of_expert_ranks_names_the_item(override: str, message: str) -> None:
    result = invoke("check", "mixtral-ep", "--set", f"plan.ep.placement={override}")
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_one_cut_makes_two_stages() -> None:
    result = invoke("check", "quickstart", "--set", "plan={pp: 3, tp: 4, stages: {cuts: [40]}}")
    assert "plan.stages.cuts: 1 cut makes 2 stages, but plan.pp is 3" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--port abc", "command:1:52: abc: --port: expected a number, but found 'abc'"),
        ("--seed=foo", "--seed: expected a number, but found 'foo'"),
        ("--seed x", "--seed: expected a number, but found 'x'"),
        ("--port 8000 --seed -1 --cpu-offload-gb 0", ""),
        ("--port $PORT", ""),
    ],
)
def test_values_of_options_that_are_left_out_are_checked_all_the_same(options: str, message: str) -> None:
    result = invoke("from-vllm", f"{SERVE} {options}")
    assert (result.exit_code, message in result.stderr) == (2 if message else 0, True), result.output


@pytest.mark.parametrize("burstiness", ["1e-300", "1e300"])
def test_a_value_that_the_scenario_refuses_is_placed_at_its_option(here: Path, burstiness: str) -> None:
    bench = f"vllm bench serve --request-rate 8 --burstiness {burstiness}"
    result = invoke("from-vllm", SERVE, "--bench", bench, "--out", "v.yaml")
    assert (result.exit_code, (here / "v.yaml").exists()) == (2, False)
    assert result.stderr.startswith(f"--bench:1:{bench.index(burstiness) + 1}: {burstiness}: --burstiness becomes ")
    assert "the scenario" not in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": ' + "9" * 5000 + "}", "m.json:1:17: hidden_size: expected a number of usual size"),
        ('{"hidden_size": 1e99999}', "m.json:1:17: hidden_size: expected a number of usual size"),
        ('{"hidden_size": 8,\n "hidden_size": 9}', "m.json:2:2: hidden_size: the key is there twice"),
        ('{"a":' * 30_000, "m.json: nested too deeply"),
    ],
)
def test_absurd_json_is_told_in_words_that_are_not_pythons(here: Path, text: str, message: str) -> None:
    (here / "m.json").write_text(text, encoding="utf-8")
    result = invoke("models", "m.json")
    assert (result.exit_code, result.stderr.startswith(message)) == (2, True), result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"timestamp": 0, "timestamp": 5', "m.jsonl:1: cannot be read as JSON: the key 'timestamp' is there twice"),
        ('"timestamp": ' + "9" * 5000, "m.jsonl:1: cannot be read as JSON: a number has thousands of digits"),
        ('"timestamp": ' + "[" * 100_000, "m.jsonl:1: cannot be read as JSON: nested too deeply"),
    ],
)
def test_a_line_of_a_trace_says_each_thing_once(here: Path, line: str, message: str) -> None:
    text = f'{{{line}, "input_length": 10, "output_length": 5, "hash_ids": []}}\n'
    (here / "m.jsonl").write_text(text, encoding="utf-8")
    trace = "workload={trace: {path: m.jsonl, format: mooncake}}"
    result = invoke("run", "quickstart", "--set", trace, "--set", "expect={}")
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_a_word_of_a_table_leads_to_the_nearest(here: Path) -> None:
    (here / "f.csv").write_text("request,time_ns,kind\n0,0,arive\n", encoding="utf-8")
    assert "kind: found 'arive' (did you mean 'arrived'?); expected one of" in invoke("audit", "f.csv").stderr


def test_a_file_that_is_no_table_is_not_quoted(here: Path) -> None:
    (here / "secret").write_text("root:x\na,b,c\n", encoding="utf-8")
    result = invoke("audit", "secret")
    assert (result.exit_code, "is no table" in result.stderr, "a,b" in result.stderr) == (2, True, False)


def test_a_fix_cites_a_rule_that_speaks_of_what_it_declares() -> None:
    result = invoke("rules", "SP-1")
    assert "the scheme by which its ranks then expose K/V" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check quickstart --set plan.tp=", "--set #1: plan.tp: expected a degree such as 2, or a mapping such as"),
        ("graph quickstart --step prefil", "; did you mean 'prefill'?"),
        ("run quickstart --replay ful", "; did you mean 'full'?"),
        ("audit r --again fulded", "; did you mean 'folded'?"),
        ("topology dgx-h100 --set nodez=3", "--set #1: nodez: unknown key 'nodez'; did you mean 'nodes'?"),
        ("models .", "config.json: no such file"),
        ("run g.json", "g.json: is a step graph, for clustersim check; expected a scenario"),
        ("graph g.json", "g.json: is a step graph, for clustersim check; expected a scenario"),
        ("graph g.dot", "g.dot: is a step graph, for clustersim check; expected a scenario"),
        ("check bad.json", "bad.json:1:7: no JSON: expected a value, but found a word without quotes"),
        ("check cut.json", "cut.json:2:1: no JSON: expected a key in double quotes, but found the end of the text"),
    ],
)
def test_a_slip_of_the_pen_is_told_in_words_that_lead_on(here: Path, words: str, message: str) -> None:
    (here / "g.json").write_text('{"nodes": [], "edges": []}', encoding="utf-8")
    (here / "g.dot").write_text("digraph { }", encoding="utf-8")
    (here / "bad.json").write_text('{"a": hello}', encoding="utf-8")
    (here / "cut.json").write_text('{"a": 1,\n', encoding="utf-8")
    result = invoke(*words.split())
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_folder_whose_name_is_not_utf_8_is_refused_before_the_work(here: Path) -> None:
    del here
    result = invoke("run", "quickstart", "--set", "workload.trace.requests=2", "--set", "expect={}", "--out", "\udce9x")
    assert (result.exit_code, "its name is not UTF-8" in result.stderr) == (2, True), result.output


def test_a_compiler_that_takes_long_is_told_of_beforehand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    workload = "{arrivals: all_at_once, prompt_tokens: 8, output_tokens: 2, requests: 1}"
    requests = load("tp-on-one-node", (f"workload={workload}", "expect={}")).requests()
    for kept_s, work_s, waits in ((READ_S, 1e9, False), (COMPILE_S, 1e9, True), (COMPILE_S, 1.0, False)):
        monkeypatch.setattr("clustersim.replay.by_core.compiler_s", lambda _, kept_s=kept_s, **__: kept_s)
        monkeypatch.setattr("clustersim.replay.by_core.expected_s", lambda _, work_s=work_s, **_named: work_s)
        assert waits_for_compiler(requests, staged=False) is waits
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("clustersim.cli.commands.run.waits_for_compiler", lambda *_, **_named: True)
    result = invoke("run", "tp-on-one-node", "--set", f"workload={workload}", "--set", "expect={}", "--out", "out")
    assert "the simulator may be compiled first, once on a machine" in result.stderr
