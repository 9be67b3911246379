"""The files that a scenario names: where they are, and a hash of what is in them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from clustersim import inputs
from clustersim.inputs import resolved
from clustersim.scenario.build.serving import METHODS, user_file
from clustersim.scenario.build.workloads import trace_file
from clustersim.scenario.document import Document, KeyPath, dotted, shown
from clustersim.scenario.lookup import find_file
from clustersim.scenario.parts import KeptParts
from clustersim.scenario.schema import POOLS, ScenarioPart


def find_cost_table(part: ScenarioPart, document: Document) -> Path | None:
    """Return the table of measured operators that a scenario names; None where it names none."""
    if part.cost is None:
        return None
    path: KeyPath = ("cost", "table")
    found = find_file(
        part.cost.table,
        kind="cost table",
        mark=document.mark(path),
        path=dotted(path),
        base=Path(document.file).parent,
    )
    return resolved(found)


def absolute_files(resolved: dict[str, Any], document: Document, kept: KeptParts) -> dict[str, tuple[Path, str]]:
    """Make the paths in a resolved document absolute, in place; return each such value, its file, and the content."""
    places: list[KeyPath] = [
        ("workload", "trace", "path"),
        ("workload", "prompt_tokens", "empirical", "trace"),
        ("workload", "output_tokens", "empirical", "trace"),
        ("cost", "table"),
        *((*plan, "ep", "routing", "file") for plan in (("plan",), *(("plan", pool) for pool in POOLS))),
    ]
    found = {}
    for place in places:
        holder: Any = resolved
        for part in place[:-1]:
            holder = holder.get(part, {})
        if place[-1] in holder:
            path = trace_file(document, place, holder[place[-1]])
            holder[place[-1]] = str(path)
            found[str(path)] = (path, kept.of_file(path, _sha256))
    serving = resolved["serving"]
    for key in METHODS:
        text = serving.get(key, "")
        if ":" in text:
            path, name = user_file(document, key, text), text.rpartition(":")[2]
            serving[key] = f"{path}:{name}"
            found[serving[key]] = (path, f"{kept.of_file(path, _sha256)}:{name}")
    return found


def _sha256(path: Path) -> str:
    return hashlib.sha256(inputs.read_bytes(path, most=inputs.PARQUET_BYTES, name=shown(path))).hexdigest()
