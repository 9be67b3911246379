"""The shipped architectures against what their authors published.

A figure without a unit is a count: it must be met exactly. One such as ``46.7 B`` is rounded or cut off by
its author, so it must be met within one unit of its last digit. What the figures are from stands beside them
in ``scenarios/models``; those that carry most weight are repeated here: no file can vouch for itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clustersim.catalog import names
from clustersim.errors import InputError
from clustersim.model import model_from_config
from clustersim.model.kv import kv_bytes_per_token
from clustersim.model.weights import active_parameters, total_parameters
from tests.shipped import read

BF16_BYTES = 2
SCALE = {"B": 10**9, "T": 10**12}

COUNTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "opt-13b": 12_853_473_280,
}
"""Totals of the Hugging Face hub, as people quote them (general knowledge, not re-fetched)."""

WITHOUT = {
    "glm-4.5": (358_337_776_896, 2 * 151552 * 5120 + 2 * 5120**2 + 161 * 3 * 5120 * 1536 + 2 * 5120 * 104 * 128),
    "minimax-m2": (228_703_644_928, 62 * 256 * 3 * 3072 * 1536 // 128**2),
}
"""Totals of the hub that count a layer for multi-token prediction with embedding and head, or scales of fp8 blocks."""

KV_BYTES = {
    "llama-2-7b": 512 * 1024,  # half a MiB: 2 × 32 layers × 4,096 × 2 bytes
    "llama-2-70b": 320 * 1024,
    "opt-13b": 800 * 1024,  # "800 KB", Kwon et al., arXiv:2309.06180, section 3
    "llama-3.1-405b": 516_096,  # Zhao et al., arXiv:2505.09343, table 1
    "deepseek-v3": 70_272,  # ibid.
}

TOTALS_IN_B = {
    "Qwen--Qwen2.5-7B-Instruct": 7.62,
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": 480.15,
    "codellama--CodeLlama-34b-Instruct-hf": 33.74,
    "deepseek-ai--DeepSeek-R1": 671.03,
    "facebook--opt-66b": 65.72,
    "meta-llama--Meta-Llama-3-70B": 70.55,
    "mistralai--Mixtral-8x22B-v0.1": 140.62,
    "moonshotai--Kimi-K2-Instruct": 1026.41,
    "openai--gpt-oss-120b": 116.83,
}
"""Billions of parameters of some original configurations, by their model cards and the hub."""


def shipped(name):
    return read("scenarios/models", name)


def built(name):
    return model_from_config(shipped(name)["config"], name)


def figure(value):
    """Return a published figure and the unit of its last digit (0: a count)."""
    if isinstance(value, int):
        return value, 0
    digits, unit = value.split()
    decimals = len(digits.partition(".")[2])
    return float(digits) * SCALE[unit], 10.0**-decimals * SCALE[unit]


def test_figure_is_as_exact_as_its_digits():
    assert figure("46.7 B") == (46.7e9, 1e8)
    assert figure("37 B") == (37e9, 1e9)
    assert figure(70272) == (70272, 0)


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_parameters_are_the_published_ones(name):
    value, unit = figure(shipped(name)["published"]["parameters"]["value"])
    assert abs(total_parameters(built(name)) - value) <= unit


@pytest.mark.parametrize("name", WITHOUT)
def test_totals_are_those_of_the_hub_without_what_is_left_out(name):
    total, left_out = WITHOUT[name]
    assert total_parameters(built(name)) == pytest.approx(total - left_out, rel=1e-5)


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_active_parameters_are_the_published_ones(name):
    published = shipped(name)["published"].get("active_parameters")
    model = built(name)
    if published is None:
        assert active_parameters(model) == total_parameters(model)
        return
    value, unit = figure(published["value"])
    found = active_parameters(model, input_embedding=published["input_embedding"])
    assert abs(found - value) <= unit


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_kv_bytes_per_token_are_the_published_ones(name):
    assert kv_bytes_per_token(built(name), BF16_BYTES) == shipped(name)["published"]["kv_bytes_per_token"]["value"]


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_are_exact(name, count):
    assert total_parameters(built(name)) == count


@pytest.mark.parametrize(("name", "count"), KV_BYTES.items())
def test_kv_bytes_per_token_are_exact(name, count):
    assert kv_bytes_per_token(built(name), BF16_BYTES) == count


def test_checkpoint_of_gpt_oss_has_its_published_size():
    # Model card, arXiv:2508.10925, table 1: 60.8 GiB. Experts at 4.25 bits (MXFP4), the rest at 16.
    model = built("gpt-oss-120b")
    experts = 36 * 128 * 3 * 2880 * 2880
    others = total_parameters(model) - experts
    assert (experts * 4.25 / 8 + others * 2) / 2**30 == pytest.approx(60.8, abs=0.1)


def configurations():
    folder = os.environ.get("CLUSTERSIM_CONFIGS")
    return sorted(Path(folder).glob("*.config.json")) if folder else []


@pytest.mark.skipif(not configurations(), reason="CLUSTERSIM_CONFIGS names no folder with *.config.json")
def test_original_configurations_load_or_are_refused_by_name():
    totals, refused = {}, {}
    for file in configurations():
        name = file.name.removesuffix(".config.json")
        try:
            totals[name] = total_parameters(model_from_config(json.loads(file.read_text(encoding="utf-8")), name))
        except InputError as error:
            refused[name] = [problem.path for problem in error.problems]
    assert refused == {"deepseek-ai--DeepSeek-V3.2": ["index_topk"]}
    assert {name: round(totals[name] / 1e9, 2) for name in TOTALS_IN_B} == TOTALS_IN_B
