"""Processes of this machine: no main module, no Ctrl-C, and none that outlives what started it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import pytest

from clustersim.copies import at_once, beside, in_turn
from clustersim.processes import local_pool, usable_cores


def is_alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def test_local_pool_calls_elsewhere():
    with local_pool(1) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()


def test_local_pool_is_not_reached_by_ctrl_c():
    with local_pool(1) as pool:
        process = pool.submit(os.getpid).result()
        os.kill(process, signal.SIGINT)
        assert pool.submit(os.getpid).result() == process


def test_local_pool_breaks_where_a_worker_is_killed():
    with local_pool(1) as pool:
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            pool.submit(time.sleep, 30).result()


@pytest.mark.skipif(sys.platform != "linux", reason="workers are interpreters of their own there")
def test_local_pool_breaks_where_a_worker_dies_amid_its_answer(monkeypatch):
    """A pool whose workers share one pipe waits for the rest of it for good."""
    here, send = os.getpid(), Connection._send  # type: ignore[attr-defined]

    def half(self: Connection, buffer: bytes) -> None:
        if os.getpid() == here:
            send(self, buffer)
            return
        os.write(self.fileno(), bytes(buffer)[: len(buffer) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(Connection, "_send", half)
    with local_pool(2) as pool:
        with pytest.raises(BrokenProcessPool):
            pool.submit(bytes, 100).result(20)
        with pytest.raises(BrokenProcessPool):
            pool.submit(os.getpid)


def test_local_pool_tells_who_waits_what_can_not_be_pickled_or_read():
    with local_pool(1) as pool:
        for call, argument in ((id, lambda: 0), (open, os.devnull), (Unread, 0)):
            with pytest.raises((TypeError, AttributeError, pickle.PicklingError, ValueError)):
                pool.submit(call, argument).result(20)
        assert pool.submit(os.getpid).result(20) != os.getpid()


class Unread:
    """Nobody can read it where it is not made."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self):
        return int, ("x",)


def test_local_pool_ends_what_works_when_the_block_raises():
    def opened() -> None:
        with local_pool(1) as pool:
            found.append(pool.submit(os.getpid).result())
            pool.submit(time.sleep, 30)
            raise KeyboardInterrupt

    found: list[int] = []
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        opened()
    assert time.monotonic() - started < 20
    assert not is_alive(found[0])


POOLED = """
import os, sys, time
from clustersim.processes import local_pool
print("main", flush=True)
with local_pool(1) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 60).result()
"""
BESIDE = """
import os, time
from clustersim.copies import at_once, beside, in_turn
print("main", flush=True)
def told(number):
    return os.getpid() if number < 2 else time.sleep(60)
def work():
    with in_turn(told, 4) as each:
        print(os.getpid(), next(each), next(each), flush=True)
        time.sleep(60)
with at_once(2), beside(work) as answer:
    answer()
"""


@pytest.mark.parametrize(("text", "count"), [
    (POOLED, 1),
    pytest.param(BESIDE, 3, marks=pytest.mark.skipif(sys.platform != "linux", reason="no process is copied there")),
])  # fmt: skip
def test_a_script_needs_no_guard_and_its_workers_end_with_it(tmp_path, text, count):
    script = tmp_path / "script.py"
    script.write_text(text)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "main\n"
        workers = [int(one) for one in process.stdout.readline().split()]  # and not "main" a second time
        assert len(workers) == count
        assert all(map(is_alive, workers))
        process.kill()
    assert eventually(lambda: not any(map(is_alive, workers)))


