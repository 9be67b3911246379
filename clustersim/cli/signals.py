"""Signals that ask a program to end: it unwinds as with Ctrl-C, so that nothing half written is left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_AGAIN_S: Final = 0.05
"""Seconds after which a signal comes once more that was lost."""
_ASKING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class TerminatedError(BaseException):
    """Somebody asked this program to end; not an :class:`Exception`, as ``KeyboardInterrupt`` is none.

    Parameters
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number
        """Exit status, as shells have it."""


@contextmanager
def unwinding() -> Iterator[None]:
    """Raise :class:`TerminatedError` in the body when a signal asks to end; a signal that is ignored stays so.

    What is raised while Python calls back for a weak reference (a compiler has many) is lost there, and raised again:
    in place of what fails meanwhile, since it was broken off.
    """
    if threading.current_thread() is not threading.main_thread():  # only it may say what signals do
        yield
        return
    earlier = {number: signal.getsignal(number) for number in _ASKING}
    hook, again = sys.unraisablehook, list[tuple[TerminatedError, threading.Timer]]()

    def lost(what: sys.UnraisableHookArgs) -> None:
        if not isinstance(what.exc_value, TerminatedError):
            hook(what)
            return
        number = what.exc_value.status - 128
        signal.signal(number, _raise)
        again.append((what.exc_value, threading.Timer(_AGAIN_S, os.kill, [os.getpid(), number])))
        again[-1][1].start()

    try:
        sys.unraisablehook = lost
        for number, handler in earlier.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, _raise)
        yield
    except Exception:
        if not again:
            raise
        asked, timer = again[-1]
        timer.cancel()
        raise asked from None
    finally:
        sys.unraisablehook = hook
        for number, handler in earlier.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _raise(number: int, frame: object) -> None:
    del frame
    for asking in _ASKING:
        signal.signal(asking, signal.SIG_IGN)  # a second one must not disturb what tidies up
    raise TerminatedError(number)
