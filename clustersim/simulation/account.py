"""What the memory of a rank goes to, part by part: one account, as data and as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from clustersim.cost.precision import Precision, formats_of
from clustersim.model.architecture import ModelSpec
from clustersim.plan.memory import RankMemory, stage_memory
from clustersim.plan.parallel import ParallelPlan
from clustersim.plan.pool import PoolRule
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.legality import pool_blocks, scenario_memory
from clustersim.units import plural

GIB: Final = 2**30


def weights_account(model: ModelSpec) -> list[dict[str, Any]]:
    """Return the weights of a whole model as it is published: module, format, parameters and bytes."""
    (whole,) = stage_memory(
        model,
        ParallelPlan(),
        format_of=formats_of(Precision(weights=model.default_weight_dtype), model),
        activation_bytes=0.0,
        kv_bytes=0.0,
        max_batch_tokens=0,
        max_batch_requests=0,
        rule=PoolRule(),
    )
    return _weights(whole)


def _weights(rank: RankMemory) -> list[dict[str, Any]]:
    return [
        {"module": module, "format": name, "parameters": round(parameters), "bytes": round(size)}
        for module, name, parameters, size in rank.weights
        if round(parameters)
    ]


def memory_account(scenario: Scenario) -> list[dict[str, Any]]:
    """Return what a rank of each stage of each pool keeps, in bytes.

    Returns
    -------
    list of dict
        ``pool`` (None where there is one), ``stage``, ``weights`` (a list: module, format, parameters, bytes),
        ``weights_bytes``, ``buffers_bytes``, ``outside_bytes`` (what the engine keeps), ``kv_bytes`` of ``kv_blocks``
        blocks of ``kv_block_tokens`` tokens, ``device_bytes`` and ``memory_utilization``, the share of them by which
        the engine finds the K/V pool.
    """
    found = []
    for pool, one in zip(scenario.pools, scenario.each_pool(), strict=True):
        memory, serving = scenario_memory(one), one.serving
        blocks = max(0, pool_blocks(one, memory))
        for stage, rank in enumerate(memory):
            found.append(
                {
                    "pool": pool.name if len(scenario.pools) > 1 else None,
                    "stage": stage,
                    "weights": _weights(rank),
                    "weights_bytes": round(rank.weights_bytes),
                    "buffers_bytes": round(rank.buffers_bytes),
                    "outside_bytes": round(one.engine.pool.outside_bytes),
                    "kv_bytes": round(blocks * serving.kv_block_tokens * rank.kv_bytes_per_token),
                    "kv_blocks": blocks,
                    "kv_block_tokens": serving.kv_block_tokens,
                    "device_bytes": one.topology.device.memory_bytes,
                    "memory_utilization": serving.memory_utilization,
                }
            )
    return found


def account_lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each pool: its stage with most weights and buffers."""
    for pool in dict.fromkeys(one["pool"] for one in found):
        stages = [one for one in found if one["pool"] == pool]
        most = max(stages, key=lambda one: int(one["weights_bytes"] + one["buffers_bytes"]))
        of_stage = f" of stage {most['stage']}" if len(stages) > 1 else ""
        kept, beside = _gib(most["outside_bytes"]), _gib(most["buffers_bytes"])
        modules = ", ".join(f"{one['module']} {one['format']} {_gib(one['bytes'])}" for one in most["weights"])
        yield (
            f"memory{f' ({pool})' if pool else ''}: a rank{of_stage} has {_gib(most['weights_bytes'])} GiB of weights "
            f"({modules}), {beside} of buffers, {kept} that the engine keeps "
            f"and {_gib(most['kv_bytes'])} of K/V ({plural(most['kv_blocks'], 'block')} of {most['kv_block_tokens']}); "
            f"{most['memory_utilization']:.0%} of {_gib(most['device_bytes'])} GiB"
        )


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f}"
