"""SP-1, SP-3, SP-7 and SP-9: tokens of one sequence are split, in prefill, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from clustersim.legality.deployment import Deployment
from clustersim.legality.layout import Layout
from clustersim.legality.memory import rank_weight_bytes
from clustersim.legality.plan_rules.cache import scheme_repairs
from clustersim.legality.plan_rules.memory import GIB
from clustersim.legality.plan_rules.pipeline import is_sound
from clustersim.legality.plan_rules.tensor import splits_evenly
from clustersim.legality.repair.candidates import Fault, Finding, Repair, degree_change
from clustersim.legality.shards import Segment
from clustersim.plan.built import built_schemes


def segments(deployment: Deployment, layout: Layout) -> Finding:
    """SP-1: the segments of a prompt are disjoint and cover it, in an order that the plan declares."""
    plan = deployment.plan
    if plan.sp.degree == 1:
        return Finding(looked_at=0)
    faults = [] if deployment.decodes_only else [*_undeclared(deployment), *_scheme_faults(deployment)]
    for tokens, ranks in layout.segments.items():
        message = cover_message(tokens, ranks)
        if message:
            advice = "put every token of the prompt into exactly one segment"
            faults.append(Fault(where="plan.sp.partition", message=message, advice=advice))
            break
    return Finding(looked_at=len(layout.segments), faults=tuple(faults))


def _undeclared(deployment: Deployment) -> Iterator[Fault]:
    sp = deployment.plan.sp
    if sp.scheme is None:
        yield Fault(
            where="plan.sp.scheme",
            message=f"sp {sp.degree} does not say by which scheme K/V is exposed at attention",
            advice="use a scheme",
            repairs=lambda: scheme_repairs(deployment, built_schemes(deployment.model)),
        )
    if sp.partition is None:
        choices = ("contiguous", "zigzag", "striped")
        yield Fault(
            where="plan.sp.partition",
            message=f"sp {sp.degree} does not say in which order the segments of a prompt go to its ranks",
            advice="use a partition",
            repairs=lambda: [Repair(text=name, change=(("plan.sp.partition", name),)) for name in choices],
        )


def _scheme_faults(deployment: Deployment) -> Iterator[Fault]:
    plan, model = deployment.plan, deployment.model
    for attention in dict.fromkeys(layer.attention for layer in model.layers):
        heads = attention.num_heads // plan.tp
        if plan.sp.scheme == "all_to_all" and splits_evenly(attention, plan.tp) and heads % plan.sp.degree:
            yield _by_heads_fault(deployment, heads)
            return


def _by_heads_fault(deployment: Deployment, heads: int) -> Fault:
    return Fault(
        where="plan.sp.scheme",
        message=f"all_to_all splits attention by heads, and sp {deployment.plan.sp.degree} does not divide the "
        f"{heads} heads of a TP rank ({deployment.model.name})",
        advice="use another scheme",
        repairs=lambda: _by_heads_repairs(deployment, heads),
    )


def _by_heads_repairs(deployment: Deployment, heads: int) -> Iterable[Repair]:
    yield from scheme_repairs(deployment, ("ring", "all_gather"))
    for degree in range(deployment.plan.sp.degree - 1, 1, -1):
        if heads % degree == 0:
            change = degree_change(deployment, sp=degree)
            yield Repair(text=f"plan.sp.degree {degree}", change=change, distance=1)
            return


def cover_message(tokens: int, ranks: Sequence[Sequence[Segment]]) -> str | None:
    """Say which token of a prompt is in no segment or in two; None when each is in one."""
    holders = [0] * tokens
    for segments_ in ranks:
        for token in (token for run in segments_ for token in range(*run)):
            if 0 <= token < tokens:
                holders[token] += 1
    for token, count in enumerate(holders):
        if count != 1:
            found = "no segment" if count == 0 else f"{count} segments"
            return f"token {token} of a prompt of {tokens} is in {found} of the SP ranks"
    return None


def prefill_only(deployment: Deployment, layout: Layout) -> Finding:
    """SP-3: a plan with sp > 1 says what its SP ranks do in decode; a pool that only decodes has none."""
    sp = deployment.plan.sp
    if deployment.decodes_only:
        return Finding(looked_at=1, faults=_nothing_to_split(deployment))
    if sp.degree == 1:
        return Finding(looked_at=0)
    if sp.decode is not None:
        return Finding(looked_at=1)
    choices = {"idle": "idle (rank 0 decodes)", "dp": "dp (whole sequences spread over them)"}
    fault = Fault(
        where="plan.sp.decode",
        message=f"the plan does not say what its {sp.degree} SP ranks do in decode: a decode step has one new token of "
        "a sequence, so SP can't parallelise it",
        advice="use idle or dp",
        repairs=lambda: [Repair(text=text, change=(("plan.sp.decode", name),)) for name, text in choices.items()],
    )
    return Finding(looked_at=1, faults=(fault,))


def _nothing_to_split(deployment: Deployment) -> tuple[Fault, ...]:
    sp, dp = deployment.plan.sp.degree, deployment.plan.dp
    if sp == 1:
        return ()
    whole = degree_change(deployment, sp=1, dp=dp * sp)
    return (
        Fault(
            where="plan.sp",
            message=f"sp {sp} in a pool that only decodes: a decode step has one new token of a sequence, so there are "
            "no tokens to split, and SP must be disabled",
            advice="let prompts be split where they are prefilled, and use",
            repairs=lambda: [
                Repair(text="plan.sp.degree 1", change=degree_change(deployment, sp=1), distance=sp - 1),
                Repair(text=f"plan.dp {dp * sp} without sp (whole sequences on its ranks)", change=whole, distance=sp),
            ],
        ),
    )


def within_sequence(deployment: Deployment, layout: Layout) -> Finding:
    """SP-7: segments lie inside their own sequence, whatever else is in the batch."""
    faults = []
    for tokens, ranks in layout.segments.items():
        runs = (range(*segment) for held in ranks for segment in held)
        outside = [run for run in runs if run and (run[0] < 0 or run[-1] >= tokens)]
        if outside:
            message = f"a segment of tokens {outside[0][0]} … {outside[0][-1]} reaches out of its sequence of {tokens}"
            advice = "split each sequence by itself; batching excuses nothing"
            faults.append(Fault(where="plan.sp.partition", message=message, advice=advice))
            break
    return Finding(looked_at=len(layout.segments), faults=tuple(faults))


def full_weights(deployment: Deployment, layout: Layout) -> Finding:
    """SP-9: every SP rank is charged the weights of its TP shard, undivided by sp."""
    sp = deployment.plan.sp.degree
    if sp == 1 or not is_sound(deployment, layout.stages):
        return Finding(looked_at=0)
    held = [rank_weight_bytes(deployment, stage) for stage in layout.stages]
    stages = range(len(held))
    least = min(stages, key=lambda stage: layout.weight_bytes[stage] / held[stage])
    # Halfway between undivided and divided by sp: estimates of biases and positions may differ, that may not.
    if layout.weight_bytes[least] >= held[least] * (1 + 1 / sp) / 2:
        return Finding(looked_at=len(held))
    message = (
        f"a rank of stage {least} is charged {layout.weight_bytes[least] / GIB:.3g} GiB of weights, but holds "
        f"{held[least] / GIB:.3g} GiB; SP is not TP: it splits tokens, and no weights"
    )
    advice = f"charge each of the {sp} SP ranks {held[least] / GIB:.3g} GiB"
    return Finding(looked_at=len(held), faults=(Fault(where="plan.sp", message=message, advice=advice),))
