"""All plans of a search, and their runs: made where an executor says, each kept as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

import numpy as np

from clustersim.search.executors import Executors
from clustersim.search.journal import Journal, key_of
from clustersim.search.outcomes import Lost, outcomes
from clustersim.search.plans.deployments import Candidate, Deployments
from clustersim.search.plans.legal import candidates
from clustersim.search.plans.outcome import Standing
from clustersim.search.plans.question import Question
from clustersim.search.plans.space import PARTITIONS, TYPICAL, Refused
from clustersim.search.point import Row
from clustersim.search.time_sum import TimeSum
from clustersim.simulation.estimate import BYTES_AT_LEAST

BYTES_PER_PLAN: Final = 700
S_PER_PLAN: Final = 90e-6
"""Of a legal plan with its words and its bound: 323,022 of them took 0.99 KB and 205 µs each, 2,313,541 of them 0.66 KB
and 91 µs (quickstart on 64 and 128 devices)."""
_LESS: Final = (
    "screen for less (--effort), fewer plans (--devices, --knobs), or in more processes (--workers, --executor)"
)
Told = Callable[[int, int], None]
_Trial = TypeVar("_Trial", bound="_Told")


class _Told(Protocol):
    @property
    def told(self) -> str: ...
    @property
    def audit(self) -> bool: ...
    @property
    def expected_s(self) -> float: ...


class Trials:
    """Enumerates the plans of one scenario, and simulates them.

    Parameters
    ----------
    deployments : Deployments
    question : Question
    executors : Executors
    journal : Journal
    """

    def __init__(self, deployments: Deployments, question: Question, executors: Executors, journal: Journal) -> None:
        self.deployments, self.question = deployments, question
        self.executors, self.journal = executors, journal
        self.base = deployments.base
        self.refused = Refused()
        self._placed: dict[object, str | None] = {}
        self.ran = 0
        self.ran_s = 0.0
        """Seconds of effort that runs took, added up in the order in which these were asked for."""
        self._counted: set[str] = set()
        self.fresh_s = 0.0
        """Of those that were not looked up, as they ended: only to tell how long the rest takes …"""
        self.pending_s = self.counted_s = 0.0
        """… of those that are under way, as expected, and of those that ended of which ``ran_s`` tells."""
        self.tell: Callable[[], None] = lambda: None
        """Called whenever something is done that takes a while."""
        self._total = TimeSum(deployments.variants.limits, executors.workers, _LESS)
        self._partitions = PARTITIONS if question.exhaustive else (TYPICAL,)

    def standings(self) -> list[Standing]:
        """Return every legal plan, nothing of which is known."""
        legal = candidates(
            self.deployments.settings,
            self.question.room,
            self.refused,
            self._partitions,
            self._refuse_many,
            every=self.question.is_fixed,
            unplaced=self._unplaced,
        )
        found = []
        for one, same in legal:
            alike = len(PARTITIONS) // len(self._partitions) if any(r.plan.sp.degree > 1 for r in one.replicas) else 1
            found.append(
                Standing(candidate=one, words=self.words(one), same=same, partitions=alike, row_devices=one.devices)
            )
        return found

    def _refuse_many(self, plans: int) -> None:
        """Refuse more plans than memory and time allow, before they are made."""
        self.deployments.variants.limits.refuse(
            f"about {plans:,} plans, before any is simulated,",
            "search fewer devices (--devices) or knobs (--knobs)",
            memory_bytes=BYTES_AT_LEAST + BYTES_PER_PLAN * plans,
            total_seconds=S_PER_PLAN * plans,
        )

    def _unplaced(self, one: Candidate) -> str | None:
        """Return why a pool can't be started where its ranks are, beside another one; asked once of those alike."""
        launch, node_of = self.question.room.launch, self.base.topology.node_of
        if launch is None or (node_of == node_of[0]).all() or any(each.kind for each in one.replicas):
            return None
        pools = self.deployments.scenario(one).each_pool()
        homes = [node_of[list(pool.plan.placement or range(pool.plan.world))] for pool in pools]
        beside = not set(homes[0]).isdisjoint(homes[-1]) and len(homes) > 1
        for pool, home in zip(pools, homes, strict=True):
            plan, name = pool.plan, pool.pools[0].name
            first = (plan.placement or (0,))[0] - int(np.flatnonzero(node_of == home[0])[0])
            degrees = plan.tp, plan.pp, plan.dp, plan.ep, plan.sp.degree
            alike = one.setting, name, degrees, first, beside, (home - home[0]).tobytes()
            if alike not in self._placed:
                self._placed[alike] = launch.refusal(pool, beside)
            if self._placed[alike] is not None:
                return self._placed[alike]
        return None

    def words(self, one: Candidate) -> str:
        """Return a plan and its knobs in words."""
        knobs = (text.rpartition("=") for text in self.deployments.settings[one.setting].changes)
        return ", ".join([one.words(), *(f"{key.rpartition('.')[2]} {value}" for key, _, value in knobs)])

    def not_launched(self, standing: Standing) -> Row | None:
        """Return the row of a plan that can't be started with what has to, where its ranks are; None where it can."""
        launch = self.question.room.launch
        reason = None if launch is None else launch.refusal(self.deployments.scenario(standing.candidate), False)
        return None if reason is None else {"failed": reason, "numbers": {}}

    def rows(
        self, trials: Iterable[_Trial], call: Callable[[_Trial], Row], told: Callable[[int], None] | None = None
    ) -> list[Row]:
        """Simulate, and return the row of each trial; what was simulated before is looked up."""
        rows: dict[int, Row] = {}
        keys: dict[int, str] = {}
        made: dict[int, _Trial] = {}

        def calls() -> Iterator[tuple[int, tuple[_Trial]]]:
            for number, trial in enumerate(trials):
                made[number] = trial
                keys[number] = key = key_of(trial.told, trial.audit)
                if key in self.journal.rows:
                    rows[number] = self.journal.rows[key]
                    continue
                self._total.add(1, trial.expected_s)
                self.pending_s += trial.expected_s
                yield number, (trial,)

        for number, outcome in outcomes(self.executors, call, calls()):
            row = {"failed": outcome.reason, "numbers": {}} if isinstance(outcome, Lost) else outcome
            if not isinstance(outcome, Lost):
                self.journal.add(keys[number], row)
            rows[number] = row
            self.fresh_s += _work_s(row, made[number])
            self.pending_s -= made[number].expected_s
            self.tell()
            if told is not None:
                told(len(rows))
        self.ran += len(keys)
        self.counted_s = self.fresh_s
        for number, trial in made.items():
            if keys[number] not in self._counted:  # what is asked for again is looked up
                self._counted.add(keys[number])
                self.ran_s += _work_s(rows[number], trial)
        return [rows[number] for number in range(len(keys))]


def _work_s(row: Row, trial: _Told) -> float:
    return float(row["numbers"].get("work_s", trial.expected_s))
