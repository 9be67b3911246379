"""Figures that vendors published of a whole deployment: F10."""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_in
from clustersim.accuracy.row import Inexpressible, Row

_WORKLOAD: Final = re.compile(r"ISL (\d+) OSL (\d+) closed loop concurrency (\d+), (\d+) requests")
FORM: Final = "ISL n OSL m closed loop concurrency C, N requests"
_PARALLEL: Final = re.compile(r"(.+?), max-num-batched-tokens (\d+), max-num-seqs (\d+)")
PLAN: Final = "TP8, max-num-batched-tokens N, max-num-seqs N"


def scenario(row: Row) -> dict[str, Any]:
    """Return the scenario of a row.

    Raises
    ------
    Inexpressible
        When the workload or the plan is not given.
    """
    workload, parallel = _WORKLOAD.fullmatch(row.workload), _PARALLEL.fullmatch(row.parallel)
    if not workload:
        raise Inexpressible(f"the workload is not given (no prompt and output lengths); expected {FORM!r}")
    if not parallel:
        raise Inexpressible(f"the plan is not given: {row.parallel!r}; expected {PLAN!r}")
    prompt, output, concurrency, requests = (int(number) for number in workload.groups())
    document = systems.base(row)
    document["plan"] = plan_in(parallel[1])
    document["serving"] |= {"max_batch_tokens": int(parallel[2]), "max_batch_requests": int(parallel[3])}
    document["workload"] = {
        "arrivals": {"process": "closed_loop", "concurrency": concurrency},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests": requests,
    }
    return document
