"""The dashboard files that ship, and a user's own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from clustersim.catalog import names, path_of
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.inputs import is_file
from clustersim.scenario.document import read_mapping


def overview() -> dict[str, Any]:
    """Return the parsed ``dashboards/overview.yaml``."""
    return layout("overview")


def layout(name: str, figures: Collection[str] = ()) -> dict[str, Any]:
    """Return the parsed dashboard file of this name or path; one that ships has no figures but these, if there are any.

    Raises
    ------
    InputError
        When there is none, or it cannot be read.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else path_of("dashboards", name)
    known = [one for one in names("dashboards") if not figures or _figures(one) <= set(figures)]
    if not is_file(path) or (figures and name in names("dashboards") and name not in known):
        raise InputError(Problem(path="--layout", message=f"no dashboard {name!r}{did_you_mean(name, known)}"))
    return dict(read_mapping(path, "dashboard", ("figures",)).data)


def _figures(name: str) -> set[str]:
    data = read_mapping(path_of("dashboards", name), "dashboard", ("figures",)).data
    return {panel["figure"] for panel in data["figures"]}
