"""Engines: reading them, and those that ship."""

from __future__ import annotations

from dataclasses import fields

import pytest
import yaml

from clustersim.catalog import names, path_of
from clustersim.cost import Engine, engine_from_mapping
from clustersim.errors import InputError

COMPLETE = {
    "source": "made up",
    "schedule": "120 us",
    "schedule_per_request": "3 us",
    "sample": "1 ms",
    "sample_per_request": "0.5 us",
    "launch": "8 us",
    "graph_launch": "500 ns",
    "graph_max_tokens": 256,
    "collective_launch": "0 s",
}


def test_durations_are_read_with_their_units():
    engine = engine_from_mapping("mine", COMPLETE)
    assert engine.name == "mine"
    assert engine.schedule_s == pytest.approx(120e-6)
    assert engine.sample_s == pytest.approx(1e-3)
    assert engine.graph_launch_s == pytest.approx(500e-9)
    assert (engine.graph_max_tokens, engine.collective_launch_s) == (256, 0.0)


def test_every_mistake_is_named_at_once():
    wrong = COMPLETE | {"schedule": 120, "sample": "-1 ms", "graph_max_tokens": 2.5, "source": "", "lunch": "1 us"}
    del wrong["launch"]
    with pytest.raises(InputError) as caught:
        engine_from_mapping("mine", wrong)
    assert [str(problem) for problem in caught.value.problems] == [
        "lunch: unknown key; did you mean 'launch'?",
        "source: expected a sentence that names the source, but found ''",
        "schedule: expected a time with its unit, such as '8 us', but found 120",
        "sample: expected a duration of at least 0 s and at most 10 s, but found '-1 ms'",
        "launch: is missing",
        "graph_max_tokens: expected a whole number of tokens, at least 0 and at most 1,000,000,000, but found 2.5",
    ]


def shipped():
    return [
        engine_from_mapping(name, yaml.safe_load(path_of("scenarios/engines", name).read_text(encoding="utf-8")))
        for name in names("scenarios/engines")
    ]


def test_every_engine_loads_and_names_its_source():
    engines = shipped()
    assert {"ideal", "sglang-0.5", "trtllm-1.0", "vllm-0.19", "vllm-0.3-eager", "vllm-0.6"} <= {e.name for e in engines}
    assert all(len(engine.source) > 40 for engine in engines)


def test_the_ideal_engine_costs_nothing():
    ideal = next(engine for engine in shipped() if engine.name == "ideal")
    assert all(getattr(ideal, f.name) == 0 for f in fields(Engine) if f.name not in {"name", "source"})


def test_newer_engines_of_vllm_cost_less_host_time():
    by_name = {engine.name: engine for engine in shipped()}
    step = [
        engine.schedule_s + engine.sample_s + 64 * (engine.schedule_per_request_s + engine.sample_per_request_s)
        for engine in (by_name["vllm-0.3-eager"], by_name["vllm-0.6"], by_name["vllm-0.19"])
    ]
    assert step[0] > step[1] > step[2]
