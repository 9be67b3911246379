"""The schema of scenarios: defaults, short forms, and every mistake in a user's words at its place."""

from __future__ import annotations

import pytest
from scenario_text import SMALL

from clustersim.errors import InputError
from clustersim.scenario.document import Document, parse_yaml
from clustersim.scenario.keys.json_schema import json_schema
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.schema import SHORTHANDS, ScenarioPart
from clustersim.scenario.validate import validate


def document(*overrides: str) -> Document:
    return apply_overrides(parse_yaml(SMALL, "s.yaml"), overrides, SHORTHANDS)


def problems(*overrides: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        validate(document(*overrides))
    return str(caught.value).splitlines()


def test_validate_fills_in_defaults() -> None:
    part = validate(document())
    assert (part.plan.dp, part.plan.tp.degree, part.plan.sp.degree) == (1, 4, 1)
    assert part.serving.max_batch_tokens is None  # the engine decides
    assert part.run.replay == "folded"
    assert part.precision.weights is None


def test_validate_reads_short_forms_and_long_forms_alike() -> None:
    long = validate(document("plan.tp={degree: 4}", "workload.prompt_tokens={fixed: 100}", "plan.stages=balanced"))
    assert long == validate(document())


def test_validate_reads_whole_floats_as_whole_numbers() -> None:
    assert validate(document("workload.requests=1e6")).workload.requests == 1_000_000


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("plan.tpp=3", "plan.tpp: unknown key 'tpp'; did you mean 'tp'?"),
        ("plan.tensor-parallel-size=8", "unknown key 'tensor-parallel-size'; here it is plan.tp.degree"),
        ("workload.rate=8", "workload.rate: unknown key 'rate'; here it is workload.arrivals.rate"),
        ("max_num_seqs=8", "max_num_seqs: unknown key 'max_num_seqs'; here it is serving.max_batch_requests"),
        ("serving.--max-model-len=8", "unknown key '--max-model-len'; here it is serving.context_window"),
        ("plan.sp.schema=ring", "plan.sp.schema: unknown key 'schema'; did you mean 'scheme'?"),
        ("plan.tp=eight", "plan.tp: expected a whole number such as 8, but found the text 'eight'"),
        ("plan.tp='8'", "plan.tp: expected a whole number such as 8, but found the text '8'"),
        ("plan.pp=true", "plan.pp: expected a whole number such as 8, but found true"),
        ("plan.pp=1.5", "plan.pp: expected a whole number such as 8, but found the number 1.5"),
        ("plan.pp=", "plan.pp: expected a whole number such as 8, but found nothing (null)"),
        ("plan.dp=0", "plan.dp: must be at least 1, but is 0"),
        ("seed=-1", "seed: must be at least 0, but is -1"),
        ("plan=8", "plan: expected a mapping such as {key: value}, but found the number 8"),
        (
            "plan.sp.scheme=rnig",
            "plan.sp.scheme: expected one of all_gather, ring, all_to_all, but found the text 'rnig'; "
            "did you mean 'ring'?",
        ),
        (
            "plan.stages.cuts=[2, 3.fn]",
            "plan.stages.cuts[1]: expected a layer such as 40, or '12.ffn' to cut before the FFN of layer "
            "12, but found the text '3.fn'",
        ),
        ("plan.stages=even", "plan.stages: expected 'balanced' or {cuts: [40]}, but found the text 'even'"),
        ("serving.memory_utilization=1.2", "serving.memory_utilization: must be at most 1, but is 1.2"),
        ("serving.memory_utilization=.nan", "serving.memory_utilization: expected a finite number"),
        (
            "serving.scheduler=chunked",
            "serving.scheduler: no scheduler 'chunked'; did you mean 'chunked_prefill'?",
        ),
        ("serving.scheduler=statik", "serving.scheduler: no scheduler 'statik'; did you mean 'static'?"),
        (
            "serving.router=robin",
            "serving.router: no router 'robin'; did you mean 'round_robin'? Or a class of a file, such as",
        ),
        (
            "serving.router=zzz",
            "serving.router: no router 'zzz'; known: fewest_waiting, least_outstanding, power_of_two, prefix_aware, "
            "round_robin; or a class of a file, such as my_file.py:MyClass",
        ),
        ("serving.scheduler_options={a: 1}", "serving.scheduler_options: options go with a scheduler from a file"),
        ("serving.order={patience: 1 s}", "serving.order.patience: in order of arrival nobody is overtaken"),
        ("serving.order={by: priority, patience: 5}", "serving.order.patience: expected a time such as '10 s'"),
        ("topology=[a]", "topology: expected a name such as dgx-h100, or a mapping, but found a list"),
        ("run.horizon=60", "run.horizon: expected a time with its unit, such as '8 us', but found 60"),
        ("run.horizon=60 sec", "run.horizon: '60 sec' has the unknown unit 'sec'"),
        ("run.horizon=-1 s", "run.horizon: must be more than 0, but is -1 s"),
        ("workload.arrivals.rate=4", "workload.arrivals.rate: expected a rate with its unit, such as '4/s'"),
        ("workload.arrivals.cv=2", "workload.arrivals.cv: the process constant has no cv; remove it"),
        (
            "workload.arrivals={process: gamma, rate: 1/s}",
            "workload.arrivals.cv: is missing; the process gamma",
        ),
        ("workload.trace=x.csv", "workload.arrivals: a workload is a trace or drawn, not both"),
        ("workload={requests: 3}", "workload.arrivals: is missing; a drawn workload needs it, such as"),
        ("workload={}", "workload: says neither trace (recorded requests) nor arrivals"),
        ("workload.prompt_tokens={}", "workload.prompt_tokens: expected one of fixed, uniform"),
        ("workload.prompt_tokens.uniform={low: 1}", "workload.prompt_tokens.uniform.high: is missing"),
        ("workload.prompt_tokens.fixd=1", "unknown key 'fixd'; did you mean 'fixed'?"),
        ("name=a/b", "name: expected letters, digits"),
    ],
)
def test_validate_says_what_is_wrong(override: str, problem: str) -> None:
    found = problems(override)
    assert any(line.startswith(f"--set #1: {problem}") or f": {problem}" in line for line in found), found
    assert not any("Input should" in line or "Extra inputs" in line for line in found)


