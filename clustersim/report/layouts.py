"""The dashboard files that ship, and a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clustersim.catalog import names, path_of
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.inputs import is_file
from clustersim.scenario.document import read_mapping


def overview() -> dict[str, Any]:
    """Return the parsed ``dashboards/overview.yaml``."""
    return layout("overview")


def layout(name: str) -> dict[str, Any]:
    """Return the parsed dashboard file of this name or path.

    Raises
    ------
    InputError
        When there is none, or it cannot be read.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else path_of("dashboards", name)
    if not is_file(path):
        known = names("dashboards")
        raise InputError(Problem(path="--layout", message=f"no dashboard {name!r}{did_you_mean(name, known)}"))
    return dict(read_mapping(path, "dashboard", ("figures",)).data)
