"""From a model and a plan to the blueprint of a step: one pass per primitive."""

from __future__ import annotations

from functools import lru_cache

from clustersim.cost.precision import Precision
from clustersim.graph.blueprint import STEP_KINDS, Blueprint, StepKind
from clustersim.graph.operators import single_device
from clustersim.graph.passes.data import data_pass
from clustersim.graph.passes.expert import expert_pass
from clustersim.graph.passes.pipeline import pipeline_pass
from clustersim.graph.passes.sequence import sequence_pass
from clustersim.graph.passes.tensor import tensor_pass
from clustersim.graph.passes.two_batch import two_batch_blueprints
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.built import refuse_unbuilt
from clustersim.plan.parallel import ParallelPlan


def blueprint_of(model: ModelSpec, plan: ParallelPlan, precision: Precision, kind: StepKind) -> Blueprint:
    """Expand one kind of step of ``model`` under ``plan``.

    The passes run from the single-device graph outwards: tensor, sequence, expert, pipeline, data. Each is the
    identity at degree one.

    Raises
    ------
    InputError
        When the plan is of a kind that is not built, such as a ring of latents.
    """
    refuse_unbuilt(plan, model)
    blueprint = single_device(model, precision, kind)
    blueprint = tensor_pass(blueprint, plan, precision)
    blueprint = pipeline_pass(blueprint, plan, model, precision)
    blueprint = sequence_pass(blueprint, plan, precision)
    moes = [layer.ffn for layer in model.layers if isinstance(layer.ffn, Moe)]
    blueprint = expert_pass(blueprint, plan, precision, moes)
    return data_pass(blueprint, plan)


@lru_cache(maxsize=64)
def step_blueprints(model: ModelSpec, plan: ParallelPlan, precision: Precision) -> dict[str, Blueprint]:
    """Expand every kind of step of ``model`` under ``plan``, by name: with halves that overlap where the plan has them.

    What replays and what their audits hold them to is the same, so it is kept, and nobody may change it.

    Raises
    ------
    InputError
        See :func:`blueprint_of`.
    """
    kinds = {kind: blueprint_of(model, plan, precision, kind) for kind in STEP_KINDS}
    found: dict[str, Blueprint] = dict(kinds.items())
    return found | two_batch_blueprints(kinds) if plan.is_two_batch else found
