"""Loading scenarios: what is looked up where, what the value holds, and where problems are placed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scenario_text import SMALL

from clustersim.errors import InputError
from clustersim.plan.parallel import Cut
from clustersim.scenario.load import load
from clustersim.scenario.parts import load_model, load_topology
from clustersim.scenario.resolve import to_yaml
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.workload import DrawnWorkload, LogNormal

TRACE = "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n1.5,20,6\n"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return file


def problems(file: Path, *overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(file, overrides)
    return [line.replace(f"{file.parent}/", "") for line in str(caught.value).splitlines()]


def test_load_builds_every_part(scenario_file: Path) -> None:
    scenario = load(scenario_file)
    assert (scenario.name, scenario.seed) == ("small", 7)
    assert len(scenario.topology.devices) >= 8
    assert (scenario.model.name, len(scenario.model.layers)) == ("tiny", 4)
    assert scenario.precision.weights == "bf16"
    assert (scenario.plan.pp, scenario.plan.tp, scenario.plan.stages) == (2, 4, None)
    assert scenario.engine.launch_s == pytest.approx(2e-6)
    assert isinstance(scenario.workload, DrawnWorkload)
    assert scenario.requests().arrived_at_ns.tolist()[:3] == [0, 250_000_000, 500_000_000]


def test_the_name_defaults_to_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "my-case.yaml"
    file.write_text(SMALL.replace("name: small\n", ""))
    assert load(file).name == "my-case"


def test_overrides_change_parts_and_the_digest(scenario_file: Path) -> None:
    changed = load(
        scenario_file,
        [
            "topology.nodes=1",
            "plan.stages.cuts=[2.ffn]",
            "plan.placement=[n0.g7, n0.g6, 0, 1, 2, 3, 4, 5]",
            "model.config.num_hidden_layers=6",
            "serving.engine.launch=5 us",
            "workload.output_tokens={lognormal: {median: 100, sigma: 0.5, max: 200}}",
            "run.horizon=90 s",
        ],
    )
    assert len(changed.topology.devices) == 8
    assert changed.plan.stages == (Cut(layer=2, before="ffn"),)
    assert changed.plan.placement == (7, 6, 0, 1, 2, 3, 4, 5)
    assert len(changed.model.layers) == 6
    assert changed.engine.launch_s == pytest.approx(5e-6)
    assert isinstance(changed.workload, DrawnWorkload)
    assert changed.workload.output_tokens == LogNormal(median=100.0, sigma=0.5, max_tokens=200)
    assert changed.run.horizon_ns == 90_000_000_000
    assert changed.digest != load(scenario_file).digest


def same(one: Scenario, other: Scenario) -> bool:
    parts = ("name", "seed", "model", "precision", "plan", "serving", "engine", "workload", "run", "targets")
    equal = all(getattr(one, part) == getattr(other, part) for part in parts)
    return equal and one.topology.link_ends == other.topology.link_ends and one.expect == other.expect


def test_the_resolved_document_loads_again_from_anywhere(scenario_file: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    first = load(
        scenario_file,
        [
            "workload={trace: {path: t.csv, window: [0 s, 60 s]}}",
            "topology.nodes=2",
            "plan.stages.cuts=[2]",
            "targets={ttft: 1 s}",
            "expect={finished: 2, ttft_ms: {p99: < 20}}",
        ],
    )
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    (folder / "scenario.yaml").write_text(to_yaml(first.document))
    again = load(folder / "scenario.yaml")
    assert again.document == first.document
    assert again.digest == first.digest
    assert same(first, again)


def test_the_digest_follows_the_content_of_a_trace_and_not_its_path(scenario_file: Path, tmp_path: Path) -> None:
    for name, text in (("a.csv", TRACE), ("b.csv", TRACE), ("c.csv", TRACE + "2.0,1,1\n")):
        (tmp_path / name).write_text(text)
    a, b, c = (load(scenario_file, [f"workload={{trace: {name}.csv}}"]).digest for name in "abc")
    assert a == b
    assert a != c


def test_a_trace_lies_relative_to_the_scenario(scenario_file: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    scenario_file.write_text(SMALL.split("workload:")[0] + "workload: {trace: {path: t.csv, requests: 1}}\n")
    scenario = load(scenario_file)
    assert scenario.workload == TraceWorkload(path=tmp_path / "t.csv", requests=1)
    assert scenario.requests().prompt_tokens.tolist() == [10]


def test_a_flag_names_files_from_the_working_directory(
    scenario_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "t.csv").write_text(TRACE)
    monkeypatch.chdir(elsewhere)
    workload = load(scenario_file, ["workload={}", "workload.trace.path=t.csv"]).workload
    assert isinstance(workload, TraceWorkload)
    assert workload.path == elsewhere / "t.csv"


def test_a_request_count_beyond_the_trace_names_the_scenario(scenario_file: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE)
    scenario = load(scenario_file, ["workload={trace: {path: t.csv, requests: 3}}"])
    with pytest.raises(InputError, match=r"--set #1: workload\.trace\.requests: asked for 3 requests, but"):
        scenario.requests()


def test_a_model_is_a_hugging_face_config(scenario_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for path in ("My-Model/config.json", "./My-Model"):
        model = load(scenario_file, [f"model={path}"]).model
        assert (model.name, model.hidden, len(model.layers)) == ("My-Model", 64, 2)


def test_problems_inside_a_named_file_are_placed_there(scenario_file: Path, tmp_path: Path) -> None:
    lines = json.dumps(CONFIG | {"hidden_size": "big"}, indent=1)
    (tmp_path / "m.json").write_text(lines)
    found = problems(scenario_file, "model=m.json")
    assert found == ["m.json:3:17: hidden_size: expected a whole number of at least 1, but found 'big'"]
    (tmp_path / "m.json").write_text('{"a": 1 2}')
    assert problems(scenario_file, "model=m.json")[0].startswith("m.json:1:9: not valid JSON: ")


def test_problems_of_a_topology_and_its_device_are_placed_in_their_files(scenario_file: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.yaml").write_text(
        "name: dev\nvendor: V\nsource: made up\nmemory: {capacity: 80 G, bandwidth: 1 TB/s}\n"
        "compute: {bf16: 1 TFLOP/s}\n"
    )
    (tmp_path / "pair.yaml").write_text(
        "name: pair\ndevice: ./dev.yaml\nsource: made up\nfabric:\n  kind: mesh\n  devices_per_node: 2\n"
        "  link_bandwidth: 0 GB/s\n  link_latency: 1 us\n"
    )
    found = problems(scenario_file, "topology=./pair.yaml")
    assert [line.split(": ")[:2] for line in found] == [
        ["dev.yaml:4:20", "memory.capacity"],
        ["pair.yaml:7:19", "fabric.link_bandwidth"],
    ]


def test_problems_of_every_part_are_reported_together(scenario_file: Path) -> None:
    found = problems(
        scenario_file,
        "topology=dgx-h10",
        "model.config.hidden_size=0",
        "serving.engine.lunch=1 us",
        "precision.weights=fp9",
        "expect.finishd=1",
        "collectives={all_reduce: rin, all_reduc: ring}",
        "workload.prompt_tokens={uniform: {low: 9, high: 3}}",
        "cost.table=nowhere.csv",
    )
    assert [line.split(": ")[0] for line in found] == [f"--set #{i}" for i in (1, 2, 3, 4, 5, 6, 6, 7, 8)]
    assert found[0] == "--set #1: topology: no topology 'dgx-h10'; did you mean 'dgx-h100'?"
    assert "did you mean 'launch'?" in found[2]
    assert "did you mean 'fp8'?" in found[3]
    assert "did you mean 'finished'?" in found[4]


def test_devices_of_a_placement_must_be_there(scenario_file: Path) -> None:
    found = problems(scenario_file, "topology.nodes=1", "plan.placement=[n0.g0, n0.g9, 8]")
    assert found[0].startswith("--set #2: plan.placement[1]: dgx-h100 has no device 'n0.g9'; did you mean 'n0.g")
    assert found[1] == "--set #2: plan.placement[2]: dgx-h100 has devices 0 to 7, not 8"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no scenario 'nothing-like-it'"):
        load("nothing-like-it")
    with pytest.raises(InputError, match=r"no topology 'dgx-h10'; did you mean 'dgx-h100'\?"):
        load_topology("dgx-h10")
    with pytest.raises(InputError, match="model: olmo-2-1124-7b norms the outputs of attention and FFN and not their"):
        load("quickstart", ["model=allenai/OLMo-2-1124-7B"])
    with pytest.raises(InputError, match=r"no model file '\./nowhere\.json'; looked from"):
        load_model("./nowhere.json")


def test_a_name_that_is_a_file_here_is_offered_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-node.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no topology 'my-node'; did you mean '\./my-node\.yaml'\?"):
        load_topology("my-node")


def test_a_copy_of_a_shipped_scenario_is_told_where_its_trace_lies(scenario_file: Path) -> None:
    trace = "workload={trace: traces/azure-conv-sample.csv}"
    assert "; did you mean 'scenarios/traces/azure-conv-sample.csv'? (looked" in problems(scenario_file, trace)[0]


def test_an_unknown_key_means_the_one_that_goes_on_from_it(scenario_file: Path) -> None:
    workload = "workload={trace: {path: requests.csv, rate: 2}}"
    assert problems(scenario_file, workload)[0].endswith("unknown key 'rate'; did you mean 'rate_scale'?")


def test_problem_places_a_path_in_the_scenario(scenario_file: Path) -> None:
    problem = load(scenario_file, ["plan.pp=1"]).problem("plan.tp", "too much")
    assert (problem.line, problem.column, problem.path) == (17, 12, "plan.tp")


def test_a_name_too_long_for_a_file_is_not_found() -> None:
    with pytest.raises(InputError, match=r"no scenario 'x{200}…'"):
        load("x" * 5000)
