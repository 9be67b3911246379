"""Edits of a scenario's text: what they do not concern stays as it was written."""

from __future__ import annotations

import copy

import pytest

from clustersim.scenario.document import parse_yaml
from clustersim.scenario.edit import differences, edited, flow

TEXT = """\
# a comment
name: one            # its name
plan:
  tp: 6              # six
  sp: {degree: 2, scheme: ring}      # no decode
  stages:
    # cut here
    cuts:
      - 40           # or not
  placement:
  - n0.g0
  - n0.g1

# the rest
serving:
workload: {requests: 3, }
notes: |
  long text: here
"""


def changed(text, path, value):
    """Return the text with one value changed."""
    data = copy.deepcopy(parse_yaml(text, "s.yaml").data)
    holder = data
    for part in path[:-1]:
        holder[part] = {} if holder.get(part) is None else holder[part]
        holder = holder[part]
    holder[path[-1]] = value
    result = edited(text, data, "s.yaml")
    assert parse_yaml(result, "s.yaml").data == data
    return result


def lines(text, path, value):
    """Return the lines that went and came."""
    before, after = text.splitlines(), changed(text, path, value).splitlines()
    return [line for line in before if line not in after], [line for line in after if line not in before]


@pytest.mark.parametrize(
    ("path", "value", "went", "came"),
    [
        (("plan", "tp"), 4, ["  tp: 6              # six"], ["  tp: 4              # six"]),
        (("plan", "tp"), 16, ["  tp: 6              # six"], ["  tp: 16             # six"]),
        (
            ("plan", "sp", "decode"),
            "idle",
            ["  sp: {degree: 2, scheme: ring}      # no decode"],
            ["  sp: {degree: 2, scheme: ring, decode: idle}  # no decode"],
        ),
        (
            ("plan", "stages"),
            "balanced",
            ["  stages:", "    # cut here", "    cuts:", "      - 40           # or not"],
            ["  stages: balanced           # or not"],
        ),
        (
            ("plan", "placement"),
            "packed",
            ["  placement:", "  - n0.g0", "  - n0.g1"],
            ["  placement: packed"],
        ),
        (("plan", "dp"), 2, [], ["  dp: 2"]),
        (("serving", "kv_blocks"), 7, ["serving:"], ["serving: {kv_blocks: 7}"]),
        (("workload", "seed"), 1, ["workload: {requests: 3, }"], ["workload: {requests: 3, seed: 1 }"]),
        (("precision", "weights"), "fp8", [], ["precision: {weights: fp8}"]),
        (("notes",), "short", ["notes: |", "  long text: here"], ["notes: short"]),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_only_the_lines_concerned_change(path, value, went, came):
    assert lines(TEXT, path, value) == (went, came)


def test_a_key_is_added_after_the_last_one_of_its_mapping_and_its_comment():
    text = "plan:\n  tp: 6   # six\n\n# end\n"
    assert changed(text, ("plan", "dp"), 2) == "plan:\n  tp: 6   # six\n  dp: 2\n\n# end\n"
    assert changed("plan:\n  tp: 6", ("plan", "dp"), 2) == "plan:\n  tp: 6\n  dp: 2"


@pytest.mark.parametrize("text", ["\ufeffname: é\r\nplan:\r\n  tp: 6\r\n", "name: 'ü\u2028'\nplan: {'tp': 6}\n"])
def test_line_breaks_marks_and_letters_survive(text):
    assert changed(text, ("plan", "tp"), 4) == text.replace("6", "4")
    assert "dp: 2" in changed(text, ("plan", "dp"), 2)


def test_a_value_that_an_alias_shares_is_changed_at_one_place_only():
    text = "a: &x {tp: 6}\nplan: *x\n"
    assert parse_yaml(changed(text, ("plan", "tp"), 4), "").data == {"a": {"tp": 6}, "plan": {"tp": 4}}


def test_json_stays_json():
    text = edited('{"plan": {"tp": 6}}', {"plan": {"tp": 4}}, "s.json")
    assert text == '{\n  "plan": {\n    "tp": 4\n  }\n}\n'
    assert edited('{"a":  1}', {"a": 1}, "s.json") == '{"a":  1}'


def test_nothing_changes_where_nothing_differs():
    assert edited(TEXT, parse_yaml(TEXT, "").data, "s.yaml") == TEXT


def test_true_is_not_one():
    assert list(differences({"a": 1, "b": [1]}, {"a": True, "b": [1], "c": 2})) == [(("a",), True), (("c",), 2)]


@pytest.mark.parametrize("value", ["a b", "a, b", "{", "1e3", "yes", "null", "", "é", "x: y", "#", "- a", "8 us", "-"])
def test_flow_reads_back(value):
    for whole in (value, [value], {"k": value}):
        assert parse_yaml(f"k: {flow(whole)}", "").data == {"k": whole}
