"""Replays of recorded requests: F1, F2, F3 and F4. The traces are not part of the project."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from clustersim.accuracy import systems
from clustersim.accuracy.plans import plan_of
from clustersim.accuracy.row import Inexpressible, Row

_FILES: Final = ("{}", "{}.notext.jsonl", "distserve__{}")
"""How the file of a trace is called, given its name in the row."""

_LIMITS: Final = re.compile(r"max_num_seqs (\d+), max_num_batched_tokens (\d+)(?:, (\d+) KV blocks x16)?")
FORM: Final = "FILE: words"
_NAME: Final = re.compile(r"(?!\.+$)[\w.@+, -]{1,200}")
"""What may be the name of a file of requests, without folders and patterns."""
"""A trace is looked for by the name before the first colon or bracket."""


def scenario(row: Row, traces: Path) -> dict[str, Any]:
    """Return the scenario of a row, whose trace is looked for in ``traces`` and below.

    Raises
    ------
    Inexpressible
        When the trace is not there, or the plan is given in other words.
    """
    document = systems.base(row)
    document["plan"] = plan_of(row)
    limits = _LIMITS.match(row.note)
    if limits:
        document["serving"] |= {"max_batch_requests": int(limits[1]), "max_batch_tokens": int(limits[2])}
        if limits[3]:
            document["serving"]["kv_blocks"] = int(limits[3])
    document["workload"] = {"trace": {"path": str(_trace(row, traces))}}
    return document


def is_there(row: Row, traces: Path) -> bool:
    """Whether the workload of a row is the name of a trace that is there."""
    try:
        return bool(_trace(row, traces))
    except Inexpressible:
        return False


def _trace(row: Row, traces: Path) -> Path:
    """Return the file of a row's trace: the first of its names in order of path."""
    name = Path(re.split(r"[:(]", row.workload)[0].strip()).name
    if not _NAME.fullmatch(name):
        raise Inexpressible(f"not understood: {row.workload!r}; expected {FORM!r}")
    for pattern in _FILES:
        found = sorted(traces.rglob(pattern.format(name)))
        if found:
            return found[0].resolve()
    raise Inexpressible(f"the trace {name} is not below the folder of traces")
