"""Columns keep the order of their rows however they come, and lose no value to a narrow type."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.timeline.columns import STAGED_VALUES, Columns, is_one, joined, taken, wide

TYPES = {"time": "int64", "kind": "int8"}


def test_rows_keep_their_order_whether_they_come_one_by_one_or_in_bulk():
    table = Columns(TYPES)
    table.append(1, 10)
    table.extend(np.array([[2, 20], [3, 30]]))
    table.append(4, 40)
    table.extend_columns(kind=np.array([50]), time=np.array([5]))
    assert len(table) == 5
    assert table.arrays()["time"].tolist() == [1, 2, 3, 4, 5]
    assert table.arrays()["kind"].tolist() == [10, 20, 30, 40, 50]
    table.append(6, 60)
    assert table.arrays()["time"].tolist() == [1, 2, 3, 4, 5, 6]


def test_columns_have_their_types_also_without_rows():
    table = Columns(TYPES)
    assert len(table) == 0
    assert {name: values.dtype for name, values in table.arrays().items()} == TYPES


def test_more_rows_than_are_staged_are_all_there():
    table = Columns(TYPES)
    count = STAGED_VALUES // 2 + 3
    for row in range(count):
        table.append(row, row % 100)
    assert len(table) == count
    assert np.array_equal(table.arrays()["time"], np.arange(count))


def test_a_value_that_does_not_fit_is_refused():
    table = Columns(TYPES)
    with pytest.raises(OverflowError, match="column 'kind': a value does not fit into int8"):
        table.extend(np.array([[1, 128]]))
    table.append(1, -129)
    with pytest.raises(OverflowError, match="column 'kind'"):
        table.arrays()


def test_columns_that_are_missing_or_too_short_are_refused():
    table = Columns(TYPES)
    with pytest.raises(ValueError, match="kind"):
        table.extend_columns(time=np.array([1]))
    with pytest.raises(ValueError, match="not of one length"):
        table.extend_columns(time=np.array([1]), kind=np.array([1, 2]))


def test_what_was_read_cannot_be_written_to():
    table = Columns(TYPES)
    table.append(1, 1)
    with pytest.raises(ValueError, match="read-only"):
        table.arrays()["time"][0] = 2


def test_a_column_that_is_the_same_in_all_rows_takes_one_value_until_another_one_comes():
    table = Columns(TYPES)
    table.extend(np.array([[1, 7], [2, 7]]))
    table.extend(np.array([[3, 7], [4, 7]]))
    time, kind = table.arrays().values()
    assert (is_one(time), is_one(kind), kind.tolist(), kind.dtype) == (False, True, [7, 7, 7, 7], np.int8)
    assert is_one(wide(kind))
    assert is_one(joined(kind, taken(kind, np.arange(2))))
    assert joined(kind, time).tolist() == [7, 7, 7, 7, 1, 2, 3, 4]
    table.append(5, 8)
    assert table.arrays()["kind"].tolist() == [7, 7, 7, 7, 8]
