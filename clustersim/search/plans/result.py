"""What a search found, as plain data: the front, the best plan and its ties, why others lost, and the certificate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from clustersim.search.plans.deployments import Candidate
from clustersim.search.plans.finals import KEPT, TIES, Finalist
from clustersim.search.plans.front import Hypervolume, Point, front_of, points_of
from clustersim.search.plans.front_runs import FrontRuns
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import FLATTERED, RankedPlan, Standing
from clustersim.search.plans.space import TYPICAL
from clustersim.values import dataclass

REPRESENTED: Final = "fewer of the same replicas"
PARTITIONS: Final = "other partitions of prompts"
METRICS: Final = (
    "goodput.share", "throughput.output_tokens_per_s", "throughput.requests_per_s", "ttft_ms.p50", "ttft_ms.p99",
    "tpot_ms.p50", "tpot_ms.p99",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """All legal plans of a search, and what became of each.

    Parameters
    ----------
    standings : sequence of Standing
    """

    standings: Sequence[Standing]

    @property
    def legal(self) -> int:
        """Legal plans, those that others stand for included."""
        return sum(one.same * one.partitions for one in self.standings)

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

    def hypervolume(self) -> float:
        """Return the area below the front."""
        return Hypervolume(one.both for one in self.points).size


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Standings):
    """A finished search.

    Parameters
    ----------
    finalists : sequence of Finalist
        Best first.
    worth : callable
        What a request per second is worth on a plan.
    objective : str
    runs : int
        Runs that were asked for, those looked up included.
    rated : callable
        What makes requests come to a plan at a rate, as many as in a short run or a long one, as ``--set`` takes it.
    filled : FrontRuns or None
        What was simulated for the front.
    recorded, part : int or None
        Requests of the trace, and how many of them are played again and again; None where requests are drawn.
    """

    finalists: Sequence[Finalist]
    worth: Callable[[Standing], float]
    objective: str
    runs: int
    rated: Callable[[Candidate, float, bool], tuple[str, ...]]
    filled: FrontRuns | None = None
    recorded: int | None = None
    part: int | None = None

    @property
    def best(self) -> Finalist:
        """The best plan."""
        return self.finalists[0]

    def value(self, one: Finalist) -> float:
        """Return what a finalist reaches."""
        return one.capacity * self.worth(one.standing)

    @property
    def ties(self) -> list[Finalist]:
        """Plans within :data:`TIES` of the best."""
        least = self.value(self.best) * (1.0 - TIES)
        return [one for one in self.finalists[1:] if self.value(one) >= least]

    def answers(self) -> list[RankedPlan]:
        """Return the best plan and its ties."""
        return [
            RankedPlan(standing=one.standing, value=self.value(one), rate=one.capacity, row=one.row)
            for one in (self.best, *self.ties)
        ]

    @property
    def settled(self) -> bool:
        """Whether no plan that is left open can be better than the best by more than a tie."""
        steps = [(one, one.failing) for one in self.standings if one.fate == "open"]
        most = self.value(self.best) * (1.0 + TIES)
        return all(step is not None and rate_of(step - 1) * self.worth(one) <= most for one, step in steps)

    def _repeated(self) -> list[str]:
        """Return what is to be known of a trace that is played again and again."""
        if self.part is None:
            return []
        told = [
            f"runs of more requests than the {self.recorded:,} of the trace repeat its first {self.part:,}, a prime "
            "number, so that each replica gets all of them in turn; the scenarios written have their own requests"
        ]
        if any(len(one.candidate.counts) == 1 and one.candidate.counts[0] >= self.part for one in self.standings):
            told.append(f"of {self.part:,} replicas and more, as many as that repeats, none stands for the others")
        return told

    def certificate(self) -> dict[str, Any]:
        """Return what the answer rests on, and what remains uncertain."""
        fates = Counter(one.fate for one in self.standings)
        why = Counter(one.why for one in self.standings if one.fate == "failed")
        lost = [one for one in self.standings if one.fate == "pruned" and one.why == "most requests per second"]
        nearest = max((one.most * self.worth(one) for one in lost), default=None)
        screened = [one for one in self.standings if one.fate == "screened"]
        opened = [one.highest * self.worth(one) for one in self.standings if one.fate == "open"]
        failing = [rate_of(one.failed) * self.worth(one) for one in screened if one.failed is not None]
        uncertain = [
            "capacities are found with one seed and runs of the length asked for; those of the finalists at length",
            "between rates that were tried, more requests are taken to be served no better",
        ]
        if any(one.row_devices < one.candidate.devices for one in self.standings):
            uncertain.append(
                "where requests are dealt out in turn one replica stands for all (measured: within 4 %), and of two "
                "pools the smallest numbers in their ratio do"
            )
        uncertain += self._repeated()
        if any(one.row is not None and "alone" in one.row["numbers"] for one in screened):
            uncertain.append("a decode pool is taken to make no prefill pool serve more requests in time")
        if any(one.alone is not None for one in self.standings):
            uncertain.append(
                "two pools, and plans with SP or stages, are taken to do no better than at the least times of steps"
            )
            uncertain.append(f"once {KEPT} tie, such plans that could be better by a tie at most are not simulated")
        if any(one.partitions > 1 for one in self.standings):
            uncertain.append(
                f"of the partitions of prompts over SP ranks {TYPICAL} stands for all (measured: shares within 1.4 %)"
            )
        if any(one.same > 1 for one in self.standings):
            uncertain.append(
                f"{REPRESENTED} are taken to reach no more for each of their devices (measured: within 4 %)"
            )
        return {
            "legal": self.legal,
            "pruned": self.pruned,
            "nearest_pruned": nearest,
            "screened": len(screened),
            "looked_at": sum(one.row is None for one in screened),
            "nearest_screened": max(failing, default=None),
            "simulated": fates["simulated"],
            "open": fates["open"],
            "flattered": sum(one.why == FLATTERED for one in self.standings),
            "nearest_open": max(opened, default=None),
            "settled": self.settled,
            "failed": dict(why),
            "runs": self.runs,
            "hypervolume": self.hypervolume(),
            "front": None if self.filled is None else asdict(self.filled),
            "finalists": [
                {"plan": one.standing.words, "per_s": one.capacity, "value": self.value(one), "shares": one.shares}
                for one in self.finalists
            ],
            "uncertain": uncertain,
        }


def metrics(row: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the numbers of a run that are shown."""
    return {} if row is None else {key: row["numbers"][key] for key in METRICS if key in row["numbers"]}
