"""The share of memory with which an engine takes the K/V pool of a server, by the rule of its profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from clustersim.interop.launch.account import Account
from clustersim.interop.launch.server import Server, shipped_engine
from clustersim.interop.launch.versions import version_of
from clustersim.plan.memory import utilization_of
from clustersim.simulation.legality import pool_blocks, scenario_memory
from clustersim.units import plural

PROFILES: Final[Mapping[str, str]] = {"vllm": "vllm-0.19", "sglang": "sglang-0.5", "trtllm": "trtllm-1.0"}
"""Engine → the profile whose rule is taken where the scenario simulates another engine: the newest."""
_OF: Final = {"all": "all memory", "free": "what weights and buffers leave", "static": "memory for weights and K/V"}


def utilization(server: Server, engine: str, account: Account) -> float:
    """Return what an engine is told as its share of memory.

    It is ``serving.memory_utilization`` where the scenario's engine has the same rule; else the least share, rounded up
    to four digits, that holds as many blocks, which the account notes.
    """
    scenario = server.scenario
    same = version_of(scenario.engine.name, engine) is not None
    rule = shipped_engine(scenario.engine.name if same else PROFILES[engine]).pool
    asked = scenario.serving.memory_utilization
    if scenario.engine.pool == rule:
        return asked
    memory, tokens = scenario_memory(scenario), scenario.serving.kv_block_tokens
    blocks = max(1, pool_blocks(scenario, memory))
    device = scenario.topology.device.memory_bytes
    shares = [
        utilization_of(rank, blocks * tokens * rank.kv_bytes_per_token, device_bytes=device, rule=rule)
        for rank in memory
    ]
    found = min(1.0, math.ceil(max(shares) * 1e4) / 1e4)
    account.note(
        f"{server.pool}{': ' * bool(server.pool)}{found:g} of {_OF[rule.share_of]} holds the "
        f"{plural(blocks, 'block')} that {scenario.engine.name} has with serving.memory_utilization {asked:g}."
    )
    return found
