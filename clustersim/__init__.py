"""Simulates clusters that serve decoder-only transformers, and checks first that their plans are legal.

The public names are those of ``__all__``. They are imported when they are first used, so that
``import clustersim`` costs nothing; a type checker sees their types at their homes.

>>> import clustersim
>>> result = clustersim.run("quickstart", {"plan.tp": 4})         # doctest: +SKIP
>>> result.summary.ttft_ms.p99                                    # doctest: +SKIP
>>> spans = result.timeline.unfold(0, 10**9, ranks=[0])           # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import Any, Final

__version__ = "0.1.0"

_HOMES: Final = {
    "BrokenLawError": "clustersim.errors",
    "ClustersimError": "clustersim.errors",
    "IllegalPlanError": "clustersim.errors",
    "InputError": "clustersim.errors",
    "Problem": "clustersim.errors",
    "Result": "clustersim.library.result",
    "Scenario": "clustersim.scenario",
    "Spans": "clustersim.timeline.spans",
    "StallError": "clustersim.errors",
    "Timeline": "clustersim.timeline.timeline",
    "Verdict": "clustersim.legality",
    "Violation": "clustersim.legality",
    "check": "clustersim.library.runs",
    "load": "clustersim.library.runs",
    "run": "clustersim.library.runs",
}
"""Public name → the module that defines it."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
