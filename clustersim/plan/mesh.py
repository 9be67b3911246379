"""The mesh of ranks (replica × stage × sp × tp) and the devices that they are placed on."""

from __future__ import annotations

from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Coordinates of ranks; global rank = ((replica·pp + stage)·sp + s)·tp + t, tp fastest."""

    plan: ParallelPlan

    def rank(self, *, replica: int = 0, stage: int = 0, s: int = 0, t: int = 0) -> int:
        """Return the global rank at these coordinates."""
        plan = self.plan
        return ((replica * plan.pp + stage) * plan.sp.degree + s) * plan.tp + t

    def stage_base(self, replica: int, stage: int) -> int:
        """Return the first global rank of a stage; its ranks are consecutive."""
        return self.rank(replica=replica, stage=stage)

    def device(self, rank: int) -> int:
        """Return the index of the device that a global rank is placed on."""
        placement = self.plan.placement
        return rank if placement is None else placement[rank]

    def stage_devices(self, replica: int, stage: int) -> tuple[int, ...]:
        """Return the devices of a stage's ranks, in rank order."""
        base = self.stage_base(replica, stage)
        return tuple(self.device(base + i) for i in range(self.plan.stage_ranks))

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """Return (replica, stage, s, t) of a global rank."""
        plan = self.plan
        rest, t = divmod(rank, plan.tp)
        rest, s = divmod(rest, plan.sp.degree)
        replica, stage = divmod(rest, plan.pp)
        return replica, stage, s, t
