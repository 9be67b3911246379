"""Random small scenarios: every primitive, scheduler and fabric, tiny pools that preempt, arrivals that coincide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import yaml
from hypothesis import strategies as st

from clustersim.replay.replay import ReplayInput
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.parts import KeptParts
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.replay_input import replay_input
from tests.laws.cases import crowded, horizons, lengths_of
from tests.round_numbers import Arrival, requests

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS = LLAMA | {
    "model_type": "gpt_oss",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 32,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA = LLAMA | {"model_type": "gemma2", "head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 4096,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "vocab_size": 1024,
}
GROUPED = DEEPSEEK | {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
FABRICS = (
    {"name": "dgx-h100", "nodes": 1},
    {"name": "dgx-a100", "nodes": 2},
    {"name": "l40s-node", "nodes": 1},
    {"name": "mi300x-node", "nodes": 1},
    {"name": "fat-tree", "nodes": 4, "nodes_per_leaf": 2, "devices_per_node": 4, "spines": 1, "oversubscription": 4},
)
SIZES = {"dgx-h100": 8, "dgx-a100": 16, "l40s-node": 8, "mi300x-node": 8, "fat-tree": 16}


PADDED = {"name": "vllm-0.19", "graph_sizes": [3, {"by": 5}]}
"""An engine whose captured graphs few batches fit."""
STREAMED = {"name": "ideal", "first_token": "transfer"}
"""An engine whose decode pool hands on what the prefill pool sampled."""
ROUTERS = ("round_robin", "least_outstanding", "round_robin", "least_outstanding", "fewest_waiting", "power_of_two")


@st.composite
def orders(draw: st.DrawFn, scheduler: str) -> dict[str, Any]:
    """Draw the order of a queue, whether long prompts are cut, and who is admitted; mostly as by default."""
    found: dict[str, Any] = {}
    if draw(st.integers(0, 2)) == 0:
        patience = draw(st.sampled_from(("10 us", "1 ms", "unlimited")))
        found["order"] = {"by": "shortest_prompt", "patience": patience}
    if scheduler == "chunked_prefill" and draw(st.integers(0, 3)) == 0:
        found["long_prompt_tokens"] = draw(st.sampled_from((1, 5, 20)))
    if scheduler != "static":
        found |= draw(st.sampled_from(({"preemption": "never"}, {}, {"admission": "first_chunk"})))
    else:
        found["preemption"] = draw(st.sampled_from(("recompute", "never")))
    return found


def wide_degrees(tp: int, dp: int) -> st.SearchStrategy[int]:
    """Draw a degree of EP over all replicas: it divides 8 experts and the ranks, and groups inside an expert fit."""
    shares = {ep: tp * dp // ep for ep in (1, 2, 4, 8) if tp * dp % ep == 0}
    return st.sampled_from([ep for ep, share in shares.items() if tp % share == 0] or [1])


@st.composite
def spread(draw: st.DrawFn, ranks: int, tp: int, dp: int) -> int | dict[str, Any]:
    """Draw over which ranks the experts of a plan are spread: those of a stage, or of all of ``dp`` replicas."""
    ep: int | dict[str, Any] = draw(st.sampled_from([e for e in (1, 2, 4, 8) if ranks % e == 0]))
    if ranks == tp and ep != 1 and draw(st.integers(0, 3)) == 0:
        return draw(visited({"degree": ep, "exchange": "all_reduce"}))
    if dp > 1 and draw(st.booleans()):
        ep = {"degree": draw(wide_degrees(tp, dp)), "scope": "global"}
    return draw(exchanged(draw(visited(ep)), ranks, tp * dp))


@st.composite
def exchanged(draw: st.DrawFn, ep: int | dict[str, Any], ranks: int, everywhere: int) -> int | dict[str, Any]:
    """Let the tokens of some plans get to their experts as DeepEP brings them there, or to all ranks."""
    found = {"degree": ep} if isinstance(ep, int) else ep
    alone = found["degree"] == (everywhere if "scope" in found else ranks)
    ways = ("all_to_all", "deepep_normal", "deepep_low_latency", *(("all_gather",) if alone else ()))
    way = draw(st.sampled_from(ways))
    if found["degree"] == 1 or way == "all_to_all":
        return ep
    if way == "all_gather":
        return found | {"exchange": way}
    dispatch = draw(st.sampled_from((None, "fp8", "bf16")))
    return found | {"exchange": way} | ({"dispatch": dispatch} if dispatch else {})


@st.composite
def visited(draw: st.DrawFn, ep: int | dict[str, Any]) -> int | dict[str, Any]:
    """Let the experts of some plans be visited unevenly, and some have redundant copies."""
    found = {"degree": ep} if isinstance(ep, int) else ep
    if found["degree"] == 1 or draw(st.booleans()):
        return ep
    found = found | {"routing": {"zipf": draw(st.sampled_from((0.0, 0.5, 1.0, 2.0)))}}
    redundant = found["degree"] * draw(st.sampled_from((0, 0, 1, 2)))
    return found | ({"redundant": redundant} if redundant <= 8 * (found["degree"] - 1) else {})


@st.composite
def overlapped(draw: st.DrawFn, plan: dict[str, Any]) -> dict[str, Any]:
    """Let steps of some plans of experts run as two halves that overlap, of some from so many tokens on."""
    ep = plan.get("ep", 1)
    found = {"degree": ep} if isinstance(ep, int) else ep
    kept = found.get("exchange") == "all_reduce"  # nothing is exchanged that could be hidden
    if found["degree"] == 1 or kept or plan["pp"] > 1 or "sp" in plan or draw(st.integers(0, 2)) == 0:
        return plan
    found = found | {"overlap": "two_batch"}
    if draw(st.integers(0, 3)) == 0:
        found |= {"overlap_decode_tokens": 3, "overlap_prefill_tokens": draw(st.sampled_from((6, 20)))}
    return plan | {"ep": found}


@st.composite
def prefixes(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Let some scenarios cache prefixes that prompts share, and some of these route by them."""
    if draw(st.integers(0, 2)):
        return document
    shared = {"groups": draw(st.sampled_from((1, 2, 4))), "tokens": draw(st.sampled_from((3, 8, 24, 40)))}
    serving = document["serving"] | {"prefix_caching": True}
    if draw(st.booleans()):
        serving["router"] = "prefix_aware"
        serving["router_options"] = {"balance_abs_threshold": draw(st.sampled_from((0, 1, 64)))}
    return document | {"serving": serving, "workload": document["workload"] | {"shared_prefixes": shared}}


