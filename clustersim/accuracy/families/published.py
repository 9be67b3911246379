"""Figures that vendors published of a whole deployment: F10."""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_in, plan_of
from clustersim.accuracy.row import NUMBER, Inexpressible, Row, numbers_in

WORKLOAD: Final = re.compile(
    rf"ISL {NUMBER},? OSL {NUMBER},? closed loop concurrency {NUMBER},? {NUMBER} requests", re.I
)
FORM: Final = "ISL n OSL m closed loop concurrency C, N requests"
_PARALLEL: Final = re.compile(r"(.+?), max-num-batched-tokens (\d+), max-num-seqs (\d+)")
PLAN: Final = "TP8, max-num-batched-tokens N, max-num-seqs N"
"""Where the limits are not said they are those of the engine."""


def scenario(row: Row) -> dict[str, Any]:
    """Return the scenario of a row.

    Raises
    ------
    Inexpressible
        When the workload is not given, or the plan in other words.
    """
    workload, parallel = numbers_in(WORKLOAD, row.workload), _PARALLEL.fullmatch(row.parallel)
    if not workload:
        raise Inexpressible(f"the workload is not given (no prompt and output lengths); expected {FORM!r}")
    prompt, output, concurrency, requests = workload
    document = systems.base(row)
    document["plan"] = plan_in(parallel[1]) if parallel else plan_of(row)
    if parallel:
        document["serving"] |= {"max_batch_tokens": int(parallel[2]), "max_batch_requests": int(parallel[3])}
    document["workload"] = {
        "arrivals": {"process": "closed_loop", "concurrency": concurrency},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests": requests,
    }
    return document
