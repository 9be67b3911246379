"""Signals that ask a program to end: it unwinds, so that nothing half written is left behind, and soon ends at once.

An exception out of a handler may come where a lock has just been taken, which nobody lets go of then, and others wait
for. User code may catch it, and callbacks of weak references lose it. So a clock runs from the first signal on. When it
strikes, or on a second signal, processes that were started are killed, files that are not whole are removed, and this
one ends without another word to anybody.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from clustersim.errors import ENDING, TerminatedError

_UNWINDS_S: Final = 1.0
"""Seconds from a signal on in which a program tidies up by itself."""
_WRITES_S: Final = 30.0
"""Seconds that it has to write what it has found so far."""
_AGAIN_S: Final = 0.05
"""Seconds after which a signal comes once more that was lost."""
_SAID: Final = {signal.SIGINT: b"\nclustersim: interrupted\n"}


class _Asked:
    """Whether this process was asked to end, and what signals do: the first one raises, a second one ends it."""

    def __init__(self) -> None:
        self.number, self.process = 0, os.getpid()
        self.raised: BaseException | None = None
        self.is_lost = self.writes_on = False

    def __call__(self, number: int, frame: object) -> None:
        del frame
        if os.getpid() != self.process:  # a copy, which was not told yet to end as others do
            os._exit(128 + number)
        if self.number and not self.is_lost:
            end_now(self.number)
        self.number, self.is_lost = self.number or number, False
        self.strike_in(_UNWINDS_S)
        self.raised = KeyboardInterrupt() if self.number == signal.SIGINT else TerminatedError(self.number)
        raise self.raised

    def strike_in(self, seconds: float) -> None:
        """Answer once more so many seconds from now."""
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self)
            signal.setitimer(signal.ITIMER_REAL, seconds)


def end_now(number: int) -> None:
    """End this process and those that it started, which takes no lock; what is not whole is removed."""
    loaded = sys.modules.get  # what nobody has needed so far has nothing to tidy up
    with suppress(Exception):
        if (processes := loaded("clustersim.processes")) is not None:
            processes.end_all()
    with suppress(Exception):
        if (files := loaded("clustersim.files")) is not None:
            files.abandon()
    with suppress(OSError):
        os.write(2, _SAID.get(signal.Signals(number), b"clustersim: asked to end\n"))
    os._exit(128 + number)


def write_on() -> None:
    """Give a program that was asked to end the time to write what it has found so far."""
    if hasattr(signal, "SIGALRM") and isinstance(asked := signal.getsignal(signal.SIGALRM), _Asked):
        asked.writes_on = True
        asked.strike_in(_WRITES_S)


@contextmanager
def unwinding() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` or ``TerminatedError`` in the body when a signal asks to end, and see that it does.

    A signal that is ignored stays so. What is raised while Python calls back for a weak reference (a compiler has many)
    is lost there, and raised again: in place of what fails meanwhile, such as a lock that was not taken to its end.
    """
    if threading.current_thread() is not threading.main_thread():  # only it may say what signals do
        yield
        return
    asked, hook = _Asked(), sys.unraisablehook
    alarm = signal.getsignal(signal.SIGALRM) if hasattr(signal, "SIGALRM") else None
    earlier = {number: signal.getsignal(number) for number in ENDING}
    answered = [one for one, handler in earlier.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        if what.exc_value is None or what.exc_value is not asked.raised:
            hook(what)
            return
        asked.is_lost = True
        asked.strike_in(_AGAIN_S)

    try:
        sys.unraisablehook = unraisable
        for number in answered:
            signal.signal(number, asked)
        yield
    except Exception:
        if asked.raised is None or asked.writes_on:
            raise
        raise asked.raised from None
    finally:
        sys.unraisablehook = hook
        if asked.number and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, alarm)
        for number in answered:
            signal.signal(number, earlier[number])
