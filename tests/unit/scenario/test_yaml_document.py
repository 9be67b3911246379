"""YAML and JSON with positions: what is read, where it lies, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from clustersim.errors import InputError, Problem
from clustersim.scenario.document import (
    Mark,
    dotted,
    parse_json,
    parse_yaml,
    read_document,
    read_mapping,
)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


def test_marks_name_the_line_and_column_of_values_and_keys() -> None:
    document = parse_yaml("plan:\n  tp: 8\n  cuts: [1, 2]\n", "f.yaml")
    assert document.data == {"plan": {"tp": 8, "cuts": [1, 2]}}
    assert document.mark(("plan", "tp")) == Mark(file="f.yaml", line=2, column=7)
    assert document.mark(("plan", "tp"), key=True) == Mark(file="f.yaml", line=2, column=3)
    assert document.mark(("plan", "cuts", 1)) == Mark(file="f.yaml", line=3, column=13)


def test_what_is_changed_in_a_document_is_not_there_when_its_text_is_parsed_again() -> None:
    text = "plan: {tp: 8, cuts: [1, 2]}\n"
    data = parse_yaml(text, "f.yaml").data
    data["plan"]["cuts"].append(3)
    data["plan"]["tp"] = data["more"] = 4
    again = parse_yaml(text, "g.yaml")
    assert parse_yaml(text, "f.yaml").data == again.data == {"plan": {"tp": 8, "cuts": [1, 2]}}
    assert again.mark(("plan",)).file == "g.yaml"


def test_mark_of_an_absent_value_is_that_of_its_holder() -> None:
    document = parse_yaml("plan:\n  tp: 8\n", "f.yaml")
    assert document.mark(("plan", "pp")) == Mark(file="f.yaml", line=2, column=3)


def test_merge_keeps_the_marks_of_the_anchor() -> None:
    document = parse_yaml("base: &b {x: 1, y: 2}\nall:\n  <<: *b\n  y: 3\n", "f.yaml")
    assert document.data["all"] == {"x": 1, "y": 3}
    assert document.mark(("all", "x")) == Mark(file="f.yaml", line=1, column=14)
    assert document.mark(("all", "y")) == Mark(file="f.yaml", line=4, column=6)


def test_merge_prefers_the_earlier_of_several() -> None:
    text = "a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}\n"
    assert parse_yaml(text, "f.yaml").data["c"] == {"x": 1, "y": 2}


def test_quoted_text_stays_text() -> None:
    assert parse_yaml("a: '12'\nb: \"true\"\nc: !!str 3\n", "f").data == {"a": "12", "b": "true", "c": "3"}


def test_keys_are_text() -> None:
    assert parse_yaml("8: a\ntrue: b\n", "f").data == {"8": "a", "true": "b"}


def test_every_key_that_is_here_twice_is_reported() -> None:
    assert refusal("a: 1\nb: 2\na: 3\nb: 4\n").splitlines() == [
        "f.yaml:3:1: key 'a' is here twice (first at 1:1)",
        "f.yaml:4:1: key 'b' is here twice (first at 2:1)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1, *x]", "f.yaml:1:11: *x lies inside &x (1:4): a cycle"),
        ("a: *x", "f.yaml:1:4: *x names no anchor; write &x before it"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document starts here"),
        ("a: !!python/object:os.system x", "f.yaml:1:4: the tag !!python/object:os.system is not known here"),
        ("a: b: c", "f.yaml:1:5: not valid YAML: a ':' does not fit here"),
        ("a: b\n  d\n\ne: f: g", "f.yaml:4:5: not valid YAML: a ':' does not fit here"),
        ("a:\n  b c\n\n  e: f", "f.yaml:2:3: not valid YAML: expected a key followed by ': '"),
        ("a: 1\nb c\n", "f.yaml:2:1: not valid YAML: expected a key followed by ': '"),
        (
            "a: [1, 2\nb: 3\n",
            "f.yaml:2:2: not valid YAML: expected ',' or ']': the list opened at line 1 has no end",
        ),
        ("a: 'x", "not valid YAML: the quoted text opened at line 1 has no end"),
        ("\ta: 1", "f.yaml:1:1: not valid YAML: this character cannot start a value"),
        ("a: x\x00", "f.yaml:1:5: the character U+0000 is not allowed"),
        ("? [1]\n: 2\n", "f.yaml:1:3: a key must be text"),
        ("<<: 3\n", "f.yaml:1:1: '<<' merges a mapping"),
        ("a: 1e999\n", "f.yaml:1:4: the number 1e999 is too large"),
    ],
)
def test_parse_yaml_refuses(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_document_that_expands_without_end_is_refused() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 40)]
    start = time.perf_counter()
    assert "aliases expand to" in refusal("\n".join(lines))
    assert time.perf_counter() - start < 2.0


def test_deep_nesting_is_refused_and_does_not_crash() -> None:
    assert "nested deeper than" in refusal("[" * 100_000)


def test_json_carries_positions_too() -> None:
    document = parse_json('{\n\t"a": {"b": 1e-06}\n}', "c.json")
    assert document.data == {"a": {"b": 1e-06}}
    assert document.mark(("a", "b")) == Mark(file="c.json", line=2, column=13)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1 2}', "c.json:1:9: not valid JSON: "),
        ('{"a": 1, "a": 2}', "c.json:1:10: a: the key is there twice"),
        ("[" * 100_000, "c.json: nested too deeply"),
    ],
)
def test_parse_json_refuses(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "c.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected a mapping of keys"),
        (b"# only a comment\n", "is empty; expected a mapping of keys"),
        (b"- a\n- b\n", ":1:1: expected a mapping of keys, such as 'name: my-scenario', but found a list"),
        (b"a: 1\nb: \xff\n", ":2:4: byte 0xff is not UTF-8 text"),
    ],
)
def test_read_mapping_refuses(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_mapping(file, "scenario", ("a", "model"))
    assert message in str(caught.value)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("a: 1")
    with pytest.raises(InputError, match=r"no such file; did you mean 'quickstart\.yaml'\?"):
        read_document(tmp_path / "quickstrat.yaml")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file: the folder .*nowhere' does not exist"):
        read_document(tmp_path / "nowhere" / "f.yaml")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory; expected a file"):
        read_document(tmp_path)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(file).data == {"a": 1}


def test_placed_gives_problems_the_position_of_their_path() -> None:
    document = parse_yaml("model:\n  config: {hidden: 0}\n", "f.yaml")
    problems = document.placed([Problem(path="hidden", message="bad")], ("model", "config"))
    assert [str(problem) for problem in problems] == ["f.yaml:2:20: model.config.hidden: bad"]


def test_placed_keeps_problems_of_other_files() -> None:
    elsewhere = Problem(message="bad", file="other.csv")
    assert parse_yaml("a: 1", "f.yaml").placed([elsewhere]) == [elsewhere]


def test_within_cuts_out_a_part_with_its_marks() -> None:
    part = parse_yaml("a:\n  b: {c: 1}\n", "f").within(("a", "b"))
    assert part.data == {"c": 1}
    assert part.mark(("c",)) == Mark(file="f", line=2, column=10)


def test_dotted_quotes_a_key_with_a_dot() -> None:
    assert dotted(("expect", "ttft_ms.p99")) == "expect.'ttft_ms.p99'"
    assert dotted(("plan", "cuts", 0, "x")) == "plan.cuts[0].x"
