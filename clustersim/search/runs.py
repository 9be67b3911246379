"""Variants of one scenario: resolved here, simulated where an executor says, each kept as soon as it is done."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from clustersim.errors import IllegalPlanError, InputError, Problem
from clustersim.limits import Limits
from clustersim.scenario.document import Document, read_mapping
from clustersim.scenario.load import TELLING, build_scenario
from clustersim.scenario.lookup import find_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.parts import KeptParts
from clustersim.scenario.scenario import Scenario, TraceWorkload
from clustersim.scenario.schema import SHORTHANDS
from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.outcomes import Lost, outcomes
from clustersim.search.point import Row, run_point, words_of
from clustersim.search.time_sum import TimeSum
from clustersim.serving.user_class import code_allowed
from clustersim.simulation.estimate import estimate, refuse_many, requests_within
from clustersim.simulation.legality import check_scenario_plan, problem, refuse_if_too_large
from clustersim.units import plural
from clustersim.values import dataclass
from clustersim.workload.requests import Requests

Changes = Sequence[str]
"""What a run has in place of the scenario's values: ``PATH=VALUE`` each."""
Told = Callable[[int, int], None]
"""Called with how many runs are done, and how many there are."""

_MOST_WORKLOADS: Final = 8
S_PER_RUN: Final = 0.1
"""Of reading a scenario, working out its prices and writing its row: 0.05 to 0.2 s of the scenarios that ship."""
_SAMPLE: Final = 16
FEW: Final = 2_000
"""Requests of a run up to which working out prices is most of it (measured: a fifth of a second)."""
NOT_FINISHED: Final = "not finished"
_FEWER: Final = "try fewer values or simulate fewer requests (workload), or in more processes (--workers, --executor)"
_UNKNOWN: Final = "unknown key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What runs leave beside their rows: a run directory each, with a dashboard of this layout.

    ``above`` says in which folder above each run directory plotly's script is; None: pages hold it.
    """

    folder: Path
    layout: Mapping[str, Any]
    above: int | None = None


class Variants:
    """A scenario that is built again and again with other values.

    Parameters
    ----------
    name : str
        Of one that ships, or its path.
    overrides : sequence of str
        What all variants have.
    allow_code : bool or None
        See :func:`clustersim.scenario.load.load`.
    limits : Limits
        Of each run, and of all together.
    flags : mapping, optional
        Overrides and changes that an option of its own says (``targets={ttft: 1 s}``) → what errors call them:
        ``--targets``.
    """

    def __init__(
        self,
        name: str,
        overrides: Changes = (),
        *,
        allow_code: bool | None = None,
        limits: Limits,
        flags: Mapping[str, str] | None = None,
    ) -> None:
        file = find_scenario(name)
        self.text = name
        self.overrides = tuple(overrides)
        self._flags = dict(flags or {})
        self.allow_code = code_allowed(allow_code)
        self.limits = limits
        self._document = read_mapping(file, "scenario", TELLING)
        self._document.data.setdefault("name", file.stem)
        self._parts = KeptParts()
        self._requests: OrderedDict[str, Requests] = OrderedDict()

    def scenario(self, changes: Changes = ()) -> Scenario:
        """Return the scenario with some values changed; what it expects of its own figures is dropped.

        Raises
        ------
        InputError
            As loading does.
        """
        try:
            texts = (*self.overrides, *changes, "expect={}")
            own = [self._flags.get(text, f"--set #{number}") for number, text in enumerate(self.overrides, 1)]
            rest = (f"--set #{number}" for number in range(len(own) + 1, len(texts) + 1))
            document = apply_overrides(self._document, texts, SHORTHANDS, [*own, *rest])
            return build_scenario(_unshared(document), allow_code=self.allow_code, kept=self._parts)
        except InputError as error:
            named = self._named(changes)
            raise InputError(self._flagged(one, named.get(one.file or "")) for one in error.problems) from None

    def refuse_illegal(self, changes: Changes = ()) -> None:
        """Refuse a variant whose plan is illegal.

        Raises
        ------
        IllegalPlanError
            With each rule that it breaks, where, and what would be legal.
        """
        scenario = self.scenario(changes)
        named = self._named(changes)
        broken = [problem(scenario, one) for one in check_scenario_plan(scenario).violations]
        if broken:
            told = (f"illegal: {self._flagged(one, named.get(one.file or ''))}" for one in broken)
            raise IllegalPlanError("\n".join(told))

    def _named(self, changes: Changes) -> dict[str, str]:
        """Return what messages call each change, and what an option of its own says → its text."""
        named = {f"--set #{number}": text for number, text in enumerate(changes, len(self.overrides) + 1)}
        return named | {flag: text for text, flag in self._flags.items()}

    def _flagged(self, problem: Problem, text: str | None) -> Problem:
        """Return a problem of a change, told by what was typed; None: an override, which is told by its number."""
        if text not in self._flags:
            return problem if text is None else replace(problem, file=f"--vary {text}")
        path = problem.path.removeprefix(text.partition("=")[0]).removeprefix(".")
        return replace(problem, file=self._flags[text], path=path)

    def requests(self, scenario: Scenario) -> Requests:
        """Return the requests of a variant; those that other variants have too, at any rate, are not read again.

        Raises
        ------
        InputError
            When they can't be read, or the run would exceed its limits.
        """
        refuse_if_too_large(scenario)
        workload = scenario.workload
        rate = workload.rate_scale if isinstance(workload, TraceWorkload) else 1.0
        if isinstance(workload, TraceWorkload):
            workload = replace(workload, rate_scale=1.0)
        key = repr((scenario.seed, workload))
        found = self._requests.pop(key, None)
        if rate != 1.0 and found is None:
            refuse_many(scenario, self.limits)
            found = replace(scenario, workload=workload).requests()
        played = requests_within(scenario, self.limits, found if found is None or rate == 1.0 else found.scaled(rate))
        self._requests[key] = played if found is None else found
        if len(self._requests) > _MOST_WORKLOADS:
            self._requests.popitem(last=False)
        return played

    def seconds(self, changes: Changes) -> float:
        """Return how long a variant will roughly take; 0 where it can't be simulated.

        Raises
        ------
        InputError
            When a change names a key that no scenario has.
        """
        try:
            scenario = self.scenario(changes)
            found = estimate(scenario, requests := self.requests(scenario), len(requests))
        except InputError as error:
            _refuse_unknown(error.problems)
            return 0.0
        return found.seconds + S_PER_RUN


def _unshared(document: Document) -> Document:
    return replace(document, data=copy.deepcopy(document.data))


class Runs:
    """Simulates variants, and remembers what came out.

    Parameters
    ----------
    variants : Variants
    executors : Executors
    journal : Journal
    audit : bool
        Whether step graphs and what was recorded are checked, too.
    kept : Kept, optional
    """

    def __init__(
        self,
        variants: Variants,
        executors: Executors,
        journal: Journal,
        *,
        audit: bool = False,
        kept: Kept | None = None,
    ) -> None:
        self.variants = variants
        self._executors = executors
        self._journal = journal
        self._audit = audit
        self._kept = kept
        self._alone = executors.copies
        self._total = TimeSum(variants.limits, executors.workers, _FEWER)
        self.cpu_s = 0.0
        """What the runs that were made took, wherever they were."""
        self.there = 0
        """Runs that were there before, of an earlier start."""

    def refuse_long(self, all_changes: Sequence[Changes]) -> None:
        """Refuse runs that would take too long together, before the first of them is asked for.

        Raises
        ------
        LimitError
            With the estimate and what to change.
        """
        self._total.refuse(len(all_changes), self._mean_s(all_changes))

    def _mean_s(self, all_changes: Sequence[Changes]) -> float:
        """Return what each run roughly takes, by some of them; those that are finished take nothing."""
        if self.variants.limits.total_seconds == math.inf:
            return 0.0
        few = all_changes[:: -(-len(all_changes) // _SAMPLE)]
        return math.fsum(0.0 if self._is_finished(one) else self.variants.seconds(one) for one in few) / len(few)

    def _is_finished(self, changes: Changes) -> bool:
        try:
            return self._is_there(key_of(self.variants.scenario(changes).digest, self._audit))
        except InputError:
            return False

    def row(self, changes: Changes) -> Row:
        """Return the row of one variant."""
        return self.rows([changes])[0]

    def rows(self, all_changes: Sequence[Changes], told: Told | None = None) -> list[Row]:
        """Return the row of each variant, in order.

        Raises
        ------
        InputError
            When a change names a key that no scenario has, none of the variants can be built, or the executor is gone;
            a :class:`LimitError` where they and all before them would take too long together.
        """
        if all_changes:
            self._total.add(len(all_changes), self._mean_s(all_changes))
        rows: dict[int, Row] = {}
        same: dict[str, list[int]] = {}
        problems: list[Problem] = []

        def done(key: str, row: Row) -> None:
            for number in same[key]:
                rows[number] = row
            if told is not None:
                told(len(rows), len(all_changes))

        def calls() -> Iterator[tuple[int, tuple[Any, ...]]]:
            for number, changes in enumerate(all_changes):
                try:
                    scenario = self.variants.scenario(changes)
                    scenario.refuse_code()
                    key = key_of(scenario.digest, self._audit)
                    if key in same:
                        same[key].append(number)
                        if self._is_there(key):
                            done(key, self._journal.rows[key])
                        continue
                    same[key] = [number]
                    keys[number] = key
                    if self._is_there(key):
                        self.there += 1
                        done(key, self._journal.rows[key])
                        continue
                    requests = self.variants.requests(scenario)
                except InputError as error:
                    _refuse_unknown(error.problems)
                    problems.extend(error.problems)
                    rows[number] = {"failed": words_of(error), "numbers": {}}
                    continue
                shown = (self._kept.layout, self._kept.above) if self._kept is not None else (None, None)
                yield number, (scenario, requests, self._audit, self._folder(key), *shown)

        keys: dict[int, str] = {}
        for number, outcome in self._outcomes(calls()):
            row: Row = {"failed": outcome.reason, "numbers": {}} if isinstance(outcome, Lost) else outcome
            self.cpu_s += row.pop("cpu_s", 0.0)
            if not isinstance(outcome, Lost):
                self._journal.add(keys[number], row)
            done(keys[number], row)
        if problems and not same:
            raise InputError(_each_kind(dict.fromkeys(problems)))
        for numbers in same.values():
            for number in numbers:
                rows.setdefault(number, rows[numbers[0]])
        return [rows[number] for number in range(len(all_changes))]

    def finished(self, all_changes: Sequence[Changes]) -> list[Row]:
        """Return the row of each variant that is finished; that of the others says that it is not."""
        missing: Row = {"failed": NOT_FINISHED, "numbers": {}}
        found = []
        for changes in all_changes:
            try:
                key = key_of(self.variants.scenario(changes).digest, self._audit)
            except InputError as error:
                found.append({"failed": words_of(error), "numbers": {}})
            else:
                found.append(self._journal.rows.get(key, missing))
        return found

    def _outcomes(self, calls: Iterator[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[int, Any]]:
        """Make calls; a first small run is simulated here, so that all workers begin with what it has worked out."""
        first = next(calls, None) if self._alone else None
        self._alone = False
        if first is not None:
            number, arguments = first
            if len(arguments[1]) <= FEW:
                yield number, run_point(*arguments)
            else:
                calls = chain([first], calls)
        yield from outcomes(self._executors, run_point, calls)

    def folder(self, changes: Changes) -> Path | None:
        """Return where the run directory of a variant is, where they are kept."""
        return self._folder(key_of(self.variants.scenario(changes).digest, self._audit))

    def _folder(self, key: str) -> Path | None:
        return None if self._kept is None else self._kept.folder / key[:12]

    def _is_there(self, key: str) -> bool:
        row, folder = self._journal.rows.get(key), self._folder(key)
        return row is not None and (folder is None or row["failed"] is not None or folder.is_dir())


def _each_kind(problems: Iterable[Problem]) -> list[Problem]:
    """Return the first of the problems that differ only in the value found, and of how many others it is true."""
    kinds: dict[tuple[str | None, str], list[Problem]] = {}
    for one in problems:
        kinds.setdefault((one.path, one.message.partition(", but found")[0]), []).append(one)
    return [
        replace(one, message=f"{one.message} (and {plural(len(more), 'other value')})") if more else one
        for one, *more in kinds.values()
    ]


def _refuse_unknown(problems: Iterable[Problem]) -> None:
    """Refuse keys that no scenario has: no value of them would do."""
    unknown = [one for one in problems if one.message.startswith(_UNKNOWN)]
    if unknown:
        raise InputError(unknown)
