"""Every data file that ships with clustersim loads, and is called what its file is called."""

from __future__ import annotations

import json

import pytest

from clustersim import catalog
from clustersim.scenario import load, load_engine, load_model, load_topology
from clustersim.scenario.keys.json_schema import json_schema


@pytest.mark.parametrize("name", catalog.names("topologies"))
def test_topology_loads(name: str) -> None:
    assert load_topology(name).name == name


@pytest.mark.parametrize("name", catalog.names("scenarios/models"))
def test_model_loads(name: str) -> None:
    assert load_model(name).name == name


@pytest.mark.parametrize("name", catalog.names("scenarios/engines"))
def test_engine_loads(name: str) -> None:
    assert load_engine(name).name == name


@pytest.mark.parametrize("name", catalog.names("scenarios"))
def test_scenario_loads(name: str) -> None:
    assert len(load(name).requests()) > 0


def test_the_schema_for_editors_is_current() -> None:
    written = json.loads(catalog.path_of("scenarios", "schema", ".json").read_text(encoding="utf-8"))
    assert written == json_schema(), "run: clustersim schema > scenarios/schema.json"
