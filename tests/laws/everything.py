"""Scenarios over all features together: what serves, in which order, with which limits, clients, caches and faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from tests.laws.random_scenarios import disaggregated, faults_of, impatience, swapped, troubled

USER: Final = Path(__file__).parents[2] / "scenarios" / "user"
SCHEDULER: Final = f"{USER}/pace_keeper.py:PaceKeeper"
ROUTER: Final = f"{USER}/by_length.py:ByLength"


@st.composite
def left_early(draw: st.DrawFn, found: dict[str, Any]) -> dict[str, Any]:
    """Draw limits of queues, and clients that give up at all stages, for a scenario of two pools."""
    limits, clients = draw(impatience())
    if draw(st.booleans()):
        times = draw(st.sampled_from(({"exponential": "1 ms"}, {"uniform": {"low": "0 s", "high": "3 ms"}})))
        clients["cancel_after"] = {"share": draw(st.sampled_from((0.5, 1.0))), **times}
    return found | {"serving": found["serving"] | limits, "workload": found["workload"] | clients}


@st.composite
def failing_pools(draw: st.DrawFn) -> dict[str, Any]:
    """Draw two pools in which something fails or gets slower, often with clients that give up."""
    found = draw(disaggregated())
    found = draw(left_early(found)) if draw(st.booleans()) else found
    return found | {"faults": draw(faults_of(found)) if draw(st.integers(0, 3)) else []}


@st.composite
def everything(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario: one pool with troubles mostly, else two pools, or sequences that are swapped."""
    kind = draw(st.integers(0, 9))
    found = draw(failing_pools() if kind == 0 else swapped() if kind == 1 else troubled())
    serving = found["serving"]
    if kind > 1 and draw(st.integers(0, 5)) == 0 and not serving.get("prefix_caching"):
        kept = {key: value for key, value in serving.items() if key not in ("order", "long_prompt_tokens")}
        options = {"prompt_tokens": draw(st.sampled_from((2, 16, 256)))}
        serving = kept | {"scheduler": SCHEDULER, "scheduler_options": options}
        plan = {key: value for key, value in found["plan"].items() if key != "decode_overlap"}
        found = found | {"plan": plan}  # this scheduler does not look at what is in flight, and would be refused
    if draw(st.integers(0, 7)) == 0:
        kept = {key: value for key, value in serving.items() if key != "router_options"}
        serving = kept | {"router": ROUTER, "router_options": {"long": draw(st.sampled_from((8, 30)))}}
    return found | {"serving": serving}


def features(document: dict[str, Any]) -> Counter[str]:
    """Return what a scenario has of all that may be drawn."""
    plan, serving, workload = document["plan"], document["serving"], document["workload"]
    eps = [
        (pool.get("ep"), pool["dp"])
        for pool in (plan, plan.get("prefill"), plan.get("decode"))
        if pool and "dp" in pool
    ]
    scheduler = "own" if ":" in serving["scheduler"] else serving["scheduler"]
    found = Counter({f"scheduler {scheduler}": 1})
    found["own router"] = ":" in serving["router"]
    found["two pools"] = "prefill" in plan
    found["lockstep"] = any(isinstance(ep, dict) and ep.get("scope") == "global" and dp > 1 for ep, dp in eps)
    found["two batches"] = any(isinstance(ep, dict) and ep.get("overlap") == "two_batch" for ep, _ in eps)
    for way in ("all_reduce", "deepep_normal", "deepep_low_latency"):
        found[way] = any(isinstance(ep, dict) and ep.get("exchange") == way for ep, _ in eps)
    found["prefix caching"] = bool(serving.get("prefix_caching"))
    found["swap"] = serving.get("preemption") == "swap"
    found["ranked queue"] = serving.get("order", {}).get("by", "arrival") != "arrival"
    found["queue limit"] = "queue_limit" in serving
    found["queue timeout"] = "queue_timeout" in serving
    found["clients that give up"] = "cancel_after" in workload
    for fault in document.get("faults", ()):
        slow, weak = "slowdown" in fault, fault.get("factor", 0.0) > 0.0
        found["slow device" if slow else "weak link" if weak else "failure"] = 1
        found["losing failure"] |= fault.get("lose") == "lose"
    return +found
