"""Legal plans of a search and what became of each: what searches by capacity and at one rate have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from clustersim.errors import UnreachedError
from clustersim.interop.launch.launch import NOT_STARTED
from clustersim.search.plans.front.points import Hypervolume, Point, front_of, points_of
from clustersim.search.plans.outcome import RankedPlan, Standing
from clustersim.search.point import Row
from clustersim.units import plural
from clustersim.values import dataclass

REPRESENTED: Final = "fewer of the same replicas"
PARTITIONS: Final = "other partitions of prompts"
UNREACHED: Final = "no plan reaches the share asked for"
NEXT: Final = 4
"""Plans behind the best ones that a terminal lists; the page has all."""
METRICS: Final = (
    "goodput.share", "throughput.output_tokens_per_s", "throughput.requests_per_s", "ttft_ms.p50", "ttft_ms.p99",
    "tpot_ms.p50", "tpot_ms.p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan as a terminal lists it: what it reaches, in words, the row of its run, and its rank."""

    standing: Standing
    reached: tuple[str, ...]
    row: Row | None
    rank: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings(ABC):
    """All legal plans of a search, what became of each, and what is told of them whatever was asked.

    Parameters
    ----------
    standings : sequence of Standing
    objective : str
        What the best plan is best in.
    share : float or None
        Of all requests, that have to meet every target; None: there is none.
    runs : int
        Runs that were asked for, those looked up included.
    unreached : UnreachedError or None
        Where no plan reaches the share that was asked for, what comes nearest; ``share`` is less then.
    """

    standings: Sequence[Standing]
    objective: str
    share: float | None
    runs: int
    unreached: UnreachedError | None = None

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """What :attr:`PlanRow.reached` says, as heads of columns."""

    @property
    @abstractmethod
    def next_words(self) -> str:
        """What is to be known of those behind the best ones; empty where they had the same runs."""

    @abstractmethod
    def answers(self) -> list[RankedPlan]:
        """Return the best plan and its ties."""

    @abstractmethod
    def certificate(self) -> dict[str, Any]:
        """Return what the answer rests on, and what remains uncertain."""

    @abstractmethod
    def rate_at(self, point: Point) -> float | None:
        """Return the rate of a run, requests per second; None where they come at none."""

    @abstractmethod
    def rated(self, one: Standing, rate: float | None) -> tuple[str, ...]:
        """Return what makes requests come to a plan at a rate, as ``--set`` takes it; nothing where they do anyway."""

    @abstractmethod
    def head(self, legal: str) -> list[str]:
        """Return what is told first, a line each: the best plan, and how it was found among those that are legal."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return what is told last, a line each."""

    @abstractmethod
    def shown(self) -> list[PlanRow]:
        """Return the plans that a terminal lists, the best first."""

    def is_at_length(self, one: Standing, rate: float | None) -> bool:
        """Whether a run of a plan at a rate is as long as those that decide: all are, at one rate."""
        return True

    def capacity_of(self, one: Standing) -> float | None:
        """Return the rate that a plan reaches at length; None where none was looked for."""
        return None

    def run_words(self, point: Point) -> str:
        """Return how long the run of a point of the front is, in words."""
        kind = "run" if self.is_at_length(point.standing, self.rate_at(point)) else "short run"
        return f"{kind} of {plural(point.requests, 'request')}"

    def drawn(self) -> list[tuple[float, float, str]]:
        """Return the front as a page has it: tokens of a device, those of a user, and what each run is."""
        told = []
        for at, one in enumerate(self.front(), 1):
            part = f", {one.standing.part}" if one.standing.part else ""
            told.append((*one.both, f"front-{at}.yaml: {one.standing.words} ({self.run_words(one)}{part})"))
        return told

    @property
    def legal(self) -> int:
        """Legal plans, those that others stand for included."""
        return sum(one.same * one.partitions for one in self.standings)

    @property
    def unplaced(self) -> int:
        """Legal plans that were tried and are not started where their ranks are, though each server is by itself."""
        refused = (one for one in self.standings if one.fate == "failed" and f" {NOT_STARTED}: " in one.why)
        return sum(one.same * one.partitions for one in refused)

    @property
    def pruned(self) -> dict[str, int]:
        """How many plans each reason left out before they were simulated."""
        counts = Counter(one.why for one in self.standings if one.fate == "pruned")
        same = sum((one.same - 1) * one.partitions for one in self.standings)
        others = sum(one.partitions - 1 for one in self.standings)
        told = {REPRESENTED: same, PARTITIONS: others}
        return dict(sorted(counts.items())) | {reason: count for reason, count in told.items() if count}

    @property
    def points(self) -> list[Point]:
        """Every run that met its share."""
        return points_of(self.standings)

    def front(self) -> list[Point]:
        """Return the runs that none beats in both: tokens per second and device, and tokens for a user."""
        return front_of(self.points)

    def reached_share(self) -> dict[str, Any]:
        """Return the share that counts, and why it is less than what was asked for, as a certificate has them."""
        return {"share": self.share, "unreached": None if self.unreached is None else str(self.unreached)}

    def hypervolume(self) -> float:
        """Return the area below the front."""
        return Hypervolume(one.both for one in self.points).size


def metrics(one: Standing, row: Row | None, *, is_whole: bool = False) -> dict[str, float]:
    """Return the numbers of a run that are shown: of the whole plan, also where one replica was run for all."""
    if row is None:
        return {}
    shown = {key: row["numbers"][key] for key in METRICS if key in row["numbers"]}
    times = 1.0 if is_whole else one.replicas_per_run
    return {key: value * times if key.startswith("throughput.") else value for key, value in shown.items()}
