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
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from types import ModuleType
from typing import Any, Final

_ASKING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def signals_wait() -> Iterator[None]:
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


new_context: Final = _contexts()
"""Makes what starts processes, and knows those that it started."""


class _Pool(ProcessPoolExecutor):
    def submit(self, *args: Any, **named: Any) -> Any:
        """Start what is missing and submit; no signal comes between a process and who is to end it."""
        with signals_wait():
            return super().submit(*args, **named)


@contextmanager
def local_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of so many processes of this machine; where the block raises they are killed, whatever they do.

    Raises
    ------
    OSError
        When this is a worker of a pool of ``multiprocessing``, which may start none.
    """
    if multiprocessing.current_process().daemon:
        raise OSError("a worker of a pool of multiprocessing may start no processes")
    context = new_context()
    pool = _Pool(workers, mp_context=context, initializer=_end_with_parent)
    with _unread(pool) as empty:
        try:
            yield pool
        except BaseException:
            kill(context.started)
            empty()
            raise
        finally:
            if getattr(pool, "_broken", False):
                empty()
            pool.shutdown(cancel_futures=True)
            kill(context.started)  # where another could not be started, nobody told those that were


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


def kill(started: list[Any]) -> None:
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
    for number in _ASKING:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, which its queue does not tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    forget_answers()

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
