"""The prefill pool of two by itself: what it can't do alone, no decode pool behind it makes it do.

Under round robin its replicas get the same requests whatever comes behind them, and compute the same prompts in the
same order. A decode pool only adds waiting: blocks that are kept until a hand-over has ended, transfers on links. So
one run of it, in which requests end with their first tokens, tells of all plans with that pool, and costs a fraction of
any. Taken for granted, as between rates: who waits longer does not serve more requests in time.
"""

from __future__ import annotations

import math

from clustersim.search.plans.trial import Trial
from clustersim.search.point import Row
from clustersim.values import dataclass


@dataclass(slots=True, kw_only=True)
class PrefillAlone:
    """What is known of a prefill pool.

    Parameters
    ----------
    trial : Trial
    passed, failed : float
        Highest step of the grid at which enough requests get their first tokens in time, and lowest at which not.
    row : Row or None
        Of the run at ``failed``.
    """

    trial: Trial
    passed: float = -math.inf
    failed: float = math.inf
    row: Row | None = None

    def tells(self, step: int) -> bool:
        """Whether it is known how it does at a step."""
        return step <= self.passed or step >= self.failed

    def note(self, step: int, row: Row, share: float) -> None:
        """Take what came of a run."""
        if row["failed"] is not None or row["numbers"]["goodput.share"] >= share:
            self.passed = max(self.passed, step)
        elif step < self.failed:
            self.failed, self.row = step, row | {"numbers": row["numbers"] | {"alone": "prefill pool"}}

    def refusal(self, step: int) -> Row | None:
        """Return the row of the run that shows that a plan fails at a step; None where none does."""
        return self.row if step >= self.failed else None
