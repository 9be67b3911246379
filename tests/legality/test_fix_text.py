"""Edits of a scenario's text: what they do not concern stays as it was written."""

from __future__ import annotations

import copy
import re

import pytest

from clustersim.scenario.document import parse_yaml
from clustersim.scenario.text.edit import differences, edited
from clustersim.scenario.text.flow import flow

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


SHARED = [
    ("tp: &d 6    # six\nep: *d  # as many\n", ("tp",), 4, "tp: 4       # six\nep: &d 6  # as many\n"),
    ("tp: &d 6    # six\nep: *d  # as many\n", ("ep",), 4, "tp: &d 6    # six\nep: 4   # as many\n"),
    ("a: &d 6 # a\nb: *d\nc: *d # c\n", ("a",), 4, "a: 4 # a\nb: &d 6\nc: *d # c\n"),
    ("a: &x {tp: 6} # a\nplan: *x # p\n", ("plan", "tp"), 4, "a: &x {tp: 6} # a\nplan: {tp: 4} # p\n"),
    ("a: &x {tp: 6} # a\nplan: *x # p\n", ("a", "tp"), 4, "a: {tp: 4} # a\nplan: &x {tp: 6} # p\n"),
    ("a: &x   # a\n  tp: 6 # b\nplan: *x\n", ("a", "dp"), 2, "a: # a\n  tp: 6 # b\n  dp: 2\nplan: &x {tp: 6}\n"),
    ("a: &x   # a\n  tp: 6 # b\nq: 1\n", ("a", "dp"), 2, "a: &x   # a\n  tp: 6 # b\n  dp: 2\nq: 1\n"),
    ("a: &x {b: &y 1} # a\nc: *x\nd: *y\n", ("a",), 5, "a: 5 # a\nc: &x {b: 1}\nd: &y 1\n"),
    ("a: [&m n0, *m] # a\nb: *m\n", ("a",), "packed", "a: packed # a\nb: &m n0\n"),
    ("b: &b {tp: 6} # b\nplan: {<<: *b} # p\n", ("plan", "tp"), 4, "b: &b {tp: 6} # b\nplan: {<<: *b, tp: 4} # p\n"),
    (
        "b: &b {sp: {degree: 2}} # b\nplan: {<<: *b} # p\n", ("plan", "sp", "decode"), "idle",
        "b: &b {sp: {degree: 2}} # b\nplan: {<<: *b, sp: {degree: 2, decode: idle}} # p\n",
    ),
    ("a: &x {tp: 6} # a\nb: {<<: *x} # b\n", ("a", "tp"), 4, "a: {tp: 4} # a\nb: {<<: &x {tp: 6}} # b\n"),
]  # fmt: skip
"""Text, path, value, what comes out: what else shares the value keeps it, and every comment stays."""


@pytest.mark.parametrize(("text", "path", "value", "came"), SHARED)
def test_a_value_that_is_shared_parts_and_comments_stay(text, path, value, came):
    found = changed(text, path, value)
    assert re.sub(" +#", " #", found) == re.sub(" +#", " #", came)


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