ASKED = """
import logging, multiprocessing, os, signal, sys, threading
from concurrent.futures import _base as futures
from multiprocessing import popen_fork, process as processes
from clustersim import copies, processes as ours
from clustersim.cli.signals import unwinding
from clustersim.errors import TerminatedError

number, step = int(sys.argv[1]), int(sys.argv[2])
traced = {module.__file__ for module in (logging, threading, futures, popen_fork, processes, copies, ours)}

def asked_at(line):
    seen, here = 0, os.getpid()
    def trace(frame, event, argument):
        nonlocal seen
        if frame.f_code.co_filename in traced and event == "line" and os.getpid() == here:
            seen += 1
            if seen == line:
                os.kill(here, number)
        return trace
    status = 0
    try:
        with unwinding():
            sys.settrace(trace)
            with OPENED:
                assert ASKED == here
                sys.settrace(None)
    except TerminatedError as asked:
        status = asked.status
    except KeyboardInterrupt:
        status = 130
    sys.settrace(None)
    os._exit(99 if multiprocessing.active_children() else status)

line, status = 1, None
while status != 0:
    child = os.fork()
    if child == 0:
        asked_at(line)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(status)
    line += step
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are interpreters of their own there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("opened", "asked", "least"), [
    ("ours.local_pool(2) as pool", "pool.submit(os.getppid).result()", 20),
    ("copies.at_once(2), copies.beside(os.getppid) as found", "found()", 5),
    ("copies.at_once(2), copies.in_turn(lambda _: os.getppid(), 3) as found", "next(found)", 5),
])  # fmt: skip
def test_a_signal_at_any_line_that_starts_workers_ends_the_program_and_them(number, opened, asked, least):
    script = ASKED.replace("OPENED", opened).replace("ASKED", asked)
    told = subprocess.run(
        [sys.executable, "-c", script, str(int(number)), "5"], capture_output=True, text=True, check=False, timeout=120
    )
    *before, last = [int(status) for status in told.stdout.split()]
    assert (len(before) > least, set(before), last) == (True, {128 + number}, 0), told.stderr
    assert "ignored" not in told.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="this process is not copied there")
def test_work_beside_is_done_in_a_copy_or_here_where_that_ends_before_it_answers(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    here, done = os.getpid(), []

    def ends() -> int:
        done.append(os.getpid())
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return 7

    with beside(os.getpid) as found:
        assert found() == here
    with monkeypatch.context() as such, at_once(2):  # a worker of a pool of multiprocessing may start none
        such.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
        with beside(os.getpid) as found, in_turn(lambda _: os.getpid(), 3) as each:
            assert {found(), *each} == {here}
    with at_once(2):
        with beside(os.getpid) as found:
            assert found() == found() != here
        with beside(ends) as answer:
            assert (answer(), answer(), done) == (7, 7, [here])
        with pytest.raises(ZeroDivisionError), beside(lambda: 1 // 0) as answer:
            answer()


@pytest.mark.skipif(sys.platform != "linux", reason="this process is not copied there")
def test_copies_answer_in_turn_and_what_they_do_not_is_done_here(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    here = os.getpid()

    def told(number: int) -> tuple[int, int, bytes]:
        if number % 5 == 3 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        with in_turn(lambda _: os.getpid(), 3) as each:  # copies make none
            assert os.getpid() == here or set(each) == {os.getpid()}
        return number, os.getpid(), b"x" * (1 << 20 if number % 2 else 1)  # more than goes into a pipe

    for cores in (1, 2, 3, 40):
        with at_once(cores), in_turn(told, 12) as each:
            numbers, who, _ = zip(*each, strict=True)
        assert numbers == tuple(range(12))
        assert len({*who} - {here}) <= (cores if cores > 1 else 0)
        assert (who[0] == here) == (cores == 1)
        assert {who[number] for number in (3, 8)} == {here}
    with at_once(2), pytest.raises(ZeroDivisionError), in_turn(lambda number: 1 // (number - 2), 4) as each:
        list(each)


def unreadable(here: int) -> int:
    if os.getpid() == here:
        raise ValueError
    return 0


class Unreadable:
    def __reduce__(self):
        return unreadable, (os.getppid(),)


@pytest.mark.skipif(sys.platform != "linux", reason="this process is not copied there")
def test_where_there_is_room_for_few_copies_or_none_these_and_this_process_do_the_work(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    for error, of, name in ((errno.EAGAIN, os, "fork"), (errno.EMFILE, multiprocessing, "Pipe")):
        with monkeypatch.context() as such:
            few_copies(such, error, of, name)


def few_copies(patch: pytest.MonkeyPatch, error: int, of: Any, name: str) -> None:
    made, real, room = [], getattr(of, name), 0

    def refused(*args, **named):
        if len(made) >= room:
            raise OSError(error, os.strerror(error))
        made.append(0)
        return real(*args, **named)

    def each() -> list[int]:
        with in_turn(lambda number: number * 3, 20) as found:
            return list(found)

    patch.setattr(of, name, refused)
    for room in range(5):  # noqa: B007 (refused looks at it)
        made.clear()
        with at_once(4):
            assert each() == [*range(0, 60, 3)]
            made.clear()
            with beside(each) as answer:
                assert answer() == [*range(0, 60, 3)]
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform != "linux", reason="this process is not copied there")
def test_what_a_copy_answers_and_nobody_can_read_is_worked_out_here(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    here = os.getpid()

    def cut() -> bytes:
        """End amid the answer, which is longer than what a pipe takes."""
        if os.getpid() != here:
            signal.setitimer(signal.ITIMER_REAL, 0.2)  # ends the copy, which waits for somebody to read
        return bytes(1 << 20)

    with at_once(2):
        with in_turn(lambda number: Unreadable() if os.getpid() != here else number, 5) as each:
            assert list(each) == [*range(5)]
        with beside(lambda: Unreadable() if os.getpid() != here else 7) as answer:
            assert answer() == 7
        with beside(cut) as answer:
            time.sleep(0.5)
            assert answer() == bytes(1 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="this process is not copied there")
def test_one_more_copy_works_when_the_process_beside_it_waits(monkeypatch, tmp_path):
    monkeypatch.setattr(threading, "active_count", lambda: 1)

    def who(folder) -> set[int]:
        folder.mkdir()
        late = time.monotonic() + (60 if folder.name == "2" else 0)

        def told(number: int) -> int:
            """Wait for the other one, where there is to be one."""
            (folder / str(os.getpid())).touch()
            while len(os.listdir(folder)) < 2 and time.monotonic() < late:
                time.sleep(0.01)
            return os.getpid()

        with in_turn(told, 12) as each:
            found = set(each)
        (folder / "done").touch()
        return found

    for many in (1, 2):
        folder = tmp_path / str(many)
        with at_once(2), beside(partial(who, folder)) as answer:
            while many == 1 and not (folder / "done").exists():
                time.sleep(0.01)
            assert len(answer()) == many


def test_usable_cores_are_some():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


KNOWN: list[int] = []


def known() -> list[int]:
    return KNOWN


@pytest.mark.skipif(sys.platform != "linux", reason="workers are interpreters of their own there")
def test_workers_have_what_this_process_worked_out_where_it_has_no_threads(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    KNOWN[:] = [7]
    with local_pool(1) as pool:
        assert pool.submit(known).result() == [7]
        assert pool.submit(os.getpid).result() != os.getpid()


def test_workers_are_interpreters_of_their_own_where_this_process_has_threads(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    KNOWN[:] = [7]
    with local_pool(1) as pool:
        assert pool.submit(known).result() == []
