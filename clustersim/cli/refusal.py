"""Files that are no scenario, where one is expected; who reads them is imported only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from clustersim import inputs
from clustersim.errors import InputError, Problem

GRAPH_SUFFIXES: Final = (".json", ".dot", ".gv", ".graphml")
TABLE_SUFFIXES: Final = (".csv", ".parquet")


def refuse_graph(name: str) -> None:
    """Refuse a step graph, or a table, where a scenario is expected.

    Raises
    ------
    InputError
        With what takes it.
    """
    suffix = Path(name).suffix
    if suffix in TABLE_SUFFIXES:
        message = "is a table of what happened, for clustersim audit"
    elif suffix in GRAPH_SUFFIXES and (suffix != ".json" or _has_nodes(Path(name))):
        message = "is a step graph, for clustersim check"
    else:
        return
    message += "; expected a scenario, such as quickstart or NAME.yaml"
    raise InputError(Problem(file=name, message=message))


def _has_nodes(path: Path) -> bool:
    try:
        found = json.loads(inputs.read_text(path, most=inputs.TEXT_BYTES))
    except (InputError, ValueError, RecursionError):
        return False  # whoever reads it says what is wrong
    return isinstance(found, dict) and "nodes" in found
