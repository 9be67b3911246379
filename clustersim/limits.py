"""What a command may take: memory, time, the size of a file. Estimates are held to it before the work starts."""

from __future__ import annotations

import math

from clustersim.errors import InputError, LimitError, Problem
from clustersim.units import format_bytes, format_seconds
from clustersim.values import dataclass


class Asked(float):
    """A limit as a number, with what was written."""

    text: str

    def __new__(cls, value: float, text: str) -> Asked:
        """Keep the text beside the number."""
        found = super().__new__(cls, value)
        found.text = text
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a command may take; infinite where nothing is said.

    Parameters
    ----------
    memory_bytes, seconds, total_seconds, size_bytes : float
        Memory of the process, real time of a run and of all runs together, and the size of what is written.
    """

    memory_bytes: float = math.inf
    seconds: float = math.inf
    total_seconds: float = math.inf
    size_bytes: float = math.inf

    def refuse(
        self,
        what: str,
        advice: str,
        *,
        memory_bytes: float = 0.0,
        seconds: float = 0.0,
        total_seconds: float = 0.0,
        size_bytes: float = 0.0,
    ) -> None:
        """Refuse work whose estimate is above a limit.

        Parameters
        ----------
        what : str
            What would be done, with its numbers.
        advice : str
            What to change instead.
        memory_bytes, seconds, total_seconds, size_bytes : float
            The estimate.

        Raises
        ------
        InputError
            With the estimate, what is above its limit, and the option that allows it; a :class:`LimitError` where all
            runs together are.
        """
        told = (
            ("--max-memory", memory_bytes, self.memory_bytes, format_bytes, "of memory"),
            ("--max-time", seconds, self.seconds, format_seconds, "of real time"),
            ("--max-total", total_seconds, self.total_seconds, format_seconds, "of real time"),
            ("--max-size", size_bytes, self.size_bytes, format_bytes, "on disk"),
        )
        above = [one for one in told if one[1] > one[2]]
        if not above:
            return
        would = " and ".join(f"{form(value)} {word}" for _, value, _, form, word in above)
        most = " and ".join(_as_asked(limit, form(limit)) for _, _, limit, form, _ in above)
        allow = " ".join(f"{option} '{form(1.5 * value)}'" for option, value, _, form, _ in above)
        message = f"{what} would take roughly {would}, above the limit of {most}; {advice}, or allow it with {allow}"
        raise (LimitError if total_seconds > self.total_seconds else InputError)(Problem(message=message))


def _as_asked(limit: float, shown: str) -> str:
    """Return a limit in our units and as it was written."""
    text = limit.text if isinstance(limit, Asked) else shown
    return shown if text.replace(" ", "") == shown.replace(" ", "") else f"{text} ({shown})"
