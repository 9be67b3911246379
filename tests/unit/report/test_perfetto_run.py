"""Whole runs as Perfetto traces: sums over what a reader of its own finds are the figures of the summary, exactly."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from perfetto_trace import Trace

from clustersim.cli import main
from clustersim.report.files.run_directory import read_run
from clustersim.report.traces.trace import write_trace
from clustersim.report.traces.whole import WholeRun
from clustersim.timeline.window import Window

FEW = (
    "{arrivals: {process: constant, rate: 5/s}, prompt_tokens: 700, output_tokens: {uniform: {low: 4, high: 12}},"
    " requests: 3}"
)
"""Whose operators are all shown: some 20 steps of 32 layers."""
MODEL = ("model=llama-3.1-8b", "expect=null")
CASES = {
    "pipeline": ("quickstart", "workload.trace.requests=3", "plan={pp: 2, dp: 2}", "serving.max_batch_tokens=512"),
    "preempted": ("quickstart", "workload.trace.requests=20", "plan={pp: 1, tp: 1}", "serving.kv_blocks=500"),
    "pools": ("distserve-tp2-tp1", "workload.requests=12"),
    "few": ("quickstart", f"workload={FEW}", "plan={pp: 2, dp: 2}", "serving.max_batch_tokens=512"),
    "cut off": ("quickstart", "workload.trace.requests=8", "plan={pp: 1, tp: 1}", "run.horizon=900 ms"),
}  # fmt: skip


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module", params=[case for case in CASES if case != "few"])
def run_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("runs") / "run", request.param)


def simulated(target: Path, case: str) -> Path:
    scenario, *changes = CASES[case]
    changes = [*changes, *(MODEL if scenario == "quickstart" else MODEL[1:])]
    options = [word for change in changes for word in ("--set", change)]
    result = invoke("run", scenario, "--quiet", "--no-dashboard", "--out", target, *options)
    assert result.exit_code == 0, result.output
    return target


def traced(run_dir: Path, *options: str, name: str = "t.pftrace.gz") -> Path:
    target = run_dir.parent / name
    result = invoke("trace", run_dir, "-o", target, *options)
    assert result.exit_code == 0, result.output
    return target


@cache
def trace_of(run_dir: Path, *options: str) -> Trace:
    """Return a trace as a reader of its own reads it, which tests share and none changes."""
    return Trace(traced(run_dir, *options))


def summary_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def argument(slices: list[tuple[Any, ...]], name: str) -> list[int]:
    return [one[4][name] for one in slices if name in one[4]]


def test_sums_over_requests_and_steps_are_the_figures_of_the_summary(run_dir: Path) -> None:
    trace, summary = trace_of(run_dir, "--steps", "2"), summary_of(run_dir)
    requests = [one for one in trace.slices if one[3].startswith("request ")]
    steps = [one for one in trace.slices if trace.parent_of(one[0]).startswith("replica ")]
    assert len(requests) == summary["requests"]["arrived"]
    assert sorted(argument(requests, "request")) == list(range(len(requests)))
    assert len(steps) == summary["steps"]
    done = [one for one in requests if "e2e_ns" in one[4]]
    assert len(done) == summary["requests"]["finished"]
    tokens = {"output": argument(done, "generated_tokens")}
    tokens["total"] = tokens["output"] + argument(done, "prompt_tokens")
    for figure, counts in tokens.items():
        assert sum(counts) == round(summary["throughput"][f"{figure}_tokens_per_s"] * summary["makespan_s"])
    for latency in ("ttft", "e2e"):
        ns = argument(done, f"{latency}_ns")
        assert np.mean(ns) / 1e6 == summary[f"{latency}_ms"]["mean"]
    shares = summary["causes"]["e2e"]["mean"]
    total = sum(argument(done, "e2e_ns"))
    for cause, share in shares.items():
        assert sum(argument(done, f"{cause}_ns")) / total == share, cause
    assert sum(argument(requests, "preemptions")) == summary["preemptions"]


def test_phases_have_the_words_of_what_happened(run_dir: Path) -> None:
    trace, summary = trace_of(run_dir, "--steps", "2"), summary_of(run_dir)
    words = {name for uuid, _, _, name, _ in trace.slices if trace.parent_of(uuid) == "requests"}
    assert {"chunk of the prompt", "decode"} <= words
    assert ("hand-over" in words) == ("prefill" in summary["scenario"]["plan"])
    assert ("preempted: waits for its K/V again" in words) == (summary["preemptions"] > 0)


def test_slices_nest_and_chunks_add_up_to_the_tokens_that_steps_prefill(run_dir: Path) -> None:
    trace = trace_of(run_dir, "--steps", "2")
    rows = [uuid for uuid in trace.deepest if trace.parent_of(uuid) == "requests"]
    assert max(trace.deepest[uuid] for uuid in rows) == 2
    for uuid in rows:
        within = sorted((start, -end, name) for one, start, end, name, _ in trace.slices if one == uuid)
        open_until: list[int] = []
        for start, end, _ in within:
            while open_until and open_until[-1] <= start and open_until[-1] < -end:
                open_until.pop()
            assert not open_until or -end <= open_until[-1]
            open_until.append(-end)
    chunks = [one for one in trace.slices if one[3] == "chunk of the prompt"]
    steps = [one for one in trace.slices if trace.parent_of(one[0]).startswith("replica ")]
    assert sum(argument(chunks, "tokens")) == sum(argument(steps, "prefill_tokens"))
    by_step: dict[tuple[str, int], int] = defaultdict(int)
    for one in chunks:
        by_step[f"replica {one[4]['replica']}", one[4]["step"]] += one[4]["tokens"]
    for one in steps:
        assert by_step[trace.parent_of(one[0]), one[4]["step"]] == one[4]["prefill_tokens"]


def test_counters_are_what_the_steps_say_and_tokens_add_up(run_dir: Path) -> None:
    trace, run = trace_of(run_dir, "--steps", "2"), read_run(run_dir)
    (tokens,) = {uuid for uuid, _, _ in trace.counts if trace.parent_of(uuid) == "requests"}
    points = [(at, value) for uuid, at, value in trace.counts if uuid == tokens]
    assert points[-1][1] == 0
    area = sum(value * (after - at) for (at, value), (after, _) in pairwise(points))
    sampled = int(run.timeline.chunks["sampled"].sum())
    decoded = sum(one[4]["decode_tokens"] for one in trace.slices if "decode_tokens" in one[4])
    assert area == (sampled + decoded) * 10**9
    reported = {(trace.parent_of(uuid), at): one for uuid, at, _, _, one in trace.slices if "kv_blocks_used" in one}
    for uuid, at, value in trace.counts:
        place = (trace.parent_of(uuid), at)
        if place in reported:
            key = {"K/V blocks used": "kv_blocks_used", "running requests": "running", "waiting requests": "waiting"}
            assert value == reported[place][key[trace.tracks[uuid][2][0].decode()]]
        else:
            assert value == 0 or uuid == tokens


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("small") / "run", "few")


def test_busy_time_of_each_device_is_that_of_the_summary(small: Path) -> None:
    trace, summary, run = Trace(traced(small, "--from", "0 s")), summary_of(small), read_run(small)
    busy: dict[str, int] = defaultdict(int)
    for uuid, start, end, _, _ in trace.slices:
        if 4 in trace.tracks[uuid] and trace.stream_of(uuid) == "compute":
            busy[trace.process_of(uuid)] += end - start
    elapsed = run.timeline.end_ns - int(run.requests["arrived_ns"].min())
    by_rank = sorted(busy.items(), key=lambda one: int(one[0].split("rank ")[1].split(" ")[0]))
    assert [ns / elapsed for _, ns in by_rank] == summary["utilisation"]["devices"]
    assert sum(4 in trace.tracks[one[0]] for one in trace.slices) == summary["spans"]


def test_those_that_are_asked_for_and_the_slowest_have_rows_of_their_own(small: Path) -> None:
    trace = Trace(traced(small, "--slowest", "1", "--request", "0", "--request", "0"))
    rows = {track[2][0].decode(): uuid for uuid, track in trace.tracks.items() if 2 in track and 5 in track}
    ends = {one[3]: one[2] - one[1] for one in trace.slices if one[3].startswith("request ")}
    slowest = max(ends, key=lambda name: ends[name])
    assert {"request 0", slowest} <= set(rows)
    assert sum(name.startswith("request ") for name in rows) == len({"request 0", slowest})
    assert {one[3] for one in trace.slices if one[0] == rows["request 0"] and " 0" in one[3]} == {"request 0"}


def test_arrows_lead_from_chunks_and_decodes_to_the_steps_that_served_them(small: Path) -> None:
    trace, run = Trace(traced(small, "--slowest", "0", "--request", "1")), read_run(small)
    arrows = [ends for number, ends in trace.flows.items() if number >= 1 << 40]
    chunks = int((run.timeline.chunks["request"] == 1).sum())
    assert len(arrows) == chunks + int((run.timeline.decodes["request"] == 1).sum())
    for (group, name, since), (replica, step, start) in arrows:
        assert (group, replica[:8], step[-5:]) == ("requests", "replica ", " step")
        assert name in ("chunk of the prompt", "decode")
        assert since == start if name == "decode" else since >= start
    assert not [one for one in Trace(traced(small, "--slowest", "0")).flows if one >= 1 << 40]


def test_a_window_or_nothing_may_be_shown_beside_the_operators(small: Path) -> None:
    end = read_run(small).timeline.end_ns
    options = ("--from", f"{end // 2} ns", "--to", f"{end // 2 + 10**7} ns")
    few, none = (Trace(traced(small, *options, "--around", what)) for what in ("window", "nothing"))
    for _, start, until, _, arguments in few.slices:
        if "batch_requests" in arguments:
            assert until > end // 2
            assert start < end // 2 + 10**7
    assert any("batch_requests" in one[4] for one in few.slices)
    assert not any("batch_requests" in one[4] or one[3].startswith("request ") for one in none.slices)
    assert none.counts == []


def test_json_has_the_same_slices(small: Path) -> None:
    trace = Trace(traced(small))
    events = json.loads(traced(small, name="t.json").read_text())["traceEvents"]
    found = sorted((one["name"], round(one["dur"] * 1000)) for one in events if one["ph"] == "X")
    assert found == sorted((name, end - start) for _, start, end, name, _ in trace.slices)
    assert len({one["tid"] for one in events if one["ph"] == "X"}) == len({one[0] for one in trace.slices})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--request", "3"), "--request: there is no request 3; expected 0 to 2"),
        (("--request", "-1"), "'--request': expected a whole number from 0, but found '-1'"),
        (("--request", "0", "--around", "nothing"), "--request: --around nothing shows no requests"),
        (("--from", "1 h"), "--from: the window starts at 1 h, but the run ends at"),
        (("--max-size", "1 kB"), "fewer ranks (--ranks) or requests and steps of the window alone (--around window)"),
        (("--slowest", "-1"), "--slowest"),
    ],
)
def test_what_cannot_be_shown_is_refused(small: Path, options: tuple[str, ...], message: str) -> None:
    target = small.parent / "refused.pftrace"
    result = invoke("trace", small, "-o", target, *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output
    assert not target.exists()


def test_nothing_is_drawn_where_there_is_no_terminal_and_slices_are_counted(small: Path) -> None:
    assert invoke("trace", small, "-o", small.parent / "quiet.pftrace").stderr == ""
    run, seen = read_run(small), []
    around = WholeRun(requests=run.requests, timeline=run.timeline, step_rows=run.step_rows, window=(0, 10**15))
    pieces = Window(timeline=run.timeline, start_ns=0, end_ns=10**7)
    spans = write_trace(small.parent / "p.pftrace", pieces, run.summary["devices"], (), around, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == spans + sum(len(piece) for piece in around) == len(Trace(small.parent / "p.pftrace").slices)


def test_a_trace_that_is_stopped_leaves_nothing_and_keeps_what_was_there(small: Path) -> None:
    class StoppedError(Exception):
        """In the middle of the work."""

    def stop(_: int) -> None:
        raise StoppedError

    run, target = read_run(small), small.parent / "stopped" / "t.pftrace.gz"
    target.parent.mkdir()
    target.write_bytes(b"earlier")
    around = WholeRun(requests=run.requests, timeline=run.timeline, step_rows=run.step_rows, window=(0, 10**15))
    pieces = Window(timeline=run.timeline, start_ns=0, end_ns=10**7)
    with pytest.raises(StoppedError):
        write_trace(target, pieces, run.summary["devices"], (), around, stop)
    assert {path.name: path.read_bytes() for path in target.parent.iterdir()} == {"t.pftrace.gz": b"earlier"}


def test_both_replays_give_one_trace(tmp_path: Path) -> None:
    options = ("--set", f"workload={FEW}", "--set", "model=llama-3.1-8b", "--set", "plan={tp: 1, dp: 2}")
    found = []
    for replay in ("folded", "full"):
        target = tmp_path / replay
        words = ("--quiet", "--no-dashboard", "--set", "expect=null", "--replay", replay)
        assert invoke("run", "quickstart", *words, "--no-dashboard", "--out", target / "run", *options).exit_code == 0
        trace = Trace(traced(target / "run"))
        found.append((sorted((*one[1:4], sorted(one[4].items())) for one in trace.slices), dict(trace.counters)))
    assert found[0] == found[1]
