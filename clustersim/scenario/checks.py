"""What the types of single keys cannot say: keys that need, or exclude, each other.

The checks read the raw document, so that they speak up beside wrong types; where a value has the wrong type
they say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim.errors import did_you_mean
from clustersim.plan.built import VISITS_NEED_EP
from clustersim.scenario.document import KeyPath
from clustersim.scenario.fields import MOST
from clustersim.units import plural

Finding = tuple[KeyPath, str]
"""Where, and what is wrong."""

DRAWN_KEYS: Final = ("arrivals", "prompt_tokens", "output_tokens", "requests")
CLIENT_KEYS: Final = {"priority": "priority", "cancel_after": "cancel_after_s"}
"""What may be drawn besides → the column in which a plain CSV trace tells it."""
_ARRIVAL_KEYS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "poisson": (("rate",), ("rescale",)),
    "gamma": (("rate", "cv"), ("rescale",)),
    "constant": (("rate",), ()),
    "all_at_once": ((), ()),
    "closed_loop": (("concurrency",), ()),
}
"""Arrival process → keys that it needs, and keys that it may have."""
_EXAMPLES: Final = {
    "rate": "rate: 4/s",
    "cv": "cv: 2.0",
    "concurrency": "concurrency: 32",
    "arrivals": "arrivals: {process: poisson, rate: 4/s}",
    "prompt_tokens": "prompt_tokens: {fixed: 1024}",
    "output_tokens": "output_tokens: {fixed: 128}",
    "requests": "requests: 200",
}
SCHEDULERS: Final = ("static", "continuous", "chunked_prefill", "disaggregated")
POOL_SCHEDULERS: Final = ("continuous", "chunked_prefill")
POOLS: Final = ("prefill", "decode")
ROUTERS: Final = ("round_robin", "least_outstanding", "fewest_waiting", "power_of_two", "prefix_aware")
PREFIX_ROUTING: Final = ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold")
"""Options of the router ``prefix_aware``."""
PREFIXES_NEEDED: Final = "the router prefix_aware asks for cached prefixes; set prefix_caching: true"


def cross_findings(data: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong between the keys of a scenario document."""
    findings: list[Finding] = []
    workload = data.get("workload")
    if isinstance(workload, dict):
        findings += _workload(workload)
    serving = data.get("serving")
    if isinstance(serving, dict):
        findings += _serving(serving)
    findings += _pools(data.get("plan"), serving)
    findings += _experts(data.get("plan"))
    faults = data.get("faults")
    if isinstance(faults, list):
        findings += _faults(faults)
    return findings


def _faults(faults: Sequence[Any]) -> Iterator[Finding]:
    for number, fault in enumerate(faults):
        if isinstance(fault, dict):
            given = [key for key in ("device", "node", "link") if fault.get(key) is not None]
            if len(given) != 1:
                found = f"names {' and '.join(given)}" if given else "names nothing"
                yield ("faults", number), f"{found} that fails; expected exactly one of device, node and link"
            elif fault.get("slowdown") is not None and given == ["link"]:
                yield ("faults", number, "slowdown"), "a link has no kernels; say what is left of it with factor"
            elif fault.get("factor") is not None and given != ["link"]:
                yield ("faults", number, "factor"), "goes with a link; say how much slower a device is with slowdown"
            elif fault.get("lose") == "lose" and (fault.get("slowdown") or fault.get("factor")):
                yield ("faults", number, "lose"), "what is slow but works loses nothing"


