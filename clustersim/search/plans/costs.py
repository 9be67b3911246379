"""What runs of plans take, in seconds of CPU on a core of 2026: expected before, and counted after by what was done.

Neither looks at a clock, so that a search does the same on any machine. Fitted to 126 plain runs, and to 34 of as many
kinds of plans (DeepSeek-V3 on 32 H200, Llama-3.1-70B on 64 H100, conversations, 370 to 16,000 requests). Of these what
is counted is 0.25 to 1.4 times what they took (pairs with DeepSeek-V3 in lockstep the least), and what is expected, by
the kind of plan alone, 0.2 to 2.5 times; both
in seconds of a core on which a plain request takes 33 µs. Those on which it takes 17 take half as long for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario
from clustersim.search.plans.looks.replays import REPLAY_S
from clustersim.simulation.simulate import RunResult

_PLAIN_S: Final = (15e-3, 33e-6, 33e-6)
"""Of a plain plan, of each of its requests, and of each row of its steps (126 runs of Llama-3.1-8B and DeepSeek-V3)."""
_EACH_S: Final = 28e-6
"""Of a request of another one …"""
_ROW_S: Final = 55e-6
"""… of a row of the steps of the core, however many stages they pass …"""
_SP_ROW_S: Final = 90e-6
"""… on each stage of SP ranks …"""
_LOCKSTEP_S: Final = 0.1e-3
"""… of a replica in lockstep …"""
_PASS_S: Final = 115e-6
"""… of one that goes by events, on each stage (half as much where it only decodes) …"""
_SP_PASS_S: Final = 0.5e-3
"""… of SP ranks …"""
_SHARING_S: Final = 0.18e-3
"""… on each rank where SP ranks share experts …"""
_CALL_S: Final = 6.6e-6
"""… of whatever a clock is told to do …"""
_PREPARED_S: Final = 0.3
"""… and before it begins: programs, and the links that meet."""

PLACED_S: Final = 2.5e-3
"""Of asking whether an engine starts a pool where it is (2,441 of Llama-3.1-70B on 64 H100 took 6.0 s, loaded)."""
STARTED_S: Final = 1.0
"""Until anything is made: modules, the scenario, its requests (0.9 to 1.1 s)."""
PLAN_S: Final = 0.1e-3
"""Of a legal plan: made, and put in order (7,546 of DeepSeek-V3 took 1.0 s, 34,005 of Llama-3.1-70B 2.2 to 2.5 s) …"""
WRITTEN_S: Final = 0.11e-3
"""… and written: its row of the table and the page (34,005 took 3.7 s, 157 of Llama-3.1-8B 0.15 s)."""
_BOUND_S: Final = 12e-3
"""Of a pool that is bounded (Llama-3.1: 8 to 15 ms) …"""
_MOE_BOUND_S: Final = 50e-3
"""… of a model with experts (DeepSeek-V3: 17 to 90 ms)."""
_LOOK_S: Final = 0.3e-6
"""Of a request in a look that is compiled (0.2 to 0.4 µs) …"""
_READ_S: Final = 1.0
"""… when that was read. What the compiler takes, once on a machine, is not counted."""

_PLAIN_MS: Final = 0.1
"""What a request is expected to take in one pool …"""
_POOLS_MS: Final = 0.4
"""… in two of them, in Python: compiled a tenth, but a search compiles them only once there is much of it …"""
_STAGES_MS: Final = 0.3
"""… for there being stages …"""
_MOVE_MS: Final = 0.045
"""… for each transfer of its K/V between pools …"""
_SP_MS: Final = 0.6
"""… on each stage of SP ranks …"""
_MEMBER_MS: Final = 0.03
"""… for each replica in lockstep with another pool (DeepSeek-V3 at 38 to 100 requests/s: 0.020 where it is asked for
64 tokens, 0.037 for 204, since then more decode together), half as much by itself …"""
_MEETING_MS: Final = 30.0
"""… and where operators of ranks are events: of SP ranks with stages and TP groups, or experts, and of stages whose
ranks do not all do the same and that send over links of their collectives (DeepSeek-V3, EP groups smaller than TP), and
of replicas in lockstep beside another pool, on several nodes (23 to 90 ms) …"""
_SHARING_MS: Final = 0.5
"""… on each rank where all SP ranks of one stage share experts …"""
_MEETING_PROMPT_MS: Final = 2.0
"""… of prompts alone, where there is one stage …"""
_PROMPTS_MS: Final = 6.0
"""… or several (3.8 to 7.6) …"""
_CROWDED_MS: Final = 2.0
"""… or on each rank of one of these, where some are on one node (DeepSeek-V3: 1.5 to 3.4, Llama-3.1-70B to 3.7) …"""
_OWNERS_MS: Final = 8.0
"""… or since these keep sequences of their own, and hand them over from several stages …"""
_STAGED_MS: Final = 0.3
"""… or where K/V may meet what stages send."""


def work_s(result: RunResult) -> float:
    """Return the seconds that a run took, by what was done in it."""
    pools, steps, requests = result.scenario.each_pool(), result.timeline.steps, len(result.columns["outcome"])
    plans = [one.plan for one in pools]
    if len(plans) == 1 and plans[0].sp.degree == plans[0].pp == 1 and not plans[0].is_lockstep:
        began, each, row = _PLAIN_S
        return began + each * requests + row * len(steps["replica"])
    first, found = steps["replica"] < pools[0].plan.dp, _PREPARED_S
    by_events = bool(result.replayed.obstacle)
    for place, rows in enumerate((int(first.sum()), int((~first).sum()))[: len(plans)]):
        found += rows * _row_s(plans[place], by_events, place > 0)
    calls = result.replayed.calls if by_events else 0  # of the core these depend on what a process did before
    return found + _EACH_S * requests + _CALL_S * calls


def _row_s(plan: ParallelPlan, by_events: bool, decodes: bool) -> float:
    """Return the seconds of a row of steps of one of the pools."""
    if plan.is_lockstep:
        return _LOCKSTEP_S
    if not by_events:
        return _ROW_S if plan.sp.degree == 1 else _SP_ROW_S * plan.pp
    if plan.sp.degree > 1 and plan.ep.degree > 1:
        return _SHARING_S * plan.sp.degree * plan.tp * plan.pp
    return (_SP_PASS_S if plan.sp.degree > 1 else _PASS_S * (0.5 if decodes else 1.0)) * plan.pp


def bound_s(model: ModelSpec) -> float:
    """Return the seconds that the bound of a pool takes."""
    return _MOE_BOUND_S if any(isinstance(layer.ffn, Moe) for layer in model.layers) else _BOUND_S


def looks_s(plain: int, quick: int) -> float:
    """Return the seconds of looks in which so many requests were replayed in Python, and as many by compiled code."""
    return plain * REPLAY_S + (_READ_S + quick * _LOOK_S if quick else 0.0)


def expected_s(scenario: Scenario, requests: float, *, prompts_only: bool = False) -> float:
    """Return the seconds that a run of so many requests takes, by the kind of plan; or that of their prompts alone."""
    plans = [one.plan for one in scenario.each_pool()]
    pools, node_of = len(plans) > 1, scenario.topology.node_of
    ends = list(itertools.accumulate(one.world for one in plans))
    ranks = [one.placement or range(end - one.world, end) for one, end in zip(plans, ends, strict=True)]
    nodes = [[int(node_of[rank]) for rank in some] for some in ranks]
    meets = pools and not set(nodes[0]).isdisjoint(nodes[1])  # K/V leaves by links that collectives use, too
    each_ms = _POOLS_MS if pools else _PLAIN_MS
    each_ms += sum(
        _lockstep_ms(one, pools, on) if one.is_lockstep else _of_plan_ms(one, pools, meets, prompts_only or first, on)
        for one, on, first in zip(plans, nodes, (pools, False), strict=False)
    )
    if pools:
        each_ms += _MOVE_MS * (sum(one.pp for one in plans) - 1) * max(one.tp for one in plans)
        each_ms += _STAGED_MS if meets and any(one.pp > 1 for one in plans) else 0.0
    return each_ms * 1e-3 * requests


def _lockstep_ms(plan: ParallelPlan, pools: bool, nodes: Sequence[int]) -> float:
    """Return the milliseconds of a request with replicas in lockstep, on these nodes: on several ones operators of a
    pool beside another are events."""
    return _MEETING_MS if pools and len(set(nodes)) > 1 else _MEMBER_MS * plan.dp * (1.0 if pools else 0.5)


def _of_plan_ms(plan: ParallelPlan, pools: bool, meets: bool, prompts: bool, nodes: Sequence[int]) -> float:
    """Return the milliseconds of a request, or of its prompt, with a plan of one pool, or of one of two, that may meet
    others on links."""
    size = plan.sp.degree * plan.tp
    stages = [set(nodes[at : at + size]) for at in range(0, plan.world, size)]
    spans = any(len(one) > 1 for one in stages)  # what ranks exchange leaves by the links by which K/V does
    crowded = len(set().union(*stages[: plan.pp])) < plan.pp
    if plan.sp.degree == 1:
        alike = plan.ep.degree in (1, plan.tp) or not (spans or crowded)
        by_events = plan.pp > 1 and not alike
        each_ms = _STAGES_MS if plan.pp > 1 else 0.0
        return (_PROMPTS_MS if prompts else _MEETING_MS) if by_events else each_ms
    if plan.ep.degree > 1 and plan.pp == 1:
        return _SHARING_MS * size * (0.5 if prompts else 1.0)
    if plan.pp > 1 and (plan.tp > 1 or plan.ep.degree > 1):
        return (_CROWDED_MS * size if crowded else _PROMPTS_MS) if prompts else _MEETING_MS
    if prompts and plan.pp == 1:
        return _MEETING_PROMPT_MS if meets or spans else _SP_MS
    return max(_SP_MS * plan.pp, _OWNERS_MS if pools and plan.sp.decode == "dp" else 0.0)
