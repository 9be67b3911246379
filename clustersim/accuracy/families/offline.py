"""Offline throughput: all requests are there at the start, of one length each: F6, saturated and PP/TP sweep.

Rows of MoE models may note that attention ran data-parallel: each of the row's TP ranks attends to requests of its own
then, and the experts are spread over all of them (how many EP ranks there were is not given).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_of
from clustersim.accuracy.row import NUMBER, Inexpressible, Row, numbers_in

WORKLOAD: Final = re.compile(rf"offline burst(?: of)? {NUMBER} requests,? ISL {NUMBER},? OSL {NUMBER}", re.I)
FORM: Final = "offline burst N requests, ISL n, OSL m"


_NOTED: Final = "attention DP was on"
_TP: Final = re.compile(r"TP(\d+)")


def scenario(row: Row) -> dict[str, Any]:
    """Return the scenario of a row.

    Raises
    ------
    Inexpressible
        When the workload or the plan is given in other words.
    """
    workload = numbers_in(WORKLOAD, row.workload)
    if not workload:
        raise Inexpressible(f"not understood: {row.workload!r}; expected {FORM!r}")
    requests, prompt, output = workload
    document = systems.base(row)
    document["plan"] = plan_of(_apart(row))
    document["workload"] = {
        "arrivals": "all_at_once",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests": requests,
    }
    return document


def _apart(row: Row) -> Row:
    """Return the row with what its note says of attention in the words of a plan."""
    degree = _TP.search(row.parallel)
    if _NOTED not in row.note or degree is None or degree[1] == "1":
        return row
    return replace(row, parallel=f"attention DP {row.parallel} EP{degree[1]}")
