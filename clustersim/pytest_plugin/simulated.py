"""What the fixture ``simulate`` returns, and what ``assert_legal`` looks at."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clustersim.errors import IllegalPlanError
from clustersim.legality.rule import Verdict, together
from clustersim.report.files.summary import legality_of, summary_of
from clustersim.scenario.load import load
from clustersim.scenario.lookup import is_path
from clustersim.scenario.scenario import Scenario
from clustersim.simulation import simulate as runs
from clustersim.simulation.audit import audit_run, check_run
from clustersim.simulation.audit import violation_line as record_line
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.legality import violation_lines as scenario_lines
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A scenario, whether it is legal, and what came out where it is.

    Parameters
    ----------
    scenario : Scenario
    verdict : Verdict
        Of the plan (level P), where that is legal of its step graphs (G), and where these are of what was recorded (T).
    summary : Mapping
        What ``clustersim run --json`` prints; where nothing was simulated only name, digest, seed and legality.
    run : RunResult or None
        None where the plan or its step graphs are illegal: it is not simulated.
    """

    scenario: Scenario
    verdict: Verdict
    summary: Mapping[str, Any]
    run: RunResult | None

    @property
    def legal(self) -> bool:
        """Whether the plan is legal, its step graphs are, and what was recorded."""
        return self.verdict.verdict == "legal"

    @property
    def timeline(self) -> Timeline:
        """The folded timeline; ``timeline.unfold(start_ns, end_ns, ranks)`` gives spans."""
        return self._ran().timeline

    @property
    def requests(self) -> Mapping[str, Any]:
        """The columns of ``requests.parquet``."""
        return self._ran().requests

    def _ran(self) -> RunResult:
        if self.run is None:
            lines = "\n".join(violation_lines(self.scenario, self.verdict))
            raise IllegalPlanError(f"{self.scenario.name} is illegal, so it was not simulated:\n{lines}")
        return self.run


def simulated(
    scenario: str | Path, overrides: Mapping[str, Any], *, beside: Path, allow_code: bool | None = None
) -> Simulated:
    """Load a scenario, check plan and step graphs, and where they are legal simulate it and audit what was recorded.

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
        Whether Python that the scenario names may run; see :func:`clustersim.scenario.load.load`.

    Raises
    ------
    InputError
        When the scenario can't be read or simulated.
    """
    started = time.perf_counter()
    changes = [f"{path}={json.dumps(value, ensure_ascii=False, default=str)}" for path, value in overrides.items()]
    loaded = load(_found(scenario, beside), changes, allow_code=allow_code)
    verdict = check_scenario(loaded)
    if verdict.violations:
        named = {"name": loaded.name, "digest": loaded.digest, "seed": loaded.seed}
        summary = named | legality_of(verdict)
        return Simulated(scenario=loaded, verdict=verdict, summary=summary, run=None)
    run = runs.simulate(loaded)
    verdict = together((verdict, audit_run(run)))
    summary = summary_of(run, verdict)
    summary["wall_s"] = {"total": time.perf_counter() - started, "simulate": run.simulate_s}
    return Simulated(scenario=loaded, verdict=verdict, summary=summary, run=run)


def _found(scenario: str | Path, beside: Path) -> str | Path:
    if isinstance(scenario, str) and not is_path(scenario):
        return scenario
    return beside / scenario if (beside / scenario).is_file() else Path(scenario)


def check_legal(result: Simulated | RunResult) -> None:
    """Check a result at every level: its plan (P), its step graphs (G) and what it recorded (T).

    Parameters
    ----------
    result : Simulated or RunResult
        Of the fixture ``simulate``, or of :func:`clustersim.simulate`.

    Raises
    ------
    AssertionError
        With a line per violation: the rule, the place (in the scenario; or replica, step and rank), what is wrong
        there with the witness that shows it, and what would be legal.
    """
    scenario = result.scenario
    verdict = result.verdict if isinstance(result, Simulated) else check_run(result)
    if verdict.verdict != "legal":
        lines = "\n".join(violation_lines(scenario, verdict))
        raise AssertionError(f"{scenario.name} is {verdict.verdict.replace('_', ' ')}:\n{lines}")


def violation_lines(scenario: Scenario, verdict: Verdict) -> list[str]:
    """Return a line per violation: at its place in the scenario, in its step graphs, or in what was recorded."""
    before = replace(verdict, violations=tuple(found for found in verdict.violations if found.level != "T"))
    recorded = map(record_line, verdict.of_level("T").violations)
    return [*scenario_lines(scenario, before), *recorded]
