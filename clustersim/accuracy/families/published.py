"""Figures that vendors published of a whole deployment: F10.

A throughput of prefills without lengths is that of prompts which each fill a step of the engine, one after the other
(assumed): what their lengths change is a few percent. What decodes reach says nothing without contexts and batches.
"""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.metrics import PREFILLS
from clustersim.accuracy.plans import plan_in, plan_of
from clustersim.accuracy.row import NUMBER, Inexpressible, Row, numbers_in

WORKLOAD: Final = re.compile(
    rf"ISL {NUMBER},? OSL {NUMBER},? closed loop concurrency {NUMBER},? {NUMBER} requests", re.I
)
FORM: Final = "ISL n OSL m closed loop concurrency C, N requests"
_PARALLEL: Final = re.compile(r"(.+?), max-num-batched-tokens (\d+), max-num-seqs (\d+)")
_STEPS: Final = 32
"""Of prefills, after each other (assumed): what is in front of the first one is small beside them."""
PLAN: Final = "TP8, max-num-batched-tokens N, max-num-seqs N"
"""Where the limits are not said they are those of the engine."""


def scenario(row: Row) -> dict[str, Any]:
    """Return the scenario of a row.

    Raises
    ------
    Inexpressible
        When the workload is not given, or the plan in other words.
    """
    if not re.search(r"\d", row.workload) and row.metric.lower() == PREFILLS:
        return _prefills(row)
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


def _prefills(row: Row) -> dict[str, Any]:
    document = systems.base(row)
    document["plan"] = plan_of(row)
    document["workload"] = {
        "arrivals": "all_at_once",
        "prompt_tokens": document["serving"]["max_batch_tokens"],
        "output_tokens": 1,
        "requests": _STEPS * document["plan"].get("dp", 1),
    }
    return document
