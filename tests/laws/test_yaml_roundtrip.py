"""Law: what ``to_yaml`` writes reads back as the same data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clustersim.scenario.document import parse_yaml
from clustersim.scenario.resolve import to_yaml

TRICKY = (
    "1e9",
    "010",
    "yes",
    "null",
    "~",
    "",
    "<<",
    "1.",
    "0x1F",
    "12:30",
    "2001-01-01",
    "a: b",
    "- a",
    "'",
    "#",
)
TEXTS = st.one_of(st.sampled_from(TRICKY), st.text(max_size=8))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_to_yaml_reads_back(data: dict[str, object]) -> None:
    assert parse_yaml(to_yaml(data), "f.yaml").data == data
