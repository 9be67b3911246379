"""Calls on an executor, in any order of their ends; those that a killed worker took with it are made again.

Who dies is not told apart from who merely shared a pool with it. So a call that was lost twice is made alone: one that
is lost once more has brought its worker down, and no other call suffers for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any, Final

from clustersim.errors import ClustersimError, InputError, Problem
from clustersim.search.executors import Executors
from clustersim.values import dataclass

TRIES: Final = 3
_AHEAD: Final = 2
"""Calls that are handed out per worker: one that it makes, and one that waits for it."""
_WORRYING: Final = 2

Call = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """What becomes of a call that its worker did not survive."""

    reason: str


def outcomes(
    executors: Executors, call: Callable[..., Any], calls: Iterator[tuple[int, Call]]
) -> Iterator[tuple[int, Any]]:
    """Make calls, and yield the number of each with what it returned, or :class:`Lost`, as they end.

    Parameters
    ----------
    executors : Executors
    call : callable
        Of the top level of a module.
    calls : iterator of (int, tuple)
        Numbers and arguments; drawn as workers become free.

    Raises
    ------
    InputError
        When a cluster went away.
    """
    pending = _Pending(calls, executors.workers)
    while pending.is_left:
        with executors.pool() as executor:
            yield from _until_broken(executor, call, pending)


class _Pending:
    """What is still to be called, and how often each has been lost."""

    def __init__(self, calls: Iterator[tuple[int, Call]], workers: int) -> None:
        self._calls = calls
        self._again: deque[tuple[int, Call]] = deque()
        self._lost: dict[int, int] = {}
        self._workers = workers
        self._next = next(calls, None)

    @property
    def is_left(self) -> bool:
        return self._next is not None or bool(self._again)

    def take(self, out: Collection[int]) -> tuple[int, Call] | None:
        """Return the next call while those with these numbers are out; None where none may go."""
        if any(self._is_worrying(number) for number in out):
            return None
        if self._again:
            alone = self._is_worrying(self._again[0][0])
            return self._again.popleft() if not out or (not alone and len(out) < self._workers) else None
        most = self._workers * _AHEAD if self._workers > 1 else 1
        if self._next is None or len(out) >= most:
            return None
        taken, self._next = self._next, next(self._calls, None)
        return taken

    def _is_worrying(self, number: int) -> bool:
        return self._lost.get(number, 0) >= _WORRYING

    def put_back(self, number: int, arguments: Call) -> None:
        """Take back a call that nobody took."""
        self._again.appendleft((number, arguments))

    def lose(self, number: int, arguments: Call) -> bool:
        """Note that a call was lost; return whether it may be made again."""
        self._lost[number] = self._lost.get(number, 0) + 1
        if self._lost[number] >= TRIES:
            return False
        self._again.append((number, arguments))
        self._again = deque(sorted(self._again, key=lambda one: (self._lost[one[0]], one[0])))
        return True


def _until_broken(executor: Executor, call: Callable[..., Any], pending: _Pending) -> Iterator[tuple[int, Any]]:
    """Yield outcomes until all is done, or the executor has lost a worker and can't go on."""
    out: dict[Future[Any], tuple[int, Call]] = {}
    broken = False
    while out or (pending.is_left and not broken):
        while not broken and (taken := pending.take([number for number, _ in out.values()])) is not None:
            try:
                out[executor.submit(call, *taken[1])] = taken
            except BrokenExecutor:
                broken = True
                pending.put_back(*taken)
        for future in sorted(wait(out, return_when=FIRST_COMPLETED).done, key=lambda one: out[one][0]):
            number, arguments = out.pop(future)
            try:
                yield number, future.result()
                continue
            except CancelledError:
                message = "the cluster went away; what is finished is kept, and the same command goes on from there"
                raise InputError(Problem(message=message, file="--executor")) from None
            except ClustersimError:
                raise
            except Exception as error:  # a worker that died, in the words of a pool, Dask or Ray
                died = isinstance(error, BrokenExecutor)
                broken = broken or died
                why = "" if died else f" ({type(error).__name__}: {error})"
            if not pending.lose(number, arguments):
                yield number, Lost(reason=f"the process that simulated it was killed, {TRIES} times{why}")
