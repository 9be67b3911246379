"""What people read: the summary on a terminal, remarks, and the progress bar."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from report_data import small_run, summary_of

from clustersim.report.words.progress import LONG_S, ProgressBar
from clustersim.report.words.run import legality_words, number, plan_words, queue_grows, remarks, setup_words
from clustersim.report.words.terminal import print_summary


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    return small_run(requests=120)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_summary_in_a_pipe_is_plain_text(run: dict[str, Any]) -> None:
    file = io.StringIO()
    held = {"mean": 0.1, "max": 0.2, "replica_max": 0.25}
    print_summary(summary_of(run) | {"kv_occupancy": held}, file=file, run_dir=Path("runs/x"), remarks=["Careful."])
    text = file.getvalue()
    assert "\x1b" not in text
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert lines["latency"].split()[2:] == ["mean", "p50", "p90", "p95", "p99", "max"]
    assert lines["requests"].startswith("requests    120 of 120 finished in")
    assert lines["K/V"] == "K/V cache   25% of a replica's blocks at most"
    assert lines["legality"] == "legality    legal"
    assert lines["note"] == "note        Careful."
    assert lines["run"] == "run         runs/x"


@pytest.mark.parametrize(
    ("legality", "words"),
    [
        ({"P": "legal", "G": "legal", "T": "legal"}, ("legal", "legal: plan, graph and timeline")),
        ({"P": "legal", "G": "legal"}, ("partly", "plan and graph legal, timeline not audited")),
        (
            {"P": "legal", "G": "not_checkable", "T": "legal"},
            ("partly", "plan and timeline legal, graph not checkable"),
        ),
        ({"T": "legal"}, ("partly", "plan and graph not checked, timeline legal")),
    ],
)
def test_legality_is_that_of_the_levels_that_were_asked(legality: dict[str, str], words: tuple[str, str]) -> None:
    assert legality_words({"legal": True, "legality": legality}) == words
    assert legality_words({"legal": False, "legality": legality})[0] == "illegal"
    assert legality_words({"legal": None, "legality": {}}) == ("partly", "not checked")


def test_the_summary_on_a_terminal_has_colours(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    print_summary({**summary_of(run), "legal": False}, file=file)
    assert "\x1b[1;31millegal" in file.getvalue()


def test_a_latency_that_is_undefined_is_a_dash(run: dict[str, Any]) -> None:
    file = io.StringIO()
    print_summary({**summary_of(run), "tpot_ms": None}, file=file)
    assert "missed  TPOT: no finished request has a time per output token" in file.getvalue()
    row = next(line for line in file.getvalue().splitlines() if line.startswith("TPOT"))
    assert row.split() == ["TPOT", *"––––––"]


@pytest.mark.parametrize("front_end", [6.0, 0.0, None])
def test_the_parts_of_ttft_have_the_front_end_where_there_is_one(run: dict[str, Any], front_end: float | None) -> None:
    summary, file = summary_of(run), io.StringIO()
    print_summary({**summary, "ttft_prefill_ms": summary["ttft_ms"], "front_end_ms": front_end}, file=file)
    rows = [line.split()[3:] for line in file.getvalue().splitlines() if line.startswith("· front end")]
    assert rows == ([["6.00"] * 6] if front_end else [])


def test_remarks_are_silent_about_a_sound_run(run: dict[str, Any]) -> None:
    assert remarks(summary_of(run), run["requests"], run["steps"]) == []


def test_remarks_name_what_makes_numbers_doubtful(run: dict[str, Any]) -> None:
    counts = {"arrived": 1000, "finished": 50, "rejected": 30, "unfinished": 920}
    found = remarks({**summary_of(run), "legal": False, "requests": counts})
    assert [
        next(part for part in ("broke legality", "920 of 1,000", "30 of 1,000", "Only 50") if part in text)
        for text in found
    ] == ["broke legality", "920 of 1,000", "30 of 1,000", "Only 50"]


def test_a_queue_grows_when_more_arrives_than_is_served() -> None:
    overloaded, idle = small_run(rate=40.0), small_run(rate=1.0, requests=60)
    assert queue_grows(overloaded["requests"], overloaded["steps"])
    assert not queue_grows(idle["requests"], idle["steps"])


def test_who_was_given_up_or_lost_is_remarked(run: dict[str, Any]) -> None:
    counts = {**summary_of(run)["requests"], "cancelled": 1, "lost": 1}
    assert [
        one for one in remarks({**summary_of(run), "requests": counts}) if " of " in one and "no latency" in one
    ] == [
        f"1 of {counts['arrived']:,} requests was given up by its client and has no latency.",
        f"1 of {counts['arrived']:,} requests was lost when what served it failed and has no latency.",
    ]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, []),
        ({"swapped": 3}, ["Requests were preempted for want of K/V blocks: 3 times they were copied to host memory."]),
        (
            {"recomputed": 1, "swapped": 2, "moved": 1},
            [
                "Requests were preempted for want of K/V blocks: 1 time they were computed anew, "
                "2 times they were copied to host memory.",
                "Requests lost their K/V blocks to a fault (or to a client) 1 time.",
            ],
        ),
    ],
)
def test_a_preemption_a_swap_and_a_fault_are_told_apart(
    run: dict[str, Any], counts: dict[str, int], words: list[str]
) -> None:
    told = {"recomputed": 0, "swapped": 0, "moved": 0, "swapped_bytes": 9} | counts
    assert remarks({**summary_of(run), "preempted": told}, run["requests"], run["steps"]) == words


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({}, "one device"),
        ({"tp": 4, "pp": 2, "sp": 1}, "PP 2 × TP 4"),
        ({"tp": {"degree": 2}, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag"}},
         "SP 2 (ring, zigzag) × TP 2"),
    ],
)  # fmt: skip
def test_a_plan_in_words_names_degrees_above_one(plan: dict[str, Any], words: str) -> None:
    assert plan_words(plan) == words


def test_setup_in_words() -> None:
    scenario = {"model": {"name": "m"}, "topology": {"name": "t", "nodes": 2}, "plan": {"tp": 8}}
    assert setup_words({"scenario": scenario}) == "m on t × 2 nodes, TP 8"


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.678, "12,346"), (1.23456, "1.235"), (0.0123456, "0.01235"), (0.0, "0"), (None, "–")],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_progress_is_silent_when_there_is_no_terminal() -> None:
    file = io.StringIO()
    with ProgressBar(file) as progress:
        progress(now_ns=0, finished=0, total=2)
    assert (file.getvalue(), progress.updates) == ("", 0)


def test_a_replay_by_events_that_takes_long_says_why_once() -> None:
    file, seconds = io.StringIO(), iter(range(100))
    with ProgressBar(file, clock=lambda: next(seconds)) as progress:
        progress.by_events("devices or links get slower")
        for finished in range(20):
            assert ("slower than" in file.getvalue()) == (finished > LONG_S - 1)
            progress(now_ns=finished, finished=finished, total=20)
    (line,) = file.getvalue().splitlines()
    assert line == (
        "slower than it could be: replayed by events, since devices or links get slower (--explain); "
        f"{LONG_S - 1:g} of 20 requests are finished"
    )


def test_progress_draws_at_most_ten_times_a_second() -> None:
    seconds = iter(i / 100 for i in range(100))
    with ProgressBar(Terminal(), clock=lambda: next(seconds)) as progress:
        for finished in range(100):
            progress(now_ns=finished, finished=finished, total=100)
    assert progress.updates == 10
