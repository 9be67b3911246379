"""Work in processes of this machine: a pool of them in the shape of ``concurrent.futures``, and copies of this one.

On Linux, in a program without threads of Python, workers are copies of this process: what it has imported and worked
out they have, too. Elsewhere they are interpreters of their own that never import the program's main module, so this is
safe in a program with threads. In neither case a script needs a guard. Ctrl-C reaches this process only; a worker ends
with the process that started it, however that ends, and with the block that opened its pool when that raises.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Final, TypeVar

Found = TypeVar("Found")

_ASKING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

_PR_SET_PDEATHSIG: Final = 1
"""Of ``prctl`` of Linux."""

_AT_ONCE: Final = ContextVar("how many processes may work at once", default=1)
_LATER: Final = ContextVar[Connection | None]("what ends when one more may", default=None)
"""Until then the process that this one is a copy of does other work."""
_MOST: Final = 12
"""Copies that do work in turn: so many answer as fast as one process takes what large runs ask of them."""
_ASKED: Final = 2
"""Numbers that a copy is asked for at a time: it has the next one while what it answered is taken."""
_AHEAD: Final = 4
"""Numbers for each copy that may be asked for before the first of them is taken; what they gave waits here."""


@contextmanager
def at_once(count: int | None = None) -> Iterator[None]:
    """Let so many processes work at once in the block, this one and copies of it; by default one a core."""
    before = _AT_ONCE.set(usable_cores() if count is None else count)
    try:
        yield
    finally:
        _AT_ONCE.reset(before)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let signals that this program answers by raising wait until the body is done, which would be left half made.

    What they raise inside a hook of ``fork`` would be lost, besides.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one answers signals
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, *_ASKING)
    earlier = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in earlier:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Block Ctrl-C in the processes that are started here: a mask is inherited."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Process(multiprocessing.context.SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (what multiprocessing calls to start one)
        """Start a process that sees an empty main module."""
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            with _without_ctrl_c():
                return multiprocessing.context.SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _Started:
    """What a context does besides: it knows the processes that it started."""

    kind: type

    def __init__(self) -> None:
        super().__init__()
        self.started: list[Any] = []

    def Process(self, *args: Any, **named: Any) -> Any:  # noqa: N802 (what a pool calls to make one)
        self.started.append(self.kind(*args, **named))
        return self.started[-1]


class _Context(_Started, multiprocessing.context.SpawnContext):  # type: ignore[misc]
    """Starts interpreters of their own."""

    kind = _Process


def _contexts() -> Callable[[], Any]:
    """Return what makes the context of a pool: one that forks where that is safe, else one that spawns."""
    if sys.platform != "linux":  # elsewhere libraries of the system don't bear it
        return _Context

    class _CopyProcess(multiprocessing.context.ForkProcess):
        @staticmethod
        def _Popen(process_obj: Any) -> Any:  # noqa: N802
            with _without_ctrl_c():
                return multiprocessing.context.ForkProcess._Popen(process_obj)

    class _CopyContext(_Started, multiprocessing.context.ForkContext):  # type: ignore[misc]
        """Copies this process, with all that it has imported and kept."""

        kind = _CopyProcess

    return lambda: _CopyContext() if forks() else _Context()


_context: Final = _contexts()


class _Pool(ProcessPoolExecutor):
    def submit(self, *args: Any, **named: Any) -> Any:
        """Start what is missing and submit; no signal comes between a process and who is to end it."""
        with _signals_wait():
            return super().submit(*args, **named)


@contextmanager
def local_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of so many processes of this machine; where the block raises they are killed, whatever they do."""
    context = _context()
    pool = _Pool(workers, mp_context=context, initializer=_end_with_parent)
    with _unread(pool) as empty:
        try:
            yield pool
        except BaseException:
            _kill(context.started)
            empty()
            raise
        finally:
            if getattr(pool, "_broken", False):
                empty()
            pool.shutdown(cancel_futures=True)
            _kill(context.started)  # where another could not be started, nobody told those that were


@contextmanager
def _unread(pool: ProcessPoolExecutor) -> Iterator[Callable[[], None]]:
    """Give what reads all that no worker reads any more, so that nobody waits to write it.

    Before Python 3.11.5 a shutdown waits for that forever (gh-94777). A thread of CPython closes what workers read, and
    a number closed twice may be another's by then: so a copy is read, which nobody else closes.
    """
    if sys.version_info >= (3, 11, 5):
        yield lambda: None
        return
    copy = os.dup(pool._call_queue._reader.fileno())  # type: ignore[attr-defined]

    def read() -> None:
        while os.read(copy, 1 << 16):
            pass
        os.close(copy)

    reader = threading.Thread(target=read, daemon=True)

    def empty() -> None:
        if reader.ident is None and pool._executor_manager_thread is not None:
            reader.start()

    try:
        yield empty
    finally:
        if reader.ident is None:
            os.close(copy)
        else:
            reader.join(1.0)  # whoever writes is gone with the pool


def _kill(started: list[Any]) -> None:
    with _signals_wait():
        for process in started:
            with suppress(ValueError, OSError):  # it has ended, and is closed
                if process.pid is not None:  # the machine gave one
                    process.kill()


