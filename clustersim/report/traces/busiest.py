"""Where a run was busiest: the step with the most tokens, and a window of some steps around it."""

from __future__ import annotations

import numpy as np

from clustersim.report.metrics.latencies import Columns


def busy_window(steps: Columns, count: int) -> tuple[int, int]:
    """Return the window ``(start_ns, end_ns)`` of about ``count`` steps around the step with the most tokens.

    It starts one step earlier, on the same replica, so that the change of the batch is seen.

    Parameters
    ----------
    steps : Columns
        The table of steps, in order of (replica, step); a row of ``count`` equal steps is taken as that many steps of
        equal length.
    count : int
        How many steps, at least 1.
    """
    if not len(steps["start_ns"]):
        return 0, 0
    row = busiest(steps)
    mine = np.flatnonzero(steps["replica"] == steps["replica"][row])
    mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
    at = int(np.flatnonzero(mine == row)[0])
    start, end, number = (steps[name][mine] for name in ("start_ns", "end_ns", "count"))
    length = (end - start) // np.maximum(number, 1)
    before = at > 0 and count > 1
    window_start = min(start[at], end[at - 1] - length[at - 1]) if before else start[at]
    ends, left = [], count - int(before)
    for row in range(at, len(mine)):
        taken = min(left, int(number[row]))
        ends.append(int(start[row] + taken * length[row]))
        left -= taken
        if left == 0:
            break
    return int(window_start), max(ends)


def busiest(steps: Columns) -> int:
    """Return the row of the step with the most tokens, the first one of equals."""
    tokens = (steps["prefill_tokens"] + steps["decode_tokens"]).astype(np.int64)
    most = np.flatnonzero(tokens == tokens.max())
    return int(most[np.argmin(steps["start_ns"][most])])
