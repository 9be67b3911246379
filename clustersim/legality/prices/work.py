"""What one operator does on one rank: its kernel or collective, its shape, and how much by what a step has.

Amounts are linear in the features of a step (``features``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from clustersim.legality.formats import BYTES
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

Terms = Mapping[str, float]
"""Feature of a step → how much of the amount it brings."""

HOST: Final = ("schedule", "sample")
INCLUDED: Final = ("dispatch", "combine", "expert_act", "aggregate")
"""Work in memory whose time is in the constants of the grouped products."""
FUSED: Final = ("attention_add", "ffn_add", "moe_add", "shared_add")
"""Work in memory that runs inside a neighbour's kernel: it takes its bytes, and neither a floor nor a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operator does.

    Parameters
    ----------
    op : str
        Kind of kernel or collective, ``schedule`` or ``sample``.
    amount, least : mapping
        Rows, bytes or payload: the larger of two linear forms.
    shape : mapping
        What of its shape no step changes.
    shares : tuple of float
        Of experts that are visited unevenly, the share of tokens that visit each.
    pairs, keys : str
        Features that attention reads besides.
    fused, included : bool
    weights : str
        Format of the weights that a product reads.
    exchange : Exchange or None
        How DeepEP does an all-to-all between experts.
    """

    op: str
    amount: Terms
    least: Terms = field(default_factory=dict)
    shape: Mapping[str, float] = field(default_factory=dict)
    shares: tuple[float, ...] = ()
    pairs: str = ""
    keys: str = ""
    fused: bool = False
    included: bool = False
    weights: str = ""
    exchange: Exchange | None = None

    @property
    def joins_by(self) -> str | Exchange:
        """What tells its algorithms: its kind, or DeepEP's way."""
        return self.exchange or self.op

    @property
    def features(self) -> set[str]:
        """What of a step it depends on."""
        return {*self.amount, *self.least, self.pairs, self.keys} - {""}

    def of_half(self, half: int) -> Work:
        """Return the same of one half of a step."""

        def own(terms: Terms) -> Terms:
            return {f"{name}~{half}": value for name, value in terms.items()}

        pairs, keys = (f"{name}~{half}" if name else "" for name in (self.pairs, self.keys))
        return replace(self, amount=own(self.amount), least=own(self.least), pairs=pairs, keys=keys)


class Parts:
    """What operators of a plan are made of: work in memory, and products whose matrices TP splits.

    Parameters
    ----------
    deployment : PricedDeployment
    """

    def __init__(self, deployment: PricedDeployment) -> None:
        self.deployment = deployment
        self.plan, self.split = deployment.plan, deployment.plan.split
        self.hidden, self.vocab, self.tp = deployment.model.hidden, deployment.model.vocab, deployment.plan.tp
        self.act, self.kv = BYTES[deployment.precision.activations], BYTES[deployment.precision.kv_cache]

    def memory(self, name: str, elements: float, feature: str = "tokens") -> Work:
        """Return an operator that reads and writes so many elements for each token, or other feature."""
        return Work(op="memory", amount={feature: elements * self.act}, fused=name in FUSED, included=name in INCLUDED)

    def gemm(self, n: float, k: float, rows: str = "tokens") -> Work:
        """Return a product with a matrix of k × n."""
        return Work(op="gemm", amount={rows: 1.0}, shape={"n": n, "k": k})

    def linear(self, n: int, k: int, *, columns: bool, rows: str = "tokens") -> Work:
        """Return a product whose output or input dimension TP splits."""
        return self.gemm(n // self.tp, k, rows) if columns else self.gemm(n, k // self.tp, rows)