def _pools(plan: object, serving: object) -> Iterator[Finding]:
    """Judge whether two pools have what each needs, and one has nothing of it."""
    plan = plan if isinstance(plan, dict) else {}
    serving = serving if isinstance(serving, dict) else {}
    given = [pool for pool in POOLS if plan.get(pool) is not None]
    if serving.get("scheduler") != "disaggregated":
        for pool in given:
            yield ("plan", pool), "a pool of its own goes with serving.scheduler: disaggregated"
        for key in (*POOLS, "transfer"):
            if serving.get(key) is not None:
                yield ("serving", key), "goes with scheduler: disaggregated"
        return
    transfer = serving.get("transfer")
    prefill = plan.get("prefill")
    split = prefill.get("sp") if isinstance(prefill, dict) else None
    split = split.get("degree") if isinstance(split, dict) else split
    if transfer == "layerwise" and isinstance(split, int) and split > 1:
        message = "the K/V of prompts that SP ranks share is brought together behind the last layer; use whole"
        yield ("serving", "transfer"), message
    for pool in POOLS:
        if pool not in given:
            yield ("plan", pool), f"is missing; scheduler: disaggregated needs it, such as '{pool}: {{dp: 1, tp: 2}}'"
        named = serving.get(pool)
        name = named.get("scheduler") if isinstance(named, dict) else None
        if isinstance(name, str) and name not in POOL_SCHEDULERS:
            message = f"a pool has the scheduler {' or '.join(POOL_SCHEDULERS)}, not {name!r}"
            yield ("serving", pool, "scheduler"), message
        if isinstance(named, dict):
            yield from _patience(named, ("serving", pool))
        holder = named if isinstance(named, dict) and named.get("long_prompt_tokens") is not None else serving
        if holder.get("long_prompt_tokens") is not None and name == "continuous":
            path: KeyPath = ("serving", pool) if holder is named else ("serving",)
            message = f"the {pool} pool's scheduler {name} takes whole prompts; say it in a pool that takes chunks"
            yield (*path, "long_prompt_tokens"), message
        router = named.get("router") if isinstance(named, dict) else None
        if isinstance(router, str):
            yield from _pool_router(router, pool, serving)
    for key in plan:
        if key not in POOLS and given:
            yield ("plan", key), f"say it of each pool, in plan.{POOLS[0]} and plan.{POOLS[1]}"


