"""Releases of engines: every option that is written has its span, and no release is given what it does not take."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from clustersim import catalog
from clustersim.errors import IllegalPlanError, InputError
from clustersim.interop.keys import SGLANG, VLLM
from clustersim.interop.launch import sglang, trtllm_built, vllm
from clustersim.interop.launch.launch import launch_of
from clustersim.interop.launch.server import ENGINES
from clustersim.interop.launch.text import launch_text
from clustersim.interop.launch.versions import CHOICES, SPANS, Version, has, numbers, outdated, span_of, version_of
from clustersim.interop.translated import scenario_from_command
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.scenario import Scenario

PLAIN: dict[str, Any] = {
    "name": "plain",
    "topology": {"name": "dgx-h100", "nodes": 4},
    "model": "llama-2-7b",
    "workload": {"arrivals": "all_at_once", "prompt_tokens": 512, "output_tokens": 64, "requests": 10},
}


def scenario(**parts: Any) -> Scenario:
    return build_scenario(parse_yaml(yaml.safe_dump(PLAIN | parts), "s.yaml"))


def options_in(module: Any) -> set[str]:
    """Return what looks like a whole option or a variable among the texts of a module."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if text.startswith(("--", "VLLM_")) and " " not in text and len(text) > 2}


@pytest.mark.parametrize(
    ("engine", "module", "table"), [("vllm", vllm, VLLM), ("sglang", sglang, SGLANG), ("trtllm", trtllm_built, {})]
)
def test_every_option_that_is_written_has_a_span(engine: str, module: Any, table: dict[str, str]) -> None:
    of_others = {"SGLANG_PP_LAYER_PARTITION", "--model_dir", "--dtype", "--tp_size", "--pp_size", "--qformat"}
    of_others |= {"--kv_cache_dtype", "--use_weight_only", "--weight_only_precision", "--world_size", "--model_repo"}
    written = (options_in(module) | set(table.values())) - of_others - {"--model_path", "--no-"}
    assert sorted(name for name in written if span_of(engine, name) is None) == []
    assert (
        sorted(set(CHOICES.get(engine, {})) - {name for text in SPANS[engine].values() for name in text.split()}) == []
    )


@pytest.mark.parametrize(
    ("engine", "name", "last_without", "first_with", "first_without"),
    [
        ("vllm", "--enable-expert-parallel", "0.7", "0.8", None),
        ("vllm", "--data-parallel-size", "0.8.0", "0.8", None),
        ("vllm", "--decode-context-parallel-size", "0.10", "0.11", None),
        ("vllm", "--all2all-backend", "0.11", "0.12", None),
        ("vllm", "--num-scheduler-steps", "0.5", "0.6", "0.11"),
        ("vllm", "--use-v2-block-manager", "0.3", "0.5", "0.10"),
        ("vllm", "--swap-space", None, "0.3", "0.19"),
        ("sglang", "--attn-dp-size", "0.5.22", "0.5", None),
        ("sglang", "--moe-a2a-backend", "0.4.6", "0.5.2", None),
        ("trtllm", "--kv_cache_type", "0.9", "0.14", None),
        ("trtllm", "--max_output_len", None, "0.9", "0.14"),
    ],
)
def test_an_option_is_there_from_its_release_on(
    engine: str, name: str, last_without: str | None, first_with: str, first_without: str | None
) -> None:
    assert has(engine, name, numbers(first_with))
    assert not any(has(engine, name, numbers(text)) for text in (last_without, first_without) if text)


def test_releases_are_in_order_and_no_option_stands_twice() -> None:
    for spans in SPANS.values():
        names = [name for text in spans.values() for name in text.split()]
        assert len(names) == len(set(names))
        since = [numbers(span.partition("-")[0]) for span in spans]
        assert since == sorted(since)


