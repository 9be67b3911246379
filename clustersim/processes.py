"""A pool of processes on this machine, in the shape of ``concurrent.futures``.

Workers are interpreters of their own that never import the program's main module, so this is safe in a program with
threads, and a script needs no guard. Ctrl-C reaches this process only; a worker ends with the process that started it,
however that ends, and with the block that opened its pool when that raises.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType
from typing import Any


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (what multiprocessing calls to start one)
        """Start a process that sees an empty main module, and whose Ctrl-C is blocked: a mask is inherited."""
        main = sys.modules["__main__"]
        blocked = (
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if hasattr(signal, "pthread_sigmask") else None
        )
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main
            if blocked is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


class _Context(SpawnContext):
    """Starts such processes, and knows them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[_Process] = []

    def Process(self, *args: Any, **named: Any) -> _Process:  # type: ignore[override]  # noqa: N802
        self.started.append(_Process(*args, **named))
        return self.started[-1]


@contextmanager
def local_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of so many processes of this machine; where the block raises they are killed, whatever they do."""
    context = _Context()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in context.started:
            with suppress(ValueError, OSError):  # it has ended, and is closed
                process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    with suppress(AttributeError, OSError):  # not every platform knows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, which its queue does not tell."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
