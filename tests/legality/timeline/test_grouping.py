"""Grouping finds what numpy's own functions find, with a table of the keys' range as without."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.legality.timeline_rules.views.grouping import Groups, distinct, placed
from clustersim.timeline.rows_of import RowsOf, in_order

DRAWN = np.random.default_rng(3)
KEYS = {
    "dense": DRAWN.integers(-20, 80, 400),
    "in order": np.sort(DRAWN.integers(0, 50, 300)),
    "sparse": DRAWN.integers(-(1 << 62), 1 << 62, 200).repeat(2),
    "beyond 16 bits": DRAWN.integers(0, 1 << 20, 3000),
    "of 8 bits": DRAWN.integers(-128, 128, 500).astype(np.int8),
    "one": np.array([7]),
    "none": np.empty(0, np.int64),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_groups_are_those_of_numpy(keys: np.ndarray) -> None:
    values, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    groups, (some, place) = Groups(keys), placed(keys)
    assert np.array_equal(in_order(keys), np.argsort(keys, kind="stable"))
    for found, due in (
        (distinct(keys), values), (groups.keys, values), (groups.counts, counts), (groups.some, first),
        (groups.find(keys), inverse), (some, first), (place, inverse),
    ):  # fmt: skip
        assert np.array_equal(found, due)
    assert [(one, rows.tolist()) for one, rows in RowsOf(keys)] == [
        (one, np.flatnonzero(keys == one).tolist()) for one in values.tolist()
    ]


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_groups_find_nothing_that_is_not_there(keys: np.ndarray) -> None:
    known = set(keys.tolist())
    asked = np.array([one for one in (-(1 << 63), -129, 3, 1000, (1 << 63) - 1) if one not in known], np.int64)
    assert (Groups(keys).find(asked) == -1).all()
    assert not any(len(RowsOf(keys).of(one)) for one in asked.tolist())
