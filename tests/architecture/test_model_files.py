"""Every file in ``scenarios/models`` loads, says where it is from, and has no key that nothing reads."""

from __future__ import annotations

import re

import pytest

from clustersim.catalog import names
from clustersim.model import model_from_config
from tests.shipped import read

PROMISED = (
    "deepseek-v3",
    "gpt-oss-120b",
    "llama-2-70b",
    "llama-2-7b",
    "llama-3.1-405b",
    "llama-3.1-70b",
    "llama-3.1-8b",
    "mistral-7b",
    "mistral-large-123b",
    "mixtral-8x22b",
    "mixtral-8x7b",
    "opt-13b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
)
"""Names that scenarios of other people may rely on."""


def shipped(name):
    return read("scenarios/models", name)


def test_promised_names_are_there():
    assert set(PROMISED) <= set(names("scenarios/models"))


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_name_is_lower_case_with_hyphens(name):
    assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", name)


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_file_has_source_figures_and_configuration(name):
    file = shipped(name)
    assert list(file) == ["source", "published", "config"]
    assert file["source"].strip()
    assert {"parameters", "kv_bytes_per_token"} <= set(file["published"])
    for figure in file["published"].values():
        assert figure["source"].strip()
        assert set(figure) <= {"value", "source", "input_embedding"}


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_configuration_builds_a_model_and_every_key_is_read(name):
    model = model_from_config(shipped(name)["config"], name)
    assert not model.unused_keys
