"""Plain scalars of YAML 1.2 and how values are named in messages."""

from __future__ import annotations

import math

import pytest

from clustersim.scenario.text.scalars import kind_of, plain_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("010", 10),  # YAML 1.1 says 8
        ("0o10", 8),
        ("0x1F", 31),
        ("1e9", 1e9),  # YAML 1.1 says text
        ("1.", 1.0),
        (".5", 0.5),
        ("true", True),
        ("yes", "yes"),  # YAML 1.1 says True
        ("no", "no"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),  # YAML 1.1 says 45045
        ("2023-11-16", "2023-11-16"),
        ("~", None),
        ("", None),
        ("450 GB/s", "450 GB/s"),
        ("< 2000", "< 2000"),
    ],
)
def test_plain_scalar_follows_yaml_1_2(text: str, value: object) -> None:
    found = plain_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_plain_scalar_reads_infinity_and_nan() -> None:
    assert plain_scalar("-.inf") == -math.inf
    assert math.isnan(float(plain_scalar(".nan") or 0.0))


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "1e400"])
def test_plain_scalar_refuses_a_number_that_is_too_large(text: str) -> None:
    with pytest.raises(ValueError, match="too large"):
        plain_scalar(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "nothing (null)"),
        (True, "true"),
        (8, "the number 8"),
        ("eight", "the text 'eight'"),
        ([], "an empty list"),
        ({"a": 1}, "a mapping"),
    ],
)
def test_kind_of_names_values_in_a_users_words(value: object, words: str) -> None:
    assert kind_of(value) == words