def _pool_router(router: str, pool: str, serving: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the router that one of two pools names for itself."""
    path: KeyPath = ("serving", pool, "router")
    known = ROUTERS if pool == "prefill" else tuple(name for name in ROUTERS if name != "prefix_aware")
    if ":" in router:
        yield path, "a router from a file is that of both pools; name it in serving.router"
    elif router == "prefix_aware" and pool == "decode":
        yield path, f"the decode pool has no cached prefixes to follow; use one of {', '.join(known)}"
    elif router not in known:
        yield path, f"no router {router!r}{did_you_mean(router, known)}"
    elif router == "prefix_aware" and serving.get("prefix_caching") is False:
        yield path, PREFIXES_NEEDED


def _experts(plan: object) -> Iterator[Finding]:
    """Judge what is said of experts: visits and copies need ranks to differ in, and copies are placed by visits."""
    plan = plan if isinstance(plan, dict) else {}
    for path in (("plan",), *(("plan", pool) for pool in POOLS)):
        holder = plan if len(path) == 1 else plan.get(path[1])
        ep = holder.get("ep") if isinstance(holder, dict) else None
        if not isinstance(ep, dict):
            continue
        routing, copies = ep.get("routing"), ep.get("redundant")
        said = [key for key in ("zipf", "file") if isinstance(routing, dict) and routing.get(key) is not None]
        if len(said) > 1:
            yield (*path, "ep", "routing"), "has zipf and file; expected one of them"
        overlap = ep.get("overlap", "none") != "none"
        exchange = (ep.get("exchange") or "all_to_all") != "all_to_all"
        if ep.get("degree", 1) == 1:
            for key, given in (("redundant", copies), ("overlap", overlap), ("exchange", exchange)):
                if given:
                    yield (*path, "ep", key), VISITS_NEED_EP
        elif copies and ep.get("placement", "contiguous") != "contiguous":
            yield (
                (*path, "ep", "placement"),
                "experts with redundant copies are placed by how often they are visited; remove it",
            )


def _workload(workload: Mapping[str, Any]) -> Iterator[Finding]:
    drawn = [key for key in DRAWN_KEYS if workload.get(key) is not None]
    if workload.get("trace") is not None:
        for key in (*drawn, *(key for key in CLIENT_KEYS if workload.get(key) is not None)):
            hint = {"requests": "; write it inside trace"}.get(key, "")
            hint = f"; a csv trace tells it in a column {CLIENT_KEYS[key]}" if key in CLIENT_KEYS else hint
            yield ("workload", key), f"a workload is a trace or drawn, not both{hint}"
        if workload.get("shared_prefixes") is not None:
            yield ("workload", "shared_prefixes"), "a trace says itself which prompts share a prefix; remove it"
        return
    if not drawn:
        yield (
            ("workload",),
            "says neither trace (recorded requests) nor arrivals, prompt_tokens, output_tokens and "
            "requests (drawn ones)",
        )
        return
    for key in DRAWN_KEYS:
        if key not in drawn:
            yield ("workload", key), f"is missing; a drawn workload needs it, such as '{_EXAMPLES[key]}'"
    if isinstance(workload.get("arrivals"), dict):
        yield from _arrivals(workload["arrivals"])
    for key in ("prompt_tokens", "output_tokens"):
        if isinstance(workload.get(key), dict):
            yield from _lengths(("workload", key), workload[key])
    yield from _clients(workload)


def _clients(workload: Mapping[str, Any]) -> Iterator[Finding]:
    priority, cancel = workload.get("priority"), workload.get("cancel_after")
    if isinstance(priority, dict) and isinstance(priority.get("weights"), list):
        weights, values = priority["weights"], priority.get("values")
        if isinstance(values, list) and len(weights) != len(values):
            message = f"found {plural(len(weights), 'weight')} for {plural(len(values), 'value')}; expected one each"
            yield ("workload", "priority", "weights"), message
        elif all(weight == 0 for weight in weights):
            yield ("workload", "priority", "weights"), "all weights are 0; expected one above"
    if isinstance(cancel, dict):
        given = [key for key in ("fixed", "uniform", "exponential") if cancel.get(key) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has none"
            yield ("workload", "cancel_after"), f"{found} of fixed, uniform and exponential; expected exactly one"


def _arrivals(arrivals: Mapping[str, Any]) -> Iterator[Finding]:
    path: KeyPath = ("workload", "arrivals")
    process = arrivals.get("process")
    if not isinstance(process, str) or process not in _ARRIVAL_KEYS:
        return
    needed, optional = _ARRIVAL_KEYS[process]
    for key in needed:
        if arrivals.get(key) is None:
            yield (*path, key), f"is missing; the process {process} needs it, such as '{_EXAMPLES[key]}'"
    known = {key for keys in _ARRIVAL_KEYS.values() for part in keys for key in part}
    for key, value in arrivals.items():  # null and false say no more than their absence, and are what a run writes
        if key in known and key not in (*needed, *optional) and value not in (None, False):
            yield (*path, key), f"the process {process} has no {key}; remove it"


def _lengths(path: KeyPath, lengths: Mapping[str, Any]) -> Iterator[Finding]:
    kinds = ("fixed", "uniform", "lognormal", "empirical")
    given = [kind for kind in kinds if lengths.get(kind) is not None]
    if len(given) > 1:
        yield path, f"has {' and '.join(given)}; expected exactly one"
    elif not given and set(lengths) <= set(kinds):
        yield path, f"expected one of {', '.join(kinds)}, such as '{{fixed: 1024}}'"
    empirical = lengths.get("empirical")
    if isinstance(empirical, dict):
        if (empirical.get("values") is None) == (empirical.get("trace") is None):
            yield (*path, "empirical"), "expected either values (a list of lengths) or trace (a path)"
        elif empirical.get("trace") is not None and empirical.get("weights") is not None:
            yield (*path, "empirical", "weights"), "weights go with values; a trace has its own"
        elif empirical.get("trace") is None and empirical.get("format") is not None:
            yield (*path, "empirical", "format"), "a format goes with a trace"


def _serving(serving: Mapping[str, Any]) -> Iterator[Finding]:
    for key, known in (("scheduler", SCHEDULERS), ("router", ROUTERS)):
        name = serving.get(key)
        if isinstance(name, str) and ":" not in name and name not in known:
            hint = did_you_mean(name, known)
            also = " Or a class" if hint.endswith("?") else "; or a class"
            yield ("serving", key), f"no {key} {name!r}{hint}{also} of a file, such as my_file.py:MyClass"
        own = key == "router" and "prefix_aware" in (name, _prefill_router(serving))
        if serving.get(f"{key}_options") and not own and not (isinstance(name, str) and ":" in name):
            yield ("serving", f"{key}_options"), f"options go with a {key} from a file, such as my_file.py:MyClass"
    yield from _patience(serving, ("serving",))
    if "prefix_aware" in (serving.get("router"), _prefill_router(serving)):
        yield from _prefix_options(serving)
    if serving.get("router") == "prefix_aware":
        if serving.get("prefix_caching") is False:
            yield ("serving", "router"), PREFIXES_NEEDED
        decode = serving.get("decode")
        named = decode.get("router") if isinstance(decode, dict) else None
        if serving.get("scheduler") == "disaggregated" and named is None:
            message = "the decode pool has no cached prefixes to follow; name its router in serving.decode.router"
            yield ("serving", "router"), message
    yield from _swap(serving)
    yield from _first_chunk(serving)
    if serving.get("long_prompt_tokens") is not None and serving.get("scheduler") in ("static", "continuous"):
        yield ("serving", "long_prompt_tokens"), f"the scheduler {serving['scheduler']} takes whole prompts; remove it"


def _swap(serving: Mapping[str, Any]) -> Iterator[Finding]:
    scheduler = serving.get("scheduler") or "chunked_prefill"
    if serving.get("preemption") == "never" and scheduler not in ("static", "continuous", "chunked_prefill"):
        message = f"the scheduler {scheduler} can't keep room for what runs yet; use continuous or chunked_prefill"
        yield ("serving", "preemption"), message
    if serving.get("preemption") != "swap":
        if serving.get("host_kv") is not None:
            yield ("serving", "host_kv"), "host memory for K/V goes with preemption: swap"
        return
    if scheduler not in ("continuous", "chunked_prefill"):
        yield ("serving", "preemption"), f"the scheduler {scheduler} can't swap yet; use continuous or chunked_prefill"
    if serving.get("prefix_caching") is True:
        yield ("serving", "preemption"), "shared prefixes can't be swapped yet; remove it, or prefix_caching"


def _first_chunk(serving: Mapping[str, Any]) -> Iterator[Finding]:
    if serving.get("admission") != "first_chunk":
        return
    scheduler, preemption = serving.get("scheduler") or "chunked_prefill", serving.get("preemption")
    if preemption == "never":
        why = "with preemption: never a request is admitted when there are blocks for all that it may come to need"
        yield ("serving", "admission"), f"{why}; remove one of them"
    if scheduler not in ("continuous", "chunked_prefill", "disaggregated"):
        why = "has blocks for whole requests" if scheduler == "static" else "decides itself who is admitted"
        yield ("serving", "admission"), f"the scheduler {scheduler} {why}; remove it"


def _patience(serving: Mapping[str, Any], path: KeyPath) -> Iterator[Finding]:
    order = serving.get("order")
    if isinstance(order, dict) and order.get("patience") is not None and order.get("by", "arrival") == "arrival":
        yield (*path, "order", "patience"), "in order of arrival nobody is overtaken, so there is no patience"


def _prefill_router(serving: Mapping[str, Any]) -> object:
    """Return the router that the prefill pool names for itself."""
    prefill = serving.get("prefill")
    return prefill.get("router") if isinstance(prefill, dict) else None


def _prefix_options(serving: Mapping[str, Any]) -> Iterator[Finding]:
    options = serving.get("router_options")
    for key, value in (options if isinstance(options, dict) else {}).items():
        path = ("serving", "router_options", key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if key not in PREFIX_ROUTING:
            yield path, f"prefix_aware has no option {key!r}{did_you_mean(str(key), PREFIX_ROUTING)}"
        elif not number or not 0 <= value <= MOST:
            yield path, f"found {value!r}; expected a number from 0 to {MOST}"
        elif key == "cache_threshold" and value > 1:
            yield path, f"found {value!r}; expected a share of the prompt from 0 to 1"
