"""What a scenario declares that bears on what operators cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from clustersim.clock import FloatArray
from clustersim.cluster.topology import Topology
from clustersim.cost.engine import Engine
from clustersim.cost.precision import Precision
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured points of an operator: number format and device, or None, its shape, and what each one took."""

    op: str
    dtype: str | None
    device: str | None = None
    shape: Mapping[str, FloatArray]
    seconds: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedDeployment:
    """What the replicas of one pool run, and on what.

    Parameters
    ----------
    model : ModelSpec
    plan : ParallelPlan
    precision : Precision
        Names of number formats.
    engine : Engine
        Gaps before kernels, and host time.
    topology : Topology
        ``device`` is of the kind that the pool runs on.
    collectives : mapping
        Kind of collective → name of its algorithm, where one is named.
    points : tuple of Measured
        Of the table of measured points; empty where there is none.
    """

    model: ModelSpec
    plan: ParallelPlan
    precision: Precision
    engine: Engine
    topology: Topology
    collectives: Mapping[str, str] = field(default_factory=dict)
    points: tuple[Measured, ...] = ()

    @property
    def together(self) -> bool:
        """Whether all replicas take each step together, since they share their experts."""
        return self.plan.ep.scope == "global" and self.plan.ep.degree > 1 and self.plan.dp > 1

    @property
    def coordinates(self) -> int:
        """SP ranks of a pass, or the replicas that take it together."""
        return self.plan.dp if self.together else self.plan.sp.degree

    @property
    def splits(self) -> bool:
        """Whether the tokens of a prompt are split over ranks."""
        return not self.together and self.plan.sp.degree > 1

    @property
    def spreads(self) -> bool:
        """Whether the sequences of a step decode on all SP ranks, each on the one that keeps it."""
        return self.splits and self.plan.sp.decode == "dp"

    @property
    def expert_tp(self) -> int:
        """Ranks that share the tensors of one expert."""
        plan = self.plan
        return plan.tp if plan.ep.degree == 1 else self.coordinates * plan.tp // plan.ep.degree

    @property
    def windows(self) -> tuple[int, ...]:
        """Distinct sliding windows."""
        found = {layer.attention.sliding_window for layer in self.model.layers} - {None}
        return tuple(sorted(window for window in found if window is not None))

    @property
    def multiplied_in(self) -> str:
        """Format in which weights are multiplied: their own where the device can, else that of activations."""
        if self.precision.multiply is not None:
            return self.precision.multiply
        weights = self.precision.weights.partition("-")[0]
        weights = "fp4" if weights == "mxfp4" else weights
        return weights if weights in self.topology.device.flops else self.precision.activations

    def moe_layers_before(self, layer: int) -> int:
        """Return how many layers before one have experts."""
        return sum(isinstance(one.ffn, Moe) for one in self.model.layers[:layer])
