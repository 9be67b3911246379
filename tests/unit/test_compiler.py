"""What functions of the subset are told when they are compiled, and that they are compiled as one unit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.compiled import Record, set_field
from clustersim.core.clock import later

SCRIPT: Final = """
import json, sys
import numpy as np
from clustersim.compiled import Arrays, Objects, compiled, is_loaded
from tests.unit.test_compiler import filled, total, more
assert not is_loaded(total)
found = [total(filled(Objects()), 3, 2), compiled(total)(filled(Arrays()), 3, 2)]
lists = filled(Arrays())
go = compiled(total)
found += [go(lists, 3, 2), int(lists.sums[0]), go(lists, 3, 2), int(lists.sums[0])]
longer = lists._replace(numbers=np.arange(100, 200))
found += [go(longer, 3, 2), go(lists, 3, 2)]
found += [compiled(more)(np.arange(4), np.zeros(2))]
assert is_loaded(total) and is_loaded(more)
print(json.dumps(found))
"""


class Pair(Record):
    """A whole number and a float."""

    floats = ("second",)
    __slots__ = ("first", "second")


class Lists(NamedTuple):
    """Lists of every kind."""

    numbers: Any
    rows: Any
    pairs: Any
    grid: Any
    sums: Any
    told: Any


def filled(storage):
    """Return lists of every kind that functions take."""
    found = Lists(
        storage.numbers(4, 7), storage.table(2, 3, 5), storage.records(Pair, 2), storage.grid(Pair, 2, 2),
        storage.numbers(1), storage.column(np.array([0.5, 1.5])),
    )  # fmt: skip
    set_field(found.pairs, 1, "first", 11)
    set_field(found.pairs, 1, "second", 0.25)
    return found


def total(s, number, row):
    """Read and write lists of every kind."""
    s.rows[1][row] = number
    s.grid[1][0].first = s.rows[1][row] + len(s.rows) + 10 * len(s.rows[1]) + 100 * len(s.numbers)
    s.grid[1][1].second = s.pairs[1].second + s.told[1]
    s.sums[0] += 1
    return (
        s.grid[1][0].first + s.numbers[number] + later(s.pairs[1].first, 11) + s.grid[1][1].second + s.grid[0][0].first
    )


def more(numbers, floats):
    """Fill a list from another one."""
    for place in range(len(floats)):
        floats[place] = numbers[place + 2]
    return floats[0] + floats[1]


def test_lists_of_all_kinds_are_the_same_compiled(tmp_path) -> None:
    """3 + 2 rows + 30 places + 400 numbers, 7, twice 11 and 1.75: 465.75; with 103 for 7: 561.75; then 2 + 3."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
        env={**os.environ, "NUMBA_DISABLE_JIT": "0", "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [465.75, 465.75, 465.75, 1, 465.75, 2, 10161.75, 465.75, 5.0]


def test_what_is_there_is_read_and_not_compiled_again(tmp_path) -> None:
    env = {**os.environ, "NUMBA_DISABLE_JIT": "0", "NUMBA_CACHE_DIR": str(tmp_path)}
    kept = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        kept.append(sorted((path.name, path.stat().st_mtime_ns) for path in tmp_path.rglob("*.nbc")))
    assert kept[0] == kept[1]
    assert len(kept[0]) == 2
