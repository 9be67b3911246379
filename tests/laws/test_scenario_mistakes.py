"""Law: whatever is written into a scenario, it loads or is refused with a place; nothing else happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.errors import InputError, Problem
from clustersim.scenario.document import Document, KeyPath, parse_yaml
from clustersim.scenario.load import build_scenario
from tests.effort import examples

FULL = """\
name: full
topology: dgx-h100
model:
  name: tiny
  source: made up for tests
  config: {model_type: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 8,
    intermediate_size: 128, vocab_size: 1000}
plan: {tp: 4, pp: 2, sp: {degree: 1}, ep: 1, stages: {cuts: [2]}}
serving:
  scheduler: continuous
  engine: {name: still, source: made up, schedule: 0 s, schedule_per_request: 0 s, sample: 0 s,
    sample_per_request: 0 s, launch: 2 us, graph_launch: 1 us, graph_max_tokens: 256, collective_launch: 0 s}
workload:
  arrivals: {process: gamma, rate: 4/s, cv: 2}
  prompt_tokens: {uniform: {low: 5, high: 10}}
  output_tokens: {empirical: {values: [1, 2], weights: [1, 0.5]}}
  requests: 20
precision: {weights: bf16, activations: bf16, kv_cache: fp8}
run: {replay: full, horizon: 60 s}
targets: {ttft: 1 s}
expect: {legal: true, ttft_ms.p99: < 9}
collectives: {all_reduce: ring}
"""
WEIRD = st.one_of(
    st.sampled_from([None, True, -1, 0, 1, 10**30, 0.5, -0.0, float("inf"), float("nan"), "", "ring", "1 s", "x/y"]),
    st.text(max_size=5),
    st.sampled_from([[], {}, [None], {"name": None}, {"degree": []}, {"x": {"y": [1]}}, [[1]], ["a", 1], {"": ""}]),
)


def replaced(document: Document, path: KeyPath, value: object) -> Document:
    """Return the document with another value at a path, as if it stood there."""
    copy = parse_yaml(FULL, "s.yaml")
    holder = copy.data
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    marks = {key: mark for key, mark in document.marks.items() if key[: len(path)] != path or key == path}
    return Document(file="s.yaml", data=copy.data, marks=marks, key_marks=document.key_marks)


def refused(document: Document) -> tuple[Problem, ...]:
    """Return why a scenario is refused; nothing when it loads."""
    try:
        build_scenario(document)
    except InputError as error:
        return error.problems
    return ()


ORIGINAL = parse_yaml(FULL, "s.yaml")
PATHS = sorted((path for path in ORIGINAL.marks if path), key=str)


@examples(150)
@given(path=st.sampled_from(PATHS), value=WEIRD)
def test_a_scenario_loads_or_is_refused_with_a_place(path: KeyPath, value: object) -> None:
    for problem in refused(replaced(ORIGINAL, path, value)):
        assert problem.file
        assert problem.line is not None or problem.file != "s.yaml"
        assert "Input should" not in problem.message


@examples(50)
@given(path=st.sampled_from(PATHS), key=st.text(max_size=6))
def test_an_unknown_key_is_refused_where_it_stands(path: KeyPath, key: str) -> None:
    holder = ORIGINAL.data
    for part in path:
        holder = holder[part]
    if not isinstance(holder, dict) or path[0] in ("model", "expect") or key in holder or key in ("nodes",):
        return
    with pytest.raises(InputError):
        build_scenario(replaced(ORIGINAL, path, {**holder, f"_{key}": 1}))
