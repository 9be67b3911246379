"""KV-6: weights, buffers and K/V of the fullest rank fit into device memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from clustersim.cost.precision import DTYPE_BYTES
from clustersim.legality.deployment import Deployment, counted, divisors
from clustersim.legality.layout import Layout
from clustersim.legality.memory import RankBytes, rank_bytes
from clustersim.legality.plan_rules.pipeline import is_sound
from clustersim.legality.plan_rules.tensor import head_divisors
from clustersim.legality.repair.candidates import Fault, Finding, Repair, changed, degree_change, degree_words
from clustersim.legality.rule import Change
from clustersim.legality.stages import even_cuts, stages_of

GIB: Final = 2.0**30
USUAL_UTILIZATION: Final = 0.9
"""Share of device memory that engines fill unless told otherwise; a smaller one may be all that is wrong."""


def memory_stages(deployment: Deployment, layout: Layout | None) -> tuple[RankBytes, ...]:
    """Return the bytes of each stage's fullest rank; where the stages are broken (PP-1), those of even ones."""
    plan, model = deployment.plan, deployment.model
    stages = stages_of(model, plan) if layout is None else layout.stages
    if not is_sound(deployment, stages):
        stages = stages_of(model, replace(plan, stages=even_cuts(model, min(plan.pp, 2 * len(model.layers)))))
    return tuple(rank_bytes(deployment, stage) for stage in stages)


def needed_bytes(deployment: Deployment, stage: RankBytes, blocks: int) -> float:
    """Return what weights, buffers and this many K/V blocks take of the budget of a rank.

    Where the pool is a share u of what is free, a byte of K/V takes 1/u: so much must be free for it. Of a static
    share the engine's own take theirs, and buffers what they need above the rest of memory.
    """
    rule, kv = deployment.pool, blocks * _block_bytes(deployment, stage)
    if rule.share_of != "static":
        return stage.weights + stage.buffers + kv
    rest = deployment.memory_bytes * (1.0 - deployment.limits.memory_utilization + rule.margin)
    return stage.weights + rule.outside_bytes + max(0.0, stage.buffers - rest) + kv


def _block_bytes(deployment: Deployment, stage: RankBytes) -> float:
    """Return what a block takes of the budget."""
    each = deployment.limits.kv_block_tokens * stage.kv_per_token
    return each / deployment.limits.memory_utilization if deployment.pool.share_of == "free" else each


def budget_bytes(deployment: Deployment) -> float:
    """Return what a rank may fill: a share of device memory, or all that is not kept outside."""
    memory, rule = deployment.memory_bytes, deployment.pool
    if rule.share_of == "free":
        return memory - rule.outside_bytes
    share = memory * (deployment.limits.memory_utilization - rule.margin)
    return share if rule.share_of == "static" else share - rule.outside_bytes


def most_blocks(deployment: Deployment, stages: Sequence[RankBytes] | None = None) -> int:
    """Return how many K/V blocks fit beside weights and buffers on the fullest rank; 0 where these do not fit."""
    fit = [
        (budget_bytes(deployment) - needed_bytes(deployment, stage, 0)) // _block_bytes(deployment, stage)
        for stage in (memory_stages(deployment, None) if stages is None else stages)
        if stage.kv_per_token
    ]
    return max(0, int(min(fit, default=0)))


def fits_memory(deployment: Deployment, layout: Layout | None = None) -> bool:
    """Whether weights, buffers and the K/V pool (at least one block) fit on every rank."""
    return _all_fit(deployment, memory_stages(deployment, layout))


def _all_fit(deployment: Deployment, stages: Sequence[RankBytes]) -> bool:
    blocks, budget = deployment.limits.kv_blocks or 1, budget_bytes(deployment)
    return all(needed_bytes(deployment, stage, blocks) <= budget for stage in stages)


