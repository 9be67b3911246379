"""What became of each plan: pruned by a bound, screened by a run that fails, or simulated up to its capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Literal

from clustersim.search.plans.bounds.limits import UNBOUNDED, Bound
from clustersim.search.plans.deployments import Candidate
from clustersim.search.plans.grid import rate_of
from clustersim.search.point import Row
from clustersim.search.queue import share_of
from clustersim.values import dataclass

Fate = Literal["open", "pruned", "screened", "simulated", "failed"]  # open: its bound allows it to be the best

COARSE: Final = 3
FLATTERED: Final = "its bound is below what others reached in short runs, and above what they do at length"
"""Why a plan is open that was pruned for figures that did not last."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """A plan and what is known of it so far.

    Parameters
    ----------
    candidate : Candidate
    words : str
    bound : Bound
    alone : int or None
        Lowest step found at which one of its two pools by itself, or a plan with SP or stages, fails at the least times
        of its steps; None: unknown.
    looked : frozenset of int
        Which of its pools that is known of.
    is_paired : bool
        Whether that is known of both pools, one behind the other.
    same : int
        How many legal plans it stands for: those with fewer of the same replicas …
    partitions : int
        … times those with other partitions of prompts over SP ranks.
    fate : str
    why : str
        Why it is not the best one.
    passed, failed : int or None
        Highest step of the grid at which enough requests met their targets, and lowest at which not.
    row : Row or None
        Of the run at ``passed``; of the failing run where none passed.
    passing : dict
        Steps at which enough did → their rows.
    row_devices : int
        Devices that were simulated: of one replica, where that stands for all.
    """

    candidate: Candidate
    words: str
    bound: Bound = UNBOUNDED
    same: int = 1
    alone: int | None = None
    looked: frozenset[int] = frozenset()
    is_paired: bool = False
    partitions: int = 1
    fate: Fate = "open"
    why: str = ""
    passed: int | None = None
    failed: int | None = None
    row: Row | None = None
    passing: dict[int, Row] = field(default_factory=dict)
    row_devices: int = 1

    @property
    def numbers(self) -> Mapping[str, Any]:
        """Numbers of its row; none where it has no row."""
        return {} if self.row is None else self.row["numbers"]

    @property
    def share(self) -> float:
        """Share of all requests that meet every target in its row; 0 where it has no row."""
        return 0.0 if self.row is None else share_of(self.row)

    @property
    def replicas_per_run(self) -> float:
        """How many times as many requests come to the plan as to the replicas that were simulated."""
        return self.candidate.devices / self.row_devices

    @property
    def part(self) -> str:
        """Which replicas were simulated for all, in words; empty where all were."""
        times = round(self.replicas_per_run)
        if times == 1:
            return ""
        some, every = ([count // by for count in self.candidate.counts] for by in (times, 1))
        stand = "stands" if sum(some) == 1 else "stand"
        return f"{' + '.join(map(str, some))} of {' + '.join(map(str, every))} replicas {stand} for all"

    @property
    def is_plain(self) -> bool:
        """Whether it has one pool, without SP, stages and lockstep: what is simulated as soon as looked at."""
        return len(self.candidate.replicas) == 1 and all(
            one.plan.sp.degree == one.plan.pp == 1 and not one.plan.is_lockstep for one in self.candidate.replicas
        )

    @property
    def is_lockstep(self) -> bool:
        """Whether replicas take their steps together."""
        return any(one.plan.is_lockstep for one in self.candidate.replicas)

    @property
    def is_told(self) -> bool:
        """Whether it is known to a few steps what it reaches: of two pools, looked at together in lockstep."""
        told = self.is_known and self.alone is not None and len(self.candidate.replicas) > 1
        return told and (self.is_paired or not self.is_lockstep)

    @property
    def is_known(self) -> bool:
        """Whether each of its pools was looked at."""
        return self.looked.issuperset(range(len(self.candidate.replicas)))

    @property
    def apart(self) -> int:
        """Steps between the last two rates that are near enough: of two pools as many as tie."""
        return COARSE if len(self.candidate.replicas) > 1 else 1

    @property
    def most(self) -> float:
        """The most requests per second that are possible as far as is known."""
        steps = [step for step in (self.bound.step, self.failed) if step is not None]
        return rate_of(min(steps)) if steps else float("inf")

    @property
    def ceiling(self) -> int | None:
        """The step of the grid at which it is proven, or taken for granted, to fail; None where none is."""
        return min((step for step in (self.bound.step, self.alone) if step is not None), default=None)

    @property
    def failing(self) -> int | None:
        """The lowest step at which it is known to fail."""
        return min((step for step in (self.ceiling, self.failed) if step is not None), default=None)

    @property
    def highest(self) -> float:
        """The most requests per second that are possible, or taken to be."""
        return float("inf") if self.failing is None else rate_of(self.failing)

    @property
    def capacity(self) -> float | None:
        """The highest rate at which enough requests met their targets; None where none was looked for."""
        return None if self.passed is None else rate_of(self.passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPlan:
    """A plan that is told as the best, or as a tie.

    Parameters
    ----------
    standing : Standing
    value : float
        What it reaches …
    rate : float or None
        … at which rate; None: the scenario's.
    row : Row or None
        Of its run …
    is_whole : bool
        … and whether that was of all its replicas, also where one stands for all.
    shares : list of float
        Of requests that meet every target, with each seed; none where it ran with one.
    ran : float or None
        The rate of that run, which its command repeats.
    is_confirmed : bool
        Whether enough requests meet their targets there, in the run of all replicas with the scenario's own seed.
    is_cut : bool
        Whether there was no time to look on, so that it reaches at least that.
    """

    standing: Standing
    value: float
    rate: float | None
    row: Row | None
    is_whole: bool = False
    shares: Sequence[float] = ()
    ran: float | None = None
    is_confirmed: bool = False
    is_cut: bool = False