@st.composite
def impatience(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw limits of queues, and clients that give up, as parts of ``serving`` and ``workload``; mostly nothing."""
    serving: dict[str, Any] = {}
    workload: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        serving["queue_limit"] = draw(st.integers(1, 3))
    if draw(st.integers(0, 3)) == 0:
        serving["queue_timeout"] = draw(st.sampled_from(("100 us", "2 ms", "20 ms")))
    if draw(st.integers(0, 3)) == 0:
        time = draw(st.sampled_from(("0 s", "1 ms", "7 ms", "30 ms")))
        kinds = ({"fixed": time}, {"uniform": {"low": "0 s", "high": "20 ms"}}, {"exponential": "5 ms"})
        workload["cancel_after"] = {"share": draw(st.sampled_from((0.3, 1.0))), **draw(st.sampled_from(kinds))}
    if draw(st.integers(0, 3)) == 0:
        serving["order"] = {"by": "priority", "patience": draw(st.sampled_from(("1 ms", "unlimited")))}
        workload["priority"] = {"values": [0, 1], "weights": [1, 2]}
    if draw(st.integers(0, 5)) == 0:
        serving["context_window"] = draw(st.sampled_from((8, 24, 60)))
    return serving, workload


@st.composite
def faults_of(draw: st.DrawFn, document: dict[str, Any]) -> list[dict[str, Any]]:
    """Draw what fails in a document's cluster, one to three times; often something that it runs on."""
    ranks, ends = ranks_of(document["plan"]), scenario_of(document).topology.link_ends
    instants = ("0 s", "100 us", "1 ms", "3 ms", "3.5 ms", "6 ms", "12 ms")
    found = []
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(instants) - 2))
        until = draw(st.none() | st.integers(at + 1, len(instants) - 1))
        fault: dict[str, Any] = {"device": draw(st.integers(0, ranks - 1)), "at": instants[at]}
        kind = draw(st.integers(0, 9))
        if kind == 0:
            fault = {"node": 0, "at": instants[at]}
        elif kind in (1, 2, 3):
            fault["slowdown"] = draw(st.sampled_from((1.5, 7.0)))
        elif kind in (4, 5):
            link = list(ends[draw(st.integers(0, len(ends) - 1))])
            fault = {"link": link, "at": instants[at], "factor": draw(st.sampled_from((0.0, 0.01, 0.5, 0.5)))}
        if until is not None:
            fault["until"] = instants[until]
        if not fault.get("slowdown") and not fault.get("factor") and draw(st.integers(0, 3)) == 0:
            fault["lose"] = "lose"
        found.append(fault)
    return found


