"""Messages at the doors: what was asked for can't be done, and the message says what, where and why."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from click.testing import CliRunner

import clustersim
from clustersim.cli import main
from clustersim.files import folder_written_whole
from clustersim.scenario.load import load
from clustersim.simulation.simulate import simulate
from tests.effort import dealt

NO_ROOM = ("run", "quickstart", "--set", "workload.trace.requests=20", "--set", "expect={}", "--out", "run")


def test_a_full_disk_is_told_with_the_folder_that_was_named(tmp_path: Path) -> None:
    """Neither the hidden folder beside it, nor a file in that, is what the user named."""
    for name in (None, "table.parquet"):
        with pytest.raises(OSError, match="No space left") as found:
            fill(tmp_path / "mine", name)
        assert found.value.filename == str(tmp_path / "mine")


def fill(place: Path, name: str | None) -> None:
    with folder_written_whole(place) as folder:
        where = () if name is None else (str(folder / name),)
        raise OSError(errno.ENOSPC, "No space left on device", *where)


def test_what_could_not_be_read_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output") as found, folder_written_whole(tmp_path / "mine"):
        raise OSError(errno.EIO, "Input/output error", "trace.csv")
    assert found.value.filename == "trace.csv"


@pytest.mark.parametrize(
    ("plan", "rule"),
    [("{tp: 2, ep: {degree: 2, redundant: 9}}", "EP-1"), ("{ep: {degree: 2, redundant: 1}}", "EP-1"),
     ("{pp: 100}", "PP-1"), ("{ep: 3}", "EP-1")],
)  # fmt: skip
def test_an_illegal_plan_without_a_shape_is_told_with_its_rule(tmp_path: Path, plan: str, rule: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(
        f"name: odd\ntopology: dgx-h100\nmodel: mixtral-8x7b\nplan: {plan}\nworkload: {{arrivals: {{process: poisson, "
        "rate: 5/s}, prompt_tokens: 100, output_tokens: 3, requests: 2}\n",
        encoding="utf-8",
    )
    with pytest.raises(clustersim.IllegalPlanError, match=rule):
        simulate(load(str(path)))


def test_a_key_without_a_blank_is_told() -> None:
    found = CliRunner().invoke(main, ["check", "quickstart", "--set", "workload={trace:{path:a.csv}}"])
    assert found.exit_code == 2
    assert "followed by a blank" in found.output


REJECTED = [(1, "20 of 20 requests were"), (200, "1 of 20 requests was"), (4000, "")]


@pytest.mark.parametrize(("rejected", "option"), dealt(REJECTED, ["--quiet", "--json"]))
def test_a_run_that_rejects_requests_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, rejected: tuple[int, str]
) -> None:
    blocks, told = rejected
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(main, [*NO_ROOM, "--set", f"serving.kv_blocks={blocks}", option])
    assert found.exit_code == 0
    assert found.stderr.startswith(f"note: {told} rejected and ") if told else not found.stderr
