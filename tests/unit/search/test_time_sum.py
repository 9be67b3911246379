"""Runs are counted together, and the journal of a command that was refused leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from clustersim.errors import LimitError
from clustersim.limits import Limits
from clustersim.search.journal import NAME, opened_journal
from clustersim.search.time_sum import TimeSum


def test_runs_count_with_those_before_them_and_over_workers():
    total = TimeSum(Limits(total_seconds=10.0), 2, "try fewer")
    total.refuse(20, 1.0)
    total.add(15, 1.0)
    total.add(5, 1.0)
    with pytest.raises(LimitError, match="1 run of about 1 s each after 20 runs, 2 at a time, would take roughly 10"):
        total.add(1, 1.0)
    total.add(1000, 0.0)  # what is finished


def test_without_a_limit_nothing_is_refused():
    TimeSum(Limits(), 1, "").add(10**9, 1e9)


def test_a_journal_that_an_error_left_empty_goes_with_the_folders_that_were_made_for_it(tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for folder in (tmp_path / "a" / "b", kept):
        with pytest.raises(LimitError), opened_journal(folder):
            raise LimitError(())
    assert list(tmp_path.rglob("*")) == [kept]


def test_a_journal_with_a_row_stays_after_an_error(tmp_path: Path):
    def wrong(key: str) -> None:
        with opened_journal(tmp_path) as journal:
            assert list(journal.rows) == ([] if key == "a" else ["a"])
            journal.add("a", {"failed": None, "numbers": {}})
            raise LimitError(())

    for key in ("a", "b"):
        with pytest.raises(LimitError):
            wrong(key)
    assert (tmp_path / NAME).stat().st_size


def test_who_waited_for_a_journal_that_was_removed_makes_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from clustersim.search import journal as module

    real, seen = module._alone, []

    def alone(file: object, folder: Path) -> None:
        real(file, folder)  # type: ignore[arg-type]
        seen.append(folder)
        if len(seen) == 1:
            (folder / NAME).unlink()

    monkeypatch.setattr(module, "_alone", alone)
    with opened_journal(tmp_path) as journal:
        journal.add("a", {"failed": None, "numbers": {}})
    assert len(seen) == 2
    assert (tmp_path / NAME).stat().st_size
