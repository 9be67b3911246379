"""What a search found, as plain data: the front, the best plan and its ties, why others lost, and the certificate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from clustersim.search.plans.deployments import Candidate
from clustersim.search.plans.finals import KEPT, TIES, Finalist, is_settled
from clustersim.search.plans.front.points import Point
from clustersim.search.plans.front.runs import FrontRuns
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.outcome import FLATTERED, RankedPlan, Standing
from clustersim.search.plans.space import TYPICAL
from clustersim.search.plans.standings import NEXT, REPRESENTED, UNREACHED, PlanRow, Standings, metrics
from clustersim.search.queue import lowered
from clustersim.search.tried import SERVED
from clustersim.units import format_asked, format_share, plural
from clustersim.values import dataclass

_TAIL: Final = 0.98
"""Share from which few requests decide: of 1,600 one in a hundred (Qwen3-32B on 8 H100: 16.1 to 18.9/s by the seed)."""
UNITS: Final = {
    "capacity_per_device": "requests/s per device",
    "capacity_per_usd": "requests/s per USD/h",
    "capacity": "requests/s",
}
"""Of what plans are best in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Standings):
    """A finished search.

    Parameters
    ----------
    finalists : sequence of Finalist
        Best first.
    worth : callable
        What a request per second is worth on a plan.
    load : callable
        What makes requests come to a plan at a rate, as many as in a short run or a long one, as ``--set`` takes it.
    filled : FrontRuns or None
        What was simulated for the front.
    shorter : int
        Plans that tie with the best in short runs, and for whose long runs there was no time.
    told : dict or None
        The certificate of the answer, which runs for the front leave as it is.
    recorded, part : int or None
        Requests of the trace, and how many of them are played again and again; None where requests are drawn.
    """

    finalists: Sequence[Finalist]
    worth: Callable[[Standing], float]
    load: Callable[[Candidate, float, bool], tuple[str, ...]]
    filled: FrontRuns | None = None
    shorter: int = 0
    told: dict[str, Any] | None = None
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
            RankedPlan(
                standing=one.standing,
                value=self.value(one),
                rate=one.capacity,
                row=one.whole or one.row,
                is_whole=one.whole is not None,
                shares=one.shares,
                ran=one.rate,
                is_confirmed=one.is_confirmed,
                is_cut=one.is_cut,
            )
            for one in (self.best, *self.ties)
        ]

    def rate_at(self, point: Point) -> float:
        """Return the rate of a run."""
        return rate_of(point.step)

    def rated(self, one: Standing, rate: float | None) -> tuple[str, ...]:
        """Return what makes requests come to a plan at a rate, as many as its run had: a finalist's at length."""
        return () if rate is None else self.load(one.candidate, rate, self.is_at_length(one, rate))

    def is_at_length(self, one: Standing, rate: float | None) -> bool:
        """Whether a run of a plan at a rate is one at length."""
        return any(final.standing is one and rate in (final.capacity, final.rate) for final in self.finalists)

    def capacity_of(self, one: Standing) -> float | None:
        """Return the rate that a plan reaches at length; None where it has no such run."""
        return next((final.capacity for final in self.finalists if final.standing is one), None)

    @property
    def settled(self) -> bool:
        """Whether no plan that is left open can be better than the best by more than a tie."""
        return is_settled(self.standings, self.worth, self.value(self.best))

    def _repeated(self) -> list[str]:
        """Return what is to be known of a trace that is played again and again."""
        if self.part is None:
            return []
        left = "" if self.recorded == self.part else f", never the last {(self.recorded or 0) - self.part:,}"
        told = [
            f"runs of more requests than the trace has ({self.recorded:,}) play its first {self.part:,} again and "
            f"again{left}: dealt out in turn, each of fewer than {self.part:,} replicas gets all of them; of another "
            "number, such as an even one for 2 replicas, each would get the same part every time"
        ]
        if any(len(one.candidate.counts) == 1 and one.candidate.counts[0] >= self.part for one in self.standings):
            told.append(f"of {self.part:,} replicas and more, as many as that repeats, none stands for the others")
        return told

    def certificate(self) -> dict[str, Any]:
        """Return what the answer rests on, and what remains uncertain."""
        front = None if self.filled is None else asdict(self.filled)
        beside = {"runs": self.runs, "hypervolume": self.hypervolume(), "front": front}
        beside |= self.reached_share()
        if self.told is not None:
            return self.told | beside
        fates = Counter(one.fate for one in self.standings)
        why = Counter(one.why for one in self.standings if one.fate == "failed")
        lost = [one for one in self.standings if one.fate == "pruned" and one.why == "most requests per second"]
        nearest = max((one.most * self.worth(one) for one in lost), default=None)
        screened = [one for one in self.standings if one.fate == "screened"]
        opened = [one.highest * self.worth(one) for one in self.standings if one.fate == "open"]
        bounded = [value for value in opened if math.isfinite(value)]
        failing = [rate_of(one.failed) * self.worth(one) for one in screened if one.failed is not None]
        by = "9 to 17" if (self.share or 0.0) >= _TAIL else "3 to 5"
        uncertain = [
            "capacities are found with one seed and runs of the length asked for; those of the finalists at length; "
            f"other requests, or another seed, change them by {by} %: leave a margin",
            "between rates that were tried, more requests are taken to be served no better",
        ]
        if any(one.row_devices < one.candidate.devices for one in self.standings):
            uncertain.append(
                "where requests are dealt out in turn one replica stands for all (measured: within 4 % at "
                "length; in runs of some 40 requests a replica up to 16 % of tokens/s, and shares and p99 by more, as "
                "front-*.yaml, which run all, show), and of two pools the smallest numbers in their ratio do; commands "
                "run all of them"
            )
        if self.shorter:
            uncertain.append(
                f"for {plural(self.shorter, 'plan')} that tied in short runs there was no time for long ones"
            )
        if cut := [one for one in self.finalists if one.is_cut]:
            which = ", the best one among them," if self.best.is_cut else ""
            uncertain.append(
                f"for {plural(len(cut), 'finalist')}{which} there was no time to look on at length: "
                "they reach at least what is told (more --effort tells)"
            )
        uncertain += self._repeated()
        if any("alone" in one.numbers for one in screened):
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
            "nearest_open": max(bounded, default=None) if len(bounded) == len(opened) else None,
            "unbounded": len(opened) - len(bounded),
            "settled": self.settled,
            "failed": dict(why),
            **beside,
            "finalists": [
                {
                    "plan": one.standing.words,
                    "per_s": one.capacity,
                    "value": self.value(one),
                    "shares": one.shares,
                    "fails_at_per_s": None if one.failed is None else rate_of(one.failed),
                    "is_cut": one.is_cut,
                }
                for one in self.finalists
            ],
            "uncertain": uncertain,
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """What plans reach."""
        return "arriving /s", self.objective.replace("_", " "), "of the best"

    @property
    def next_words(self) -> str:
        """What is to be known of those behind the best ones."""
        most = "; the best may do more at length" if self.best.is_cut else ", and at most at length"
        return f"found in shorter runs, which flatter; of the best: that in runs as short{most}"

    def head(self, legal: str) -> list[str]:
        """Return the best plan, how many were screened and simulated, and what is open."""
        best, told, noun = self.best, self.certificate(), self.objective.replace("_", " ")
        on = plural(best.standing.candidate.devices, "device")
        assert self.share is not None
        fails = "a run or a look that fails" if told["looked_at"] else "a run that fails"
        shares, part = ", ".join(format_share(one) for one in best.shares), best.standing.part
        each, beside = f"{shares} did", [part] if part else []
        if len(best.shares) > 1:
            beside = [f"{shares}, a seed each", part or "the command has the first"]
            each = f"{format_share(math.fsum(best.shares) / len(best.shares))} did in the mean"
        each += f" ({'; '.join(beside)})" if beside else ""
        if best.shares and best.shares[0] < self.share:
            each += "; too few with the first, which the command has"
        reached = f"{'at least ' * best.is_cut}{best.capacity:g}"
        lines = [
            f"{best.standing.words} on {on}: {reached} requests/s arriving ({noun} {self.value(best):.4g})"
            f"{self.confirmed_words()}",
            f"a rate counts where {format_asked(self.share)} of requests meet every target: {each}",
            f"{legal}; {told['screened']:,} screened by {fails}; {told['simulated']:,} simulated "
            f"({plural(self.runs, 'run')})",
        ]
        if self.best.is_cut:
            lines.append("no effort was left to look on at length: it may reach more (more --effort tells)")
        if told["open"]:
            among = ", the best one among them, since it was not tried higher" if best.standing.fate == "open" else ""
            lines.append(
                f"{told['open']:,} left open{among}, {most_open(told, UNITS[self.objective])}, {left_for(told)}"
            )
        if self.unreached is not None:
            less = f"what {format_asked(self.share)} allows" if lowered(self.share) else "the nearest, one by one"
            lines.insert(0, f"{UNREACHED}; {less}:")
        return lines

    def notes(self) -> list[str]:
        """Return what was done for the front, and what the command gives."""
        lines = [] if self.filled is None else [f"front    {self.front_words()}"]
        lines += [f"whole    {whole}"] if (whole := self.whole_words()) else []
        best = self.answers()[0]
        served = metrics(best.standing, best.row, is_whole=best.is_whole).get("throughput.requests_per_s")
        return lines if served is None else [*lines, f"served   {served:.6g} requests/s: {SERVED}"]

    def whole_words(self) -> str:
        """Return what the command of the best plan gives; empty where that is what its shares say."""
        best, row = self.best, self.best.whole or self.best.row
        part, is_lower = best.standing.part, best.rate < best.capacity
        if row is None or (best.is_confirmed and not part and not is_lower):
            return ""
        every = plural(sum(best.standing.candidate.counts), "replica")
        if part and best.whole is None and best.shares[0] >= (self.share or 0.0):
            differs = "what the command gives may differ a little (more --effort runs them)"
            return f"all {every} were not run together: {differs}"
        found = row["numbers"]
        each = {"TTFT": found.get("ttft_ms.p99"), "TPOT": found.get("tpot_ms.p99")}
        p99 = "".join(f", {name} p99 {value:,.1f} ms" for name, value in each.items() if value is not None)
        all_of = f"all {every} together, as the command runs them, let"
        who = "the seed that the command has lets" if best.whole is None else all_of
        share = format_share(found["goodput.share"])
        lower = (
            f"confirmed at {best.rate:g} requests/s, {1.0 - best.rate / best.capacity:.1%} less: " if is_lower else ""
        )
        told = f"{lower}{who} {share} meet every target{p99}"
        if not best.is_confirmed:
            return f"NOT CONFIRMED: {told}, too few (more --effort looks for what it bears)"
        return f"{told}; {'the mean over seeds bears more' if is_lower else 'a part stood for them'}"

    def confirmed_words(self) -> str:
        """Return in short what the command of the best plan bears; empty where that is what the plan does."""
        best = self.best
        if best.is_confirmed:
            return f"; {best.rate:g} requests/s as its command runs it" if best.rate < best.capacity else ""
        return "; not confirmed by a run of its command"

    def shown(self) -> list[PlanRow]:
        """Return the finalists, and the best of the others, as they did in short runs."""
        finalists = {id(one.standing) for one in self.finalists}
        others = [one for one in self.standings if one.capacity is not None and id(one) not in finalists]
        others.sort(key=lambda one: -(one.capacity or 0.0) * self.worth(one))
        ties, is_least = {id(one) for one in self.ties}, self.best.is_cut
        ranked = [
            (one.standing, one.capacity, one.row, rank, one.is_cut)
            for one in self.finalists
            for rank in ["best" if one is self.best else "tie" if id(one) in ties else ""]
        ]
        ranked += [(one, one.capacity or 0.0, one.row, "next", False) for one in others[:NEXT]]
        rows = []
        for one, rate, row, rank, is_cut in ranked:
            value, least = rate * self.worth(one), "≥" * is_cut
            sign = "" if is_cut == is_least else least or "≤"
            of_it = self.short_share(one) if rank == "next" else sign + format_share(self._of_value(value))
            told = f"{least}{rate:g}", f"{least}{value:.4g}", of_it
            rows.append(PlanRow(standing=one, reached=told, row=row, rank=rank))
        return rows

    def _of_value(self, value: float) -> float:
        return value / (self.value(self.best) or 1.0)

    def short_share(self, one: Standing) -> str:
        """Return what a plan reaches in short runs: of what the best one does in runs as short, and does at length."""
        best, value = self.best.standing, (one.capacity or 0.0) * self.worth(one)
        short, most = value / ((best.capacity or math.inf) * self.worth(best)), self._of_value(value)
        shares = (short,) if self.best.is_cut else (min(most, short), most)
        return "–".join(dict.fromkeys(map(format_share, shares)))

    def front_words(self) -> str:
        """Return what was done for the front, what is left, and what is possible."""
        told = self.filled
        assert told is not None
        lines = [
            f"{plural(told.plans, 'plan')} more simulated, {plural(told.lower, 'run')} at lower rates",
        ]
        if told.spent:
            lines.append("its effort was spent: a longer --effort goes on")
        if told.most is not None and told.together is not None:
            lines.append(
                f"no other run of those looked at is expected to add more than {told.most:.1%} to its area, and all "
                f"together {told.together:.1%}, which is no proof"
            )
        if told.unknown:
            lines.append(f"of {plural(told.unknown, 'plan')} nothing is known")
        if told.possible is not None:
            lines.append(
                f"the area is {self.hypervolume() / told.possible:.0%} of what is proven to be possible at most"
            )
        return "; ".join(lines)


def most_open(told: Mapping[str, Any], unit: str) -> str:
    """Return what plans that are open reach at most, as a certificate tells; behind a number of them."""
    if told["nearest_open"] is None:
        return f"of which {told['unbounded']:,} were not bounded: what they reach is not known"
    share = told["nearest_open"] / (told["finalists"][0]["value"] or math.inf)
    tie = " (a tie with the best)" if share >= 1.0 - TIES else f" ({share:.1%} of the best)"
    least = tie if told["settled"] else ""
    return f"which reach {told['nearest_open']:.4g} {unit} at most by bounds and looks{least}"


def left_for(told: Mapping[str, Any]) -> str:
    """Return why plans are open, as a certificate tells."""
    short = "short runs flattered those that they were held against (a higher --lasting tells)"
    some = f", and {told['flattered']:,} of them since {short}"
    if told["flattered"] == told["open"]:
        return f"since {short}"
    return f"since too little of the effort is left for them (more --effort goes on){some if told['flattered'] else ''}"