@pytest.mark.parametrize(
    "asked", ["vllm-0.3", "vllm-0.5", "vllm-0.6", "vllm-0.8.2", "vllm-0.9", "vllm-0.12", "vllm-0.19"]
)
@pytest.mark.parametrize("scheduler", ["continuous", "chunked_prefill"])
@pytest.mark.parametrize("caching", [False, True])
def test_what_is_written_for_a_release_of_vllm_is_taken_and_reads_back(
    asked: str, scheduler: str, caching: bool
) -> None:
    serving = {"engine": asked, "scheduler": scheduler, "prefix_caching": caching, "kv_block_tokens": 16}
    serving |= {"max_batch_requests": 64, "max_batch_tokens": 8192, "memory_utilization": 0.8}
    whole = scenario(serving=serving, plan={"tp": 2, "dp": 2})
    version = version_of(asked, "vllm") or ()
    if version < (0, 5) and (caching or scheduler == "chunked_prefill"):
        with pytest.raises(IllegalPlanError, match=r"caches no prefixes|computes prompts whole"):
            launch_of(whole, "vllm")
        return
    found = launch_of(whole, "vllm")
    assert list(outdated("vllm", "vLLM", found.servers[0].options, version)) == []
    assert found.servers[0].copies == (1 if has("vllm", "--data-parallel-size", version) else 2)
    text = launch_text(whole, found)
    assert ("vllm serve" in text) is (version >= (0, 6))
    if version >= (0, 5):
        reads_back(whole, text, copies=found.servers[0].copies)


def reads_back(whole: Scenario, text: str, *, copies: int) -> None:
    back = build_scenario(parse_yaml(scenario_from_command(text).text, "back"))
    assert (back.plan.tp, back.plan.dp * copies) == (whole.plan.tp, whole.plan.dp)
    for name in ("scheduler", "max_batch_requests", "max_batch_tokens", "kv_block_tokens", "memory_utilization"):
        assert getattr(back.serving, name) == getattr(whole.serving, name), name
    assert back.serving.prefix_caching is whole.serving.prefix_caching or "prefix-caching" not in text


def test_what_a_release_lacks_is_refused_also_where_a_user_adds_it() -> None:
    for engine, added, message in (
        ("vllm-0.19", "--num-scheduler-steps 8", "0.19 has no --num-scheduler-steps; it is there from 0.6.0 to before"),
        ("vllm-0.9", "--async-scheduling", "vLLM 0.9 has no --async-scheduling; it is there from 0.10.0 on"),
        ("vllm-0.9.2", "--swap-space 4 --enable-dbo", "vLLM 0.9.2 has no --enable-dbo"),
        ("vllm-0.6", "--kv-cache-dtype bfloat16", "0.6 takes --kv-cache-dtype auto, fp8, fp8_e5m2, fp8_e4m3, not"),
    ):
        serving = {"engine": engine, "max_batch_tokens": 8192}
        with pytest.raises(IllegalPlanError) as caught:
            launch_of(scenario(serving=serving), "vllm", add=[added])
        assert message in str(caught.value)
        assert "--swap-space;" not in str(caught.value)


def test_attention_replicas_of_sglang_are_said_as_its_release_says_them() -> None:
    wide = {"model": "deepseek-v3", "plan": {"dp": 16, "ep": {"degree": 16, "scope": "global"}}}
    for asked, words in (("sglang-0.5.4", "--dp-size 16 --enable-dp-attention"), ("sglang-0.5", "--attn-dp-size 16")):
        whole = scenario(**wide, serving={"engine": asked})
        found = launch_of(whole, "sglang")
        assert words in str(found.commands[0]["command"])
        back = build_scenario(parse_yaml(scenario_from_command(launch_text(whole, found)).text, "back"))
        assert (back.plan.dp, back.plan.ep.degree, back.plan.ep.scope) == (16, 16, "global")


def commands_of(engine: str, **parts: Any) -> dict[str, list[str]]:
    serving = {"engine": engine, "max_batch_requests": 64, "max_batch_tokens": 4096, **parts.pop("serving", {})}
    found = launch_of(scenario(serving=serving, **parts), "trtllm")
    assert found.files == {}  # the YAML is that of 1.0
    return {str(one["name"]): shlex.split(str(one["command"])) for one in found.commands}


