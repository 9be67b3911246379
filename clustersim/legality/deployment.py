"""What the rules of level P look at: a plan with its model, devices, number formats and serving limits."""

from __future__ import annotations

from dataclasses import field
from math import gcd, isqrt

from clustersim.cost.precision import Precision
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.pool import PoolRule
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLimits:
    """What serving asks of device memory.

    Parameters
    ----------
    kv_block_tokens : int
        Tokens per K/V block.
    memory_utilization : float
        Share of device memory, in (0, 1], of which the engine's rule for its pool says what it holds.
    max_batch_tokens, max_batch_requests : int
        The largest batch, which sizes the buffers.
    kv_blocks : int or None
        Blocks of the K/V pool; None: as many as fit, at least one.
    """

    kv_block_tokens: int = 16
    memory_utilization: float = 0.90
    max_batch_tokens: int = 8192
    max_batch_requests: int = 256
    kv_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A plan and all that decides whether it is legal.

    Parameters
    ----------
    plan, model, precision, limits
        As in the scenario.
    num_devices : int
        Devices of the topology.
    memory_bytes : int
        Memory of each.
    pool : PoolRule
        What the engine takes the K/V pool to be a share of.
    cluster : str
        Name of the topology, for messages.
    decodes_only : bool
        Whether it is a pool that goes on with prompts that another one has prefilled.
    """

    plan: ParallelPlan
    model: ModelSpec
    num_devices: int
    memory_bytes: int
    precision: Precision = field(default_factory=Precision)
    limits: ServingLimits = field(default_factory=ServingLimits)
    pool: PoolRule = field(default_factory=PoolRule)
    cluster: str = "the cluster"
    decodes_only: bool = False

    @property
    def moes(self) -> tuple[Moe, ...]:
        """The distinct kinds of MoE modules."""
        return tuple(dict.fromkeys(layer.ffn for layer in self.model.layers if isinstance(layer.ffn, Moe)))

    @property
    def expert_ranks(self) -> int:
        """Ranks that the experts of a layer are spread over when ep > 1."""
        plan = self.plan
        return plan.sp.degree * plan.tp * (plan.dp if plan.ep.scope == "global" else 1)

    @property
    def expert_degrees(self) -> list[int]:
        """The degrees of EP that divide the experts of every layer and the ranks."""
        return divisors(gcd(*(moe.num_experts for moe in self.moes), self.expert_ranks)) if self.moes else [1]

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert's tensors; 1 where ep exceeds the ranks (EP-1 speaks of that)."""
        return self.plan.tp if self.plan.ep.degree == 1 else max(1, self.expert_ranks // self.plan.ep.degree)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 cut``, ``2,000 cuts``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def either(choices: list[str]) -> str:
    """Join choices as people do: ``1, 2 or 4``."""
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def divisors(number: int) -> list[int]:
    """Return every divisor of a positive number, ascending."""
    small = [candidate for candidate in range(1, isqrt(number) + 1) if number % candidate == 0]
    return sorted({*small, *(number // divisor for divisor in small)})
