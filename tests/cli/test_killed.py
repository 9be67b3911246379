"""Files and folders are complete or absent wherever a program is killed: at each line of what writes them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from clustersim.cli.signals import unwinding
from clustersim.errors import TerminatedError
from clustersim.files import folder_written_whole, written_whole
from tests.effort import times

DRIVER: Final = """
import json, os, signal, sys
from pathlib import Path
from clustersim import files
from clustersim.cli.signals import unwinding
from clustersim.errors import TerminatedError

kind, number, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
exchanges = sys.argv[4] == "exchanges"
if not exchanges:
    files._exchanged = lambda one, other: False

def write(target):
    if kind == "folder":
        with files.folder_written_whole(target) as beside:
            (beside / "a").write_text("new")
            (beside / "b").write_text("new")
    else:
        with files.written_whole(target) as beside:
            beside.write_text("new")

def earlier(target):
    if kind == "folder":
        target.mkdir(parents=True)
        (target / "a").write_text("old")
    else:
        target.parent.mkdir(parents=True)
        target.write_text("old")

def killed_at(line, target):
    seen = 0
    def trace(frame, event, argument):
        nonlocal seen
        if frame.f_code.co_filename == files.__file__ and event == "line":
            seen += 1
            if seen == line:
                os.kill(os.getpid(), number)
        return trace
    try:
        with unwinding():
            sys.settrace(trace)
            write(target)
            sys.settrace(None)
    except TerminatedError as asked:
        os._exit(asked.status)
    os._exit(0)

found, line = [], 0
while True:
    line += 1
    target = folder / str(line) / "target"
    earlier(target)
    child = os.fork()
    if child == 0:
        killed_at(line, target)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    def held():
        if target.is_dir():
            return {path.name: path.read_text() for path in target.iterdir()}
        return target.read_text() if target.exists() else None
    after = {"status": status, "held": held(), "beside": sorted(path.name for path in target.parent.iterdir())}
    files.sweep(target.parent)
    swept = {"held": held(), "beside": sorted(path.name for path in target.parent.iterdir())}
    found.append({"after": after, "swept": swept})
    if status == 0:
        break
print(json.dumps(found))
"""
OLD: Final = {"folder": {"a": "old"}, "file": "old"}
NEW: Final = {"folder": {"a": "new", "b": "new"}, "file": "new"}


def killed(folder: Path, kind: str, number: signal.Signals, *, exchanges: bool = True) -> list[dict[str, Any]]:
    """Return what was there after a kill at each line, and after the next writer had swept."""
    how = "exchanges" if exchanges else "renames twice"
    told = subprocess.run(
        [sys.executable, "-c", DRIVER, kind, str(int(number)), str(folder), how],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(told.stdout)
    assert len(found) > 20
    assert {one["after"]["status"] for one in found[:-1]} <= {-number, 128 + number}
    return found


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_written_is_the_earlier_or_the_new_one_wherever_it_is_killed(tmp_path: Path, kind: str):
    for one in killed(tmp_path, kind, signal.SIGKILL):
        assert one["after"]["held"] in (OLD[kind], NEW[kind])
        assert one["swept"]["beside"] == ["target"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_the_earlier_folder_comes_back_where_names_cannot_be_exchanged(tmp_path: Path):
    found = killed(tmp_path, "folder", signal.SIGKILL, exchanges=False)
    assert any(one["after"]["held"] is None for one in found), "no kill fell between the two renames"
    for one in found:
        assert one["swept"] in ({"held": held, "beside": ["target"]} for held in (OLD["folder"], NEW["folder"]))


@pytest.mark.parametrize(("kind", "exchanges"), [("folder", True), ("folder", False), ("file", True)])
def test_a_program_that_is_asked_to_end_leaves_nothing_behind(tmp_path: Path, kind: str, exchanges: bool):
    for one in killed(tmp_path, kind, signal.SIGTERM, exchanges=exchanges):
        assert one["after"]["beside"] == ["target"]
        assert one["after"]["held"] in (OLD[kind], NEW[kind])


def test_what_somebody_still_writes_is_not_swept(tmp_path: Path):
    with folder_written_whole(tmp_path / "one") as one, written_whole(tmp_path / "two") as two:
        (one / "a").write_text("1", encoding="utf-8")
        two.write_text("2", encoding="utf-8")
        with written_whole(tmp_path / "three") as three:
            three.write_text("3", encoding="utf-8")
        assert (one / "a").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three", "two"]


def test_folders_made_on_the_way_are_removed_when_nothing_comes_of_them(tmp_path: Path):
    with pytest.raises(ValueError, match="no"), folder_written_whole(tmp_path / "a" / "b" / "c"):
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_is_lost_in_a_callback_of_a_weak_reference_comes_again() -> None:
    class Held:
        pass

    def lose_it() -> None:
        held = Held()
        kept = weakref.ref(held, lambda _: signal.raise_signal(signal.SIGTERM))
        del held
        assert kept() is None
        time.sleep(10.0)

    with unwinding(), pytest.raises(TerminatedError):
        lose_it()
    with patch("time.sleep", side_effect=RuntimeError), pytest.raises(TerminatedError), unwinding():
        lose_it()  # and what it broke fails before


STUBBORN: Final = """
import os, signal, sys, time
from pathlib import Path
from clustersim.cli.signals import unwinding
from clustersim.files import folder_written_whole
from clustersim.processes import local_pool