def fills(deployment: Deployment, layout: Layout) -> Finding:
    """KV-6: weights, buffers and K/V never exceed what the engine's share may hold, on the fullest rank."""
    stages = memory_stages(deployment, layout)
    if _all_fit(deployment, stages):
        return Finding(looked_at=len(stages))
    limits = deployment.limits
    blocks = limits.kv_blocks or 1
    fullest = max(range(len(stages)), key=lambda index: needed_bytes(deployment, stages[index], blocks))
    worst = stages[fullest]
    kv = blocks * limits.kv_block_tokens * worst.kv_per_token
    message = (
        f"a rank of stage {fullest} needs {worst.weights / GIB:.2f} GiB of weights + {worst.buffers / GIB:.2f} GiB of "
        f"buffers + {kv / GIB:.2f} GiB for {counted(blocks, 'K/V block')} = "
        f"{(worst.weights + worst.buffers + kv) / GIB:.2f} GiB, but {_said_of(deployment, worst)}"
    )
    fault = Fault(
        where=_culprit(deployment, stages),
        message=message,
        advice=f"use devices with more memory, or more of them than {deployment.num_devices}",
        repairs=lambda: _memory_repairs(deployment, stages),
    )
    return Finding(looked_at=len(stages), faults=(fault,))


def _said_of(deployment: Deployment, stage: RankBytes) -> str:
    """Say what there is of a device's memory, by the rule of the engine."""
    rule, device, share = deployment.pool, deployment.memory_bytes, deployment.limits.memory_utilization
    kept = f", {rule.outside_bytes / GIB:.2f} GiB of it kept by the engine," if rule.outside_bytes else ""
    if rule.share_of == "free":
        free = max(0.0, device - rule.outside_bytes - stage.weights - stage.buffers)
        return (
            f"K/V has {share:.0%} of what these leave of a device's {device / GIB:.2f} GiB{kept or ','} which is "
            f"{share * free / GIB:.2f} GiB"
        )
    budget = deployment.memory_bytes * (share - rule.margin)
    of = f"{share:.0%}" + (f" less {rule.margin:.0%}" if rule.margin else "")
    if rule.share_of == "static":
        engine = f", {rule.outside_bytes / GIB:.2f} GiB that the engine keeps," if rule.outside_bytes else ""
        return (
            f"weights{engine} and K/V have {of} of a device's {device / GIB:.2f} GiB, which is {budget / GIB:.2f} GiB, "
            "and buffers the rest"
        )
    return f"{of} of a device's {device / GIB:.2f} GiB{kept} is {budget / GIB:.2f} GiB"


def _culprit(deployment: Deployment, stages: Sequence[RankBytes]) -> str:
    budget = budget_bytes(deployment)
    if deployment.limits.kv_blocks and all(needed_bytes(deployment, stage, 1) <= budget for stage in stages):
        return "serving.kv_blocks"
    alone = next(_single_limits(deployment), None)
    if alone is not None:
        return alone[0]
    if all(needed_bytes(deployment, replace(stage, buffers=0.0), 1) <= budget for stage in stages):
        return "serving.max_batch_tokens"
    return "plan.tp"


def _single_limits(deployment: Deployment) -> Iterator[tuple[str, float]]:
    """Yield a limit whose value alone is to blame, and the nearest of its halves (its default) that fits."""
    limits = deployment.limits
    if limits.memory_utilization < USUAL_UTILIZATION:
        usual = ("serving.memory_utilization", USUAL_UTILIZATION)
        if fits_memory(changed(deployment, (usual,))):
            yield usual
    for name, other in (("kv_block_tokens", None), ("max_batch_requests", "max_batch_tokens")):
        path, value = f"serving.{name}", getattr(limits, name) // 2
        if other is not None and fits_memory(changed(deployment, ((f"serving.{other}", 1),))):
            continue
        if value < 1 or not fits_memory(changed(deployment, ((path, 1),))):
            continue
        while not fits_memory(changed(deployment, ((path, value),))):
            value //= 2
        yield path, value


