"""Load, check and run a scenario that is a name, a path, a mapping or a loaded one, with values of one's own."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.legality.rule import Verdict, together
from clustersim.library.arguments import whole_number
from clustersim.library.result import Result, violation_lines
from clustersim.library.summary import Summary
from clustersim.report.files.summary import ALSO, legality_of, summary_of
from clustersim.scenario.document import Document
from clustersim.scenario.load import TELLING, build_scenario
from clustersim.scenario.load import load as load_file
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS
from clustersim.scenario.validate import OVERRIDE
from clustersim.serving.user_class import code_allowed
from clustersim.simulation.audit import audit_run
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.simulate import simulate

Source = str | Path | Mapping[str, Any] | Scenario
"""A scenario: the name of one that ships, a path, what a scenario file holds as plain data, or one that is loaded."""
Overrides = Sequence[str] | Mapping[str, Any]
"""``["plan.tp=4"]`` as ``--set`` has it, or ``{"plan.tp": 4}``."""

_MOST_SHOWN: Final = 60
_GIVEN: Final = "the scenario given"


def load(scenario: Source, overrides: Overrides = (), *, allow_code: bool | None = None, **values: Any) -> Scenario:
    """Load a scenario.

    Parameters
    ----------
    scenario : str, Path, mapping or Scenario
        The name of one that ships, a path, or what a scenario file holds, as plain data. One that is loaded is returned
        as it is, and takes no values.
    overrides : sequence of str, or mapping
        ``["plan.tp=4"]`` as ``--set`` has it, or ``{"plan.tp": 4}``: each value replaces what is there.
    allow_code : bool, optional
        Whether a scheduler or router in a Python file of its own may run; without, whether ``CLUSTERSIM_ALLOW_CODE``
        is 1.
    **values
        More overrides: ``seed=3``, ``plan={"tp": 4}``.

    Raises
    ------
    InputError
        With every problem of the scenario and of the files that it names.
    TypeError
        For a scenario or a value that no scenario file could hold.

    Examples
    --------
    >>> load("quickstart", plan={"tp": 4}).plan.tp
    4
    >>> load("quickstart", {"plan.tp": 4, "seed": 3}).plan.pp
    2
    """
    changes = _changes(overrides, values)
    named = _as_written(overrides, values)
    if isinstance(scenario, Scenario):
        if changes:
            raise TypeError("a loaded Scenario takes no other values; give them to load, or pass its name or path here")
        return scenario
    if not isinstance(scenario, Mapping):
        return load_file(_named(scenario), changes, allow_code=allow_code, named=named)
    data = _plain(scenario, _GIVEN)
    if not any(key in data for key in TELLING):
        found = ", ".join(map(str, data)) or "nothing"
        raise InputError(Problem(file=_GIVEN, message=f"found {found}; expected keys such as topology, model and plan"))
    data.setdefault("name", "unnamed")
    document = apply_overrides(Document(file=_GIVEN, data=data, marks={}, key_marks={}), changes, SHORTHANDS, named)
    return build_scenario(document, allow_code=code_allowed(allow_code))


def check(scenario: Source, overrides: Overrides = (), **values: Any) -> Verdict:
    """Tell whether a scenario is legal: its plan (level P), and where that is legal its step graphs (G).

    Nothing is simulated. The parameters are those of :func:`load`; the scenario's own code does not run.

    Returns
    -------
    Verdict
        ``verdict.verdict`` is ``legal``, ``illegal`` or ``not_checkable``; ``verdict.violations`` says what is wrong
        where, and what would be legal.

    Raises
    ------
    InputError
        See :func:`load`.

    Examples
    --------
    >>> verdict = check("quickstart", {"plan.tp": 6})
    >>> verdict.verdict, verdict.violations[0].rule
    ('illegal', 'TP-1')
    """
    return check_scenario(load(scenario, overrides, **values))


def run(
    scenario: Source,
    overrides: Overrides = (),
    *,
    strict: bool = True,
    audit: bool = True,
    processes: int | None = 1,
    allow_code: bool | None = None,
    **values: Any,
) -> Result:
    """Check a scenario, simulate it where it is legal, and audit what was recorded.

    Parameters
    ----------
    scenario, overrides, allow_code, **values
        See :func:`load`.
    strict : bool
        Whether what is illegal raises; else the result says so. A plan that is illegal is not simulated in either case.
    audit : bool
        Whether what was recorded is checked, too.
    processes : int or None
        How many processes may replay replicas that nothing connects; None for as many as there are cores to use. The
        result does not depend on it.

    Raises
    ------
    IllegalPlanError
        With every violation, where ``strict`` is kept.
    InputError
        When the scenario can't be read or simulated.

    Examples
    --------
    >>> result = run("quickstart", {"workload.trace.requests": 4, "expect": {}})
    >>> result.summary.requests.finished, result.legal
    (4, True)
    """
    for name, value in (("strict", strict), ("audit", audit)):
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected True or False, but found {value!r}")
    processes = whole_number("processes", processes, least=1)
    started = time.perf_counter()
    loaded = load(scenario, overrides, allow_code=allow_code, **values)
    verdict, ran = check_scenario(loaded), None
    if verdict.violations:
        named = {"name": loaded.name, "digest": loaded.digest, "seed": loaded.seed}
        summary = Summary(named | legality_of(verdict))
    else:
        ran = simulate(loaded, processes=processes)
        verdict = together((verdict, audit_run(ran) if audit else Verdict(violations=(), rules=())))
        summary = Summary(summary_of(ran, verdict, also=ALSO))
        summary["wall_s"] = {"total": time.perf_counter() - started, "simulate": ran.simulate_s}
    if strict and verdict.violations:
        raise IllegalPlanError("\n".join([f"{loaded.name} is illegal:", *violation_lines(loaded, verdict)]))
    return Result(scenario=loaded, verdict=verdict, summary=summary, ran=ran)


def _named(scenario: Any) -> str | Path:
    if isinstance(scenario, str | Path):
        return scenario
    found = type(scenario).__name__
    raise TypeError(f"expected a name, a path, a mapping or a loaded Scenario as the scenario, but found {found}")


def _changes(overrides: Overrides, values: Mapping[str, Any]) -> list[str]:
    """Return overrides as ``--set`` has them."""
    if isinstance(overrides, str):
        raise TypeError(f"expected overrides such as {{'plan.tp': 4}} or ['plan.tp=4'], not the text {overrides!r}")
    if not isinstance(overrides, Iterable):
        raise TypeError(f"expected overrides such as {{'plan.tp': 4}} or ['plan.tp=4'], but found {overrides!r}")
    first = [] if isinstance(overrides, Mapping) else list(overrides)
    if odd := [one for one in overrides if not isinstance(one, str)]:
        raise TypeError(f"expected overrides such as {{'plan.tp': 4}} or ['plan.tp=4'], but found {odd[0]!r}")
    keys = [one.partition("=")[0].strip() for one in overrides]
    if twice := [key for key in values if key in keys]:
        raise TypeError(f"{twice[0]} is given twice: in the overrides, and as a value of its own")
    named = {**overrides, **values} if isinstance(overrides, Mapping) else values
    return [*first, *(f"{path}={_text(value, path)}" for path, value in named.items())]


def _as_written(overrides: Overrides, values: Mapping[str, Any]) -> list[str]:
    """Return what errors call each override: as it was written, or by its key where that is long or names files."""
    if isinstance(overrides, Mapping):  # a value of the same key replaces it, and takes its place
        named = {key: f"{{{key!r}: {value!r}}}" for key, value in overrides.items()}
        texts = [(text, key) for key, text in (named | {key: f"{key}={one!r}" for key, one in values.items()}).items()]
    else:
        texts = [(repr(text), text.partition("=")[0]) for text in overrides]
        texts += [(f"{key}={value!r}", key) for key, value in values.items()]
    shown = [text if len(text) <= _MOST_SHOWN and not set("/\\\n") & set(text) else key for text, key in texts]
    return [f"{OVERRIDE}{text.replace('/', '.')}" for text in shown]


def _text(value: Any, path: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}".replace("nan", ".nan").replace("inf", ".inf")
    try:
        return json.dumps(value, ensure_ascii=False, default=_bare)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{path}: {error}, as a scenario file could hold them") from None


def _plain(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a mapping as plain data of its own."""
    return dict(json.loads(_text(value, what)))


def _bare(value: Any) -> Any:
    """Return a value that JSON does not know as one that it does."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"found {type(value).__name__}; expected numbers, text, lists and mappings")
