"""What engines decide where a scenario does not say it: by device, model and pool; and mistakes in their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clustersim import catalog
from clustersim.cost.captured import padded, sizes_from
from clustersim.cost.unsaid import Place
from clustersim.errors import InputError
from clustersim.interop.vllm import SETTINGS
from clustersim.scenario import load, load_engine, load_topology
from clustersim.scenario.resolve import to_yaml
from clustersim.serving.config import ServingConfig

PLAIN = ("scheduler", "max_batch_requests", "max_batch_tokens", "kv_block_tokens", "prefix_caching")


def place(topology: str, **more: Any) -> Place:
    return Place(device=load_topology(topology).device, **more)


def decided(engine: str, where: Place, **said: Any) -> tuple[Any, ...]:
    found = load_engine(engine).decides(said, where)
    return tuple(found.get(key) for key in PLAIN)


@pytest.mark.parametrize(
    ("engine", "where", "expected"),
    [
        ("vllm-0.19", place("dgx-h100"), ("chunked_prefill", 1024, 8192, 16, True)),
        ("vllm-0.19", place("dgx-a100"), ("chunked_prefill", 256, 2048, 16, True)),
        ("vllm-0.9", place("l40s-node"), ("chunked_prefill", 256, 2048, 16, True)),
        ("vllm-0.19", place("tpu-v5p"), ("chunked_prefill", 256, 256, 16, True)),
        ("vllm-0.6", place("dgx-h100", positions=131072), ("chunked_prefill", 256, 512, 16, False)),
        ("vllm-0.6", place("dgx-h100", positions=4096), ("continuous", 256, 4096, 16, False)),
        ("vllm-0.6", place("dgx-h100", positions=1024), ("continuous", 256, 2048, 16, False)),
        ("distserve-2024", place("dgx-a100", pool="decode"), ("continuous", 256, 8192, 16, False)),
        ("distserve-2024", place("dgx-a100", pool="prefill"), ("continuous", 256, 4096, 16, False)),
        ("sglang-0.5", place("dgx-b200"), ("continuous", 2048, 16384, 1, True)),
        ("trtllm-0.14", place("dgx-h100"), ("chunked_prefill", 2048, 8192, 64, False)),
        ("ideal", place("dgx-h100"), (None,) * 5),
    ],
)
def test_engines_decide_as_their_sources_say(engine: str, where: Place, expected: tuple[Any, ...]) -> None:
    assert decided(engine, where) == expected


def test_what_is_said_is_not_decided_and_bounds_the_rest() -> None:
    where = place("dgx-h100")
    assert decided("vllm-0.19", where, max_batch_tokens=512, scheduler="static")[:3] == (None, 512, None)
    assert decided("vllm-0.19", where, preemption="swap")[4] is None


def test_sglang_reserves_memory_for_chunks_graphs_and_ranks() -> None:
    # 512 + 1.5 · 8192 + 2 · 256 + 128 · ranks MiB; least of all 10 GiB where a device has 60 GiB
    where = place("dgx-h100")
    total = where.device.memory_bytes / 2**20
    for ranks in (1, 8):
        share = round(1 - (512 + 1.5 * 8192 + 2 * 256 + 128 * ranks) / total, 3)
        assert load_engine("sglang-0.5").decides({}, place("dgx-h100", ranks=ranks))["memory_utilization"] == share
    small = load_engine("sglang-0.5").decides({"max_batch_tokens": 2048}, where)
    assert small["memory_utilization"] == round(1 - 10240 / total, 3)


def test_a_scenario_shows_what_its_engine_decides_and_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    changes = ("serving={engine: vllm-0.19}", "expect={}")
    for name, more in (("quickstart", changes), ("distserve-tp2-pp2", ("serving={scheduler: disaggregated}",))):
        first = load(name, more)
        again = tmp_path / f"{name}.yaml"
        again.write_text(to_yaml(first.document))
        second = load(again)
        assert (first.digest, first.serving, first.pools) == (second.digest, second.serving, second.pools)
    serving = load("quickstart", changes).document["serving"]
    assert [serving[key] for key in PLAIN] == ["chunked_prefill", 1024, 8192, 16, True]
    decode = load("distserve-tp2-pp2", ("serving={scheduler: disaggregated}",)).document["serving"]["decode"]
    assert (decode["max_batch_requests"], decode["max_batch_tokens"]) == (256, 2048)  # on A100s


def test_an_engine_without_defaults_means_those_of_the_configuration() -> None:
    plain = ServingConfig()
    serving = load("quickstart", ("serving={engine: ideal}", "expect={}")).serving
    assert all(getattr(serving, key) == getattr(plain, key) for key in (*PLAIN, "memory_utilization"))


def test_what_an_engine_decides_must_go_with_what_is_said() -> None:
    with pytest.raises(InputError, match="takes whole prompts"):
        load("quickstart", ("serving={engine: sglang-0.5, long_prompt_tokens: 8}", "expect={}"))
    with pytest.raises(InputError, match="set prefix_caching: true"):
        load("quickstart", ("serving={engine: ideal, router: prefix_aware}", "expect={}"))
    assert load("quickstart", ("serving={router: prefix_aware}", "expect={}")).serving.prefix_caching
    assert not load("quickstart", ("serving={preemption: swap}", "expect={}")).serving.prefix_caching


def test_a_vllm_command_means_what_the_profile_does() -> None:
    found = load_engine("vllm-0.19").decides({}, place("dgx-h100"))
    said = {setting.path.removeprefix("serving."): setting.default for setting in SETTINGS}
    assert {key: said[key] for key in ("kv_block_tokens", "memory_utilization")} == {
        key: found[key] for key in ("kv_block_tokens", "memory_utilization")
    }


@pytest.mark.parametrize("name", catalog.names("scenarios/engines"))
def test_every_profile_says_all_or_nothing(name: str) -> None:
    found = load_engine(name).decides({}, place("dgx-h100", positions=4096))
    assert not found or set(found) - {"preemption", "admission"} == {*PLAIN, "memory_utilization"}
    assert ("preemption" in found) is name.startswith("trtllm")  # all others compute anew whom they preempt


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("defaults: [{max_batch_request: 2}]\n", ":3:32", "did you mean 'max_batch_requests'"),
        ("defaults: [{max_batch_requests: 0}]\n", ":3:33", "a whole number from 1"),
        ("defaults: [{where: {memory: 70}, prefix_caching: true}]\n", ":3:29", "70"),
        ("defaults: [{where: {pool: all}}]\n", ":3:27", "prefill, decode"),
        ("defaults: [{memory_utilization: 1.5}]\n", ":3:33", "at most 1"),
        ("defaults: [{memory_utilization: {fix: 1 GB}}]\n", ":3:39", "did you mean 'fixed'"),
        ("defaults: {prefix_caching: true}\n", ":3:11", "a list"),
        ("pool: {share_of: total}\n", ":3:18", "all, free, static"),
        ("pool: {share_of: free, outside: -1 GB}\n", ":3:33", "at least 0 B"),
        ("graph_sizes: [4, 2]\n", ":3:18", "sizes that grow"),
        ("graph_sizes: [{by: 8}, 16]\n", ":3:24", "comes too late"),
        ("graph_sizes: [{by: 0}]\n", ":3:15", "sizes that grow"),
    ],
)
def test_a_mistake_is_told_at_its_line(tmp_path: Path, text: str, where: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text("inherits: ideal\nsource: an example\n" + text)
    with pytest.raises(InputError) as caught:
        load_engine(str(tmp_path / "mine.yaml"))
    assert message in str(caught.value)
    assert f"mine.yaml{where}" in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 1), (3, 4), (4, 4), (5, 8), (9, 16), (250, 256), (257, 272), (399, 400)]
)
def test_a_step_is_padded_to_the_next_size(tokens: int, size: int) -> None:
    sizes = sizes_from([1, 2, 4, {"by": 8, "upto": 256}, {"by": 16}])
    assert padded(sizes, tokens, 400) == size
    assert padded((), tokens, 400) == tokens


def test_beyond_the_last_size_the_largest_graph_is_taken() -> None:
    assert padded(sizes_from([2, 4]), 5, 7) == 7
    engine = load_engine("vllm-0.19")
    assert (engine.padded(511), engine.padded(512), engine.padded(513)) == (512, 512, 513)
    assert load_engine("ideal").padded(9) == 9
