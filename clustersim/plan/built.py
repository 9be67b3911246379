"""What step graphs can be expanded for: a plan outside of it may be legal, and is refused as unsupported."""

from __future__ import annotations

from typing import Final

from clustersim.errors import InputError, Problem
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.exchange import DEEPEP
from clustersim.plan.parallel import ParallelPlan, SequenceScheme

THRESHOLDS_NEED_OVERLAP: Final = "goes with overlap: two_batch; say that too, or remove it"
DISPATCH_NEEDS_DEEPEP: Final = "goes with exchange: deepep_normal or deepep_low_latency; say one of them, or remove it"
REPLICATED: Final = (
    "all_reduce is for experts inside one TP group, whose ranks have all tokens (sp 1, scope replica); use all_gather, "
    "all_to_all, deepep_normal or deepep_low_latency"
)
GATHERED: Final = (
    "all_gather is for experts that are each on one rank, with ep.degree of all {ranks} that have tokens; use that "
    "degree, all_to_all, or a kernel of DeepEP"
)
NOTHING_TO_HIDE: Final = "two_batch hides what is exchanged between ranks, and all_reduce exchanges nothing; use none"
VISITS_NEED_EP: Final = "goes with a degree above 1: without EP every rank has (a part of) all experts"
SCHEMES: Final[tuple[SequenceScheme, ...]] = ("ring", "all_gather", "all_to_all")


def built_schemes(model: ModelSpec) -> tuple[SequenceScheme, ...]:
    """Return the schemes of sequence parallelism that a model's attention can be expanded with."""
    latent = any(layer.attention.kind == "mla" for layer in model.layers)
    return ("all_gather",) if latent else SCHEMES


def contradictory(plan: ParallelPlan) -> Problem | None:
    """Return what a plan says of its experts that goes with nothing else that it says of them; None where all does."""
    for key in ("overlap_decode_tokens", "overlap_prefill_tokens"):
        if plan.ep.overlap == "none" and getattr(plan.ep, key):
            return Problem(path=f"plan.ep.{key}", message=THRESHOLDS_NEED_OVERLAP)
    if plan.ep.degree == 1 and plan.ep.overlap != "none":
        return Problem(path="plan.ep.overlap", message=VISITS_NEED_EP)
    if plan.ep.degree == 1 and plan.ep.exchange != "all_to_all" and not plan.ep.exchange_by_engine:
        return Problem(path="plan.ep.exchange", message=VISITS_NEED_EP)
    if plan.ep.exchange == "all_reduce" and (plan.is_lockstep or plan.sp.degree > 1):
        return Problem(path="plan.ep.exchange", message=REPLICATED)
    if plan.ep.exchange == "all_reduce" and plan.ep.overlap != "none":
        return Problem(path="plan.ep.overlap", message=NOTHING_TO_HIDE)
    if plan.ep.exchange == "all_gather" and plan.ep.degree > 1 and plan.expert_tp > 1:
        return Problem(path="plan.ep.exchange", message=GATHERED.format(ranks=plan.ep.degree * plan.expert_tp))
    if plan.ep.exchange not in DEEPEP and plan.ep.dispatch is not None:
        return Problem(path="plan.ep.dispatch", message=DISPATCH_NEEDS_DEEPEP)
    return None


def unbuilt(plan: ParallelPlan, model: ModelSpec) -> Problem | None:
    """Return what of a plan is not built, with the nearest choice that is; None where all is."""
    if (found := contradictory(plan)) is not None:
        return found
    if (found := visits_to_none(plan, model)) is not None:
        return found
    if plan.is_two_batch and not plan.sp.whole:
        for degree, at, why in (
            (plan.pp, "pp", "stages hand on one micro-batch"),
            (plan.sp.degree, "sp", "ranks split prompts"),
        ):
            if degree > 1:
                message = f"two_batch is built for pp 1 and sp 1, found {at} {degree}, where {why}; use none"
                return Problem(path="plan.ep.overlap", message=message)
    scheme = plan.sp.scheme
    if plan.sp.degree == 1 or scheme is None or scheme not in SCHEMES or scheme in built_schemes(model):
        return None
    message = (
        f"{scheme} is not supported with latent attention (MLA, {model.name}): only the latent of all tokens is "
        f"exposed; use {' or '.join(built_schemes(model))}"
    )
    return Problem(path="plan.sp.scheme", message=message)


def visits_to_none(plan: ParallelPlan, model: ModelSpec) -> Problem | None:
    """Return what is wrong with saying how often experts are visited that a model does not have; None if it has any.

    Of EP itself rule EP-1 says so.
    """
    if plan.ep.degree > 1 or plan.ep.routing is None or any(isinstance(layer.ffn, Moe) for layer in model.layers):
        return None
    message = f"says how often experts are visited, and {model.name or 'the model'} has none"
    return Problem(path="plan.ep.routing", message=message)


def refuse_unbuilt(plan: ParallelPlan, model: ModelSpec) -> None:
    """Refuse a plan that no step graph can be expanded for.

    Raises
    ------
    InputError
        At ``plan.sp.scheme``, ``plan.ep.routing``, ``plan.ep.overlap``, ``plan.ep.exchange`` or ``.dispatch``.
    """
    problem = unbuilt(plan, model)
    if problem is not None:
        raise InputError(problem)
