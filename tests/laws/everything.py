"""Scenarios over all features together: what serves, in which order, with which limits, clients, caches and faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import disaggregated, faults_of, impatience, ranks_of, scenario_of, swapped, troubled
from tests.laws.traces import traced

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
def crowded(draw: st.DrawFn, drawn: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Draw a scenario, half of the time with so many requests at once that their K/V waits for that of others."""
    found = draw(drawn)
    if draw(st.booleans()):
        return found
    rate = draw(st.sampled_from(("5000/s", "20000/s", "200000/s")))
    crowd = {"requests": draw(st.integers(10, 40)), "arrivals": {"process": "constant", "rate": rate}}
    serving = found["serving"] | {"max_batch_requests": draw(st.sampled_from((4, 8, 32)))}
    if "prefill" in found["plan"] and draw(st.booleans()):
        crowd["prompt_tokens"] = {"uniform": {"low": 300, "high": 900}}
        serving["kv_blocks"] = -(-draw(st.sampled_from((2000, 12800))) // serving["kv_block_tokens"])
        serving["max_batch_tokens"] = max(serving["max_batch_tokens"], 256)
    found = found | {"serving": serving, "workload": found["workload"] | crowd}
    return draw(cut_off(found)) if draw(st.booleans()) else found


@st.composite
def cut_off(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw a failure, or a horizon, at an instant at which K/V of a scenario starts to move, ends, or is between."""
    moves = simulate(scenario_of(document)).timeline.moves
    if not len(moves["request"]):
        return document
    row = draw(st.integers(0, len(moves["request"]) - 1))
    start, end = int(moves["start_ns"][row]), int(moves["end_ns"][row])
    instant = draw(st.sampled_from((start, start + 1, (start + end) // 2, end)))
    if draw(st.integers(0, 2)) == 0:
        return document | {"run": {"horizon": f"{instant} ns"}}
    ranks = max(int(moves[name].max()) for name in ("from_rank", "to_rank"))
    fault: dict[str, Any] = {"device": draw(st.integers(0, ranks)), "at": f"{instant} ns"}
    if draw(st.booleans()):
        fault["until"] = f"{instant + draw(st.sampled_from((1, 1_000, 100_000, 3_000_000)))} ns"
    return document | {"faults": [fault]}


@st.composite
def everything(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario: one pool with troubles mostly, else two pools, or sequences that are swapped."""
    kind = draw(st.integers(0, 9))
    found = draw(failing_pools() if kind == 0 else swapped() if kind == 1 else troubled())
    serving = found["serving"]
    if kind > 1 and draw(st.integers(0, 5)) == 0 and not serving.get("prefix_caching"):
        kept = {
            key: value
            for key, value in serving.items()
            if key not in ("order", "long_prompt_tokens", "preemption", "admission")
        }
        options = {"prompt_tokens": draw(st.sampled_from((2, 16, 256)))}
        serving = kept | {"scheduler": SCHEDULER, "scheduler_options": options}
        plan = {key: value for key, value in found["plan"].items() if key != "decode_overlap"}
        found = found | {"plan": plan}  # this scheduler does not look at what is in flight, and would be refused
    if draw(st.integers(0, 7)) == 0:
        kept = {key: value for key, value in serving.items() if key != "router_options"}
        serving = kept | {"router": ROUTER, "router_options": {"long": draw(st.sampled_from((8, 30)))}}
    found = found | {"serving": serving}
    return draw(traced(found)) if draw(st.integers(0, 3)) == 0 else found


@st.composite
def traces(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario of any kind with a trace."""
    return draw(traced(draw(everything().filter(lambda one: "trace" not in one["workload"]))))


@st.composite
def rare(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what seldom comes together: few blocks, and a failure, or a horizon, at an instant at which a fact is told.

    Either swaps over stages or SP ranks, out of a ranked queue; or hand-overs, mostly by layer, to a small pool.
    """
    if draw(st.booleans()):
        found = draw(swapped().filter(lambda one: one["plan"]["pp"] > 1 or "sp" in one["plan"]))
        by = draw(st.sampled_from(("priority", "shortest_prompt")))
        order = {"by": by, "patience": draw(st.sampled_from(("10 us", "1 ms", "unlimited")))}
        changes = {"max_batch_requests": draw(st.sampled_from((4, 8))), "order": order}
        clients = {"priority": {"values": [0, 1], "weights": [1, 2]}} if by == "priority" else {}
    else:
        found, clients = draw(disaggregated()), {}
        size = found["serving"]["kv_block_tokens"]
        decode = found["serving"]["decode"] | {"kv_blocks": -(-draw(st.sampled_from((80, 100))) // size)}
        changes = {"decode": decode}
        if "sp" not in found["plan"]["prefill"] and draw(st.integers(0, 3)):
            changes["transfer"] = "layerwise"
    workload = found["workload"] | clients | {"requests": draw(st.integers(6, 20))}
    return draw(cut_when_told(found | {"serving": found["serving"] | changes, "workload": workload}))


@st.composite
def cut_when_told(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw failures, or a horizon, at instants at which something of a scenario is told, or one nanosecond beside."""
    told = np.unique(simulate(scenario_of(document)).timeline.facts["time_ns"])
    if not len(told):
        return document
    row, beside = draw(st.integers(0, len(told) - 1)), draw(st.sampled_from((-1, 0, 0, 1, 1_000, 300_000)))
    instant = max(0, int(told[row]) + beside)
    if draw(st.integers(0, 4)) == 0:
        return document | {"run": {"horizon": f"{max(1, instant)} ns"}}
    ranks = ranks_of(document["plan"])
    faults = []
    for _ in range(draw(st.integers(1, 2))):
        fault: dict[str, Any] = {"device": draw(st.integers(0, ranks - 1)), "at": f"{instant} ns"}
        if draw(st.integers(0, 3)):
            fault["until"] = f"{instant + draw(st.sampled_from((1, 1_000, 100_000, 3_000_000)))} ns"
        if draw(st.integers(0, 3)) == 0:
            fault["lose"] = "lose"
        faults.append(fault)
        instant += draw(st.sampled_from((0, 1, 200_000, 5_000_000)))
    run = {"horizon": faults[-1]["at"]} if draw(st.integers(0, 5)) == 0 and faults[-1]["at"] != "0 ns" else {}
    return document | {"faults": faults, "run": run}


ALL: Final = {
    "everything": everything(), "pools": crowded(failing_pools()), "swaps": crowded(swapped()), "traces": traces(),
    "rare": rare(),
}  # fmt: skip
"""All features as they come, or mostly those of two pools, of sequences that are swapped, of traces, or together what
seldom comes together."""


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
    for way in ("all_reduce", "all_gather", "deepep_normal", "deepep_low_latency"):
        found[way] = any(isinstance(ep, dict) and ep.get("exchange") == way for ep, _ in eps)
    found["prefix caching"] = bool(serving.get("prefix_caching"))
    found["swap"] = serving.get("preemption") == "swap"
    found["room kept"] = serving.get("preemption") == "never"
    found["ranked queue"] = serving.get("order", {}).get("by", "arrival") != "arrival"
    found["queue limit"] = "queue_limit" in serving
    found["context window"] = "context_window" in serving
    found["queue timeout"] = "queue_timeout" in serving
    found["clients that give up"] = "cancel_after" in workload
    trace = workload.get("trace", {})
    found["trace"], found["turns that wait"] = bool(trace), trace.get("turns") == "wait"
    found["equal prefixes in a trace"] = trace.get("format") == "sharegpt"
    for fault in document.get("faults", ()):
        slow, weak = "slowdown" in fault, fault.get("factor", 0.0) > 0.0
        found["slow device" if slow else "weak link" if weak else "failure"] = 1
        found["losing failure"] |= fault.get("lose") == "lose"
    return +found
