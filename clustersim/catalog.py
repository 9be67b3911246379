"""Where the data files that ship with clustersim lie: ``topologies/``, ``scenarios/``, ``dashboards/``.

In a checkout they are the top-level folders; in an installed wheel they lie inside the package.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def data_root() -> Path:
    """Return the folder that holds ``topologies/``, ``scenarios/`` and ``dashboards/``."""
    package = Path(__file__).resolve().parent
    installed = package / "data"
    return installed if installed.is_dir() else package.parent


def names(folder: str, suffix: str = ".yaml") -> list[str]:
    """Return the sorted names (without suffix) of the data files in ``folder``, such as ``topologies/devices``."""
    whole = data_root() / folder
    found = os.listdir(whole) if whole.is_dir() else []
    return sorted(name.removesuffix(suffix) for name in found if name.endswith(suffix))


def path_of(folder: str, name: str, suffix: str = ".yaml") -> Path:
    """Return the path that the data file ``name`` has in ``folder``, whether it exists or not."""
    return data_root() / folder / f"{name}{suffix}"
