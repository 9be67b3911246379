"""``assumed`` of devices and engines names what their sources and comments call so, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from clustersim import catalog
from tests.shipped import read

ASSUMED = re.compile(r"\bassumed\b|^not measured", re.I)
TAKEN_OVER = re.compile(r"assumed to be as (?:in )?vllm-0\.19", re.I)


def sections(value: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted path, source) of each section with a source of its own."""
    for key, inside in value.items():
        if key == "source" and isinstance(inside, str) and where:
            yield where, " ".join(inside.split())
        elif isinstance(inside, Mapping):
            yield from sections(inside, f"{where}.{key}".lstrip("."))


@pytest.mark.parametrize("name", catalog.names("topologies/devices"))
def test_a_device_names_what_its_sources_call_assumed(name: str) -> None:
    document = read("topologies/devices", name)
    named = document.get("assumed", [])
    said = {where for where, source in sections(document) if ASSUMED.search(source)}
    whole = {where for where, source in sections(document) if re.match("assumed|not measured", source)}
    assert whole <= set(named)
    holders = [[where for where in said if f"{one}.".startswith(f"{where}.")] for one in named]
    assert {max(of, key=len, default="nothing") for of in holders} == said


@pytest.mark.parametrize("name", catalog.names("scenarios/engines"))
def test_an_engine_names_what_its_comments_call_assumed(name: str) -> None:
    text = catalog.path_of("scenarios/engines", name).read_text(encoding="utf-8")
    of_another = TAKEN_OVER.search(" ".join(text.split()))
    said = []
    for block in text.split("\n\n"):
        lines = block.strip().splitlines()
        comment = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        keys = [line.partition(":")[0] for line in lines if re.match("[a-z]", line)]
        if comment and (ASSUMED.search(comment) or (of_another and comment.startswith("As vllm-0.19."))):
            said += keys
    assert set(read("scenarios/engines", name).get("assumed", [])) == set(said)
