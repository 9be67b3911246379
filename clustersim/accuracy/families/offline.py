"""Offline throughput: all requests are there at the start, of one length each: F6, saturated and PP/TP sweep.

Rows of MoE models on two devices note that attention ran data-parallel; the row's own word, TP2, is taken, since
replicas in lockstep at MoE layers are not simulated.
"""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_of
from clustersim.accuracy.row import Inexpressible, Row

_WORKLOAD: Final = re.compile(r"offline burst (\d+) requests, ISL (\d+), OSL (\d+)")


def scenario(row: Row) -> dict[str, Any]:
    """Return the scenario of a row.

    Raises
    ------
    Inexpressible
        When the workload or the plan is given in other words.
    """
    workload = _WORKLOAD.fullmatch(row.workload)
    if not workload:
        raise Inexpressible(f"not understood: {row.workload!r}")
    requests, prompt, output = (int(number) for number in workload.groups())
    document = systems.base(row)
    document["plan"] = plan_of(row)
    document["workload"] = {
        "arrivals": "all_at_once",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests": requests,
    }
    return document
