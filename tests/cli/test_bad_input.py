"""Input that cannot be used: exit status 2, the place, what was found and what would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main

SCENARIO = """\
name: small
topology: dgx-h100
model: llama-3.1-8b
plan: {tp: 4}
serving:
  engine:
    name: still
    source: made up for tests
    schedule: 0 s
    schedule_per_request: 0 s
    sample: 0 s
    sample_per_request: 0 s
    launch: 2 us
    graph_launch: 1 us
    graph_max_tokens: 256
    collective_launch: 0 s
workload: {trace: t.csv}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.5,20,6\n"
DEVICE = """\
name: dev
vendor: V
source: made up
memory: {capacity: 80 GB, bandwidth: 1 TB/s}
compute: {bf16: 100 TFLOP/s}
"""
GRAPH = """\
name: pair
device: ./dev.yaml
source: made up
fabric:
  kind: graph
  vertices:
    - {name: a, kind: device}
    - {name: b, kind: device}
    - {name: sw, kind: switch}
  links:
    - {between: [a, sw], capacity: 50 GB/s, latency: 1 us}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("s.yaml", SCENARIO), ("t.csv", TRACE), ("dev.yaml", DEVICE), ("pair.yaml", GRAPH)):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", *arguments, "--out", "runs"])


def refusal(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    assert result.stdout == ""
    assert not Path("runs").exists(), "a run directory was made for input that cannot be used"
    return result.stderr


@pytest.mark.parametrize(
    ("found", "written", "message"),
    [
        ("plan: {tp: 4}", "plan: {tpp: 4}", "s.yaml:4:8: plan.tpp: unknown key 'tpp'; did you mean 'tp'?"),
        ("plan: {tp: 4}", "plan: {tp: four}", "s.yaml:4:12: plan.tp: expected a whole number such as 8"),
        ("plan: {tp: 4}", "plan: {tp: 4", "s.yaml:5:8: not valid YAML: expected ',' or '}'"),
        ("plan: {tp: 4}", "plan: {tp: 4, tp: 2}", "s.yaml:4:15: key 'tp' is here twice (first at 4:8)"),
        (
            "plan: {tp: 4}",
            "run: {horizon: 3 parsecs}",
            "s.yaml:4:16: run.horizon: '3 parsecs' has the unknown unit",
        ),
        ("plan: {tp: 4}", "run: {horizon: 3}", "s.yaml:4:16: run.horizon: expected a time with its unit"),
        ("dgx-h100", "dgx-h10", "s.yaml:2:11: topology: no topology 'dgx-h10'; did you mean 'dgx-h100'?"),
        (
            "llama-3.1-8b",
            "lama-3.1-8b",
            "s.yaml:3:8: model: no model 'lama-3.1-8b'; did you mean 'llama-3.1-8b'?",
        ),
        (
            "trace: t.csv",
            "trace: u.csv",
            "s.yaml:17:19: workload.trace: no trace file 'u.csv'; did you mean 't.csv'?",
        ),
        ("    launch: 2 us\n", "", "s.yaml:7:5: serving.engine.launch: is missing"),
        ("name: still", "name: 7", "s.yaml:7:11: serving.engine.name: expected a name such as my-engine"),
        ("model: llama-3.1-8b", "model: {}", "s.yaml:3:8: model.model_type: is missing"),
        *(
            (
                "model: llama-3.1-8b\nplan: {tp: 4}",
                "model: deepseek-v2-lite\n"
                f"plan: {{tp: 2, sp: {{degree: 2, scheme: {scheme}, partition: zigzag, decode: idle}}}}",
                f"s.yaml:4:39: plan.sp.scheme: {scheme} is not supported with latent attention (MLA, "
                "deepseek-v2-lite): only the latent of all tokens is exposed; use all_gather\n",
            )
            for scheme in ("ring", "all_to_all")
        ),
    ],
)
def test_a_bad_scenario(folder: Path, found: str, written: str, message: str) -> None:
    assert found in SCENARIO
    (folder / "s.yaml").write_text(SCENARIO.replace(found, written))
    assert message in refusal("s.yaml")


def test_a_file_name_that_cannot_name_a_run_directory(folder: Path) -> None:
    (folder / "für uns.yaml").write_text(SCENARIO.replace("name: small\n", ""))
    assert "but found the text 'für uns', that of the file; add a name, such as 'name: my-scenario'" in refusal(
        "für uns.yaml"
    )


def test_a_problem_is_shown_with_its_line_and_a_caret(folder: Path) -> None:
    (folder / "s.yaml").write_text(SCENARIO.replace("tp: 4", "tp: 0"))
    assert refusal("s.yaml").splitlines() == [
        "s.yaml:4:12: plan.tp: must be at least 1, but is 0",
        "   | plan: {tp: 0}",
        "   |            ^",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.yaml: is empty; expected a mapping of keys"),
        (b"- 1\n", "bad.yaml:1:1: expected a mapping of keys"),
        (b"name: \xe9\n", "bad.yaml:1:7: byte 0xe9 is not UTF-8 text"),
        (b"model: &a [*a]\n", "bad.yaml:1:12: *a lies inside &a (1:8): a cycle"),
        (b"a: &a [*a]\n", "bad.yaml:1:8: not readable as a scenario"),
    ],
)
def test_a_file_that_is_no_scenario(folder: Path, content: bytes, message: str) -> None:
    (folder / "bad.yaml").write_bytes(content)
    assert message in refusal("bad.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/s.yaml", "nowhere/s.yaml: no such file: the folder 'nowhere' does not exist"),
        ("t.yaml", "t.yaml: no such file; did you mean 's.yaml'?"),
        ("./", ".: is a directory; expected a file"),
        ("some-scenario", "no scenario 'some-scenario'"),
    ],
)
def test_a_scenario_that_is_not_there(folder: Path, name: str, message: str) -> None:
    assert message in refusal(name)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("plan.tpp=8", "--set #1: plan.tpp: unknown key 'tpp'; did you mean 'tp'?"),
        ("pln.tp=8", "--set #1: pln: unknown key 'pln'; did you mean 'plan'?"),
        ("seed.x=8", "--set #1: seed: expected a whole number such as 8, but found a mapping"),
        ("plan.tp", "--set #1: expected KEY.KEY=VALUE, such as plan.tp=8"),
        ("plan.tp=[1", "--set #1: not valid YAML"),
        ("topology.nods=2", "--set #1: topology.nods: unknown key 'nods'"),
        ("model.config.hidden_size=-1", "--set #1: model.config.hidden_size: expected a whole number"),
    ],
)
def test_a_bad_override(folder: Path, override: str, message: str) -> None:
    assert message in refusal("s.yaml", "--set", override)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,output_tokens\n0.0,5\n", "t.csv:1"),
        (TRACE + "2.0,-3,4\n", "t.csv:4"),
        (TRACE + "2.0,3\n", "t.csv:4"),
        ("", "t.csv: the file is empty"),
    ],
)
def test_a_bad_trace(folder: Path, text: str, message: str) -> None:
    (folder / "t.csv").write_text(text)
    assert message in refusal("s.yaml")


@pytest.mark.parametrize(
    ("found", "written", "message"),
    [
        ("", "", "pair.yaml:5:3: fabric: device 'b' is unreachable from 'a'"),
        ("50 GB/s", "0 GB/s", "pair.yaml:11:36: fabric.links[0].capacity: "),
        (
            "50 GB/s",
            "50 GBps/s",
            "pair.yaml:11:36: fabric.links[0].capacity: '50 GBps/s' has the unknown unit",
        ),
        ("[a, sw]", "[a, sv]", "pair.yaml:11:17: fabric.links[0].between: there is no vertex 'sv'"),
        ("./dev.yaml", "dev", "pair.yaml:2:9: device: no device 'dev'"),
        ("./dev.yaml", "h100-sxm", "did you mean 'h100-sxm-80gb'?"),
    ],
)
def test_a_bad_topology(folder: Path, found: str, written: str, message: str) -> None:
    (folder / "pair.yaml").write_text(GRAPH.replace(found, written) if found else GRAPH)
    assert message in refusal("s.yaml", "--set", "topology=./pair.yaml")


def test_a_bad_device(folder: Path) -> None:
    (folder / "dev.yaml").write_text(DEVICE.replace("80 GB", "80 Gigs"))
    assert "dev.yaml:4:20: memory.capacity: '80 Gigs' has the unknown unit" in refusal(
        "s.yaml", "--set", "topology=./pair.yaml"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama", "hidden_size": 64}, "m.json:1:1: vocab_size: "),
        ({"model_type": "llama", "hidden_size": "64"}, "m.json:1:40: hidden_size: expected a whole number"),
        ([1], "m.json:1:1: expected a mapping of keys"),
    ],
)
def test_a_bad_model(folder: Path, config: object, message: str) -> None:
    (folder / "m.json").write_text(json.dumps(config))
    assert message in refusal("s.yaml", "--set", "model=./m.json")


def test_a_plan_that_is_larger_than_the_cluster(folder: Path) -> None:
    words = ["run", "s.yaml", "--set", "topology.nodes=1", "--set", "plan.dp=1000", "--out", "runs"]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, "use plan.dp 2 [DP-1]" in result.stderr) == (1, True)
    assert not (folder / "runs").exists()


def test_an_output_directory_that_cannot_be_written(folder: Path) -> None:
    (folder / "file").write_text("")
    result = CliRunner().invoke(main, ["run", "s.yaml", "--out", "file/runs"])
    assert result.exit_code == 2
    assert "file/runs" in result.stderr


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("serving.engine.launch=1e30 h", "expected a duration of at least 0 s and at most 10 s, but found '1e30 h'"),
        ("serving.engine.sample=25 h", "expected a duration of at least 0 s and at most 10 s, but found '25 h'"),
        ("topology.scaleup_latency=1e6 h", "scaleup_latency: expected a time of at most 10 s, but found '1e6 h'"),
        ("topology.scaleup_bandwidth=1 B/s", "expected at least 1 kB/s, but found '1 B/s'"),
        (
            "topology.host_latency=1e9 h",
            "--set #1: topology.host_latency: expected a time of at most 10 s, but found '1e9 h'",
        ),
        (
            "topology.host_bandwidth=1e-30 B/s",
            "--set #1: topology.host_bandwidth: expected at least 1 kB/s, but found '1e-30 B/s'",
        ),
        ("run.horizon=1e300 h", "--set #1: run.horizon: must be less than 292 years, but is 1e300 h"),
    ],
)
def test_a_time_that_does_not_fit_the_clock(folder: Path, override: str, message: str) -> None:
    assert message in refusal("s.yaml", "--set", override)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "workload.shared_prefixes={groups: 1, tokens: 1000000000000}",
            "--set #1: workload.shared_prefixes.tokens: found 1000000000000; expected a whole number from 1 to",
        ),
        (
            "workload.shared_prefixes={groups: 10000000, tokens: 1}",
            "--set #1: workload.shared_prefixes.groups: found 10000000; expected a whole number from 1 to 1000000",
        ),
    ],
)
def test_prefixes_that_are_too_long_or_too_many(folder: Path, override: str, message: str) -> None:
    drawn = "workload={arrivals: all_at_once, prompt_tokens: 9, output_tokens: 2, requests: 2}"
    assert message.replace("#1", "#2") in refusal("s.yaml", "--set", drawn, "--set", override)


def test_an_algorithm_that_no_group_of_the_plan_can_run(folder: Path) -> None:
    (folder / "s.yaml").write_text(SCENARIO + "collectives: {all_reduce: torus}\n")
    message = "s.yaml:18:27: collectives.all_reduce: algorithm 'torus' for all_reduce over 4 devices needs devices in"
    assert message in refusal("s.yaml")


def test_an_option_of_an_engine_leads_to_the_key_that_set_takes() -> None:
    result = CliRunner().invoke(main, ["run", "quickstart", "--max-model-len", "4096"])
    assert result.exit_code == 2
    assert "No such option '--max-model-len'; here it is serving.context_window (--set KEY=VALUE)" in result.output
    told = CliRunner().invoke(main, ["size", "quickstart", "--rate", "20/s"]).output
    assert "here it is workload.arrivals.rate, of a trace workload.trace.rate_scale (--set KEY=VALUE)" in told
    assert "here it is" not in CliRunner().invoke(main, ["rules", "--max-model-len", "4096"]).output
