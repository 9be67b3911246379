"""Calls on an executor, in any order of their ends; those that a killed worker took with it are made again.

Who dies is not told apart from who merely shared a pool with it. So a call that was lost twice is made alone: one that
is lost once more has brought its worker down, and no other call suffers for it.

A cluster takes 20 ms of CPU for what it hands out (Dask, 58 kB), so short calls go out in bundles.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from typing import Any, Final

from clustersim.errors import ClustersimError, InputError, Problem
from clustersim.search.executors import Executors
from clustersim.values import dataclass

TRIES: Final = 3
_AHEAD: Final = 2
"""Bundles that are handed out per worker: one whose calls it makes, and one that waits for it."""
_BUNDLE_S: Final = 1.0
"""Seconds that the calls of a bundle take together; so a cluster's part is 2 %."""
_WORRYING: Final = 2

Call = tuple[Any, ...]
Bundle = list[tuple[int, Call]]


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
    pending = _Pending(calls, executors)
    while pending.is_left:
        with executors.pool() as executor:
            yield from _until_broken(executor, call, pending)


class _Pending:
    """What is still to be called, and how often each has been lost."""

    def __init__(self, calls: Iterator[tuple[int, Call]], executors: Executors) -> None:
        self._calls = calls
        self._again: deque[tuple[int, Call]] = deque()
        self._lost: dict[int, int] = {}
        self._workers, self._bundles = executors.workers, executors.bundles
        self._next = next(calls, None)
        self._size = 1

    @property
    def is_left(self) -> bool:
        return self._next is not None or bool(self._again)

    def take(self, out: Collection[Bundle]) -> Bundle:
        """Return the next calls while others are out; none where none may go."""
        if any(self._is_worrying(number) for bundle in out for number, _ in bundle):
            return []
        if self._again:
            alone = self._is_worrying(self._again[0][0])
            return [self._again.popleft()] if not out or (not alone and len(out) < self._workers) else []
        taken: Bundle = []
        if len(out) < (self._workers * _AHEAD if self._workers > 1 else 1):
            while self._next is not None and len(taken) < self._size:
                taken.append(self._next)
                self._next = next(self._calls, None)
        return taken

    def took(self, seconds: float, calls: int) -> None:
        """Learn how long calls take: bundles grow, at most to twice as many, and shrink."""
        if self._bundles:
            self._size = max(1, min(2 * calls, int(calls * _BUNDLE_S / max(seconds, 1e-6))))

    def _is_worrying(self, number: int) -> bool:
        return self._lost.get(number, 0) >= _WORRYING

    def put_back(self, bundle: Bundle) -> None:
        """Take back calls that nobody took."""
        self._again.extendleft(reversed(bundle))

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
    out: dict[Future[Any], Bundle] = {}
    broken = False
    while out or (pending.is_left and not broken):
        while not broken and (bundle := pending.take(out.values())):
            try:
                out[executor.submit(_each, call, [arguments for _, arguments in bundle])] = bundle
            except BrokenExecutor:
                broken = True
                pending.put_back(bundle)
        for future in sorted(wait(out, return_when=FIRST_COMPLETED).done, key=lambda one: out[one][0][0]):
            bundle = out.pop(future)
            try:
                seconds, found = future.result()
                pending.took(seconds, len(bundle))
            except CancelledError:
                message = "the cluster went away; what is finished is kept, and the same command goes on from there"
                raise InputError(Problem(message=message, file="--executor")) from None
            except Exception as error:  # a worker that died, in the words of a pool, Dask or Ray
                broken = broken or isinstance(error, BrokenExecutor)
                found = [_Failed(error)] * len(bundle)
            for (number, arguments), one in zip(bundle, found, strict=True):
                if not isinstance(one, _Failed):
                    yield number, one
                elif isinstance(one.error, ClustersimError):
                    raise one.error
                elif not pending.lose(number, arguments):
                    why = "" if isinstance(one.error, BrokenExecutor) else f" ({type(one.error).__name__}: {one.error})"
                    yield number, Lost(reason=f"the process that simulated it was killed, {TRIES} times{why}")


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a call raised."""

    error: Exception


def _each(call: Callable[..., Any], calls: Sequence[Call]) -> tuple[float, list[Any]]:
    """Make some calls; return how many seconds they took together, and what each returned or raised."""
    began, found = time.monotonic(), list[Any]()
    for arguments in calls:
        try:
            found.append(call(*arguments))
        except Exception as error:
            found.append(_Failed(error))
    return time.monotonic() - began, found
