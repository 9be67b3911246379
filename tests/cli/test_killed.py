"""Files and folders are complete or absent wherever a program is killed: at each line of what writes them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from clustersim.cli.signals import TerminatedError, unwinding
from clustersim.files import folder_written_whole, written_whole

DRIVER: Final = """
import json, os, signal, sys
from pathlib import Path
from clustersim import files
from clustersim.cli.signals import TerminatedError, unwinding

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