@pytest.mark.parametrize("version", [(0, 9), (0, 14), (0, 17)])
def test_engines_before_one_are_built_and_served_by_triton(version: Version) -> None:
    name = f"trtllm-{'.'.join(map(str, version))}"
    found = commands_of(name, plan={"tp": 2}, serving={"kv_blocks": 100, "kv_block_tokens": 64})
    assert list(found) == ["server: checkpoint", "server: engine", "server: models", "server: parameters", "server"]
    assert found["server: checkpoint"][1] == "examples/llama/convert_checkpoint.py"
    built = found["server: engine"]
    assert [word for word in built if word.startswith("--") and not has("trtllm", word, version)] == []
    given = dict(zip(built[1::2], built[2::2], strict=True))
    assert (given["--max_batch_size"], given["--max_num_tokens"], given["--tokens_per_block"]) == ("64", "4096", "64")
    if version == (0, 9):
        assert (given["--max_input_len"], given["--max_output_len"], given["--paged_kv_cache"]) == (
            "512",
            "64",
            "enable",
        )
    else:
        assert (given["--max_seq_len"], given["--kv_cache_type"]) == ("4096", "paged")
    parameters = dict(pair.split(":") for pair in found["server: parameters"][-1].split(","))
    assert parameters["kv_cache_free_gpu_mem_fraction"] == "0.9"
    assert parameters["max_tokens_in_paged_kv_cache"] == "6400"
    assert parameters["batch_scheduler_policy"] == "guaranteed_no_evict"
    assert found["server"] == [
        "python",
        "scripts/launch_triton_server.py",
        "--world_size",
        "2",
        "--model_repo",
        "server-models",
    ]


def test_converters_make_weights_narrower_where_release_one_loads_them_so() -> None:
    quantised = commands_of("trtllm-0.14", precision={"weights": "fp8", "kv_cache": "fp8"})["server: checkpoint"]
    assert quantised[1] == "examples/quantization/quantize.py"
    assert quantised[quantised.index("--kv_cache_dtype") + 1] == "fp8"
    narrow = commands_of("trtllm-0.14", precision={"weights": "int8"})["server: checkpoint"]
    assert narrow[narrow.index("--weight_only_precision") + 1] == "int8"
    with pytest.raises(IllegalPlanError, match="from a checkpoint that has them"):
        launch_of(scenario(serving={"engine": "trtllm-1.0"}, precision={"weights": "fp8"}), "trtllm")


def test_a_release_that_nobody_read_is_told() -> None:
    newer = launch_of(scenario(serving={"engine": "vllm-0.99", "max_batch_tokens": 8192}), "vllm")
    assert "options are those of vLLM 0.19.0, the newest that was read." in newer.notes
    with pytest.raises(IllegalPlanError) as caught:
        launch_of(scenario(serving={"engine": "sglang-0.3"}), "sglang")
    assert str(caught.value).splitlines()[1:] == [
        "  SGLang 0.3 is older than 0.4.0, the first release whose options were read; take a later serving.engine"
    ]


@pytest.mark.parametrize(
    ("target", "engine", "added", "message"),
    [
        ("vllm", "vllm-0.19", "--seed many", "--seed: expected a number, but found 'many'"),
        (
            "sglang",
            "sglang-0.5",
            "--moe-dp-size 3.5",
            "--moe-dp-size: expected a whole number such as 8, but found '3.5'",
        ),
        ("trtllm", "trtllm-1.0", "'", 'a quote in "\'" is not closed'),
    ],
)
def test_an_option_that_is_added_and_cannot_be_read_is_named(
    target: str, engine: str, added: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        launch_of(scenario(serving={"engine": engine, "max_batch_tokens": 8192}), target, add=[added])
    assert message in str(caught.value)


def test_an_option_for_one_of_several_commands_belongs_to_none() -> None:
    with pytest.raises(InputError, match="several commands start TensorRT-LLM"):
        launch_of(scenario(serving={"engine": "trtllm-0.14"}), "trtllm", add=["--foo"])


def test_every_profile_of_an_engine_is_launched_as_its_release() -> None:
    for name in catalog.names("scenarios/engines"):
        family = name.partition("-")[0]
        if family in SPANS and version_of(name, family):
            serving = {"engine": name, "scheduler": "continuous", "prefix_caching": False, "max_batch_tokens": 8192}
            found = launch_of(scenario(serving=serving), family)
            assert f"install {ENGINES[family]}" in " ".join(found.notes)


def test_the_release_is_known_behind_each_spelling_of_a_version():
    told = {name: version_of(name, "vllm") for name in ("vllm-v0.9", "vllm-0.10.1.1", "vllm-0.9rc1", "vllm-99")}
    assert told == {"vllm-v0.9": (0, 9), "vllm-0.10.1.1": (0, 10, 1), "vllm-0.9rc1": (0, 9), "vllm-99": (99,)}
    assert version_of("vllm-2023", "vllm") is None
