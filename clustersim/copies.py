"""Work in copies of this process (Linux), where several may work at once: beside other work, or in turn.

A copy has what this process imported and worked out; what it answers is pickled. It ends with the process that it is a
copy of, however that ends. What it does not answer is done here, so that a result never depends on it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any, Final, TypeVar

from clustersim.processes import end, forget_answers, forks, new_context, signals_wait, usable_cores

Found = TypeVar("Found")

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


def several() -> bool:
    """Whether several processes, or threads of one, may work at once (:func:`at_once`)."""
    return _AT_ONCE.get() > 1


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
    if not several() or not forks():
        yield cache(work)
        return
    context, pipes = new_context(), []
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
        until.close()
        try:
            answered: Found = ours.recv()
        except Exception:  # it ended before it answered, or amid that
            return work()
        return answered

    with ours, later, until:
        try:
            with theirs, signals_wait(), suppress(OSError):  # no room for another process
                context.Process(target=answer).start()
            yield cache(found)
        finally:
            end(context.started)


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
        self.context: Any = new_context()
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
            with theirs, signals_wait():
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
        end(self.context.started)


def _die_with_parent() -> None:
    """End this process, which is a copy, when the one that started it is gone; it needs no thread, so it may copy."""
    forget_answers()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getppid() != parent.pid:  # it went before it was asked
        os._exit(1)
