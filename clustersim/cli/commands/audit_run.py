"""The half of ``clustersim audit`` that is about a run directory: its files, another run, and simulating it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from clustersim.legality.audit import check_history
from clustersim.legality.deployment import counted
from clustersim.legality.history import History
from clustersim.legality.rule import Verdict, Violation, together
from clustersim.report.files.agreement import agreements, as_run
from clustersim.report.files.recorded import RecordedRun, read_recorded
from clustersim.scenario.load import load
from clustersim.simulation.agreement import Agreement, with_agreements
from clustersim.simulation.audit import against
from clustersim.simulation.comparison import (
    differing,
    refuse_incomparable,
    same_or_first_difference,
    under_another_plan,
)
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.simulate import simulate
from clustersim.simulation.templates import other_operators
from clustersim.timeline.timeline import Timeline

_REPEAT = "repeat a run with its scenario and seed, and nothing else"


def audit_run_directory(
    path: Path, other: Path | None, again: str | None, *, allow_code: bool | None = None
) -> tuple[Verdict, list[str]]:
    """Audit a run directory.

    Parameters
    ----------
    path : Path
    other : Path or None
        A run to compare with.
    again : str or None
        A replay in which the run is simulated once more, to compare with.
    allow_code : bool, optional
        Whether that may run a scheduler or router of the run's own; see :func:`clustersim.scenario.load.load`.

    Returns
    -------
    (Verdict, list of str)
        The verdict, and what was compared and with which result, in sentences.

    Raises
    ------
    InputError
        When a file can't be read or can't be what a run wrote, or when the other run is not comparable.
    """
    scenario = load(path / "scenario.yaml", allow_code=False) if (path / "scenario.yaml").exists() else None
    declared = None if scenario is None else check_scenario(scenario)
    if declared is not None and declared.violations:
        return declared, ["compared with nothing: the scenario of this run is illegal, and no run records one"]
    recorded = read_recorded(path, scenario)
    history = _with_digests(recorded)
    results: list[tuple[str, bool, str]] = []
    if other is not None:
        history, result = _against(recorded, history, read_recorded(other), str(other))
        results.append(result)
    if again is not None:
        results.append(_again(recorded, again, allow_code))
    own = as_run(recorded)
    verdict = with_agreements(check_history(history), own)
    files = agreements(recorded, together((declared or check_scenario(recorded.scenario), verdict)))
    verdict = with_agreements(verdict, files)
    strange = tuple(other_operators(recorded.input, recorded.run.timeline.templates))
    differing_runs = [_differs(where, words) for where, same, words in results if not same]
    return (
        replace(verdict, violations=(*verdict.violations, *strange, *differing_runs)),
        [_files_line((*own, *files)), *(f"{where}: {words}" for where, _, words in results)],
    )


def _with_digests(recorded: RecordedRun) -> History:
    """Return the history of a run directory, with the digests that it should have."""
    digests = (
        ("in the tables", recorded.digest),
        ("in templates.json", recorded.run.timeline.digest),
        ("in summary.json", str(recorded.run.summary["timeline_digest"])),
    )
    return replace(recorded.history, digests=digests)


def _against(
    recorded: RecordedRun, history: History, other: RecordedRun, name: str
) -> tuple[History, tuple[str, bool, str]]:
    """Compare with another run: bit for bit where the plan is the same, else by what the requests came to."""
    refuse_incomparable((recorded.scenario, recorded.arrivals), (other.scenario, other.arrivals), name)
    where = f"compared with {name}"
    paths = differing(recorded.scenario, other.scenario)
    if not paths:
        return history, (where, *_compared(recorded, other.run.timeline, other.digest))
    return against(history, other.history), (where, True, under_another_plan(history, other.history, paths))


def _again(recorded: RecordedRun, replay: str, allow_code: bool | None) -> tuple[str, bool, str]:
    scenario = load(recorded.run.path / "scenario.yaml", (f"run.replay={replay}",), allow_code=allow_code)
    scenario.refuse_code()
    click.echo(f"simulating {counted(recorded.run.timeline.num_spans, 'operator')} again, {replay} …", err=True)
    repeated = simulate(scenario)
    return f"simulated again, {replay}", *_compared(recorded, repeated.timeline, repeated.timeline.digest)


def _compared(recorded: RecordedRun, timeline: Timeline, digest: str) -> tuple[bool, str]:
    return same_or_first_difference((recorded.run.timeline, recorded.digest), (timeline, digest))


def _differs(where: str, words: str) -> Violation:
    return Violation(rule="RUN-5", level="T", where=where, message=words, fix=_REPEAT)


def _files_line(files: tuple[Agreement, ...]) -> str:
    """Say which files were compared with the timeline, and which of them say something else."""
    named = ", ".join(f"{one.file} ({one.what})" for one in files)
    odd = [one.file for one in files if one.violation is not None]
    return f"compared with the timeline: {named}: " + (
        f"{', '.join(odd)} {'differs' if len(odd) == 1 else 'differ'}" if odd else "all agree"
    )


__all__ = ["audit_run_directory"]
