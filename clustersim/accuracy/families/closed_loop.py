"""Closed loops of one request length: F7.

``closed loop concurrency C, ISL n, OSL m``: C clients, each with one request under way. Rows don't say how many
requests: 10 × C, as both sources of such rows do it (benchmark scripts of dynamo and of InferenceX), first wave
included. InferenceX draws each length uniformly from 0.8 to 1.0 of the given one; its rows are those whose note
begins with a date.
"""

from __future__ import annotations

import re
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_of
from clustersim.accuracy.row import NUMBER, Inexpressible, Row, numbers_in

WORKLOAD: Final = re.compile(rf"closed loop(?: of| with|,)? concurrency {NUMBER},? ISL {NUMBER},? OSL {NUMBER}", re.I)
FORM: Final = "closed loop concurrency C, ISL n, OSL m"
_WAVES: Final = 10


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
    concurrency, prompt, output = workload
    lengths = _drawn if systems.DATED.match(row.note) else _fixed
    document = systems.base(row)
    document["plan"] = plan_of(row)
    document["workload"] = {
        "arrivals": {"process": "closed_loop", "concurrency": concurrency},
        "prompt_tokens": lengths(prompt),
        "output_tokens": lengths(output),
        "requests": _WAVES * concurrency,
    }
    return document


def _fixed(tokens: int) -> dict[str, Any]:
    return {"fixed": tokens}


def _drawn(tokens: int) -> dict[str, Any]:
    return {"uniform": {"low": tokens * 8 // 10, "high": tokens}}
