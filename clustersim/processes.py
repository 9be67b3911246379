"""A pool of processes on this machine, in the shape of ``concurrent.futures``.

On Linux, in a program without threads of Python, workers are copies of this process: what it has imported and worked
out they have, too. Elsewhere they are interpreters of their own that never import the program's main module, so this is
safe in a program with threads. In neither case a script needs a guard. Ctrl-C reaches this process only; a worker ends
with the process that started it, however that ends, and with the block that opened its pool when that raises.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, Final

from clustersim.errors import ENDING


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals that this program answers by raising wait until the body is done, which would be left half made.

    What they raise inside a hook of ``fork`` would be lost, besides.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one answers signals
        yield
        return
    came: list[int] = []
    earlier = {number: handler for number in ENDING if callable(handler := signal.getsignal(number))}
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


new_context: Final = _contexts()
"""Makes what starts processes, and knows those that it started."""


class Pool(Executor):
    """Calls made by processes of this machine, each with a pipe of its own: who dies amid an answer ends its pipe.

    The pool of ``concurrent.futures`` waits for the rest of such an answer for good, as all workers write to one pipe
    and this process could, too. Where a worker dies, calls that are not answered raise ``BrokenProcessPool``.
    """

    def __init__(self, workers: int) -> None:
        self._workers, self._context = workers, new_context()
        self._calls: deque[tuple[Future[Any], Any]] = deque()
        self._pipes: list[Connection] = []
        self._thread: threading.Thread | None = None
        self._broken, self._is_awake = threading.Event(), False

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Start workers where there are none, and let one of them make a call.

        Raises
        ------
        BrokenProcessPool
            When a worker has died.
        OSError
            When none may be started.
        """
        if self._thread is None:
            self._thread = self._started()
        if self._broken.is_set():
            raise BrokenProcessPool(_DIED)
        future: Future[Any] = Future()
        self._calls.append((future, (call, args, named)))
        if not self._is_awake:
            self._is_awake = True
            self._wake.send(None)
        if self._broken.is_set():  # since then, so nobody may have seen this call
            self._fail([])
        return future

    def _started(self) -> threading.Thread:
        for _ in range(self._workers):
            ours, theirs = multiprocessing.Pipe()
            with theirs, signals_wait():  # no signal comes between a process and who is to end it
                self._context.Process(target=_make_calls, args=(theirs,)).start()
            self._pipes.append(ours)
        self._woken, self._wake = multiprocessing.Pipe(duplex=False)
        thread = threading.Thread(target=self._serve, daemon=True)  # waited for, but not for good
        thread.start()
        return thread

    def _serve(self) -> None:
        """Hand calls to workers, and what these answer to who waits, until one of them is gone."""
        idle, asked = deque(self._pipes), dict[Connection, Future[Any]]()
        with suppress(OSError, EOFError):
            while True:
                while idle and self._calls:
                    future, call = self._calls.popleft()
                    if future.set_running_or_notify_cancel() and (told := _told(future, call)) is not None:
                        asked[idle[0]] = future
                        idle.popleft().send_bytes(told)
                ready: Any
                for ready in wait([self._woken, *self._pipes]):
                    answer = _heard(ready)
                    if ready is self._woken:
                        self._is_awake = False
                        continue
                    idle.append(ready)
                    found, error = answer
                    if error is None:
                        asked.pop(ready).set_result(found)
                    else:
                        asked.pop(ready).set_exception(error)
        self._broken.set()
        _kill(self._context.started)
        self._fail(asked.values())

    def _fail(self, asked: Iterable[Future[Any]]) -> None:
        """Tell all that wait that nobody will answer."""
        for future in asked:
            future.set_exception(BrokenProcessPool(_DIED))
        while self._calls:
            with suppress(IndexError):  # another thread has taken it
                future, _ = self._calls.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_exception(BrokenProcessPool(_DIED))

    def close(self) -> None:
        """End all workers, whatever they do."""
        end(self._context.started)
        if self._thread is not None:
            self._thread.join(_ENDS_S)


_DIED: Final = "a process of the pool ended before it had answered"
_ENDS_S: Final = 0.5
"""Seconds after which what was killed, or has nothing to do any more, is left to itself."""


def _told(future: Future[Any], call: Any) -> Any:
    """Return a call as bytes; None, and who waits is told, where it can't be pickled."""
    try:
        return ForkingPickler.dumps(call)
    except Exception as error:
        future.set_exception(error)
        return None


def _heard(pipe: Any) -> Any:
    """Return what a process says: an answer and None, or None and an error, also where nobody here can read it.

    Raises
    ------
    OSError, EOFError
        When it is gone.
    """
    try:
        return pipe.recv()
    except (OSError, EOFError):
        raise
    except Exception as unreadable:
        return None, unreadable


def _make_calls(pipe: Connection) -> None:
    """Make calls in a worker until it is killed."""
    _end_with_parent()
    while True:
        call, args, named = pipe.recv()
        try:
            answer = ForkingPickler.dumps((call(*args, **named), None))
        except BaseException as error:
            answer = ForkingPickler.dumps((None, error))
        pipe.send_bytes(answer)


@contextmanager
def local_pool(workers: int) -> Iterator[Pool]:
    """Open a pool of so many processes of this machine; when the block ends they are killed, whatever they do.

    Raises
    ------
    OSError
        When this is a worker of a pool of ``multiprocessing``, which may start none.
    """
    if multiprocessing.current_process().daemon:
        raise OSError("a worker of a pool of multiprocessing may start no processes")
    pool = Pool(workers)
    try:
        yield pool
    finally:
        pool.close()


def end(started: Sequence[Any]) -> None:
    """Kill processes, and wait until they are gone."""
    _kill(started)
    late = time.monotonic() + _ENDS_S
    for process in started:
        if process.pid is not None:  # the machine gave one
            process.join(max(0.0, late - time.monotonic()))


def end_all() -> None:
    """End all processes that this one started."""
    end(multiprocessing.active_children())


def _kill(started: Sequence[Any]) -> None:
    with signals_wait():
        for process in started:
            with suppress(ValueError, OSError):  # it has ended, and is closed
                if process.pid is not None:  # the machine gave one
                    process.kill()


def forks() -> bool:
    """Whether workers of a pool that is opened now are copies of this process: not where it may start none."""
    is_alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    return sys.platform == "linux" and is_alone


def usable_cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError, OSError):  # not every platform knows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def forget_answers() -> None:
    """Let signals that this program answers end this process, a copy, as they do others."""
    for number in ENDING[1:]:  # Ctrl-C does not reach it
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, which its pipe does not tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    forget_answers()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