@contextmanager
def beside(work: Callable[[], Found]) -> Iterator[Callable[[], Found]]:
    """Do work in a copy of this process while the block does other work; yield what waits for its result.

    Where this process can't be copied or no other may work (:func:`at_once`), and where the copy raises or ends before
    it answers, the work is done here, when it is asked for. No copy outlives the block.

    Parameters
    ----------
    work : callable
        Returns what can be pickled; what else it does is lost.
    """
    if _AT_ONCE.get() < 2 or not forks():
        yield cache(work)
        return
    context, pipes = _context(), []
    with suppress(OSError):  # as many files are open as may be
        pipes += [multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False)]
    if not pipes:
        yield cache(work)
        return
    (ours, theirs), (later, until) = pipes

    def answer() -> None:
        _die_with_parent()
        until.close()
        _LATER.set(later)
        with suppress(Exception):  # who waits meets it, too, with its place
            theirs.send(work())
        os._exit(0)

    def found() -> Found:
        theirs.close()
        until.close()
        try:
            answered: Found = ours.recv()
        except Exception:  # it ended before it answered, or amid that
            return work()
        return answered

    with ours, theirs, later, until:
        try:
            with _signals_wait(), suppress(OSError):  # no room for another process
                context.Process(target=answer).start()
            yield cache(found)
        finally:
            _end(context.started)


@contextmanager
def in_turn(work: Callable[[int], Found], many: int) -> Iterator[Iterator[Found]]:
    """Give what work makes of each number below ``many``, in turn; copies of this process do it, where several may.

    What a copy does not answer, since it raised or ended, is done here. No copy outlives the block.

    Parameters
    ----------
    work : callable
        Takes a number and returns what can be pickled; what else it does is lost.
    many : int
    """
    if min(_AT_ONCE.get(), many) < 2 or not forks():
        yield map(work, range(many))
        return
    copies = _Copies(work, many)
    try:
        yield copies.answers()
    finally:
        copies.end()


class _Copies:
    """Copies of this process, ``_MOST`` or less, each asked for some numbers at a time."""

    def __init__(self, work: Callable[[int], Any], many: int) -> None:
        self.context: Any = _context()
        self._work, self._many, self._given, self._taken = work, many, 0, 0
        self._asked: dict[Connection, deque[int]] = {}
        self._found: dict[int, Any] = {}
        self._later = _LATER.get()

    def answers(self) -> Iterator[Any]:
        """Yield what the work makes of each number."""
        for _ in range(min(_AT_ONCE.get(), self._many, _MOST) - (self._later is not None)):
            self._start()
        for number in range(self._many):
            while number not in self._found:
                self._ask()
                if any(number in numbers for numbers in self._asked.values()):
                    for ready in wait([*self._asked, *([] if self._later is None else [self._later])]):
                        self._take(ready)
                else:  # who was asked for it ended, or nobody is there
                    self._given = max(self._given, number + 1)
                    self._found[number] = self._work(number)
            self._taken += 1
            yield self._found.pop(number)

    def _start(self) -> None:
        """Start one more, unless there is no room for it."""

        def answer() -> None:
            _die_with_parent()
            ours.close()
            _AT_ONCE.set(1)
            with suppress(Exception):  # what raises is done again where it is waited for
                while True:
                    theirs.send(self._work(theirs.recv()))
            os._exit(0)

        with suppress(OSError):
            ours, theirs = multiprocessing.Pipe()
            with theirs, _signals_wait():
                self.context.Process(target=answer, daemon=True).start()
            self._asked[ours] = deque()

    def _ask(self) -> None:
        most = min(self._many, self._taken + _AHEAD * len(self._asked))
        for copy, numbers in self._asked.items():
            while len(numbers) < _ASKED and self._given < most:
                numbers.append(self._given)
                self._given += 1
                with suppress(OSError):  # it has ended, which is found when it is waited for
                    copy.send(numbers[-1])

    def _take(self, ready: Any) -> None:
        """Take what a copy has answered, or that it ended; start one more where another process has done its work."""
        if ready is self._later:
            self._later = None
            self._start()
            return
        try:
            self._found[self._asked[ready][0]] = ready.recv()
            self._asked[ready].popleft()
        except Exception:  # it ended, or nobody can read what it answered
            del self._asked[ready]
            ready.close()

    def end(self) -> None:
        """End all of them."""
        for copy in self._asked:
            copy.close()
        _end(self.context.started)


def _end(started: list[Any]) -> None:
    _kill(started)
    for process in started:
        if process.pid is not None:  # the machine gave one
            process.join()


def forks() -> bool:
    """Whether workers of a pool that is opened now are copies of this process: not where it may start none."""
    is_alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return sys.platform == "linux" and is_alone


def usable_cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError, OSError):  # not every platform knows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _die_with_parent() -> None:
    """End this process, which is a copy, when the one that started it is gone; it needs no thread, so it may copy."""
    _forget_answers()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getppid() != parent.pid:  # it went before it was asked
        os._exit(1)


def _forget_answers() -> None:
    """Let signals that this program answers end this process, a copy, as they do others."""
    for number in _ASKING:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, which its queue does not tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    _forget_answers()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
