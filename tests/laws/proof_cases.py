"""Random small models, plans that ``check`` calls legal, and scripts of steps, for proofs by execution."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final

from clustersim.legality.check import check_plan
from clustersim.model import Attention, Ffn, Layer, ModelSpec, Moe, model_from_config, tiny
from clustersim.plan.built import unbuilt
from clustersim.plan.exchange import ExpertExchange
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.proof.script import Script, chunked_script
from tests.laws.graph_cases import CONFIGS

_MORE: Final[dict[str, dict[str, Any]]] = {
    "mqa": CONFIGS["llama"] | {"num_key_value_heads": 1},
    "four-kv": CONFIGS["llama"] | {"num_key_value_heads": 4, "model_type": "qwen3", "head_dim": 8},
    "tied-biases": CONFIGS["llama"] | {"model_type": "qwen2", "tie_word_embeddings": True},
    "slides": CONFIGS["llama"] | {"model_type": "mistral", "sliding_window": 64},
    "gemma3": CONFIGS["llama"]
    | {"model_type": "gemma3_text", "head_dim": 16, "query_pre_attn_scalar": 168, "sliding_window_pattern": 2},
    "two-shared": CONFIGS["latent"] | {"n_shared_experts": 2, "topk_method": "noaux_tc"},
}
_EXCHANGES: Final[tuple[ExpertExchange, ...]] = (
    "all_to_all", "all_reduce", "all_gather", "deepep_normal", "deepep_low_latency",
)  # fmt: skip
MODELS: Final = (*CONFIGS, *_MORE)


@cache
def model_of(name: str) -> ModelSpec:
    """Return a tiny model: 3 layers, 8 query heads, 8 experts."""
    config = {**CONFIGS, **_MORE}[name]
    experts = 8 if "num_experts_per_tok" in config else None
    return tiny(
        model_from_config(config, name), layers=3, hidden=24, heads=8, experts=experts, intermediate=24,
        expert_intermediate=12, vocab=48,
    )  # fmt: skip


def random_model(random: Random) -> ModelSpec:
    """Draw an architecture: heads, biases, norms, positions, windows, experts, layer by layer."""
    heads, bias = random.choice((4, 8)), random.random() < 0.5
    rotary = random.random() < 0.8
    if random.random() < 0.25:
        base = Attention(
            kind="mla", num_heads=heads, num_kv_heads=1, head_dim=6, v_head_dim=random.choice((4, 6)),
            q_lora_rank=random.choice((None, 10)), kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2,
            qkv_bias=bias, out_bias=bias,
        )  # fmt: skip
        rotary, windows = True, (None,)
    else:
        kv_heads = random.choice([one for one in (1, 2, 4, 8) if one <= heads])
        kind = "mqa" if kv_heads == 1 else "mha" if kv_heads == heads else "gqa"
        base = Attention(
            kind=kind, num_heads=heads, num_kv_heads=kv_heads, head_dim=4, v_head_dim=4, qkv_bias=bias,
            out_bias=random.random() < 0.3, qk_norm=random.random() < 0.3, sinks=random.random() < 0.3, rotary=rotary,
            score_cap=random.choice((None, None, 2.0)), query_scalar=random.choice((None, None, 9)),
        )  # fmt: skip
        windows = random.choice(((None,), (5,), (None, 3), (3, 7)))
    gated, experts = random.random() < 0.7, random.choice((4, 6, 8))
    shared = random.choice((0, 0, 1, 2))
    dense = Ffn(intermediate=24, gated=gated, bias=bias)
    sparse = Moe(
        num_experts=experts, top_k=random.randint(1, 3), expert_intermediate=24, gated=gated, bias=bias,
        num_shared_experts=shared, shared_intermediate=24 * shared, router_bias=random.random() < 0.3,
        shared_gate=shared > 0 and random.random() < 0.5,
    )  # fmt: skip
    kinds = random.choice(((dense,), (sparse,), (dense, sparse), (sparse, dense)))
    normed = random.choice(((False,), (False,), (True,), (True, False)))
    layers = tuple(
        Layer(
            attention=replace(base, sliding_window=windows[at % len(windows)]), ffn=kinds[at % len(kinds)],
            post_norms=normed[at % len(normed)],
        )
        for at in range(random.randint(2, 4))
    )  # fmt: skip
    return ModelSpec(
        name="random", hidden=24, vocab=48, layers=layers, tied_embeddings=random.random() < 0.3,
        learned_positions=0 if rotary else 40, norm=random.choice(("rms", "layer")),
        logit_cap=random.choice((None, None, 3.0)), scaled_embedding=random.random() < 0.3,
    )  # fmt: skip


def plan_of(random: Random, model: ModelSpec, primitives: str) -> ParallelPlan:
    """Draw a plan from all that can be written with some primitives (t, s, e, p) until one is legal."""
    experts = next((layer.ffn.num_experts for layer in model.layers if isinstance(layer.ffn, Moe)), 0)
    while True:
        sp = SequencePlan()
        degree = random.choice((1, 2, 2, 3, 4)) if "s" in primitives else 1
        if degree > 1:
            sp = SequencePlan(
                degree=degree,
                scheme=random.choice(("all_gather", "ring", "all_to_all")),
                partition=random.choice(("contiguous", "zigzag", "striped")),
                decode=random.choice(("idle", "dp")),
            )
        pp = random.choice((1, 2, 3, 4)) if "p" in primitives else 1
        modules = [Cut(layer=layer, before=part) for layer in range(len(model.layers)) for part in ("attention", "ffn")]
        ep = random.choice((1, 2, 2, 3, 4, 6, 8)) if "e" in primitives and experts else 1
        spread = tuple(random.sample([expert % ep for expert in range(experts)], experts))
        plan = ParallelPlan(
            pp=pp,
            tp=random.choice((1, 2, 2, 3, 4, 8)) if "t" in primitives else 1,
            sp=sp,
            split=TensorSplit(
                embedding=random.choice(("vocab", "hidden")),
                attention_out=random.choice(("columns", "rows")),
                ffn_up=random.choice(("columns", "rows")),
                ffn_down=random.choice(("columns", "rows")),
                lm_head=random.choice(("vocab", "hidden")),
            ),
            ep=ExpertPlan(
                degree=ep,
                scope=random.choice(("replica", "global")),
                placement=random.choice(("contiguous", "strided", spread)) if ep > 1 else "contiguous",
                exchange=random.choice(_EXCHANGES) if ep > 1 else "all_to_all",
                overlap="two_batch" if ep > 1 and pp == degree == 1 and random.random() < 0.5 else "none",
            ),
            stages=tuple(sorted(random.sample(modules[1:], pp - 1))) if random.random() < 0.7 and pp > 1 else None,
        )
        if is_legal(model, plan):
            return plan


def is_legal(model: ModelSpec, plan: ParallelPlan) -> bool:
    """Whether ``check`` calls a plan legal on devices with room for it, and a graph can be expanded for it."""
    verdict = check_plan(plan=plan, model=model, num_devices=plan.world, memory_bytes=10**15)
    return verdict.verdict != "illegal" and unbuilt(plan, model) is None


def script_of(random: Random, model: ModelSpec, plan: ParallelPlan) -> Script:
    """Draw up to four sequences of different lengths, in chunks of a few tokens."""
    lengths = [random.randint(1, 19) for _ in range(random.randint(1, 4))]
    return chunked_script(
        lengths, output_tokens=random.randint(1, 4), budget=random.choice((4, 9, 16, 64)), vocab=model.vocab,
        plan=plan, seed=random.randrange(1000), preempted=random.choice((None, 0, 1)),
    )  # fmt: skip


def case(seed: int, primitives: str) -> tuple[str, ModelSpec, ParallelPlan, Script]:
    """Return the name of a model, the model, a plan that is legal for it, and a script."""
    random = Random(seed)
    named = [name for name in MODELS if "e" not in primitives or _sparse(model_of(name))]
    name = random.choice((*named, *["random"] * len(named)))
    model = random_model(random) if name == "random" else model_of(name)
    while "e" in primitives and not _sparse(model):
        model = random_model(random)
    plan = plan_of(random, model, primitives)
    return name, model, plan, script_of(random, model, plan)


def _sparse(model: ModelSpec) -> bool:
    return any(isinstance(layer.ffn, Moe) for layer in model.layers)
