"""Signals that ask a program to end: it unwinds as with Ctrl-C, so that nothing half written is left behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
    """Raise :class:`TerminatedError` in the body when a signal asks to end; a signal that is ignored stays so."""
    if threading.current_thread() is not threading.main_thread():  # only it may say what signals do
        yield
        return
    earlier = {number: signal.getsignal(number) for number in _ASKING}
    try:
        for number, handler in earlier.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, _raise)
        yield
    finally:
        for number, handler in earlier.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, handler)


def _raise(number: int, frame: object) -> None:
    del frame
    for asking in _ASKING:
        signal.signal(asking, signal.SIG_IGN)  # a second one must not disturb what tidies up
    raise TerminatedError(number)
