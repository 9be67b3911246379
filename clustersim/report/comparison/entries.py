"""What is compared: runs that were recorded, or that have just been simulated, each with its scenario."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.inputs import missing
from clustersim.legality.history import ARRIVED, REJECTED
from clustersim.limits import Limits
from clustersim.report.files.run_directory import read_run
from clustersim.report.files.summary import summary_of
from clustersim.scenario.load import load
from clustersim.scenario.lookup import find_scenario
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.causes.causes import Causes, causes_of
from clustersim.simulation.causes.conditions import conditions_of
from clustersim.simulation.estimate import BYTES_AT_LEAST, requests_within
from clustersim.simulation.legality import check_scenario, refuse_if_too_large, verdict_lines
from clustersim.simulation.prefixes import first_of
from clustersim.simulation.recorded import NEVER, refuse_other_plan, requests_of
from clustersim.simulation.simulate import simulate
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A run that is compared.

    Parameters
    ----------
    given : str
        The folder or scenario, as it was given.
    name : str
        What it is called in tables and figures.
    scenario : Scenario
    arrivals : Requests
    summary : dict
        The object of ``summary.json``.
    requests : dict
        The columns of ``requests.parquet``.
    timeline : Timeline
    """

    given: str
    name: str
    scenario: Scenario
    arrivals: Requests
    summary: dict[str, Any]
    requests: dict[str, Any]
    timeline: Timeline

    @cached_property
    def causes(self) -> Causes:
        """Where the time of each request went."""
        rows = StepRows(self.timeline, self.scenario.serving.kv_block_tokens).rows
        return causes_of(self.timeline, rows, self.requests, conditions_of(self.scenario, self.arrivals))

    @cached_property
    def finished(self) -> Int64Array:
        """Numbers of the requests that finished, ascending."""
        found: Int64Array = self.requests["request"][np.asarray(self.requests["outcome"]) == "finished"]
        return found

    def rows_of(self, requests: Int64Array) -> Int64Array:
        """Return where requests are in the columns: a run that its horizon ends has no row for those to come."""
        return np.searchsorted(self.requests["request"], requests)


def names_apart(given: Sequence[str]) -> list[str]:
    """Return paths without the folders that all of them begin with; the same path twice is numbered as none is called.

    Examples
    --------
    >>> names_apart(["runs/tp-4", "runs/tp-8", "runs/old/tp-8"])
    ['tp-4', 'tp-8', 'old/tp-8']
    >>> names_apart(["runs/tp-4", "runs/tp-4"])
    ['tp-4 (1)', 'tp-4 (2)']
    >>> names_apart(["tp-4", "tp-4", "tp-4 (1)"])
    ['tp-4 (2)', 'tp-4 (3)', 'tp-4 (1)']
    """
    parts = [Path(one).parts for one in given]
    shared = sum(
        1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*(one[:-1] for one in parts), strict=False))
    )
    names = [str(Path(*one[shared:])) if one else name for one, name in zip(parts, given, strict=True)]
    found: list[str] = []
    for name in names:
        numbered = (f"{name} ({at})" for at in count(1))
        taken = {*names, *found}
        found.append(name if names.count(name) == 1 else next(one for one in numbered if one not in taken))
    return found


S_PER_BYTE: Final = 0.27e-6
MEMORY_PER_BYTE: Final = 16
"""To compare a run, by the bytes of its timeline: 0.5 to 3.5 MB took 0.14 to 1.0 s, and 4 to 55 MB, each."""


def refuse_many(given: Sequence[str], limits: Limits) -> None:
    """Refuse to compare more recorded runs than time and memory allow, before any is read.

    Raises
    ------
    InputError
        With the estimate and what to change.
    """
    folders = [folder for name in given if (folder := Path(name) / "timeline").is_dir()]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir() if file.is_file())
    limits.refuse(
        f"comparing {len(folders):,} runs", "compare fewer of them",
        memory_bytes=BYTES_AT_LEAST + MEMORY_PER_BYTE * size, seconds=S_PER_BYTE * size,
    )  # fmt: skip


def read_entry(given: str, name: str, allow_code: bool | None, limits: Limits) -> Entry:
    """Read a run directory, or simulate a scenario within limits, and call it by a name.

    Raises
    ------
    InputError
        When it is neither, or can't be read.
    IllegalPlanError
        When a scenario's plan is illegal.
    """
    if Path(given).is_dir():
        run = read_run(Path(given))
        scenario = load(Path(given) / "scenario.yaml", allow_code=False)
        arrivals = requests_of(scenario, len(run.requests["request"]), Path(given))
        refuse_other_plan(run.timeline, scenario, len(arrivals), Path(given))
        arrived = np.flatnonzero(first_of(run.timeline.facts, (ARRIVED, REJECTED), len(arrivals)) > NEVER)
        if not np.array_equal(run.requests["request"], arrived):
            found = len(run.requests["request"])
            message = f"{found:,} rows; expected one for each of {len(arrived):,} requests that arrived"
            raise InputError(Problem(file=str(Path(given) / "requests.parquet"), message=message))
        return Entry(
            given=given,
            name=name,
            scenario=scenario,
            arrivals=arrivals,
            summary=dict(run.summary),
            requests=dict(run.requests),
            timeline=run.timeline,
        )
    try:
        file = find_scenario(given)
    except InputError as error:
        raise InputError(Problem(message=f"no run directory {given!r}, and {error}")) from None
    if not file.exists():
        raise InputError(Problem(file=given, message=f"no run directory, and {missing(file, 'scenario')}"))
    scenario = load(given, allow_code=allow_code)
    refuse_if_too_large(scenario)
    verdict = check_scenario(scenario)
    if verdict.violations:
        raise IllegalPlanError("\n".join(verdict_lines(scenario, verdict)))
    scenario.refuse_code()
    arrivals = requests_within(scenario, limits)
    result = simulate(scenario, requests=arrivals)
    return Entry(
        given=given,
        name=name,
        scenario=scenario,
        arrivals=arrivals,
        summary=summary_of(result, verdict),
        requests=dict(result.columns),
        timeline=result.timeline,
    )
