"""Engines of scenarios: what they inherit, and which profile stands for a version that none describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim import catalog
from clustersim.errors import InputError
from clustersim.report.metrics.latencies import e2e_ns, tpot_ns, ttft_ns
from clustersim.report.words.run import remarks
from clustersim.scenario import load, load_engine, load_topology
from clustersim.scenario.build.engines import standing_for
from clustersim.simulation.simulate import simulate

ROOT = Path(__file__).parents[3]
OWN = "inherits: vllm-0.12\nsource: an example\nschedule: 3 ms\n"


def test_an_engine_takes_what_it_does_not_say_from_the_one_it_inherits_from(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(OWN)
    (tmp_path / "child.yaml").write_text("inherits: ./mine.yaml\nsource: another\nlaunch: 9 us\n")
    child, parent = load_engine(str(tmp_path / "child.yaml")), load_engine("vllm-0.12")
    assert (child.name, child.source, child.schedule_s, child.launch_s) == ("child", "another", 0.003, 9e-6)
    assert (child.sample_s, child.graph_max_tokens) == (parent.sample_s, parent.graph_max_tokens)


def test_an_engine_of_ones_own_runs_the_kernels_of_the_profile_that_it_comes_from(tmp_path: Path) -> None:
    """Devices have kernels by engine: those of TensorRT-LLM 0.9 were lost as soon as a file inherited from it."""
    (tmp_path / "mine.yaml").write_text("inherits: trtllm-0.9\nsource: an example\nschedule: 3 ms\n")
    (tmp_path / "child.yaml").write_text("inherits: ./mine.yaml\nsource: another\n")
    child = load_engine(str(tmp_path / "child.yaml"))
    assert (child.name, child.kernels, child.family) == ("child", "trtllm-0.9", "trtllm")
    told = ("topology=dgx-h200", "model=mistral-7b", "plan={}", "expect={}", "workload.trace.requests=20")
    own = f"{{name: {tmp_path / 'mine.yaml'}, schedule: 100 us}}"
    shipped, inherited = (simulate(load("quickstart", (*told, f"serving.engine={of}"))) for of in ("trtllm-0.9", own))
    assert inherited.timeline.digest == shipped.timeline.digest


def test_a_scenario_shows_every_key_of_an_engine_that_inherits(tmp_path: Path) -> None:
    engine = load("quickstart", ("serving.engine=vllm-0.9", "expect={}")).document["serving"]["engine"]
    assert engine["name"] == "vllm-0.9"
    assert (engine["schedule"], engine["sample"], engine["graph_launch"]) == ("1.5 ms", "25 us", "0.45 us")
    assert not {"inherits", "since"} & set(engine)


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("inherits: vllm-0.12\nsource: x\nschedule: -1 ms\n", ":3:11", "at least 0 s"),
        ("inherits: vllm-012\nsource: x\n", ":1:11", "did you mean 'vllm-0.12'"),
        ("inherits: vllm-0.13\nsource: x\n", ":1:11", "'vllm-0.12' stands for that version: inherit from it"),
        ("inherits: 7\nsource: x\nlaunch: 1 us\n", ":1:11", "expected the name of an engine"),
        ("inherits: ./mine.yaml\nsource: x\nlaunch: 1 us\n", ":1:11", "inherits from itself"),
        ("inherits: vllm-0.12\nsource: x\nstages: 1 ms\n", ":3:9", "did you mean 'stage'"),
        ("source: x\nlaunch: 1 us\n", "", "schedule: is missing"),
        ("inherits: vllm-0.12\nlaunch: 1 us\n", ":1:11", "source: is missing: that of what it inherits says nothing"),
        ("inherits: vllm-0.12\nsource: x\nkernels: trtlm-1.0\n", ":3:10", "did you mean 'trtllm-1.0'?"),
        ("inherits: vllm-0.12\nsource: x\nschedule: ٣٠٠ us\n", ":3:11", "expected a time with its unit"),
        ("inherits: vllm-0.12\nsource: x\nkernels: 7\n", ":3:10", "expected the name of an engine, such as vllm-0.19"),
        ("inherits: vllm-0.12\nsource: x\ngraph_sizes: [{by: 1000000000}]\n", ":3:15", "captured batch up to 65,536"),
    ],
)
def test_a_mistake_in_an_engine_is_told_at_its_line(tmp_path: Path, text: str, where: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_engine(str(tmp_path / "mine.yaml"))
    told = str(caught.value)
    assert message in told
    assert f"mine.yaml{where}" in told


def test_kernels_of_an_engine_that_neither_ships_nor_is_in_the_file_of_the_device_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: vllm-0.12\nsource: x\nkernels: nosuch-2\n")
    given = (f"serving.engine={tmp_path / 'mine.yaml'}",)
    with pytest.raises(InputError, match=r"mine.yaml:3:10: kernels: no engine is called 'nosuch-2', and h100-sxm-80gb"):
        load("quickstart", given)
    device = catalog.path_of("topologies/devices", "h100-sxm-80gb").read_text()
    group = "kernels:\n  nosuch: {memory: {memory: 0.9, floor_s: 2e-6, cached: 0.5, cache_bytes: 50000000}}\n"
    (tmp_path / "mine-80gb.yaml").write_text(device.replace("kernels:\n", group, 1))
    topology = f"topology={{name: dgx-h100, device: {tmp_path / 'mine-80gb.yaml'}}}"
    assert load("quickstart", (*given, topology)).engine.kernels == "nosuch-2"


def test_a_file_that_is_no_engine_is_told_in_english(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(InputError, match="not readable as an engine"):
        load("quickstart", (f"serving.engine={tmp_path / 'mine.yaml'}",))


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ("vllm-0.18", "vllm-0.14"),
        ("vllm-0.20.1", "vllm-0.19"),
        ("vllm-0.13", "vllm-0.12"),
        ("vllm-0.11.2", "vllm-0.12"),
        ("vllm-0.8", "vllm-0.9"),
        ("vllm-0.2", "vllm-0.3-eager"),
        ("vllm-0.3", "vllm-0.3-eager"),
        ("vllm-0.1", "vllm-0.3-eager"),
        ("vllm-0.4", "vllm-0.6"),
        ("vllm-99", "vllm-0.19"),
        ("vllm-1", "vllm-0.19"),
        ("trtllm-0.11", "trtllm-0.14"),
        ("trtllm-1.3", "trtllm-1.0"),
    ],
)
def test_the_profile_that_was_in_force_stands_for_a_version_that_none_describes(asked: str, taken: str) -> None:
    assert load_engine(asked).name == taken


def test_a_run_says_which_engine_stands_for_the_one_that_was_asked_for() -> None:
    scenario = load("quickstart", ("serving.engine=vllm-0.18", "expect={}"))
    engine = scenario.document["serving"]["engine"]
    assert (engine["name"], engine["asked"]) == ("vllm-0.14", "vllm-0.18")
    counts = dict.fromkeys(("arrived", "finished", "unfinished", "rejected"), 0)
    rates = {"throughput": {"requests_per_s": None}}
    told = remarks(rates | {"requests": counts, "scenario": {"serving": {"engine": engine}}})
    assert any("vllm-0.18" in line and "vllm-0.14" in line for line in told)
    assert not remarks(rates | {"requests": counts, "scenario": {"serving": {"engine": engine | {"asked": None}}}})


def test_the_front_end_is_in_what_clients_see_and_not_on_the_timeline() -> None:
    changes = ("workload.trace.requests=3", "expect={}")
    near, far = (
        simulate(load("quickstart", (*changes, f"serving.engine.front_end={time}"))) for time in ("0 ms", "7 ms")
    )
    assert near.timeline.digest == far.timeline.digest
    for latency in (ttft_ns, e2e_ns):
        assert (latency(far.requests) - latency(near.requests)).tolist() == [7e6] * 3
    assert tpot_ns(far.requests).tolist() == tpot_ns(near.requests).tolist()


def test_devices_that_do_not_reach_each_other_are_said_so_by_the_topology() -> None:
    node = "rtx-pro-6000-node"
    near, apart = (load_topology(node, changes).device.collectives for changes in ((), ("peer_access=false",)))
    assert near["ring"]["efficiency"] == 0.547
    assert apart["ring"]["efficiency"] == 0.24
    assert {apart[name]["max_payload_bytes"] for name in ("one_shot", "two_shot")} == {0.0}
    with pytest.raises(InputError, match="peer_access"):
        load_topology(node, ("peer_access=7",))


@pytest.mark.parametrize(
    ("name", "newest"), [("vllm", "vllm-0.19"), ("sglang", "sglang-0.5"), ("trtllm", "trtllm-1.0")]
)
def test_an_engine_without_a_version_is_refused_with_the_newest(name, newest):
    with pytest.raises(InputError, match=f"no engine '{name}'; expected a version, such as '{newest}'"):
        load("quickstart", (f"serving.engine={name}",))


def test_all_texts_say_one_rule_of_which_profile_stands_for_a_version():
    for name in ("docs/guide/engines.md", "docs/guide/accuracy.md", "clustersim/scenario/keys/meanings.yaml"):
        assert "profile in force" in " ".join((ROOT / name).read_text(encoding="utf-8").split())
    for folder in ("clustersim/report", "clustersim/scenario", "clustersim/accuracy/systems.py", "docs/guide"):
        path = ROOT / folder
        for file in [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md"), *path.rglob("*.yaml")]:
            assert "nearest version" not in file.read_text(encoding="utf-8"), file


def test_an_engine_that_no_version_of_is_known_is_refused() -> None:
    with pytest.raises(InputError, match=r"no engine 'lmdeploy-0\.6'"):
        load("quickstart", ("serving.engine=lmdeploy-0.6",))


@pytest.mark.parametrize(
    ("image", "asked", "stands"),
    [
        ("vllm/vllm-openai:v0.9.2", "vllm-0.9.2", "vllm-0.9"),
        ("vllm-openai:v0.12.0-cu129", "vllm-0.12.0", "vllm-0.12"),
        ("registry.example:5000/lmsysorg/sglang:v0.5.4-cu126", "sglang-0.5.4", "sglang-0.5"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.0.0", "trtllm-1.0.0", "trtllm-1.0"),
    ],
)
def test_the_tag_of_an_image_chooses_the_version(image, asked, stands):
    assert standing_for(image) == (stands, asked)
    assert standing_for("vllm/vllm-openai:v0.9.2:v1")[1] is None
    assert standing_for("vllm/vllm-openai:latest") == ("vllm/vllm-openai:latest", None)


@pytest.mark.parametrize(
    ("asked", "stands"),
    [
        ("vllm-0.10.1.1", "vllm-0.12"), ("sglang-0.5.4.post1", "sglang-0.5"), ("vllm-v0.9", "vllm-0.9"),
        ("vllm-0.9rc1", "vllm-0.9"), ("trtllm-1.0.0rc3", "trtllm-1.0"),
    ],
)  # fmt: skip
def test_versions_are_read_as_engines_write_them(asked, stands):
    assert standing_for(asked) == (stands, asked)
    assert standing_for("vllm-2025") == ("vllm-2025", None)


def test_each_pool_says_where_constants_of_deepep_are_assumed_on_its_own_devices():
    ep = "{degree: 8, scope: global, exchange: deepep_normal}"
    document = load("splitwise-h100-a100", (
        "model=mixtral-8x7b", f"plan.prefill={{dp: 8, placement: h100-sxm-80gb, ep: {ep}}}", "expect={}",
        f"plan.decode={{dp: 8, placement: a100-sxm-80gb, ep: {ep}}}", "targets={}",
    )).document  # fmt: skip
    counts = dict.fromkeys(("arrived", "finished", "unfinished", "rejected"), 0)
    told = remarks({"throughput": {"requests_per_s": None}, "requests": counts, "scenario": document})
    assert [one.partition(";")[0] for one in told if "DeepEP" in one] == [
        "No DeepEP kernels were measured on a100-sxm-80gb"
    ]


@pytest.mark.parametrize(("topology", "is_told"), [("dgx-a100", True), ("dgx-h100", False)])
@pytest.mark.parametrize("way", ["deepep_normal", "deepep_low_latency"])
def test_a_run_says_where_constants_of_deepep_are_assumed(topology, is_told, way):
    document = load("quickstart", (
        f"topology={{name: {topology}, nodes: 1}}", "model=mixtral-8x7b", "expect={}",
        f"plan={{dp: 2, tp: 2, ep: {{degree: 4, scope: global, exchange: {way}}}}}",
    )).document  # fmt: skip
    counts = dict.fromkeys(("arrived", "finished", "unfinished", "rejected"), 0)
    told = remarks({"throughput": {"requests_per_s": None}, "requests": counts, "scenario": document})
    kernel = f"{way.removeprefix('deepep_')}_dispatch"
    assert any("assumed constants stand in" in one and kernel in one for one in told) == is_told