def test_validate_reports_all_problems_in_order_of_position() -> None:
    text = "name: x\nplan:\n  tp: 0\n  dq: 1\nserving: {}\nseed: a\n"
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(text, "s.yaml"))
    assert str(caught.value).splitlines() == [
        "s.yaml:1:1: topology: is missing; add it, such as 'topology: dgx-h100'",
        "s.yaml:1:1: model: is missing; add it, such as 'model: llama-3.1-8b'",
        "s.yaml:1:1: workload: is missing; add it, such as 'workload: {trace: {path: traces/my-requests.csv}}'",
        "s.yaml:3:7: plan.tp: must be at least 1, but is 0",
        "s.yaml:4:3: plan.dq: unknown key 'dq'; did you mean 'dp'?",
        "s.yaml:6:7: seed: expected a whole number such as 8, but found the text 'a'",
    ]


def test_problems_of_flags_come_in_the_order_of_the_flags() -> None:
    flags = [f"serving.max_batch_tokens={10 - i}" for i in range(9)] + ["plan.dp=0", "plan.pp=0"]
    assert [line.split(": ")[0] for line in problems(*flags)] == ["--set #10", "--set #11"]


def test_a_mistake_behind_an_alias_is_reported_once() -> None:
    text = SMALL + "targets: &t {ttft: 1}\nrun: {}\n"
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(text + "precision: {weights: &w 8, kv_cache: *w}\n", "s.yaml"))
    assert len(caught.value.problems) == 2


def test_json_schema_has_the_keys_of_a_scenario() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(ScenarioPart.model_fields)
    assert schema["required"] == ["name", "topology", "model", "workload"]
    assert schema["additionalProperties"] is False
