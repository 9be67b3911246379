"""``clustersim trace`` and ``clustersim dashboard``: windows and ranks that exist, files that can be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("runs") / "a"
    overrides = (
        "workload.trace.requests=2",
        "plan={tp: 2}",
        "model={name: llama-3.1-8b, config: {num_hidden_layers: 2}}",
        "expect=null",
    )
    options = [part for override in overrides for part in ("--set", override)]
    result = CliRunner().invoke(
        main, ["run", "quickstart", "--quiet", "--no-dashboard", "--out", str(target), *options]
    )
    assert result.exit_code == 0, result.output
    return target


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_a_trace_has_the_spans_of_the_ranks_that_are_asked_for(run_dir: Path, tmp_path: Path) -> None:
    spans = {}
    for ranks in ("0", "0-1", "1, 0"):
        result = invoke("trace", run_dir, "--ranks", ranks, "--around", "nothing", "-o", tmp_path / "a.json")
        assert result.exit_code == 0, result.output
        events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
        spans[ranks] = sum(event["ph"] == "X" for event in events)
    assert spans["0-1"] == spans["1, 0"] == 2 * spans["0"] > 0


def test_a_window_may_be_longer_than_the_run(run_dir: Path, tmp_path: Path) -> None:
    whole = invoke("trace", run_dir, "--from", "0 s", "-o", tmp_path / "a.json")
    longer = invoke("trace", run_dir, "--from", "0 s", "--to", "1e300 h", "-o", tmp_path / "a.json")
    assert (whole.exit_code, longer.exit_code) == (0, 0)
    assert longer.output.split()[1] == whole.output.split()[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "0-999999999999"), "--ranks: rank 999999999999 is not in 0 … 1"),
        (("--ranks", "1-0"), "--ranks: '1-0' is no rank; expected a list such as 0-7,12"),
        (("--ranks", "0-"), "--ranks: '0-' is no rank"),
        (("--ranks", ""), "--ranks: '' is no rank"),
        (("--from", "2"), "--from: '2' has no unit"),
        (("-o", "spans.txt"), "spans.txt: unknown trace format '.txt'"),
        (("--around", "nothing", "--request", "1"), "--request: --around nothing shows no requests"),
        (("--from", "1e300 h"), "--from: the window starts at 1e300 h, but the run ends at "),
        (("--from", "2 us", "--to", "1 us"), "--to: the window ends at 1 us, not after it starts, at 2 us"),
    ],
)
def test_a_window_that_makes_no_sense(run_dir: Path, options: tuple[str, ...], message: str) -> None:
    at_once = "rank 9" not in message and "the run ends" not in message  # before the directory is read
    result = invoke("trace", run_dir.parent / "none" if at_once else run_dir, *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


@pytest.mark.parametrize("command", ["audit", "trace", "dashboard"])
def test_a_run_directory_that_is_not_there_is_told_alike_with_the_nearest(run_dir: Path, command: str) -> None:
    for name, message in (("aa", "no such run directory; did you mean 'a'?"), ("zzz", "no such run directory")):
        result = invoke(command, run_dir.parent / name)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"{run_dir.parent / name}: {message}")


def test_a_limit_is_told_as_it_was_written_and_in_our_units(run_dir: Path) -> None:
    result = invoke("trace", run_dir, "--max-size", "1kB")
    assert (result.exit_code, "above the limit of 1kB (1000 B)" in result.stderr) == (2, True), result.output


def test_a_file_is_written_where_a_link_points(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to("page.html")
    assert invoke("dashboard", run_dir, "-o", tmp_path / "link.html").exit_code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").stat().st_size > 100_000
