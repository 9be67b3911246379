"""Where ranks are: pools of replicas with plans of their own, numbered one after the other.

Most runs have one pool. Global rank = first rank of the pool + ((replica − its first)·stages + stage)·sp·tp + local
rank.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Replicas that have one plan.

    Parameters
    ----------
    sp, tp, stages : int
    first_replica, first_rank : int
    lockstep : int
        Replicas that share each pass, which is recorded as of the first of them: those that share experts.
    """

    sp: int
    tp: int
    stages: int
    first_replica: int = 0
    first_rank: int = 0
    lockstep: int = 1

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.sp * self.tp

    @property
    def pass_ranks(self) -> int:
        """Ranks that one pass is recorded of."""
        return self.stage_ranks * self.lockstep

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica."""
        return self.stages * self.stage_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The pools of a run, in order of their replicas and ranks.

    Parameters
    ----------
    pools : tuple of PoolShape
        The first one begins at replica 0 and rank 0.
    """

    pools: tuple[PoolShape, ...]

    @classmethod
    def of_one(cls, *, sp: int, tp: int, stages: int) -> Layout:
        """Return the layout of a run whose replicas are all alike."""
        return cls(pools=(PoolShape(sp=sp, tp=tp, stages=stages),))

    @property
    def only(self) -> PoolShape:
        """The pool of a run that has one."""
        (pool,) = self.pools
        return pool

    def values(self, name: str) -> Int64Array:
        """Return an attribute of every pool, int64 of shape (pools,)."""
        return np.array([getattr(pool, name) for pool in self.pools], np.int64)

    def of_replica(self, replica: Int64Array) -> Int64Array:
        """Return the number of the pool of each replica."""
        found = np.searchsorted(self.values("first_replica"), replica, side="right") - 1
        return np.maximum(found, 0)

    def pool_of(self, replica: int) -> PoolShape:
        """Return the pool of a replica."""
        return next(pool for pool in reversed(self.pools) if replica >= pool.first_replica)

    def stage_base(self, replica: Int64Array, stage: Int64Array) -> Int64Array:
        """Return the first global rank of stages."""
        pool = self.of_replica(replica)
        local = replica.astype(np.int64) - self.values("first_replica")[pool]
        number = local * self.values("stages")[pool] + stage
        found: Int64Array = self.values("first_rank")[pool] + number * self.values("stage_ranks")[pool]
        return found

    def place_of(self, rank: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return replica and stage of global ranks."""
        pool = np.maximum(np.searchsorted(self.values("first_rank"), rank, side="right") - 1, 0)
        number = (rank - self.values("first_rank")[pool]) // self.values("stage_ranks")[pool]
        replica, stage = np.divmod(number, self.values("stages")[pool])
        return replica + self.values("first_replica")[pool], stage
