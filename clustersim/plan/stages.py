"""Where the stages of a pipeline begin."""

from __future__ import annotations

from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ParallelPlan


def balanced_cuts(num_layers: int, pp: int) -> tuple[Cut, ...]:
    """Cut layers into pp runs whose lengths differ by at most one, the longer ones first.

    With more stages than layers, attention and FFN modules are cut in the same way.

    Examples
    --------
    >>> [cut.layer for cut in balanced_cuts(10, 4)]
    [3, 6, 8]
    >>> [(cut.layer, cut.before) for cut in balanced_cuts(2, 3)]
    [(1, 'attention'), (1, 'ffn')]
    """
    size = 2 if pp <= num_layers else 1
    each, longer = divmod(2 * num_layers // size, pp)
    starts = [size * (stage * each + min(stage, longer)) for stage in range(1, pp)]
    return tuple(Cut(layer=start // 2, before="ffn" if start % 2 else "attention") for start in starts)


def stage_cuts(model: ModelSpec, plan: ParallelPlan) -> tuple[Cut, ...]:
    """Return the cuts of the plan: its own, or balanced ones."""
    return balanced_cuts(len(model.layers), plan.pp) if plan.stages is None else plan.stages


def stage_layers(model: ModelSpec, plan: ParallelPlan) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Return the modules (layer, ``attention`` or ``ffn``) of each stage, in order."""
    modules = [(layer, part) for layer in range(len(model.layers)) for part in ("attention", "ffn")]
    starts = [0] + [2 * cut.layer + (cut.before == "ffn") for cut in stage_cuts(model, plan)]
    ends = [*starts[1:], len(modules)]
    return tuple(tuple(modules[start:end]) for start, end in zip(starts, ends, strict=True))
