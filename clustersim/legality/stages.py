"""The modules of a model in order, and which stage holds which under a plan's cuts."""

from __future__ import annotations

from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ParallelPlan

Module = tuple[int, str]
"""(layer, ``attention`` or ``ffn``); the embedding is at layer −1, the LM head behind the last layer."""


def modules_of(model: ModelSpec) -> tuple[Module, ...]:
    """Return every module in execution order."""
    layers = len(model.layers)
    inner = [(layer, part) for layer in range(layers) for part in ("attention", "ffn")]
    return ((-1, "embedding"), *inner, (layers, "lm_head"))


def position(cut: Cut) -> int:
    """Return how many attention and FFN modules lie before a cut."""
    return 2 * cut.layer + (cut.before == "ffn")


def cut_at(place: int) -> Cut:
    """Return the cut that has this many modules before it."""
    return Cut(layer=place // 2, before="ffn" if place % 2 else "attention")


def even_cuts(model: ModelSpec, pp: int) -> tuple[Cut, ...]:
    """Cut a model into pp stages of layers whose numbers differ by at most one, the longer ones first.

    With more stages than layers, modules are spread in the same way.
    """
    layers = len(model.layers)
    units, size = (layers, 2) if pp <= layers else (2 * layers, 1)
    each, longer = divmod(units, pp)
    return tuple(cut_at(size * (stage * each + min(stage, longer))) for stage in range(1, pp))


def stages_of(model: ModelSpec, plan: ParallelPlan) -> tuple[tuple[Module, ...], ...]:
    """Return the modules between one cut and the next, however the cuts lie."""
    if plan.stages is None:
        pp = min(plan.pp, 2 * len(model.layers))  # stages beyond that are as empty as the last ones
        starts = [0, *(position(cut) for cut in even_cuts(model, pp))]
    else:
        starts = [0, *(position(cut) for cut in plan.stages)]
    first, *inner, last = modules_of(model)
    ends = [*starts[1:], len(inner)]
    stages = [tuple(inner[start:end]) for start, end in zip(starts, ends, strict=True)]
    stages[0] = (first, *stages[0])
    stages[-1] = (*stages[-1], last)
    return tuple(stages)


def module_name(module: Module) -> str:
    """Return how messages name a module: ``attention of layer 12``."""
    layer, part = module
    return {"embedding": "the embedding", "lm_head": "the LM head"}.get(part) or f"{part} of layer {layer}"