def ranks_of(plan: dict[str, Any]) -> int:
    if "prefill" in plan:
        return ranks_of(plan["prefill"]) + ranks_of(plan["decode"])
    sp = plan.get("sp")
    whole: int = plan["dp"] * plan["pp"] * plan["tp"] * (sp["degree"] if sp else 1)
    return whole


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the document of a small legal scenario."""
    config: dict[str, Any] = dict(draw(st.sampled_from((LLAMA, MIXTRAL, GPT_OSS, DEEPSEEK, GROUPED, GEMMA))))
    moe, latent = "num_experts_per_tok" in config, "kv_lora_rank" in config
    layers = 4 if "layer_types" in config else draw(st.sampled_from((2, 3, 4, 5, 9)))  # of 9, some stand for all
    config["num_hidden_layers"] = layers
    fabric = draw(st.sampled_from(FABRICS))
    devices = SIZES[fabric["name"]]
    tp = draw(st.sampled_from((1, 2, 4)))
    pp = draw(st.sampled_from((1, 1, 2, 3, 4)))
    sp = draw(st.sampled_from((1, 1, 2, 4)))
    while tp * pp * sp > devices:
        tp, pp, sp = max(1, tp // 2), max(1, pp - 1), max(1, sp // 2)
    dp = draw(st.sampled_from([d for d in (1, 2, 3) if d * tp * pp * sp <= devices]))
    plan: dict[str, Any] = {"dp": dp, "pp": min(pp, layers), "tp": tp}
    if sp > 1:
        plan["sp"] = {
            "degree": sp,
            "scheme": "all_gather"
            if latent or 8 // tp % sp
            else draw(st.sampled_from(("all_gather", "ring", "all_to_all"))),
            "partition": draw(st.sampled_from(("contiguous", "zigzag", "striped"))),
            "decode": draw(st.sampled_from(("idle", "dp"))),
        }
    if moe:
        plan["ep"] = draw(spread(sp * tp, tp, dp if sp == pp == 1 else 1))
        plan = draw(overlapped(plan))
    if pp > 1 and draw(st.booleans()):
        plan["decode_overlap"] = "none"
    if draw(st.integers(0, 3)) == 0:
        plan["placement"] = draw(st.permutations(range(devices)))[: dp * plan["pp"] * sp * tp]
    arrivals = draw(
        st.sampled_from(
            (
                {"process": "all_at_once"},
                {"process": "poisson", "rate": "200/s"},
                {"process": "constant", "rate": "1000/s"},
                {"process": "closed_loop", "concurrency": 3},
            )
        )
    )
    longest = 64
    scheduler = draw(st.sampled_from(("continuous", "chunked_prefill", "continuous", "chunked_prefill", "static")))
    block_tokens = draw(st.sampled_from((1, 4, 16)))
    pool_tokens = draw(st.sampled_from((48, 80, 120, 200, 65536)))
    found = {
        "name": "random",
        "seed": draw(st.integers(0, 1000)),
        "topology": fabric,
        "model": {"name": "tiny", "source": "a test", "config": config},
        "plan": plan,
        "serving": {
            "scheduler": scheduler,
            "max_batch_requests": draw(st.sampled_from((1, 2, 8))),
            "max_batch_tokens": draw(st.sampled_from((8, 32, 256))),
            "kv_block_tokens": block_tokens,
            "kv_blocks": -(-pool_tokens // block_tokens),
            "router": draw(st.sampled_from(ROUTERS)),
            **draw(orders(scheduler)),
            "engine": draw(st.sampled_from(("vllm-0.19", "ideal", PADDED, STREAMED))),
        },
        "workload": {
            "arrivals": arrivals,
            "prompt_tokens": {"uniform": {"low": 1, "high": longest}},
            "output_tokens": {"uniform": {"low": 1, "high": 12}},
            "requests": draw(st.integers(1, 10)),
        },
        "run": {"horizon": draw(st.sampled_from((None, None, None, "5 ms", "20 ms")))},
    }
    return draw(prefixes(found))


@st.composite
def troubled(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario whose queues have limits, whose clients give up, or in which something fails or gets slower."""
    found = draw(documents())
    limits, clients = draw(impatience())
    found = found | {"serving": found["serving"] | limits, "workload": found["workload"] | clients}
    return found | {"faults": draw(faults_of(found)) if draw(st.booleans()) else []}