with unwinding(), folder_written_whole(Path(sys.argv[1]) / "made" / "target") as beside, local_pool(1) as pool:
    (beside / "a").write_text("new")
    worker = pool.submit(os.getpid).result()
    while True:
        try:
            print(worker, flush=True)
            time.sleep(60)
        except BaseException:
            print("asked", flush=True)
"""


def started(*args: str, place: Path) -> subprocess.Popen[str]:
    """Start Python in a session of its own; it heeds Ctrl-C, which what a shell starts in the background ignores."""
    return subprocess.Popen(
        [sys.executable, *args], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no clock that strikes")
@pytest.mark.parametrize(("number", "said"), [(signal.SIGINT, "\nclustersim: interrupted\n"),
                                              (signal.SIGTERM, "clustersim: asked to end\n")])  # fmt: skip
@pytest.mark.parametrize("again", [False, True])
def test_what_does_not_unwind_ends_all_the_same_and_at_once_when_asked_again(tmp_path, number, said, again):
    process = started("-c", STUBBORN, str(tmp_path), place=tmp_path)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    asked_at = time.monotonic()
    if again:
        process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (128 + number, said)
    assert (time.monotonic() - asked_at < 0.9) == again
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


RUN: Final = ["run", "azure-hour-fleet", "--set", "serving.router=round_robin", "--set", "workload.requests=19000",
              "--set", "expect={}", "--processes", "2", "--out", "found"]  # fmt: skip
_LONGEST_S: Final = 3.0
"""Of that run, about: instants are drawn up to there."""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes that are left in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_ends_soon_at_whichever_instant_it_is_told_to(tmp_path, number):
    """300 tries: ``--long=7``. Before the program heeds signals the system ends it."""
    draw, walls, ended = random.Random(int(number)), list[float](), {128 + number, -number}
    for place in (tmp_path / str(one) for one in range(times(48))):
        place.mkdir()
        process = started("-m", "clustersim", *RUN, place=place)
        time.sleep(draw.uniform(0.3, _LONGEST_S))
        began = time.monotonic()
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        walls.append(time.monotonic() - began)
        whole = (place / "found" / "summary.json").exists()
        assert process.returncode in (ended | {0} if whole else ended), told
        assert sorted(one.name for one in place.iterdir()) == (["found"] if whole else [])
        assert not left_of(process.pid), "processes that it started"
    walls.sort()
    print(f"{len(walls)} tries: half within {walls[len(walls) // 2]:.2f} s, all within {walls[-1]:.2f} s")
    assert walls[-1] < 2.0


def left_of(session: int) -> list[str]:
    """Return processes of a session that are there after a second."""
    late = time.monotonic() + 1.0
    while True:
        found = []
        for one in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, _, of, *_ = one.read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(of) == session and state != "Z":  # what nobody has to wait for any more
                    found.append(one.parent.name)
        if not found or time.monotonic() > late:
            return found
        time.sleep(0.05)
