"""Commands look for cycles rarely, leave alone at their end what goes anyway, and keep the pages of what they free."""

from __future__ import annotations

import atexit
import gc
import resource
from collections.abc import Callable

import numpy as np
import pytest

from clustersim.cli.memory import FILES, OBJECTS, keep_memory


def test_keep_memory_looks_for_cycles_rarely_and_not_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    last: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", last.append)
    keep_memory()
    assert gc.get_threshold()[0] == OBJECTS
    assert last == [gc.freeze]


def test_keep_memory_keeps_the_pages_of_what_is_freed() -> None:
    keep_memory()

    def faults() -> int:
        np.ones(1 << 20)  # 8 MB: 2,048 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    faults()
    first, last = faults(), [faults() for _ in range(20)][-1]
    assert last - first < 2048


@pytest.mark.parametrize(("before", "after"), [((64, 300), (300, 300)), ((200, -1), (FILES, -1)), ((-1, -1), None)])
def test_as_many_files_may_be_open_as_the_machine_allows(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int] | None
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    keep_memory()
    assert told == ([after] if after else [])
