"""Progress of a run, as a bar where standard error is a terminal; and of many runs, else a line every ten seconds."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

from clustersim.clock import NS_PER_S
from clustersim.units import format_seconds

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LONG_S: Final = 5.0
"""Seconds of real time after which it is told that, and why, a replay goes by events."""
_SECONDS_BETWEEN: Final = 0.1
_SECONDS_BETWEEN_LINES: Final = 10.0


class Bar:
    """A bar that counts; use it as a context. A call that comes too soon only looks at the clock.

    What it shows never enters a result.

    Parameters
    ----------
    noun : str
        What is counted.
    file : text file, optional
        Where to draw; standard error by default. Nothing is drawn when it is no terminal.
    clock : callable, optional
        Seconds of real time.
    """

    def __init__(
        self, noun: str = "requests", file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._noun = noun
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._next = float("-inf")
        self._bar: Progress | None = None
        self._row: TaskID | None = None
        self.updates = 0

    def __enter__(self) -> Self:
        if self._file.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._noun),
                console=Console(file=self._file),
                transient=True,
                auto_refresh=False,
            )
            self._row = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def show(self, doing: str, done: int, total: int) -> None:
        """Show that so many of all are done."""
        if self._bar is None or self._row is None:
            return
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _SECONDS_BETWEEN
        self.updates += 1
        self._bar.update(self._row, completed=done, total=total, description=doing, refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._row = None


class ProgressBar(Bar):
    """Shows how many requests are finished, and the simulated time; call it from the simulation.

    Examples
    --------
    >>> with ProgressBar() as progress:
    ...     progress(now_ns=0, finished=0, total=10)
    """

    def __init__(self, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("requests", file, clock)
        self._obstacle = ""
        self._tell_at = float("inf")

    def by_events(self, obstacle: str) -> None:
        """Take note that the replay begins, and why it goes by events; that is told where it takes long."""
        self._obstacle = obstacle
        self._tell_at = self._clock() + LONG_S

    def __call__(self, now_ns: int, finished: int, total: int) -> None:
        """Show that at ``now_ns`` of simulated time ``finished`` of ``total`` requests are done."""
        if self._obstacle and self._clock() >= self._tell_at:
            self._tell_at = float("inf")
            more = f"{finished:,} of {total:,} requests are finished"
            line = f"slower than it could be: replayed by events, since {self._obstacle} (--explain); {more}"
            if self._bar is None:
                self._file.write(f"{line}\n")
                self._file.flush()
            else:
                self._bar.console.print(line, highlight=False)
        self.show(f"simulating, {now_ns / NS_PER_S:,.1f} s", finished, total)


class RunsLeft:
    """Says how many of many runs are done, and about how long the rest takes: as it has been since the first call.

    Parameters
    ----------
    noun : str
        What is counted.
    file : text file, optional
        Where to write; standard error by default. A terminal's line is written over, ten times a second at most.
    clock : callable, optional
        Seconds of real time.
    cpu : callable, optional
        Seconds of CPU that runs took which are done: these are told in place of real time, which depends on what else
        a machine does.
    work : callable, optional
        Seconds of work that are done, and left, where that is known: the rest takes as long for each as the later half
        of what is done, so that what is made ready once (kernels that are compiled) does not count for ever.
    slowest : float, optional
        Seconds of real time that a second of work takes at most, whatever was measured; then less than a second of work
        that is done tells nothing of the rest.

    Attributes
    ----------
    noun : str
    then : str
        What comes behind the rest, of which no time is told.
    most : str
        Said before the time where not all of the rest may be done: ``at most ``.
    """

    def __init__(
        self,
        noun: str = "runs",
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] | None = None,
        work: Callable[[], tuple[float, float]] | None = None,
        slowest: float = math.inf,
    ) -> None:
        self.noun, self._work, self._began = noun, work, clock()
        self.then = self.most = ""
        self._slowest, self._least = slowest, 0.0 if math.isinf(slowest) else 1.0
        self._file = sys.stderr if file is None else file
        self._clock = clock
        self._over = self._file.isatty()
        self._next = self._began + (0.0 if self._over else _SECONDS_BETWEEN_LINES)
        self._spent, self._unit = (clock, "") if cpu is None else (cpu, " of CPU")
        self._first: tuple[float, int] | None = None
        self._marks = deque([(self._began, 0.0)])

    def __call__(self, done: int, total: int) -> None:
        """Say that so many runs of all are done."""
        now = self._clock()
        if self._first is None:  # what was done before costs nothing, and tells nothing of the rest
            self._first = self._spent(), done
        if now < self._next:
            return
        self._next = now + (_SECONDS_BETWEEN if self._over else _SECONDS_BETWEEN_LINES)
        since, before = self._first
        left = ""
        if self._work is not None:
            spent, more = self._work()
            pace = self._pace(now, spent) if spent > self._least else 0.0
            if 0.0 < more < math.inf and pace > 0.0:
                left = _left(min(pace, self._slowest) * more, most=self.most)
        elif done not in (before, total):
            seconds = (self._spent() - since) / (done - before) * (total - done)
            left = _left(seconds, self._unit)
        line = f"{done:,} of {total:,} {self.noun}{left}{self.then and left and f', then {self.then}'}"
        self._file.write(f"\r\x1b[K{line}" if self._over else f"{line}\n")
        self._file.flush()

    def _pace(self, now: float, spent: float) -> float:
        """Return the seconds of real time that a second of work took, of the later half of what is done."""
        while len(self._marks) > 1 and self._marks[1][1] <= 0.5 * spent:
            self._marks.popleft()
        if self._marks[0][1] >= spent:  # what was under way took less than was expected of it
            self._marks = deque([(self._began, 0.0)])
        began, before = self._marks[0]
        self._marks.append((now, spent))
        return (now - began) / (spent - before)

    def close(self) -> None:
        """Clear the line of a terminal."""
        if self._over:
            self._file.write("\r\x1b[K")
            self._file.flush()


def _left(seconds: float, unit: str = "", most: str = "") -> str:
    """Return about how long the rest takes, behind what is done."""
    about = format_seconds(float(f"{seconds:.2g}"))
    return f", {most}about {about}{unit} left" if seconds >= 1.0 else f", under a second{unit} left"
