"""What the fixture ``simulate`` returns, and what ``assert_legal`` looks at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clustersim.library.result import Result, violation_lines
from clustersim.library.runs import run
from clustersim.scenario.lookup import is_path
from clustersim.simulation.audit import check_run
from clustersim.simulation.simulate import RunResult


def simulated(
    scenario: str | Path, overrides: Mapping[str, Any], *, beside: Path, allow_code: bool | None = None
) -> Result:
    """Run a scenario, legal or not; see :func:`clustersim.run`.

    Parameters
    ----------
    scenario : str or Path
        A path, relative to ``beside`` where there is such a file, else to the working directory; or the name of
        one that ships.
    overrides : Mapping
        Path as ``--set`` has it → value as plain data, such as ``{"plan.tp": 4}``.
    beside : Path
        Folder of whoever asks.
    allow_code : bool, optional
        Whether Python that the scenario names may run; see :func:`clustersim.load`.

    Raises
    ------
    InputError
        When the scenario can't be read or simulated.
    """
    return run(_found(scenario, beside), overrides, strict=False, allow_code=allow_code)


def _found(scenario: str | Path, beside: Path) -> str | Path:
    if isinstance(scenario, str) and not is_path(scenario):
        return scenario
    return beside / scenario if (beside / scenario).is_file() else Path(scenario)


def check_legal(result: Result | RunResult) -> None:
    """Check a result at every level: its plan (P), its step graphs (G) and what it recorded (T).

    Parameters
    ----------
    result : Result or RunResult
        Of the fixture ``simulate`` or of :func:`clustersim.run`; or what a replay left.

    Raises
    ------
    AssertionError
        With a line per violation: the rule, the place (in the scenario; or replica, step and rank), what is wrong
        there with the witness that shows it, and what would be legal.
    """
    scenario = result.scenario
    verdict = result.verdict if isinstance(result, Result) else check_run(result)
    if verdict.verdict != "legal":
        lines = "\n".join(violation_lines(scenario, verdict))
        raise AssertionError(f"{scenario.name} is {verdict.verdict.replace('_', ' ')}:\n{lines}")