def _memory_repairs(deployment: Deployment, stages: Sequence[RankBytes]) -> Iterator[Repair]:
    """Yield the smallest change of each kind that fits: the limits, tp, pp, ep, fewer bytes; then of several."""
    yield from _limit_repairs(deployment, stages)
    plan = deployment.plan
    tensor = [tp for tp in head_divisors(deployment) if tp > plan.tp]
    stages_ = range(plan.pp + 1, len(deployment.model.layers) + 1)
    experts = [ep for ep in deployment.expert_degrees if ep > plan.ep.degree]
    formats = [
        (("precision.weights", name),)
        for name in ("fp8", "fp4")
        if DTYPE_BYTES[name] < deployment.precision.weight_bytes
    ]
    for distance, (name, degrees) in enumerate((("tp", tensor), ("pp", stages_), ("ep", experts)), 1):
        for degree in degrees:
            change = degree_change(deployment, **{name: degree})
            if _would_fit(deployment, change):
                yield Repair(text=degree_words(change), change=change, distance=distance, kind=name)
    for change in formats:
        if _would_fit(deployment, change):
            yield Repair(text=f"{change[0][1]} weights", change=change, distance=4, kind="weights")
    yield from _joint_repairs(deployment, formats)
    for path, value in _single_limits(deployment):
        yield Repair(text=f"{path} {value}", change=((path, value),), kind=path, last_resort=True)
    yield from _batch_and_pool_repairs(deployment)


def _joint_repairs(deployment: Deployment, formats: Sequence[Change]) -> Iterator[Repair]:
    """Yield tp and pp together, with fewer replicas if it must be, then with smaller weights; large tp first."""
    plan = deployment.plan
    replicas = [plan.dp] if plan.dp == 1 else [plan.dp, 1]
    for weights, dp, tp in product(((), *formats), replicas, reversed(head_divisors(deployment))):
        room = deployment.num_devices // (dp * tp * plan.sp.degree)
        least = _fewest_stages(changed(deployment, (*degree_change(deployment, tp=tp, pp=1), *weights)))
        for pp in divisors(max(1, min(room, len(deployment.model.layers)))):
            if pp < least:
                continue
            degrees = {"tp": tp, "pp": pp} if dp == plan.dp else {"dp": dp, "tp": tp, "pp": pp}
            change = (*degree_change(deployment, **degrees), *weights)
            if _would_fit(deployment, change):
                yield Repair(text=degree_words(change), change=change, kind="joint", last_resort=True)


def _batch_and_pool_repairs(deployment: Deployment) -> Iterator[Repair]:
    """Yield the largest batch beside which one block fits, and the largest pool beside that."""
    one_block = changed(deployment, (("serving.kv_blocks", 1),))
    for batch in _limit_repairs(one_block, ()):
        smaller = changed(deployment, batch.change)
        for pool in _limit_repairs(smaller, memory_stages(smaller, None)):
            if deployment.limits.kv_blocks is not None and pool.change[0][0] == "serving.kv_blocks":
                change = (*batch.change, *pool.change)
                yield Repair(text=f"{batch.text} with {pool.text}", change=change, kind="limits", last_resort=True)


def _fewest_stages(whole: Deployment) -> float:
    """Return how many stages weights and K/V of a deployment of one stage need at least: the fullest has the mean."""
    (stage,) = memory_stages(whole, None)
    needed = needed_bytes(whole, replace(stage, buffers=0.0), whole.limits.kv_blocks or 1)
    return needed / budget_bytes(whole)


def _would_fit(deployment: Deployment, change: Change) -> bool:
    after = changed(deployment, change)
    return after.plan.world <= after.num_devices and fits_memory(after)


def _limit_repairs(deployment: Deployment, stages: Sequence[RankBytes]) -> Iterator[Repair]:
    """Yield a smaller pool, or a smaller batch, where that alone is enough."""
    limits = deployment.limits
    if limits.kv_blocks is not None and stages:
        most = most_blocks(deployment, stages)
        if 1 <= most < limits.kv_blocks:
            yield Repair(text=f"at most {most} blocks", change=(("serving.kv_blocks", most),))
    tokens = limits.max_batch_tokens // 2
    if not fits_memory(changed(deployment, (("serving.max_batch_tokens", 1),))):
        return
    while tokens >= 1:
        change = (("serving.max_batch_tokens", tokens),)
        if fits_memory(changed(deployment, change)):
            yield Repair(text=f"serving.max_batch_tokens {tokens}", change=change)
            return
        tokens //= 2
