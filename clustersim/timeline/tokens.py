"""When each request got its tokens, from the folded record: first and last instants, counts, and gaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.timeline import Timeline

NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTimes:
    """Per request, int64 arrays of shape (requests,); −1 where there is no token.

    ``gaps`` are the times between consecutive tokens of a request, pooled, as (values, weights) in ns.
    """

    first_ns: Int64Array
    last_ns: Int64Array
    count: Int64Array
    gaps: tuple[Int64Array, Int64Array]


def token_times(timeline: Timeline, num_requests: int) -> TokenTimes:
    """Compute token times of every request without unfolding steps.

    Parameters
    ----------
    timeline : Timeline
    num_requests : int
    """
    runs = timeline.token_runs
    first = np.full(num_requests, np.iinfo(np.int64).max, np.int64)
    last = np.full(num_requests, NEVER, np.int64)
    count = np.zeros(num_requests, np.int64)
    sizes, steps, at = runs["count"], runs["steps"], runs["ends_at"]
    if not len(timeline.token_ids):
        empty = np.empty(0, np.int64)
        return TokenTimes(first_ns=np.full(num_requests, NEVER), last_ns=last, count=count, gaps=(empty, empty))
    run_first, run_last = timeline.token_ends[at], timeline.token_ends[at + steps - 1]
    ids = timeline.token_ids
    begin, end, many = np.repeat(run_first, sizes), np.repeat(run_last, sizes), np.repeat(steps, sizes)
    np.minimum.at(first, ids, begin)
    np.maximum.at(last, ids, end)
    np.add.at(count, ids, many)
    first[count == 0] = NEVER
    inner = np.diff(timeline.token_ends)
    weights = np.repeat(sizes, steps)[1:]
    same = np.repeat(np.arange(len(sizes)), steps)
    within = same[1:] == same[:-1]
    order = np.lexsort((begin, ids))
    follows = ids[order][1:] == ids[order][:-1]
    between = (begin[order][1:] - end[order][:-1])[follows]
    values = np.concatenate((inner[within], between))
    counts = np.concatenate((weights[within], np.ones(len(between), np.int64)))
    unique, inverse = np.unique(values, return_inverse=True)
    pooled = np.bincount(inverse, weights=counts, minlength=len(unique)).astype(np.int64)
    return TokenTimes(first_ns=first, last_ns=last, count=count, gaps=(unique, pooled))
