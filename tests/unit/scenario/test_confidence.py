"""How far off a run may be: figures of runs like it, and what is assumed of its device and engine."""

from __future__ import annotations

import csv

import pytest

from clustersim import catalog
from clustersim.scenario import load, load_model
from clustersim.scenario.confidence import confidence_of, confidence_words, model_class
from clustersim.scenario.parts import load_engine

ONE = ("plan={}", "expect={}", "targets={}", "model=llama-3.1-8b")
MI300X = ("kernels.gemm_bf16", "kernels.attention_prefill_bf16", "kernels.attention_decode_bf16", "kernels.memory")


def told(*changes: str) -> dict[str, object]:
    return confidence_of(load("quickstart", (*ONE, *changes)))


def results(device: str, engine: str) -> list[float]:
    """Return the errors of what ships, of one device and engine as their tables name them."""
    with catalog.path_of("scenarios/accuracy", "results", ".csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["device"] == device and row["engine"].startswith(engine)]
    return sorted(abs(float(row["ratio"]) - 1.0) for row in rows if row["ratio"])


def test_figures_of_the_same_device_engine_and_class_of_model_count() -> None:
    errors = results("h200_sxm", "vllm")
    found = told("topology=dgx-h200")
    assert (found["device"], found["engine"], found["model_class"]) == ("h200-sxm-141gb", "vllm", "dense")
    assert (found["figures"], found["nearest"]) == (len(errors), None)
    middle = len(errors) // 2
    assert found["median_error"] == pytest.approx((errors[middle - 1] + errors[middle]) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "nearest"),
    [
        (("topology=dgx-h200", "model=qwen3-30b-a3b"), ("h200-sxm-141gb", "vllm", None)),
        (("topology=dgx-h200", "serving.engine=sglang-0.5"), ("h200-sxm-141gb", None, "dense")),
        (("topology=l40s-node", "model=qwen3-30b-a3b", "serving.engine=sglang-0.5"), ("l40s", None, None)),
        (("topology=mi300x-node",), (None, "vllm", "dense")),
        (("topology=gb200-nvl72", "model=qwen3-30b-a3b"), (None, "vllm", None)),
        (("topology=mi300x-node", "serving.engine=ideal"), None),
    ],
)
def test_without_a_figure_the_nearest_kind_is_told(
    changes: tuple[str, ...], nearest: tuple[str | None, ...] | None
) -> None:
    found = told(*changes)
    assert (found["figures"], found["median_error"]) == (0, None)
    shown = found["nearest"]
    if nearest is None:
        assert shown is None
    else:
        assert isinstance(shown, dict)
        assert (shown["device"], shown["engine"], shown["model_class"]) == nearest
        assert shown["figures"] > 0


def test_what_is_assumed_and_can_matter_is_told() -> None:
    assert told("topology=mi300x-node", "serving.engine=ideal")["assumed"] == [f"mi300x: {key}" for key in MI300X]
    of_two = told("topology=mi300x-node", "serving.engine=ideal", "plan.tp=2")["assumed"]
    assert of_two == [*(f"mi300x: {key}" for key in MI300X), "mi300x: collectives"]
    moe = told("topology=mi300x-node", "serving.engine=ideal", "model=qwen3-30b-a3b")["assumed"]
    assert "mi300x: kernels.grouped_gemm_bf16" in moe
    stages = told("plan.pp=2")["assumed"]
    assert "vllm-0.19: stage" in stages
    assert "vllm-0.19: stage" not in told()["assumed"]


def test_a_value_of_ones_own_is_not_assumed_any_more() -> None:
    assert "schedule" in load_engine("vllm-0.19").assumed
    assert "schedule" not in load_engine("vllm-0.19", ("schedule=200 us",)).assumed
    assert "schedule" not in load_engine("vllm-0.12").assumed  # which inherits from it, and has a fit
    assert "schedule" in load_engine("vllm-0.19", ("schedule=200 us", "assumed=[schedule]")).assumed


def test_words_tell_figures_errors_and_assumed_constants_in_a_line() -> None:
    words = confidence_words(told("topology=mi300x-node", "serving.engine=sglang-0.5"))
    assert words.startswith("no measured figure of sglang on mi300x with dense models (nearest: 1 of sglang, dense, ")
    assert "; assumed: 4 kernels of mi300x; schedule, schedule_per_request, sample, " in words
    assert words.endswith(" of sglang-0.5")
    few = {"device": "d", "engine": "e", "model_class": "dense", "figures": 9, "median_error": 0.08}
    assert confidence_words(few | {"nearest": None, "assumed": []}) == (
        "9 measured figures of e on d with dense models, median error 8%"
    )
    assert confidence_words(few | {"figures": 10, "nearest": None, "assumed": []}) == ""


@pytest.mark.parametrize(
    ("name", "known"),
    [("llama-3.1-8b", "dense"), ("mixtral-8x7b", "MoE"), ("deepseek-v3", "MLA+MoE"), ("gemma-3-27b", "dense")],
)
def test_the_class_of_a_model(name: str, known: str) -> None:
    assert model_class(load_model(name)) == known
