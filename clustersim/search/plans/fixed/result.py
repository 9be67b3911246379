"""What a search at one rate found, as plain data: the best plan by a number, and what the answer rests on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from clustersim.report.sweep.swept import is_better_low
from clustersim.search.plans.finals import FINALISTS, TIES
from clustersim.search.plans.front.points import Point
from clustersim.search.plans.outcome import RankedPlan, Standing
from clustersim.search.plans.space import TYPICAL
from clustersim.search.plans.standings import NEXT, UNREACHED, PlanRow, Standings
from clustersim.units import format_asked, plural
from clustersim.values import dataclass

NO_SHARE: Final = "too few requests meet their targets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Standings):
    """A finished search at one rate.

    Parameters
    ----------
    ranked : sequence of Standing
        Those that count, the best first.
    rate_per_s : float or None
        Of the requests; None: they come all at once, or one after the other.
    """

    ranked: Sequence[Standing]
    rate_per_s: float | None

    @property
    def direction(self) -> str:
        """Which way the number is better, in words."""
        return "less is better" if is_better_low(self.objective) else "more is better"

    def value(self, one: Standing) -> float:
        """Return what a plan reaches."""
        return float(one.numbers[self.objective])

    @property
    def best(self) -> Standing:
        """The best plan."""
        return self.ranked[0]

    @property
    def ties(self) -> list[Standing]:
        """Plans within :data:`TIES` of the best that were checked, too."""
        return tied(self.ranked, self.value)

    def answers(self) -> list[RankedPlan]:
        """Return the best plan and its ties."""
        return [
            RankedPlan(standing=one, value=self.value(one), rate=None, row=one.row) for one in (self.best, *self.ties)
        ]

    def rate_at(self, point: Point) -> float | None:
        """Return the rate that all runs have."""
        return self.rate_per_s

    def rated(self, one: Standing, rate: float | None) -> tuple[str, ...]:
        """Return nothing: requests come to all plans as they do."""
        return ()

    @property
    def columns(self) -> tuple[str, ...]:
        """What plans reach."""
        return (self.objective,)

    @property
    def next_words(self) -> str:
        """Nothing: those behind the best ones had the same runs."""
        return ""

    def head(self, legal: str) -> list[str]:
        """Return the best plan, how many were simulated, and what is open."""
        best, told = self.best, self.certificate()
        lines = [
            f"{best.words} on {plural(best.candidate.devices, 'device')}: {self.objective} {self.value(best):.6g} "
            f"({self.direction}) at {rate_words(self.rate_per_s)}"
        ]
        if self.unreached is not None:
            lines.insert(0, f"{UNREACHED}; of those that come nearest:")
        if self.share is not None:
            lines.append(f"a plan counts where {format_asked(self.share)} of requests meet every target")
        few = told["too_few_in_time"]
        late = f"; of {few:,} too few requests meet their targets" if few else ""
        lines.append(f"{legal}; {told['simulated']:,} simulated ({plural(self.runs, 'run')}){late}")
        if told["open"]:
            lines.append(
                f"{told['open']:,} left open, of which nothing is known: the effort was spent (--effort goes on)"
            )
        return lines

    def notes(self) -> list[str]:
        """Return nothing more."""
        return []

    def shown(self) -> list[PlanRow]:
        """Return the best plan and its ties, and the next ones."""
        answers = [self.best, *self.ties]
        others = [one for one in self.ranked if one not in answers][:NEXT]
        ranked = [*zip(answers, ["best", *["tie"] * len(self.ties)], strict=True), *((one, "next") for one in others)]
        return [
            PlanRow(standing=one, reached=(f"{self.value(one):.6g}",), row=one.row, rank=rank) for one, rank in ranked
        ]

    def certificate(self) -> dict[str, Any]:
        """Return what the answer rests on, and what remains uncertain."""
        fates = Counter(one.fate for one in self.standings)
        uncertain = ["each plan was simulated once, with one seed and the requests of the scenario"]
        if any(one.partitions > 1 for one in self.standings):
            uncertain.append(f"of the partitions of prompts over SP ranks {TYPICAL} stands for all")
        if fates["open"]:
            uncertain.append("of plans that were not simulated nothing is known")
        return {
            "legal": self.legal,
            "pruned": self.pruned,
            "simulated": fates["simulated"],
            "too_few_in_time": sum(one.why == NO_SHARE for one in self.standings),
            "open": fates["open"],
            "settled": not fates["open"],
            "failed": dict(Counter(one.why for one in self.standings if one.fate == "failed")),
            "runs": self.runs,
            "hypervolume": self.hypervolume(),
            "uncertain": uncertain,
        } | self.reached_share()


def is_number(value: object) -> bool:
    """Whether a value of a row is a number that plans can be compared by."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def rate_words(rate_per_s: float | None) -> str:
    """Return at which rate requests come, in words."""
    return "the rate that they have" if rate_per_s is None else f"{rate_per_s:,.4g} requests/s"


def tied(ranked: Sequence[Standing], value: Callable[[Standing], float]) -> list[Standing]:
    """Return the first of those that differ from the best by a tie at most."""
    near = abs(value(ranked[0])) * TIES
    return [one for one in ranked[1:FINALISTS] if abs(value(one) - value(ranked[0])) <= near]
