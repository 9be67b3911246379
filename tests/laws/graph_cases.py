"""Random small models, legal plans and batches, for the laws of the step graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final

from hypothesis import strategies as st

from clustersim.cost.precision import Precision
from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import STEP_KINDS, Blueprint, StepKind
from clustersim.graph.expand import blueprint_of
from clustersim.model import ModelSpec, Moe, model_from_config, tiny
from clustersim.plan.exchange import ExpertExchange
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, SequenceScheme, TensorSplit

PRECISION: Final = Precision(weights="fp8", activations="bf16", kv_cache="fp8")

_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 64,
}
_MOE: Final = _LLAMA | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT: Final = _LLAMA | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "llama": _LLAMA,
    "mha": _LLAMA | {"num_key_value_heads": 8},
    "opt": {
        "model_type": "opt",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "ffn_dim": 128,
        "vocab_size": 64,
        "max_position_embeddings": 256,
    },
    "moe": _MOE | {"model_type": "qwen3_moe", "head_dim": 8},
    "shared": _MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 32},
    "windows": _LLAMA
    | {
        "model_type": "gpt_oss",
        "head_dim": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "post-norms": _LLAMA
    | {
        "model_type": "gemma2",
        "head_dim": 8,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "latent": _LATENT,
    "latent-plain-queries": _LATENT | {"q_lora_rank": None},
}


Lengths = tuple[tuple[int, int], ...]
"""New and cached tokens of each sequence."""


@cache
def model_of(name: str) -> ModelSpec:
    """Return a tiny model of one structure: 3 layers, 8 query heads, 8 experts."""
    config = CONFIGS[name]
    return tiny(
        model_from_config(config, name), layers=3, heads=8, experts=8 if "num_experts_per_tok" in config else None
    )


@dataclass(frozen=True)
class Case:
    """A model, a plan that is legal for it, and a batch with the sequences that it is made of."""

    model: ModelSpec
    plan: ParallelPlan
    batch: StepBatch
    prefills: Lengths
    decodes: Lengths

    @property
    def blueprint(self) -> Blueprint:
        """The graph of the step in SPMD form."""
        return blueprint_of(self.model, self.plan, PRECISION, self.batch.kind)

    @property
    def windows(self) -> tuple[int, ...]:
        """The sliding windows of the model."""
        return windows(self.model)


def windows(model: ModelSpec) -> tuple[int, ...]:
    """Return the distinct sliding windows of a model."""
    found = (layer.attention.sliding_window for layer in model.layers)
    return tuple(dict.fromkeys(window for window in found if window is not None))


def sequence_plan(random: Random, model: ModelSpec, heads: int) -> SequencePlan:
    """Draw how tokens are split; ``heads`` are those of one TP rank."""
    degree = random.choice((1, 1, 2, 3, 4))
    if degree == 1:
        return SequencePlan()
    schemes: list[SequenceScheme] = ["all_gather"]
    if model.layers[0].attention.kind != "mla":
        schemes += ["ring"] if heads % degree else ["ring", "all_to_all"]
    return SequencePlan(
        degree=degree,
        scheme=random.choice(schemes),
        partition=random.choice(("contiguous", "zigzag", "striped")),
        decode=random.choice(("idle", "dp")),
    )


def plan_of(random: Random, model: ModelSpec, primitives: str) -> ParallelPlan:
    """Draw a legal plan that uses only the given primitives (t, s, e, p, d)."""
    tp = random.choice((1, 2, 4)) if "t" in primitives else 1
    heads = model.layers[0].attention.num_heads // tp
    sp = sequence_plan(random, model, heads) if "s" in primitives else SequencePlan()
    ranks = sp.degree * tp
    shares = [ranks // ep for ep in (1, 2, 4, 8) if ranks % ep == 0]
    whole = [share for share in shares if share % tp == 0 or tp % share == 0]  # rule EP-6
    moe = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    split = TensorSplit(
        embedding=random.choice(("vocab", "hidden")),
        attention_out=random.choice(("columns", "rows")),
        ffn_up=random.choice(("columns", "rows")),
        ffn_down=random.choice(("columns", "rows")),
        lm_head=random.choice(("vocab", "hidden")),
    )
    pp = random.choice((1, 2, 3)) if "p" in primitives else 1
    modules = [(layer, part) for layer in range(len(model.layers)) for part in ("attention", "ffn")]
    cuts = sorted(random.sample(modules[1:], pp - 1))
    given = tuple(Cut(layer=layer, before="ffn" if part == "ffn" else "attention") for layer, part in cuts)
    return ParallelPlan(
        dp=random.choice((1, 2)) if "d" in primitives else 1,
        pp=pp,
        tp=tp,
        split=split,
        sp=sp,
        ep=_exchanged(random, ranks // random.choice(whole) if moe and "e" in primitives else 1, sp.degree, ranks),
        stages=given if pp > 1 and random.random() < 0.7 else None,
    )


def _exchanged(random: Random, degree: int, sp: int, ranks: int) -> ExpertPlan:
    ways: list[ExpertExchange] = ["all_to_all", "deepep_normal", "deepep_low_latency"]
    ways += ["all_reduce"] if sp == 1 else []
    ways += ["all_gather"] if degree == ranks else []
    return ExpertPlan(degree=degree, exchange=random.choice(ways) if degree > 1 else "all_to_all")


def batch_of(
    random: Random, sp: SequencePlan, windows: tuple[int, ...], kind: StepKind
) -> tuple[StepBatch, Lengths, Lengths]:
    """Draw a batch with the (new, cached) tokens of its sequences in prefill and in decode."""

    def owner() -> int:
        return random.randrange(sp.degree) if sp.decode == "dp" else 0

    chunks = tuple(
        Chunk(request=i, start=random.choice((0, random.randint(0, 12))), count=random.randint(1, 24), owner=owner())
        for i in range(random.randint(1, 3) if kind != "decode" else 0)
    )
    decodes = [(random.randint(1, 20), owner()) for _ in range(random.randint(1, 5) if kind != "prefill" else 0)]

    def attended(s: int, window: int | None) -> int:
        return sum(context + 1 if window is None else min(window, context + 1) for context, at in decodes if at == s)

    batch = StepBatch(
        chunks=chunks,
        decode_sequences=tuple(sum(at == s for _, at in decodes) for s in range(sp.degree)),
        decode_keys=tuple(attended(s, None) for s in range(sp.degree)),
        windowed_keys={window: tuple(attended(s, window) for s in range(sp.degree)) for window in windows},
    )
    return batch, tuple((chunk.count, chunk.start) for chunk in chunks), tuple((1, context) for context, _ in decodes)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    primitives: str = "tsepd",
    models: tuple[str, ...] = tuple(CONFIGS),
    kinds: tuple[StepKind, ...] = STEP_KINDS,
) -> Case:
    """Draw a model, a legal plan and a batch, all evenly: what hypothesis prefers is rarely a plan with experts."""
    random = draw(st.randoms(use_true_random=True))
    model = model_of(random.choice(models))
    plan = plan_of(random, model, primitives)
    batch, prefills, decodes = batch_of(random, plan.sp, windows(model), random.choice(kinds))
    return Case(model=model, plan=plan, batch=batch, prefills=prefills, decodes=decodes)
