"""Random small models, plans that ``check`` calls legal, and scripts of steps, for proofs by execution."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any, Final

from clustersim.legality.check import check_plan
from clustersim.model import ModelSpec, Moe, model_from_config, tiny
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit
from clustersim.proof.script import Script, chunked_script
from tests.laws.graph_cases import CONFIGS

_MORE: Final[dict[str, dict[str, Any]]] = {
    "mqa": CONFIGS["llama"] | {"num_key_value_heads": 1},
    "four-kv": CONFIGS["llama"] | {"num_key_value_heads": 4, "model_type": "qwen3", "head_dim": 8},
    "tied-biases": CONFIGS["llama"] | {"model_type": "qwen2", "tie_word_embeddings": True},
    "slides": CONFIGS["llama"] | {"model_type": "mistral", "sliding_window": 64},
    "two-shared": CONFIGS["latent"] | {"n_shared_experts": 2, "topk_method": "noaux_tc"},
}
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


def plan_of(random: Random, model: ModelSpec, primitives: str) -> ParallelPlan:
    """Draw a plan from all that can be written with some primitives (t, s, e, p) until one is legal."""
    moe = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    while True:
        sp = SequencePlan()
        degree = random.choice((1, 2, 2, 3, 4)) if "s" in primitives else 1
        if degree > 1:
            sp = SequencePlan(
                degree=degree,
                scheme=random.choice(("all_gather", "ring", "all_to_all")),
                partition=random.choice(("contiguous", "zigzag")),
                decode=random.choice(("idle", "dp")),
            )
        pp = random.choice((1, 2, 3)) if "p" in primitives else 1
        modules = [Cut(layer=layer, before=part) for layer in range(3) for part in ("attention", "ffn")]
        ep = random.choice((1, 2, 2, 4, 8)) if "e" in primitives and moe else 1
        spread = tuple(random.sample([rank for rank in range(ep) for _ in range(8 // ep)], 8))
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
            ),
            stages=tuple(sorted(random.sample(modules[1:], pp - 1))) if random.random() < 0.7 and pp > 1 else None,
        )
        if is_legal(model, plan):
            return plan


def is_legal(model: ModelSpec, plan: ParallelPlan) -> bool:
    """Whether ``check`` calls a plan legal on devices with room for it."""
    verdict = check_plan(plan=plan, model=model, num_devices=plan.world, memory_bytes=10**15)
    return verdict.verdict != "illegal"


def script_of(random: Random, model: ModelSpec, plan: ParallelPlan) -> Script:
    """Draw up to four sequences of different lengths, in chunks of a few tokens."""
    lengths = [random.randint(1, 19) for _ in range(random.randint(1, 4))]
    return chunked_script(
        lengths, output_tokens=random.randint(1, 4), budget=random.choice((4, 9, 16, 64)), vocab=model.vocab,
        plan=plan, seed=random.randrange(1000),
    )  # fmt: skip


def case(seed: int, primitives: str) -> tuple[str, ModelSpec, ParallelPlan, Script]:
    """Return the name of a model, the model, a plan that is legal for it, and a script."""
    random = Random(seed)
    named = [name for name in MODELS if "e" not in primitives or _sparse(name)]
    name = random.choice(named)
    model = model_of(name)
    plan = plan_of(random, model, primitives)
    return name, model, plan, script_of(random, model, plan)


def _sparse(name: str) -> bool:
    return any(isinstance(layer.ffn, Moe) for layer in model_of(name).layers)
