"""What runs of plans take, in seconds of CPU on a core of 2026: expected before, and counted after by what was done.

Neither looks at a clock, so that a search does the same on any machine. Fitted to 20 runs of as many kinds of plans
(DeepSeek-V3 on 32 H200, Llama-3.1-70B on 64 H100, conversations, 50 to 270 requests), and to four of 5,400 to 15,200
requests for SP ranks and lockstep, whose rows take half as long there: what is counted is 0.8 to 1.3 times what these
took, and 0.4 to 1.4 times what the short ones did; what is expected, by the kind of plan alone, 0.3 to 3 times.
"""

from __future__ import annotations

from typing import Final

from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.simulate import RunResult

_EACH_S: Final = 28e-6
"""Of a request …"""
_PASS_S: Final = 130e-6
"""… of a row of steps on each stage …"""
_SP_PASS_S: Final = 1.1e-3
"""… of SP ranks …"""
_LOCKSTEP_S: Final = 0.75e-3
"""… of a replica in lockstep, on a clock …"""
_CALL_S: Final = 5.9e-6
"""… of whatever its clock is told to do …"""
_PREPARED_S: Final = 0.2
"""… and, but for a plain plan, before it begins: programs, and the links that meet."""

_PLAIN_MS: Final = 0.2
"""What a request is expected to take …"""
_STAGES_MS: Final = 0.05
"""… for there being stages …"""
_MOVE_MS: Final = 0.03
"""… for each transfer of its K/V between pools …"""
_SP_MS: Final = 0.6
"""… on each stage of SP ranks …"""
_MEMBER_MS: Final = 0.35
"""… for each replica in lockstep with another pool, half as much by itself …"""
_MEETING_MS: Final = 30.0
"""… and where operators of SP ranks are events: of TP groups, or such that meet K/V on links …"""
_OWNERS_MS: Final = 10.0
"""… or since these keep sequences of their own, and hand them over …"""
_STAGED_MS: Final = 1.0
"""… or where K/V may meet what stages send."""


def work_s(result: RunResult) -> float:
    """Return the seconds that a run took, by what was done in it."""
    pools, steps = result.scenario.each_pool(), result.timeline.steps
    first = steps["replica"] < pools[0].plan.dp
    calls, found = result.replayed.calls, 0.0
    for one, rows in zip(pools, (int(first.sum()), int((~first).sum())), strict=False):
        plan = one.plan
        alone_s = _SP_PASS_S if plan.sp.degree > 1 else _LOCKSTEP_S if plan.is_lockstep and calls else _PASS_S
        found += rows * plan.pp * alone_s
    plain = len(pools) == 1 and pools[0].plan.sp.degree == pools[0].plan.pp == 1
    return found + _EACH_S * len(result.columns["outcome"]) + _CALL_S * calls + (0.0 if plain else _PREPARED_S)


def expected_s(scenario: Scenario, requests: float) -> float:
    """Return the seconds that a run of so many requests takes, by the kind of plan."""
    plans = [one.plan for one in scenario.each_pool()]
    meets = len(plans) > 1 and _share_nodes(scenario)
    each_ms = _PLAIN_MS + sum(_of_plan_ms(one, len(plans) > 1, meets or _spans_nodes(scenario, one)) for one in plans)
    if len(plans) > 1:
        each_ms += _MOVE_MS * (sum(one.pp for one in plans) - 1) * max(one.tp for one in plans)
        each_ms += _STAGED_MS if meets and any(one.pp > 1 for one in plans) else 0.0
    return each_ms * 1e-3 * requests


def _of_plan_ms(plan: ParallelPlan, pools: bool, meets: bool) -> float:
    """Return the milliseconds of a request with a plan of one pool, or of one of two, that may meet others on links."""
    if plan.is_lockstep:
        return _MEMBER_MS * plan.dp * (1.0 if pools else 0.5)
    if plan.sp.degree == 1:
        return _STAGES_MS if plan.pp > 1 else 0.0
    if (plan.pp > 1 and (plan.tp > 1 or (pools and plan.ep.degree > 1))) or (plan.pp == 1 and pools and meets):
        return _MEETING_MS
    return max(_SP_MS * plan.pp, _OWNERS_MS if pools and plan.sp.decode == "dp" else 0.0)


def _spans_nodes(scenario: Scenario, plan: ParallelPlan) -> bool:
    """Whether the ranks of a stage are on several nodes, so that they exchange over the links by which K/V leaves."""
    node_of, ranks = scenario.topology.node_of, plan.placement or range(plan.world)
    size = plan.sp.degree * plan.tp
    return any(int(node_of[ranks[at]]) != int(node_of[ranks[at + size - 1]]) for at in range(0, plan.world, size))


def _share_nodes(scenario: Scenario) -> bool:
    """Whether the ranks of two pools are on the same nodes, so that K/V leaves by links that collectives use, too."""
    node_of = scenario.topology.node_of
    first, second = (one.plan for one in scenario.each_pool())
    ranks = first.placement or range(first.world), second.placement or range(first.world, first.world + second.world)
    return not {int(node_of[rank]) for rank in ranks[0]}.isdisjoint(int(node_of[rank]) for rank in ranks[1])
