"""What ``--vary`` says, and which runs it makes."""

from __future__ import annotations

import pytest

from clustersim.errors import InputError
from clustersim.scenario.document import parse_yaml
from clustersim.search.values import text_of, values_of
from clustersim.search.varied import Varied, combinations, read_sweep, varied_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2, 4", ("1", "2", "4")),
        ("1..4", ("1", "2", "3", "4")),
        ("1..10/s:3", ("1/s", "4/s", "7/s", "10/s")),
        ("1/s..2/s:0.5/s", ("1/s", "1.5/s", "2/s")),
        ("10 ms..20 ms:5 ms", ("10 ms", "15 ms", "20 ms")),
        ("0.1..0.3:0.1", ("0.1", "0.2", "0.3")),
        ("-2..2:2", ("-2", "0", "2")),
        ("1..64:x4", ("1", "4", "16", "64")),
        ("1,3..5,9", ("1", "3", "4", "5", "9")),
        ("{tp: 2, pp: 2},{tp: 4}", ("{tp: 2, pp: 2}", "{tp: 4}")),
        ("[1, 2],'a,b'", ("[1, 2]", "'a,b'")),
        ("../one.yaml,../two.yaml", ("../one.yaml", "../two.yaml")),
        ("bf16,fp8", ("bf16", "fp8")),
        ("don't, do", ("don't", "do")),
    ],
)
def test_values_are_listed_or_in_ranges(text: str, values: tuple[str, ...]) -> None:
    assert values_of(text) == values


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "expected values such as"),
        ("1,,2", "comma"),
        ("1,2,1", "lists 1 twice"),
        ("one..ten", "'one..ten' is no range"),
        ("1..", "is no range"),
        ("1..2..3", "is no range"),
        ("4..1", "holds no number"),
        ("1..10:0", "never ends"),
        ("1..10:-1", "never ends"),
        ("1..10:x1", "never ends"),
        ("0..10:x2", "never ends"),
        ("0.1..0.5", "does not say the step"),
        ("1 ms..2 s:1 ms", "expected one unit"),
        ("0..1e9", "more than 100,000 values"),
        ("{tp: 2", "no YAML"),
    ],
)
def test_what_is_no_list_of_values_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        values_of(text)


@pytest.mark.parametrize(
    "value", [1, 2.5, True, None, "ring", "8", "true", "1/s", "a: b", "[", " x", {"tp": 2}, [1, "2"]]
)
def test_text_of_a_value_reads_as_the_same(value: object) -> None:
    assert parse_yaml(text_of(value), "value").data == value


def test_combinations_are_all_or_the_nth_of_each() -> None:
    varied = (Varied(key="a", values=("1", "2")), Varied(key="b", values=("x", "y")))
    assert combinations(varied, zipped=False) == [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert combinations(varied, zipped=True) == [("1", "x"), ("2", "y")]


@pytest.mark.parametrize(
    ("texts", "zipped", "told"),
    [
        ([], False, "nothing varies"),
        (["expect.finished=1,2"], False, "not held to what a scenario expects"),
        (["a=1", "a=2"], False, "varies twice"),
        (["a.b=1", "c=1", "a={b: 2}"], False, "a.b: is replaced by each value of a, which .* name a first"),
        (["a=1,2", "b=1"], True, "a has 2 values, b has 1 value"),
        (["a=1..1000", "b=1..1000"], False, "1,000,000 combinations"),
    ],
)
def test_axes_that_make_no_runs_are_refused(texts: list[str], zipped: bool, told: str) -> None:
    with pytest.raises(InputError, match=told):
        combinations([varied_of(text) for text in texts], zipped=zipped)


def test_a_file_names_the_scenario_and_what_varies(tmp_path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("scenario: quickstart\nset: [seed=3]\nzip: true\nvary:\n  plan.tp: [1, 2]\n  seed: 1..2\n")
    found = read_sweep(file)
    assert found is not None
    assert (found.scenario, found.overrides, found.zipped) == ("quickstart", ("seed=3",), True)
    assert found.varied == (Varied(key="plan.tp", values=("1", "2")), Varied(key="seed", values=("1", "2")))


def test_a_file_tells_all_its_mistakes(tmp_path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("scenaro: quickstart\nset: 3\nzip: 1\nvary:\n  plan.tp: {a: 1}\n  seed: 3..1\n  x: []\n")
    with pytest.raises(InputError) as raised:
        read_sweep(file)
    told = str(raised.value)
    for part in ("sweep.yaml:1:1: scenaro: unknown key 'scenaro' of a sweep; did you mean 'scenario'?",
                 "set: expected a", "zip: expected true or false", "expected a list of values",
                 "holds no number", "lists no value",
                 "scenario: expected a name or a path"):  # fmt: skip
        assert part in told
