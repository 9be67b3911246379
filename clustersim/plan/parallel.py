"""The parallel plan: five degrees (TP × SP × PP × EP × DP) and how each splits its dimension.

A plan is plain data; whether it is legal for a model and a cluster is decided by ``clustersim.legality``.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from clustersim.plan.exchange import ExpertExchange
from clustersim.plan.routing import Routing
from clustersim.values import dataclass

EmbeddingSplit = Literal["vocab", "hidden"]
LinearSplit = Literal["columns", "rows"]
SequenceScheme = Literal["all_gather", "ring", "all_to_all"]
SequencePartition = Literal["contiguous", "zigzag", "striped"]
SequenceDecode = Literal["idle", "dp"]
ExpertScope = Literal["replica", "global"]
ExpertOverlap = Literal["none", "two_batch"]
DispatchFormat = Literal["fp8", "bf16", "fp16", "fp32"]
DecodeOverlap = Literal["per_sequence", "none"]
ModuleKind = Literal["attention", "ffn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit:
    """Which dimension of each linear operator TP splits (the rest follows: attention by heads).

    ``columns`` splits the output dimension, ``rows`` the input dimension; the defaults are the pairing of Shoeybi
    et al. (2019), "Megatron-LM", section 3: one reduction per attention and one per FFN.
    """

    embedding: EmbeddingSplit = "vocab"
    attention_out: LinearSplit = "rows"
    ffn_up: LinearSplit = "columns"
    ffn_down: LinearSplit = "rows"
    lm_head: EmbeddingSplit = "vocab"


@dataclass(frozen=True, slots=True, kw_only=True)
class SequencePlan:
    """How the tokens of one prompt are split over ranks in prefill, and what those ranks do in decode.

    Parameters
    ----------
    degree : int
        Number of SP ranks.
    scheme : str or None
        How K/V is exposed at attention: ``all_gather``, ``ring`` or ``all_to_all`` (by heads).
    partition : str or None
        ``contiguous`` segments, ``zigzag`` (rank r takes segments r and 2·sp−1−r of 2·sp), or ``striped`` (rank r
        takes tokens r, r + sp, r + 2·sp … of a chunk).
    decode : str or None
        ``idle`` (SP rank 0 decodes) or ``dp`` (whole sequences spread over the SP ranks).
    whole : bool
        Whether prompts are not split either: the coordinates are replicas that share their experts
        (:attr:`ParallelPlan.lockstep`).
    """

    degree: int = 1
    scheme: SequenceScheme | None = None
    partition: SequencePartition | None = None
    decode: SequenceDecode | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlan:
    """On which EP rank each expert lives, and how often it is visited.

    ``placement`` is ``contiguous`` (experts 0…E/ep−1 on EP rank 0, and so on), ``strided`` (expert e on rank e mod
    ep), or the EP rank of each expert. ``routing`` says how often experts are visited; None: all alike. With
    ``redundant`` further copies, experts are placed by their visits (``clustersim.plan.experts``). With ``overlap``
    ``two_batch`` a step that can be split runs as two halves, one of which computes while the other one's tokens are
    dispatched or combined (``clustersim.graph.passes.two_batch``), from ``overlap_decode_tokens`` new tokens on where
    all of them decode, else from ``overlap_prefill_tokens`` on.
    ``exchange`` says how tokens get to their experts and back (:mod:`clustersim.plan.exchange`), ``dispatch`` in which
    format DeepEP brings them there; None: fp8 where weights are multiplied in it, else that of activations. With
    ``exchange_by_engine`` nobody asked for that exchange: it follows the plan (:meth:`ParallelPlan.settled`).
    """

    degree: int = 1
    scope: ExpertScope = "replica"
    placement: Literal["contiguous", "strided"] | tuple[int, ...] = "contiguous"
    routing: Routing | None = None
    redundant: int = 0
    overlap: ExpertOverlap = "none"
    overlap_decode_tokens: int = 0
    overlap_prefill_tokens: int = 0
    exchange: ExpertExchange = "all_to_all"
    dispatch: DispatchFormat | None = None
    exchange_by_engine: bool = field(default=False, compare=False)

    @property
    def sends(self) -> bool:
        """Whether tokens go to the ranks of their experts, and do not stay on ranks that have them all."""
        return self.degree > 1 and self.exchange != "all_reduce"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cut:
    """A stage starts at this module: before the attention, or between attention and FFN/MoE, of ``layer``."""

    layer: int
    before: ModuleKind = "attention"

    def __str__(self) -> str:
        return f"{self.layer}.{self.before}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Degrees of the five primitives, stage cuts and placement of one deployment.

    Parameters
    ----------
    dp, pp, tp : int
        Replicas; stages of a replica; ranks that share each layer's tensors.
    split : TensorSplit
        Which dimension TP splits.
    sp : SequencePlan
        Sequence parallelism in prefill.
    ep : ExpertPlan
        Expert parallelism of the MoE modules.
    stages : tuple of Cut or None (balanced)
        Where stages 1 … pp−1 begin; ``None`` balances the layers.
    placement : tuple of int or None
        Device index of each global rank; ``None`` packs ranks onto devices 0, 1, 2, …
    decode_overlap : str
        ``per_sequence`` lets disjoint micro-batches fill the stages, ``none`` keeps one decode step in flight.
    devices : int or None
        How many devices the plan states to use (rule DP-1); ``None``: as many as it has ranks.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    split: TensorSplit = field(default_factory=TensorSplit)
    sp: SequencePlan = field(default_factory=SequencePlan)
    ep: ExpertPlan = field(default_factory=ExpertPlan)
    stages: tuple[Cut, ...] | None = None
    placement: tuple[int, ...] | None = None
    decode_overlap: DecodeOverlap = "per_sequence"
    devices: int | None = None

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage of one replica (sp × tp)."""
        return self.sp.degree * self.tp

    @property
    def replica_ranks(self) -> int:
        """Ranks of one replica (pp × sp × tp)."""
        return self.pp * self.stage_ranks

    @property
    def world(self) -> int:
        """Ranks of the whole deployment (dp × pp × sp × tp)."""
        return self.dp * self.replica_ranks

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert's tensors: tp when there is no EP, else the ranks that it spans / ep."""
        ranks = self.stage_ranks * (self.dp if self.is_lockstep else 1)
        return self.tp if self.ep.degree == 1 else ranks // self.ep.degree

    @property
    def has_experts_within(self) -> bool:
        """Whether experts are spread inside TP groups, whose ranks have all tokens, with nothing to hide."""
        alone = self.sp.degree == 1 and not self.is_lockstep and self.ep.overlap == "none"
        return alone and self.ep.degree > 1 and self.tp % self.ep.degree == 0

    def settled(self) -> ParallelPlan:
        """Return the plan with an exchange that it can have, where nobody asked for one."""
        stays = self.ep.exchange == "all_reduce" and self.has_experts_within
        gathers = self.ep.exchange == "all_gather" and (self.ep.degree == 1 or self.expert_tp == 1)
        if not self.ep.exchange_by_engine or stays or gathers or self.ep.exchange not in ("all_reduce", "all_gather"):
            return self
        return replace(self, ep=replace(self.ep, exchange="all_to_all"))

    @property
    def is_two_batch(self) -> bool:
        """Whether steps that can be split run as two halves that overlap."""
        return self.ep.overlap == "two_batch" and self.ep.degree > 1

    @property
    def is_lockstep(self) -> bool:
        """Whether the replicas share their experts, and so take every step together (EP over all ranks, DP > 1)."""
        return self.ep.scope == "global" and self.ep.degree > 1 and self.dp > 1

    @property
    def lockstep(self) -> ParallelPlan:
        """What runs as one: the plan itself, or all replicas that share experts as coordinates of a single one.

        Ranks keep their numbers where there is one stage and no SP, as rule EP-1 has it for such experts.
        """
        if not self.is_lockstep:
            return self
        together = SequencePlan(degree=self.dp, decode="dp", whole=True)
        return replace(self, dp=1, sp=together, ep=replace(self.ep, scope="replica"))
