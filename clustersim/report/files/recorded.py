"""A run directory as an auditor reads it: its scenario, its timeline, and what follows from these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from clustersim.clock import to_ns
from clustersim.errors import InputError, Problem
from clustersim.legality.history import History
from clustersim.replay.input import ReplayInput
from clustersim.report.files.run_directory import VERDICT_TYPES, RunDirectory, read_run
from clustersim.scenario.load import load
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.audit import with_spent
from clustersim.simulation.declared import history_of
from clustersim.simulation.first_tokens import delivery_of
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.recorded import refuse_other_plan, request_columns, requests_of
from clustersim.simulation.replay_input import kv_blocks, replay_input
from clustersim.timeline.digest import digest_of
from clustersim.timeline.head import read_object, shown
from clustersim.timeline.tokens import TokenTimes, token_times
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict:
    """What ``verdict.json`` says.

    Parameters
    ----------
    word : str
        Its verdict as a whole.
    broken : frozenset of (rule, level)
    answers : mapping
        (rule, level) → ``legal``, ``illegal`` or ``not_checkable``.
    looked_at : mapping
        (rule, level) → how much the rule found to look at.
    levels : mapping
        Level → what its rules answered together.
    violations : list of mappings
    """

    word: str
    broken: frozenset[tuple[str, str]]
    answers: Mapping[tuple[str, str], str]
    looked_at: Mapping[tuple[str, str], int]
    levels: Mapping[str, str]
    violations: list[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedRun:
    """A run directory, its scenario, and what its timeline comes to.

    Parameters
    ----------
    run : RunDirectory
    scenario : Scenario
    arrivals : Requests
        The requests of the scenario.
    verdict : StoredVerdict
    """

    run: RunDirectory
    scenario: Scenario
    arrivals: Requests
    verdict: StoredVerdict

    @cached_property
    def digest(self) -> str:
        """The digest of the tables, worked out anew."""
        return digest_of(self.run.timeline)

    @cached_property
    def times(self) -> TokenTimes:
        """When its requests got their tokens."""
        count = len(self.arrivals)
        delivery = delivery_of(self.run.timeline, self.scenario.first_token, count)
        return token_times(self.run.timeline, count, delivery=delivery)

    @cached_property
    def requests(self) -> dict[str, Any]:
        """What ``requests.parquet`` should say, but for the words of rejections."""
        front_end_ns = to_ns(self.scenario.engine.front_end_s)
        told = {"prompt_tokens": self.arrivals.prompt_tokens, "output_tokens": self.arrivals.output_tokens}
        return request_columns(self.run.timeline, told, self.times, front_end_ns)

    @cached_property
    def input(self) -> ReplayInput:
        """What its replay was a function of."""
        return replay_input(self.scenario, self.arrivals)

    @cached_property
    def history(self) -> History:
        """What was recorded, with what the scenario declares."""
        table = self.run.requests
        told = [
            request
            for request, reason in zip(table["request"].tolist(), table["reason"].tolist(), strict=True)
            if reason is not None and request < len(self.arrivals)
        ]
        return with_spent(history_of(self.scenario, self.run.timeline, told), table)


def read_recorded(path: Path, scenario: Scenario | None = None) -> RecordedRun:
    """Read a run directory to audit it; ``scenario`` is its own, where that was read before and is legal.

    Raises
    ------
    InputError
        When a file is missing, cannot be read, can't be what a run wrote, or is of another scenario, or an illegal one.
    """
    run, verdict = read_run(path), _stored_verdict(path / "verdict.json")
    if scenario is None:
        scenario = load(path / "scenario.yaml", allow_code=False)
        if check_scenario(scenario).violations:
            message = "is illegal, and no run records one; put back the scenario of the run, or run this one again"
            raise InputError(Problem(file=str(path / "scenario.yaml"), message=message))
    arrivals = requests_of(scenario, len(run.requests["request"]), path)
    refuse_other_plan(run.timeline, scenario, len(arrivals), path)
    kv_blocks(scenario)  # refuses weights that leave no room for K/V
    return RecordedRun(run=run, scenario=scenario, arrivals=arrivals, verdict=verdict)


def _stored_verdict(file: Path) -> StoredVerdict:
    found = read_object(file, VERDICT_TYPES)
    entries = dict.fromkeys(_entries(file, found, "rules", {"id": str, "level": str, "looked_at": int}))
    broken = frozenset(entry[:2] for entry in _entries(file, found, "violations", {"rule": str, "level": str}))
    answers = {
        (rule, level): "illegal" if (rule, level) in broken else "legal" if looked else "not_checkable"
        for rule, level, looked in entries
    }
    return StoredVerdict(
        word=found["verdict"],
        broken=broken,
        answers=answers,
        looked_at={(rule, level): looked for rule, level, looked in entries},
        levels=found["levels"],
        violations=found["violations"],
    )


def _entries(file: Path, found: Mapping[str, Any], name: str, types: Mapping[str, type]) -> Iterator[tuple[Any, ...]]:
    for number, entry in enumerate(found[name]):
        values = tuple(entry.get(key) for key in types) if isinstance(entry, dict) else ()
        if tuple(type(value) for value in values) != tuple(types.values()):
            message = f"found {shown(entry)}; expected an object with {', '.join(types)}"
            raise InputError(Problem(file=str(file), path=f"{name}[{number}]", message=message))
        yield values
