"""Engines: reading them, and those that ship."""

from __future__ import annotations

from dataclasses import fields

import pytest

from clustersim.catalog import names
from clustersim.cost import Engine, engine_from_mapping
from clustersim.errors import InputError
from clustersim.scenario import load_engine

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
    return [load_engine(name) for name in names("scenarios/engines")]


def test_every_engine_loads_and_names_its_source():
    engines = shipped()
    assert {e.name for e in engines} >= {
        "vllm-2023", "vllm-0.3-eager", "vllm-0.6", "vllm-0.9", "vllm-0.12", "vllm-0.19", "sglang-0.5", "trtllm-0.9",
        "trtllm-0.14", "trtllm-1.0", "distserve-2024", "ideal",
    }  # fmt: skip
    assert all(len(engine.source) > 40 for engine in engines)


def test_the_ideal_engine_costs_nothing():
    ideal = next(engine for engine in shipped() if engine.name == "ideal")
    assert all(getattr(ideal, f.name) == 0 for f in fields(Engine) if f.name.endswith(("_s", "_tokens")))


def test_newer_engines_of_vllm_cost_less_host_time():
    by_name = {engine.name: engine for engine in shipped()}
    step = [
        engine.schedule_s + engine.sample_s + 64 * (engine.schedule_per_request_s + engine.sample_per_request_s)
        for engine in (by_name[f"vllm-{version}"] for version in ("2023", "0.6", "0.12", "0.19"))
    ]
    assert step == sorted(step, reverse=True)


def test_stages_cost_the_first_one_host_time_where_there_are_several():
    engine = engine_from_mapping("mine", COMPLETE | {"stage": "1 ms"})
    assert engine.of_stages(1) == engine
    assert engine.of_stages(4).schedule_s == pytest.approx(1.12e-3)


@pytest.mark.parametrize("value", [0, 0.1, 6, -1, True, "1.05", None, float("nan"), float("inf")])
def test_kernels_take_a_fifth_to_five_times_what_the_device_says(value):
    with pytest.raises(InputError, match=r"kernel_time: expected a number from 0\.2 to 5, such as 1\.05, but found"):
        engine_from_mapping("mine", COMPLETE | {"kernel_time": value})
    assert engine_from_mapping("mine", COMPLETE | {"kernel_time": 2}).kernel_time == 2.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"two_shots": {}}, "unknown key"),
        ({"one_shot": "1 MB"}, "expected a mapping"),
        ({"one_shot": {"all": "1 MB"}}, "expected a number of ranks"),
        ({"one_shot": {"1": "1 MB"}}, "expected a number of ranks"),
        ({"one_shot": {"4": "-1 MB"}}, "at least 0 B"),
    ],
)
def test_limits_of_all_reduces_that_are_none(value, message):
    given = COMPLETE | {"all_reduce": value}
    with pytest.raises(InputError) as caught:
        engine_from_mapping("toy", given)
    told = [str(one.message) for one in caught.value.problems if (one.path or "").startswith("all_reduce")]
    assert len(told) == 1
    assert message in told[0]
