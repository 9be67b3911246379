"""A batch that starts and ends together: F5 (gptSessionBenchmark).

All prompts are one step, then all decode until all end: what continuous batching does with requests of equal
lengths that arrive together and fit. Contiguous K/V was allocated for the whole batch beforehand, so the pool is
given as just that, and no share of memory is kept back.
"""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_of
from clustersim.accuracy.row import NUMBER, Inexpressible, Row, numbers_in

WORKLOAD: Final = re.compile(rf"static batch(?: of)? {NUMBER},? ISL {NUMBER},? OSL {NUMBER}", re.I)
FORM: Final = "static batch N, ISL n, OSL m"


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
    batch, prompt, output = workload
    document = systems.base(row)
    blocks = -(-(prompt + output) // document["serving"]["kv_block_tokens"])
    document["plan"] = plan_of(row)
    document["serving"] |= {
        "memory_utilization": 1.0,
        "max_batch_requests": batch,
        "max_batch_tokens": batch * prompt,
        "kv_blocks": batch * blocks,
    }
    document["workload"] = {
        "arrivals": "all_at_once",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "requests": batch,
    }
    return document
