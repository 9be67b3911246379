"""Columns keep the order of their rows however they come, and lose no value to a narrow type."""

from __future__ import annotations

import errno
import io
import itertools
import mmap
import sys
import threading
import tracemalloc
from pathlib import Path
from tempfile import TemporaryFile
from weakref import WeakSet

import numpy as np
import pytest

from clustersim import column, memory
from clustersim.memory import let_go, mapped
from clustersim.timeline.columns import MANY_VALUES, STAGED_VALUES, Columns, Flat, is_one, joined, taken, wide
from clustersim.timeline.rows_of import in_order, rows_between

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
        table.extend(np.array([[1, 128]] * MANY_VALUES))
    table.append(1, -129)
    with pytest.raises(OverflowError, match="column 'kind'"):
        table.arrays()
    table.extend(np.array([[1, 128]]))  # few rows wait for others
    assert len(table) == 1
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


def test_many_rows_go_to_a_file_and_stay_in_memory_where_it_has_no_room(monkeypatch, tmp_path):
    class Disk(io.FileIO):
        room = 0

        def write(self, values):
            left = self.room - self.tell()
            if left <= 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().write(values[: min(left, max(8, len(values) // 2))])

    number = itertools.count()
    monkeypatch.setattr(column, "PUT_AWAY_BYTES", 40)
    monkeypatch.setattr(column, "SHELVED_BYTES", 40)
    monkeypatch.setattr(column, "KEPT_BYTES", 200)
    monkeypatch.setattr(column, "TemporaryFile", lambda buffering: Disk(tmp_path / str(next(number)), "w+"))
    for Disk.room in (0, 64, 1 << 20):  # bytes: it is full at once, in the middle of a write, never
        alone = column.Column("int64")
        alone.append(np.arange(8))
        kept = (alone._written, alone._file is None, len(alone._parts))
        assert kept == ((64, False, 0) if Disk.room >= 64 else (0, True, 1))  # nothing is left of what did not fit
        together = column.AllColumns()
        record = [column.Column("int64", together) for _ in range(3)]
        for one in record:  # a record goes to files once it is large: all columns that are
            one.append(np.arange(1 if one is record[0] else 12))
        assert [one._written for one in record] == [0, *2 * [96 if Disk.room >= 192 else 0]]
        record[0].take(record[1])
        assert record[0].whole().tolist() == [0, *range(12)]
        table, other, vector, lent = Columns(TYPES), Columns(TYPES), Flat(), np.arange(MANY_VALUES)
        for first in range(0, 60, 3):
            table.extend(np.array([[time, 7] for time in range(first, first + 3)]))
            vector.extend(lent + first // 3)
        typed = other.typed(np.array([[time, 8] for time in range(60, 80)]).T)
        for some in (slice(0, 9), slice(9, 20)):  # parts of columns that lie in one file
            other.adopt({name: values[some] for name, values in typed.items()})
        table.take(other)
        for _ in range(2):
            time, kind = table.arrays().values()
            assert time.tolist() == list(range(80))
            assert kind.tolist() == [7] * 60 + [8] * 20
            assert len(table) == 80
        table.append(80, 9)
        assert table.arrays()["time"].tolist() == list(range(81))
        assert np.array_equal(vector.array(), (np.arange(20)[:, None] + np.arange(MANY_VALUES)).ravel())
        with pytest.raises(ValueError, match="read-only"):
            time[0] = 2
        assert (tmp_path / "0").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="tells the pages of a process")
def test_pages_of_a_file_that_are_given_up_come_again_as_they_were(monkeypatch):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1])

    written = column.room(np.int64, 1 << 22)
    written[::-1] = np.arange(1 << 22)[::-1]
    for values in (column.shelved({"": np.arange(1 << 22)})[""], written, written):
        assert int(values.sum()) == (1 << 21) * ((1 << 22) - 1)
        before = resident()
        let_go()
        assert before - resident() > 4096  # half of the 32 MB

    class Amid(WeakSet[mmap.mmap]):
        """While it is looked through, a thread maps one more."""

        def __iter__(self):
            for one in super().__iter__():
                if thread.ident is None:
                    thread.start()
                    thread.join(0.05)
                yield one

    with TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        first, more = mapped(file, mmap.PAGESIZE), []
        thread = threading.Thread(target=lambda: more.append(mapped(file, mmap.PAGESIZE)))
        every = Amid([first])
        monkeypatch.setattr(memory, "_MAPPED", every)
        let_go()
        thread.join()
        assert len(every) == 2


def test_rows_between_two_numbers_are_found_without_a_copy_of_the_column():
    column = np.repeat(np.array([0, 2, 3], np.int32), 100_000)
    tracemalloc.start()
    try:
        assert [rows_between(column, range(*some)) for some in ((0, 1), (1, 2), (1, 3), (3, 9))] == [
            (0, 100_000), (100_000, 100_000), (100_000, 200_000), (200_000, 300_000)
        ]  # fmt: skip
        assert tracemalloc.get_traced_memory()[1] < column.nbytes / 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bits", [(1, 8), (16,), (17, 4), (32, 1), (20, 40), (38, 38, 3), (62, 2), (63, 63)])
@pytest.mark.parametrize("in_order_already", [(), (0,), (0, 1)])
def test_rows_are_put_in_order_of_several_numbers_equal_ones_as_they_come(bits, in_order_already):
    rng, rows = np.random.default_rng(len(in_order_already)), 3_000
    for few in (rows, 12, 2):
        numbers = [rng.integers(-(1 << (wide - 1)), 1 << (wide - 1), few) for wide in bits]
        keys = [values[rng.integers(0, few, rows)] for values in numbers]
        keys = [np.sort(key) if at in in_order_already else key for at, key in enumerate(keys)]
        assert in_order(*keys).tolist() == np.lexsort(keys[::-1]).tolist()
