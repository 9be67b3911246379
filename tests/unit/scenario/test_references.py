"""Changes of what a scenario refers to by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim.errors import InputError
from clustersim.scenario.load import load
from clustersim.scenario.parts import load_engine, load_model, load_topology


def test_a_change_of_a_model_that_would_change_nothing_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        load_model("llama-3.1-8b", ("config.num_hidden_layer=4",))
    assert str(caught.value) == (
        "--set #1: config.num_hidden_layer: unknown key 'num_hidden_layer'; did you mean 'num_hidden_layers'?"
    )


def test_a_known_key_without_effect_on_speed_may_be_changed() -> None:
    assert load_model("llama-3.1-8b", ("config.rope_theta=1e6",)) == load_model("llama-3.1-8b")


def test_constants_of_a_device_are_checked_where_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "dev.yaml").write_text(
        "name: dev\nvendor: V\nsource: made up\nmemory: {capacity: 80 GB, bandwidth: 1 TB/s}\n"
        "compute: {bf16: 100 TFLOP/s}\nkernels:\n"
        "  gemm_bf16: {compute: 0, memory: 0.9, floor_s: 1e-6, ramp_k: 9, latency_s: 1e-6, latency_k: 9}\n"
        "  gem_bf16: {}\n"
        "collectives: {ring: {efficiency: 2}}\n"
    )
    with pytest.raises(InputError) as caught:
        load_topology("dgx-h100", (f"device={tmp_path}/dev.yaml",))
    assert str(caught.value).replace(f"{tmp_path}/", "").splitlines() == [
        "dev.yaml:7:24: kernels.gemm_bf16.compute: expected a number from 1e-06 to 1, but found 0.0",
        "dev.yaml:8:13: kernels.gem_bf16: unknown group; did you mean 'gemm'?",
        "dev.yaml:9:34: collectives.ring.efficiency: 2.0 is not between 1e-06 and 1",
    ]


FULL = "{memory: 0.9, floor_s: 1e-6, cached: 2}"


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        ("{vlm: {memory: FULL}}", "kernels.vlm: no engine, and no family of engines, is called 'vlm'"),
        ("{tensorrt-llm: {memory: FULL}}", "did you mean 'trtllm'?"),
        ("{vllm-0.8: {memory: FULL}}", "is called 'vllm-0.8'; did you mean 'vllm-0.9'?"),
        ("{memory_bf61: FULL}", "kernels.memory_bf61: unknown number format 'bf61'; did you mean 'bf16'?"),
        ("{trtllm: {gem_bf16: FULL}}", "kernels.trtllm.gem_bf16: unknown group; did you mean 'gemm'?"),
        ("{memory: {floor_s: 1e-6, cached: 2}}", "kernels.memory: lacks memory (0.7); in brackets stands"),
        ("{trtllm: {memory: {memory: 0.9}}}", "kernels.trtllm.memory: lacks floor_s (2.5e-06), cached (1.5)"),
    ],
)  # fmt: skip
def test_kernels_that_no_engine_would_take_and_halves_of_groups_are_refused(tmp_path, kernels, said) -> None:
    (tmp_path / "dev.yaml").write_text(
        "name: dev\nvendor: V\nsource: made up\nmemory: {capacity: 80 GB, bandwidth: 1 TB/s}\n"
        f"compute: {{bf16: 100 TFLOP/s}}\nkernels: {kernels.replace('FULL', FULL)}\n"
    )
    with pytest.raises(InputError) as caught:
        load_topology("dgx-h100", (f"device={tmp_path}/dev.yaml",))
    (problem,) = caught.value.problems
    assert problem.line == 6
    assert said in str(problem)


def test_kernels_of_an_engine_of_ones_own_are_taken(tmp_path: Path) -> None:
    (tmp_path / "dev.yaml").write_text(
        "name: dev\nvendor: V\nsource: made up\nmemory: {capacity: 80 GB, bandwidth: 1 TB/s}\n"
        f"compute: {{bf16: 100 TFLOP/s}}\nkernels: {{mine: {{memory: {FULL}}}, vllm-ours: {{memory: {FULL}}}}}\n"
    )
    device = load_topology("dgx-h100", (f"device={tmp_path}/dev.yaml",)).device
    assert device.running("mine").kernels["memory"]["cached"] == 2.0


def test_a_version_from_which_on_an_engine_holds_is_checked_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: vllm-0.19\nsource: ours\nsince: potato\n")
    with pytest.raises(InputError) as caught:
        load_engine(f"{tmp_path}/mine.yaml")
    assert (
        str(caught.value) == f"{tmp_path}/mine.yaml:3:8: since: expected a version such as '0.14', but found 'potato'"
    )


def test_a_format_that_the_device_cannot_multiply_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"--set #1: precision: h100-sxm-80gb has no peak for 'fp4'; it has bf16"):
        load("quickstart", ("precision.multiply=fp4",))


def test_names_that_do_not_exist_are_told_beside_keys_that_do_not(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: s\ntopology: dgx-h10\nmodel: lama-3-8b\nplan: {tpp: 2}\nserving: {engine: vlm-0.20}\nseed: -1\n"
    )
    with pytest.raises(InputError) as caught:
        load(tmp_path / "s.yaml")
    assert [problem.path for problem in caught.value.problems] == [
        "workload", "topology", "model", "plan.tpp", "serving.engine", "seed",
    ]  # fmt: skip


def test_names_are_not_looked_up_in_parts_that_have_the_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("name: s\ntopology: [dgx-h10]\nmodel: null\nserving: {engine: 7}\nworkload: {}\n")
    with pytest.raises(InputError) as caught:
        load(tmp_path / "s.yaml")
    assert [problem.path for problem in caught.value.problems] == ["topology", "model", "serving.engine", "workload"]


def test_a_fabric_beside_a_name_is_told_where_its_keys_go() -> None:
    with pytest.raises(InputError) as caught:
        load("quickstart", ("topology.fabric.nic_bandwidth=9 GB/s",))
    assert str(caught.value) == (
        "--set #1: topology.fabric: a topology that is named is changed by the keys of its fabric themselves, "
        "such as 'topology.nic_bandwidth: 50 GB/s'"
    )


@pytest.mark.parametrize(
    ("name", "architecture", "weights"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "llama-3.1-70b", "bf16"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "llama-3.1-70b", "fp8"),
        ("Qwen3-32B", "qwen3-32b", "bf16"),
    ],
)
def test_a_name_on_the_hub_finds_the_architecture_that_ships(name: str, architecture: str, weights: str) -> None:
    scenario = load("quickstart", [f"model={name}"])
    assert scenario.document["model"]["name"] == architecture
    assert scenario.document["precision"]["weights"] == weights


def test_a_folder_of_a_name_on_the_hub_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json"):
        load_model("meta-llama/Llama-3.1-8B")


def test_a_name_on_the_hub_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(InputError, match="no model file 'meta-llama/Llama-9'"):
        load_model("meta-llama/Llama-9")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct-Turbo", "under this name (the nearest is 'llama-3.3-70b'; "),
        ("Qwen/Qwen3-32B-Mine-v2", "(the nearest is 'qwen3-32b'; "),
        (
            "my-org/zzz",
            "under this name; any other is read from its config.json of Hugging Face: give that file",
        ),
        ("zzz", "a file of your own is a path, such as ./zzz/config.json"),
        ("./zzz/config.json", "no model file './zzz/config.json'; looked from"),
        ("configs/zzz.json", "no model file 'configs/zzz.json'; looked from"),
    ],
)
def test_a_name_that_is_not_known_leads_to_the_nearest_and_to_a_config(name: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(name)
    assert told in str(caught.value)
    assert ("config.json of Hugging Face" in str(caught.value)) is ("/" in name and not name.endswith(".json"))
