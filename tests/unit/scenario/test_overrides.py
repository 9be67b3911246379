"""``--set``: the grammar of paths, what is changed, and what cannot be."""

from __future__ import annotations

import pytest

from clustersim.errors import InputError
from clustersim.scenario.document import Mark, parse_yaml
from clustersim.scenario.overrides import apply_overrides, split_override
from clustersim.scenario.schema import SHORTHANDS

SHORT = {("plan", "sp"): "degree", ("plan", "stages"): None}


def changed(text: str, *overrides: str) -> object:
    return apply_overrides(parse_yaml(text, "f.yaml"), overrides, SHORT).data


@pytest.mark.parametrize(
    ("text", "parts", "value"),
    [
        ("plan.tp=8", ["plan", "tp"], "8"),
        ("a.b[0].c=x=y", ["a", "b", "[0]", "c"], "x=y"),
        ("a[gpu].c=", ["a", "[gpu]", "c"], ""),
        ("a[*]=1", ["a", "[*]"], "1"),
        ("expect.'ttft_ms.p99'=< 900", ["expect", "ttft_ms.p99"], "< 900"),
    ],
)
def test_split_override_follows_the_grammar(text: str, parts: list[str], value: str) -> None:
    assert split_override(text) == (parts, value)


@pytest.mark.parametrize("text", ["", "=3", "a", "a..b=1", ".a=1", "a.=1", "[0]=1", "a b=1"])
def test_split_override_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected KEY\.KEY=VALUE, such as plan\.tp=8"):
        split_override(text)


@pytest.mark.parametrize(
    ("override", "data"),
    [
        ("a.b=1e3", {"a": {"b": 1000.0}}),
        ("a.b=", {"a": {"b": None}}),
        ("a.c={d: [1, x]}", {"a": {"b": 1, "c": {"d": [1, "x"]}}}),
        ("new.deep.key=yes", {"a": {"b": 1}, "new": {"deep": {"key": "yes"}}}),
    ],
)
def test_apply_overrides_sets_values_of_yaml(override: str, data: object) -> None:
    assert changed("a: {b: 1}", override) == data


def test_apply_overrides_selects_list_items() -> None:
    text = "l: [{name: x, v: 1}, {name: y, v: 2}]"
    assert changed(text, "l[1].v=7") == {"l": [{"name": "x", "v": 1}, {"name": "y", "v": 7}]}
    assert changed(text, "l[x].v=7") == {"l": [{"name": "x", "v": 7}, {"name": "y", "v": 2}]}
    assert changed(text, "l[*].v=7") == {"l": [{"name": "x", "v": 7}, {"name": "y", "v": 7}]}


def test_apply_overrides_enters_a_short_form() -> None:
    assert changed("plan: {sp: 2}", "plan.sp.scheme=ring") == {"plan": {"sp": {"degree": 2, "scheme": "ring"}}}
    assert changed("plan: {stages: balanced}", "plan.stages.cuts=[4]") == {"plan": {"stages": {"cuts": [4]}}}


def test_a_lone_degree_is_that_degree_whatever_is_said_beside_it() -> None:
    written = parse_yaml("plan: {ep: {degree: 8, scope: global}, tp: 2}", "f.yaml")
    for path in ("plan.ep", "plan.ep.degree"):
        found = apply_overrides(written, [f"{path}=2"], SHORTHANDS)
        assert found.data == {"plan": {"ep": {"degree": 2, "scope": "global"}, "tp": 2}}
        assert found.mark(("plan", "ep", "degree")) == Mark(file="--set #1")
    assert apply_overrides(written, ["plan.ep={degree: 2}"], SHORTHANDS).data["plan"]["ep"] == {"degree": 2}


def test_later_overrides_win() -> None:
    assert changed("a: 1", "a=2", "a=3") == {"a": 3}


def test_apply_overrides_leaves_the_document_as_it_is() -> None:
    document = parse_yaml("a: {b: 1}", "f.yaml")
    apply_overrides(document, ["a.b=2"], SHORT)
    assert document.data == {"a": {"b": 1}}


def test_marks_name_the_flag() -> None:
    document = apply_overrides(parse_yaml("a: {b: {c: 1}}", "f.yaml"), ["x=1", "a.b=[1]"], SHORT)
    assert document.mark(("a", "b")) == Mark(file="--set #2")
    assert document.mark(("a", "b", "c")) == Mark(file="--set #2")
    assert document.mark(("a",)) == Mark(file="f.yaml", line=1, column=4)
    inside = apply_overrides(parse_yaml("a: 1", "f.yaml"), ["a={b: {c: 1}}", "a.b.d=2"], SHORT)
    assert [inside.mark(("a", "b", key)) for key in "cd"] == [Mark(file="--set #1"), Mark(file="--set #2")]


def test_apply_overrides_reports_every_flag_that_does_not_fit() -> None:
    with pytest.raises(InputError) as caught:
        changed("p: 2\nl: [{name: x}]", "p.q=1", "l[3].v=1", "l[z].v=1", "x=[1", "p[0]=1", "??")
    assert str(caught.value).splitlines() == [
        "--set #1: p: is the number 2, so it has no key 'q'",
        "--set #2: l: has 1 item, so there is no [3]",
        "--set #3: l: has no item named 'z'; known: x",
        "--set #4: not valid YAML: expected ',' or ']': the list opened at line 1 has no end",
        "--set #5: p: is the number 2, so [0] selects nothing in it",
        "--set #6: expected KEY.KEY=VALUE, such as plan.tp=8, but found '??'",
    ]
