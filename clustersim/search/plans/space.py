"""Every legal plan of one replica on some devices: TP × SP × PP × EP, told by closed forms that agree with level P.

What the rules of level P look at is decided here by the numbers of the model alone, so that thousands of plans take
milliseconds; plans that are simulated at last are checked by the rules themselves. Stages are balanced; which ranks are
where is packed. Not enumerated: other stage cuts, other splits of TP, placements of ranks or experts by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Final

from clustersim.legality.deployment import Deployment, divisors
from clustersim.legality.plan_rules.tensor import head_divisors, splits_of
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.built import built_schemes, unbuilt
from clustersim.plan.parallel import ExpertPlan, ParallelPlan, SequenceDecode, SequencePartition, SequencePlan
from clustersim.scenario.build.plan import as_the_engine
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import deployment_of, memory_blocks
from clustersim.values import dataclass

PARTITIONS: Final[tuple[SequencePartition, ...]] = ("contiguous", "zigzag", "striped")
TYPICAL: Final[SequencePartition] = "zigzag"
"""The partition that stands for others: the one that shares causal attention evenly."""
DECODES: Final[tuple[SequenceDecode, ...]] = ("idle", "dp")


@dataclass(frozen=True, kw_only=True, eq=False)
class Replica:
    """A plan of one replica (of all that share experts, where they do), and what it has room for.

    Each is made once, and compared by identity: hundreds of thousands of pairs are looked up by them.

    Parameters
    ----------
    plan : ParallelPlan
    kind : str or None
        Kind of its devices, where the topology has several.
    kv_blocks : int
        Blocks of each K/V pool.
    """

    plan: ParallelPlan
    kind: str | None
    kv_blocks: int

    @cached_property
    def devices(self) -> int:
        """Devices of one of it."""
        return self.plan.world

    def times(self, count: int) -> ParallelPlan:
        """Return the plan of so many of it, packed."""
        return replace(self.plan, dp=self.plan.dp * count)


@dataclass(slots=True, kw_only=True)
class Refused:
    """How many plans each rule (or engine) leaves out, the first one of each, and why, where that is told."""

    counts: Counter[str] = field(default_factory=Counter)
    example: dict[str, ParallelPlan] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def add(self, rule: str, plan: ParallelPlan, why: str = "") -> None:
        """Count a plan that a rule refuses."""
        self.counts[rule] += 1
        self.example.setdefault(rule, plan)
        self.why.setdefault(rule, why)


def replicas(
    scenario: Scenario,
    devices: int,
    kind: str | None,
    refused: Refused,
    partitions: Sequence[SequencePartition] = PARTITIONS,
) -> list[Replica]:
    """Return every legal plan of one replica on at most so many devices.

    Parameters
    ----------
    scenario : Scenario
        Of one pool; its plan says everything that is not enumerated. A pool that only decodes has no SP.
    devices : int
    kind : str or None
    refused : Refused
        Where plans are counted that are not legal.
    partitions : sequence of str
        Of prompts over SP ranks: no rule of level P tells one from another.
    """
    found = []
    blocks: dict[object, int] = {}
    for plan in _plans(scenario, devices, refused, partitions):
        memory = plan.tp, plan.pp, plan.sp.degree > 1, plan.ep.degree, plan.ep.scope, plan.is_lockstep and plan.dp
        if memory not in blocks:
            blocks[memory] = _blocks(scenario.with_entry(plan=plan))
        if blocks[memory] < 1:
            refused.add("KV-6", plan)
        else:
            found.append(Replica(plan=plan, kind=kind, kv_blocks=blocks[memory]))
    return found


def _blocks(scenario: Scenario) -> int:
    """Return the blocks of a K/V pool, as asked for or what memory leaves; 0 where it has no room for so many."""
    asked, held = scenario.serving.kv_blocks, memory_blocks(scenario)
    return 0 if held < (asked or 1) else asked or held


def _plans(
    scenario: Scenario, devices: int, refused: Refused, partitions: Sequence[SequencePartition]
) -> Iterator[ParallelPlan]:
    """Yield plans whose dimensions divide, whatever they take in memory."""
    model, base = scenario.model, scenario.plan
    known: dict[object, str | None] = {}
    for tp in divisors_up_to(scenario, devices):
        for pp in range(1, min(devices // tp, len(model.layers)) + 1):
            for sp in _sequences(scenario, tp, devices // (tp * pp), partitions):
                ranks = sp.degree * tp
                for degree, dp in _experts(model, ranks, devices // (pp * ranks) if pp == sp.degree == 1 else 1):
                    ep = ExpertPlan()
                    if degree > 1:
                        ep = replace(base.ep, degree=degree, scope="global" if dp > 1 else "replica")
                    plan = replace(base, tp=tp, pp=pp, sp=sp, ep=ep, dp=dp, stages=None, placement=None, devices=None)
                    plan = as_the_engine(plan, scenario.engine).settled()
                    split = tp, degree, ep.scope, dp, sp.degree if degree > 1 else 1
                    if split not in known:
                        known[split] = _broken(scenario, plan)
                    rule = known[split] or (None if unbuilt(plan, model) is None else "not built")
                    if rule is None:
                        yield plan
                    else:
                        refused.add(rule, plan)


def divisors_up_to(scenario: Scenario, devices: int) -> list[int]:
    """Return the degrees of TP that divide the heads of all layers."""
    return [tp for tp in head_divisors(deployment_of(scenario)) if tp <= devices]


def _sequences(
    scenario: Scenario, tp: int, most: int, partitions: Sequence[SequencePartition]
) -> Iterator[SequencePlan]:
    yield SequencePlan()
    if scenario.decodes_only:
        return
    for degree in range(2, most + 1):
        for scheme in built_schemes(scenario.model):
            if scheme == "all_to_all" and not _by_heads(scenario.model, tp, degree):
                continue
            for partition in partitions:
                for decode in DECODES:
                    yield SequencePlan(degree=degree, scheme=scheme, partition=partition, decode=decode)


def _by_heads(model: ModelSpec, tp: int, degree: int) -> bool:
    """Whether SP ranks can share the heads of a TP rank evenly, without copies of K/V that nothing declares."""
    for attention in dict.fromkeys(layer.attention for layer in model.layers):
        here = max(1, attention.num_kv_heads // tp)
        uneven = attention.kind != "mla" and here % degree and degree % here
        if (attention.num_heads // tp) % degree or uneven:
            return False
    return True


def _experts(model: ModelSpec, ranks: int, replicas_: int) -> Iterator[tuple[int, int]]:
    """Yield (degree of EP, replicas that share experts)."""
    yield 1, 1
    moes = dict.fromkeys(layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe))
    if not moes:
        return
    for dp in range(1, replicas_ + 1):
        for degree in divisors(ranks * dp)[1:]:
            if all(moe.num_experts % degree == 0 for moe in moes):
                yield degree, dp


def _broken(scenario: Scenario, plan: ParallelPlan) -> str | None:
    """Return the rule that a plan breaks, memory left aside; None where none."""
    deployment = deployment_of(scenario.with_entry(plan=plan))
    parts = dict.fromkeys(part for layer in scenario.model.layers for part in (layer.attention, layer.ffn))
    ends = _ends(deployment)
    if any(size % plan.tp for size in ends) or any(not s.divides for p in parts for s in splits_of(deployment, p)):
        return "TP-1"
    if plan.ep.degree > 1:
        share = deployment.expert_tp
        if (plan.tp % share and share % plan.tp) or plan.stage_ranks % share:
            return "EP-6"
        if plan.ep.redundant % plan.ep.degree:
            return "EP-1"
    return None


def _ends(deployment: Deployment) -> Sequence[int]:
    model, split = deployment.model, deployment.plan.split
    return [model.vocab if axis == "vocab" else model.hidden for axis in (split.embedding, split.lm_head)]
