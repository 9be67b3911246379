"""The schema of scenarios: defaults, short forms, and every mistake in a user's words at its place."""

from __future__ import annotations

import json
import re

import pytest
import yaml
from scenario_text import SMALL

from clustersim.errors import InputError
from clustersim.scenario.document import Document, parse_yaml
from clustersim.scenario.keys.json_schema import json_schema, keys
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.schema import SHORTHANDS, FaultPart, ScenarioPart
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
        ("plan.tensor-parallel-size=8", "unknown key 'tensor-parallel-size'; here it is plan.tp"),
        ("tp=8", "tp: unknown key 'tp'; did you mean plan.tp?"),
        ("device=8", "device: unknown key 'device'; known: "),
        ("workload.rate=8", "workload.rate: unknown key 'rate'; here it is workload.arrivals.rate"),
        ("plan.tp.tp_size=8", "plan.tp.tp_size: unknown key 'tp_size'; here it is plan.tp.degree"),
        ("plan.ep.max_num_seqs=8", "unknown key 'max_num_seqs'; here it is serving.max_batch_requests"),
        ("plan.decode.tp_size=8", "unknown key 'tp_size'; here it is plan.decode.tp"),
        (
            "serving.decode.max_num_seqs=8",
            "serving.decode.max_num_seqs: unknown key 'max_num_seqs'; here it is serving.decode.max_batch_requests",
        ),
        ("serving.decode.kv_cache_dtype=fp8", "unknown key 'kv_cache_dtype'; here it is precision.kv_cache"),
        ("isl=8", "unknown key 'isl'; here it is workload.prompt_tokens"),
        ("serving.scheduling_policy=fcfs", "unknown key 'scheduling_policy'; here it is serving.order"),
        ("enforce_eager=true", "unknown key 'enforce_eager'; here it is serving.engine.graph_max_tokens=0"),
        ("workload.trace.rate=2", "unknown key 'rate'; did you mean 'rate_scale'?"),
        ("faults=[{link: [n0.g3], at: 1 s}]", "expected at least 2 items, such as [n0.g3, n0.nvswitch], but found 1"),
        ("faults=[{link: [1, 2], at: 1 s}]", "faults[0].link[1]: expected text such as n0.g3, but found the number 2"),
        ("faults=[{device: true, at: 1 s}]", "expected a device such as n0.g3, or its number, but found true"),
        ("faults=[n0.g3]", "faults[0]: expected a mapping such as {device: n0.g3, at: 30 s, until: 60 s}, but"),
        ("collectives.all_gather=3", "expected text such as ring, but found the number 3"),
        ("serving.context_window=full", "expected 'model', 'unlimited' or a number of tokens such as 8192, but"),
        ("max_num_seqs=8", "max_num_seqs: unknown key 'max_num_seqs'; here it is serving.max_batch_requests"),
        ("serving.--max-model-len=8", "unknown key '--max-model-len'; here it is serving.context_window"),
        ("plan.sp.schema=ring", "plan.sp.schema: unknown key 'schema'; did you mean 'scheme'?"),
        ("plan.tp=eight", "plan.tp: expected a whole number such as 8, but found the text 'eight'"),
        ("plan.tp=8k", "plan.tp: expected a whole number such as 8, but found the text '8k'; did you mean 8000?"),
        ("plan.pp=true", "plan.pp: expected a whole number such as 8, but found true"),
        ("plan.pp=1.5", "plan.pp: expected a whole number such as 8, but found the number 1.5"),
        ("plan.pp=", "plan.pp: expected a whole number such as 8, but found nothing (null)"),
        ("plan.dp=0", "plan.dp: must be at least 1, but is 0"),
        ("seed=-1", "seed: must be at least 0, but is -1"),
        ("plan=8", "plan: expected a mapping such as {dp: 1, tp: 2}, but found the number 8"),
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
        (
            f"serving.max_batch_tokens={2**31}",
            f"serving.max_batch_tokens: must be at most {2**31 - 1:,}, but is {2**31}",
        ),
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
        ("run.horizon=60", "run.horizon: expected a time with its unit, such as '60 s', but found 60"),
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


def told_of(key: str, value: object) -> list[str]:
    """Return what is said of a value of a key that is wrong, and of one beside it where the key needs that."""
    part, _, name = key.rpartition(".")
    if part == "faults":
        beside = {"factor": {"link": ["n0.g3", "n0.nvswitch"]}}
        own = {} if name in ("device", "node", "link") else beside.get(name, {"device": "n0.g3"})
        key, value = "faults", [{"at": "1 s", **own, name: value}]
    try:
        validate(document(f"{key}={json.dumps(value)}"))
    except InputError as error:
        at = f"faults[0].{name}" if part == "faults" else key
        return [problem.message for problem in error.problems if problem.path.startswith(at)]
    return []


def fits(key: str, example: str) -> bool:
    """Tell whether an example of a value, of an item of a list or of a value of a mapping has the type of its key."""
    value = yaml.safe_load(example)
    return any(
        not any(message.startswith(("expected", "must", "unknown")) for message in told_of(key, one))
        for one in (value, [value], [value, value], {"all_reduce": value})
    )


KEYS = [key for key, _ in (*keys(), *keys(FaultPart, "faults."))]


@pytest.mark.parametrize("key", [*dict.fromkeys(key.rpartition(".")[0] for key in KEYS), *KEYS])
def test_the_example_in_a_message_would_do(key: str) -> None:
    wrong = ([], {"zz": 1}, "no such", True, 1.5, -1, None, [{}], [1, 1], [[]])
    examples = {
        found[1].strip("'").removeprefix(f"{key.rpartition('.')[2]}: ")
        for value in wrong
        if key
        for message in told_of(key, value)
        if (found := re.search(r"such as (.+?)(, (?:but|or) .*)?$", message)) and "my_file" not in message
    }  # fmt: skip
    assert [example for example in examples if not fits(key, example)] == []


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
