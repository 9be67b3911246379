"""A run directory is complete or absent, replaced as a whole, and never laid over something else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from clustersim import __version__
from clustersim.errors import InputError
from clustersim.legality.rule import Verdict
from clustersim.report.files import run_directory
from clustersim.report.files.run_directory import FILES, check_writable, read_run, write_run
from clustersim.report.files.summary import summary_of
from clustersim.report.layouts import overview
from clustersim.scenario.load import load
from clustersim.simulation.causes.labels import COLUMNS
from tests.audit import simulated

VERDICT = Verdict(violations=(), rules=())
EVERYTHING = {*FILES, "timeline", "dashboard.html"}


@pytest.fixture(scope="module")
def result():
    return simulated(load("quickstart", ("workload.trace.requests=3",)))


@pytest.fixture
def write(result):
    def write(target: Path) -> None:
        write_run(target, result, summary_of(result), lambda: VERDICT, overview())

    return write


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_directory_has_every_file(write, tmp_path):
    write(tmp_path / "runs" / "a")
    assert names(tmp_path / "runs" / "a") == EVERYTHING
    assert names(tmp_path / "runs") == {"a"}


def test_the_columns_of_tables_have_the_same_types_whatever_happened(write, tmp_path):
    write(tmp_path / "a")  # nothing was rejected: no reason is known
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "a" / "requests.parquet")}
    assert types == {
        "request": "int64",
        "replica": "int32",
        **dict.fromkeys(("arrived_ns", "admitted_ns", "first_token_ns", "finished_ns"), "int64"),
        **dict.fromkeys(("queueing_ns", "prefill_ns", "front_end_ns"), "int64"),
        **dict.fromkeys(("prompt_tokens", "output_tokens", "generated_tokens"), "int64"),
        "preemptions": "int32",
        "cached_tokens": "int64",
        **dict.fromkeys(("outcome", "reason"), "string"),
        **dict.fromkeys(COLUMNS, "int64"),
    }
    assert str(pq.read_schema(tmp_path / "a" / "steps.parquet").field("kind").type) == "string"


def test_a_run_directory_is_read_as_it_was_written(result, write, tmp_path):
    write(tmp_path / "a")
    read = read_run(tmp_path / "a")
    assert read.timeline.digest == result.timeline.digest == read.summary["timeline_digest"]
    assert read.requests["finished_ns"].tolist() == result.requests["finished_ns"].tolist()
    assert read.requests["outcome"].tolist() == ["finished"] * 3
    assert int(read.steps["count"].sum()) == result.timeline.num_steps
    assert all(np.array_equal(a, b) for a, b in zip(read.token_gaps, result.token_gaps, strict=True))


def test_the_scenario_of_a_run_directory_runs_again_to_the_same_timeline(result, write, tmp_path):
    write(tmp_path / "a")
    again = simulated(load(str(tmp_path / "a" / "scenario.yaml"), ()))
    assert again.timeline.digest == result.timeline.digest


def test_the_summary_says_who_wrote_it_and_the_time_of_the_front_end(result, write, tmp_path):
    write(tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["version"] == __version__
    columns = result.requests
    assert summary["front_end_ms"] * 1e6 == columns["front_end_ns"][0] > 0


def test_an_earlier_run_is_replaced_as_a_whole(write, tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "left over").write_text("from the earlier run")
    write(tmp_path / "a")
    assert names(tmp_path / "a") == EVERYTHING
    assert names(tmp_path) == {"a"}


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_a_run_that_cannot_be_written_to_the_end_leaves_nothing(write, tmp_path, monkeypatch, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr(run_directory, "write_dashboard", fail)
    with pytest.raises(type(failure)):
        write(tmp_path / "a")
    assert names(tmp_path) == set()


def test_a_run_that_cannot_be_written_to_the_end_leaves_the_earlier_one(write, tmp_path, monkeypatch):
    write(tmp_path / "a")
    before = (tmp_path / "a" / "summary.json").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(run_directory, "write_dashboard", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "a")
    assert names(tmp_path) == {"a"}
    assert names(tmp_path / "a") == EVERYTHING
    assert (tmp_path / "a" / "summary.json").read_bytes() == before


def test_check_writable_accepts_a_new_name_an_empty_folder_and_an_earlier_run(write, tmp_path):
    check_writable(tmp_path / "new" / "name")
    (tmp_path / "empty").mkdir()
    check_writable(tmp_path / "empty")
    write(tmp_path / "run")
    check_writable(tmp_path / "run")


def test_check_writable_refuses_a_folder_that_holds_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="is not empty and holds no run, so nothing in it is overwritten"):
        check_writable(tmp_path)


def test_check_writable_refuses_a_run_that_holds_something_else_too(write, tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "trace.pftrace").write_text("what `clustersim trace` wrote")
    check_writable(tmp_path / "a")
    (tmp_path / "a" / "notes.txt").write_text("what I learned")
    with pytest.raises(InputError, match=r"holds 'notes\.txt', which no run wrote and which would be lost"):
        check_writable(tmp_path / "a")


def test_check_writable_refuses_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    for name in (Path(), Path("../a")):
        with pytest.raises(InputError, match="cannot be replaced as a whole"):
            check_writable(name)


def test_a_run_goes_where_a_link_points(write, tmp_path):
    (tmp_path / "link").symlink_to("disk/a")
    check_writable(tmp_path / "link")
    for _ in range(2):
        write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "disk" / "a") == EVERYTHING
    assert names(tmp_path / "disk") == {"a"}


def test_check_writable_refuses_a_file(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match="is a file; expected a folder"):
        check_writable(tmp_path / "a")


def test_check_writable_refuses_a_place_inside_a_file(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        check_writable(tmp_path / "a" / "b")


def test_read_run_names_what_is_missing(write, tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a" / "steps.parquet").unlink()
    with pytest.raises(InputError, match=r"is no run directory: steps\.parquet missing"):
        read_run(tmp_path / "a")


def test_the_summary_is_json_that_other_programs_read(write, tmp_path):
    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    write(tmp_path / "a")
    summary = json.loads((tmp_path / "a" / "summary.json").read_text(), parse_constant=refuse)
    counts = {"rejected": 0, "unfinished": 0, "cancelled": 0, "lost": 0}
    assert summary["requests"] == {"arrived": 3, "finished": 3, **counts}