@st.composite
def swapped(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario with few blocks that swaps sequences to the hosts of its devices, which have room for some."""
    can = ("continuous", "chunked_prefill")
    drawn = documents().filter(lambda one: one["topology"]["name"] != "fat-tree")
    swappable = drawn.filter(lambda one: one["serving"]["scheduler"] in can)
    found = draw(swappable.filter(lambda one: not one["serving"].get("prefix_caching")))
    limits, clients = draw(impatience())
    size = found["serving"]["kv_block_tokens"]
    swap = {
        "preemption": "swap",
        "host_kv": draw(st.sampled_from(("64 GiB", "1 MB", "400 kB"))),
        "kv_blocks": -(-draw(st.sampled_from((80, 80, 100, 150))) // size),
        "max_batch_requests": draw(st.sampled_from((2, 3, 8))),
    }
    crowd = {"requests": draw(st.integers(3, 7)), "output_tokens": {"uniform": {"low": 6, "high": 16}}}
    if draw(st.booleans()):
        crowd["arrivals"] = {"process": "all_at_once"}
    faults = {"faults": draw(faults_of(found))} if draw(st.booleans()) else {}
    changes = {"serving": found["serving"] | limits | swap, "workload": found["workload"] | clients | crowd}
    return found | changes | faults


@st.composite
def disaggregated(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a scenario whose requests are prefilled in one pool and decoded in another, with plans of their own."""
    document = draw(documents())
    devices, config = SIZES[document["topology"]["name"]], document["model"]["config"]
    pools = []
    for left in (devices - 1, None):
        left = devices - pools[0][0] if left is None else left
        degrees = [
            (dp, pp, sp, tp)
            for dp in (1, 2, 3)
            for pp in (1, 2, 3)
            for sp in ((1,) if pools else (1, 1, 2))  # a pool that only decodes has no tokens to split
            for tp in (1, 2, 4)
            if dp * pp * sp * tp <= left and pp <= config["num_hidden_layers"]
        ]
        dp, pp, sp, tp = draw(st.sampled_from(degrees))
        plan: dict[str, Any] = {"dp": dp, "pp": pp, "tp": tp}
        if sp > 1:
            decode = draw(st.sampled_from(("idle", "dp")))
            plan["sp"] = {"degree": sp, "scheme": "all_gather", "partition": "zigzag", "decode": decode}
        if "num_experts_per_tok" in config:
            plan["ep"] = draw(spread(sp * tp, tp, dp if sp == pp == 1 else 1))
        pools.append((dp * pp * sp * tp, plan))
    if draw(st.integers(0, 3)) == 0:
        placement = draw(st.permutations(range(devices)))
        (many, prefill), (others, decode_plan) = pools
        prefill["placement"], decode_plan["placement"] = placement[:many], placement[many : many + others]
    elif max(pool[0] for pool in pools) <= 8 and draw(st.integers(0, 3)) == 0:
        document = document | {"topology": {"name": "h100-and-a100"}}
        kinds = draw(st.permutations(("h100-sxm-80gb", "a100-sxm-80gb")))
        for (_, plan), kind in zip(pools, kinds, strict=True):
            plan["placement"] = kind
    names = ("continuous", "chunked_prefill")
    serving = document["serving"] | {"scheduler": "disaggregated"}
    for key in ("long_prompt_tokens", "preemption"):
        serving.pop(key, None)
    workload = dict(document["workload"])
    for pool in ("prefill", "decode"):
        serving[pool] = {"scheduler": draw(st.sampled_from(names)), "router": draw(st.sampled_from(ROUTERS))}
    if draw(st.booleans()):  # so few that sequences which were received are preempted
        serving["decode"]["kv_blocks"] = -(-draw(st.sampled_from((80, 100))) // serving["kv_block_tokens"])
    if "sp" not in pools[0][1] and draw(st.booleans()):
        serving["transfer"] = "layerwise"
    plans = {"prefill": pools[0][1], "decode": pools[1][1]}
    return document | {"plan": plans, "serving": serving, "workload": workload}


_PARTS: Final = KeptParts()
"""Most scenarios of tests have the same few topologies, models and engines."""


def scenario_of(document: dict[str, Any], **run: Any) -> Scenario:
    """Build a scenario from a document, with values of ``run`` replaced."""
    whole = document | {"run": {key: value for key, value in (document["run"] | run).items() if value is not None}}
    text = yaml.dump(whole, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))  # the one in C, where there is one
    return build_scenario(parse_yaml(text, "random.yaml"), allow_code=True, kept=_PARTS)


Crowd = tuple[dict[str, Any], tuple[Arrival, ...], int | None, int | None]
"""(document, arrivals in place of its workload, concurrency, horizon in ns)"""


def hashed(arrivals: tuple[Arrival, ...], groups: int, tokens: int) -> dict[str, Any]:
    """Hashes of prompts: those of a group begin with up to three equal ones."""
    rows = []
    for request, (_, prompt, _) in enumerate(arrivals):
        group, alike = request % groups, 1 + request % 3
        blocks = range(-(-prompt // tokens))
        rows.append(np.array([group if place < alike else groups + request for place in blocks], np.int64))
    return {"prefix_hashes": tuple(rows), "hash_block_tokens": tokens}


def crowd_input(crowd: Crowd) -> ReplayInput:
    """What a replay of a crowd is a function of."""
    document, arrivals, concurrency, horizon_ns = crowd
    shared = document["workload"].get("shared_prefixes")
    crowding = requests(arrivals, concurrency)
    if shared is not None:
        crowding = replace(crowding, **hashed(arrivals, shared["groups"], shared["tokens"]))
    found = replay_input(scenario_of(document | {"run": {}}), crowding)
    return replace(found, horizon_ns=horizon_ns)


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    """Draw a scenario whose requests and horizon fall on the instants at which something ends."""
    document = draw(st.one_of(documents(), documents(), documents(), disaggregated()))
    lengths = lengths_of(draw(st.sampled_from((12, 40))))
    instants = st.just(0) | st.integers(0, draw(st.sampled_from((10_000, 2_000_000, 20_000_000))))
    drawn = draw(st.lists(st.tuples(instants, lengths), min_size=1, max_size=8))
    arrivals = tuple(sorted(((at, *both) for at, both in drawn), key=lambda arrival: arrival[0]))
    concurrency = draw(st.sampled_from((None, None, None, 1, 3)))
    given = crowd_input((document, arrivals, concurrency, None))
    if concurrency is None:
        arrivals = crowded(draw, lambda found: replace(given, requests=requests(found)), arrivals, lengths)
    horizon_ns = horizons(draw, replace(given, requests=requests(arrivals, concurrency)))
    return document, arrivals, concurrency, horizon_ns
