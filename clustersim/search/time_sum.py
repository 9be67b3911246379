"""What all runs of a command roughly take together, which is held to its limit before more of them start."""

from __future__ import annotations

from clustersim.limits import Limits
from clustersim.units import format_seconds, plural


class TimeSum:
    """Adds up estimates, so that the same command is refused at the same run on any machine.

    Parameters
    ----------
    limits : Limits
    workers : int
        Runs that are made at a time.
    advice : str
        What to change where there is too much.
    """

    def __init__(self, limits: Limits, workers: int, advice: str) -> None:
        self._limits = limits
        self._workers = workers
        self._advice = advice
        self._runs = 0
        self._seconds = 0.0

    def refuse(self, runs: int, mean_s: float) -> None:
        """Refuse runs that take too long together with those before them.

        Parameters
        ----------
        runs : int
        mean_s : float
            What each takes, roughly.

        Raises
        ------
        LimitError
            With the estimate and what to change.
        """
        before = f" after {plural(self._runs, 'run')}" if self._seconds else ""
        self._limits.refuse(
            f"{plural(runs, 'run')} of about {format_seconds(mean_s)} each{before}, {self._workers:,} at a time,",
            self._advice,
            total_seconds=(self._seconds + mean_s * runs) / self._workers,
        )

    def add(self, runs: int, mean_s: float) -> None:
        """Refuse runs as :meth:`refuse` does, or count them."""
        self.refuse(runs, mean_s)
        self._runs += runs
        self._seconds += mean_s * runs
