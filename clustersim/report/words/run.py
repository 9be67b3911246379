"""A run in words, for people: its configuration, its numbers with units, and what to be warned of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_MS, NS_PER_S
from clustersim.collective.constants import ASSUMED
from clustersim.report.figures.bins import bin_function, time_edges
from clustersim.report.metrics.gauges import gauge
from clustersim.report.metrics.latencies import LATENCIES, Columns, target_met, targets_ns
from clustersim.units import format_seconds, plural

_FEW: Final = 100
_SHOWN_REASONS: Final = 3
_BENT: Final = 0.1
"""Relative difference of rates with and without warm-up and drain that is told."""
_JUDGED: Final = {"P": "plan", "G": "graph", "T": "timeline"}
"""Level of legality rules → what it looks at of a run."""


def number(value: float | None, digits: int = 4) -> str:
    """Write a number with that many significant digits and thousands separated; a dash for None.

    Examples
    --------
    >>> number(12345.678), number(1.23456), number(None)
    ('12,346', '1.235', '–')
    """
    if value is None:
        return "–"
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - whole)}f}" if abs(value) >= 1 else f"{value:.{digits}g}"


def milliseconds(value: float | None) -> str:
    """Write milliseconds for a table: one or two decimals, so that columns line up."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:,.2f}"


def share_words(share: float) -> str:
    """Write a share, 0 to 1, in percent: with a decimal where it is small; 100 % is all of it, and no less."""
    if 0 < share < 0.001:
        return "under 0.1%"
    if 0.99 < share < 1:
        return f"{math.floor(share * 1000) / 10:.1f}%"
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def fullest(summary: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the largest share of a replica's K/V blocks in use: of each pool by its name, or of all with an empty one.

    Empty where it is not known.
    """
    pools = [(str(pool["name"]), pool["kv_peak"]) for pool in summary.get("pools") or ()]
    held = (summary.get("kv_occupancy") or {}).get("replica_max")
    return [(name, float(share)) for name, share in pools or [("", held)] if share is not None]


def configuration(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was simulated, as (what, value) pairs; what the scenario does not say is left out."""
    scenario = summary.get("scenario") or {}
    serving = scenario.get("serving") or {}
    precision = scenario.get("precision") or {}
    devices = summary.get("devices") or ()
    pairs = [
        ("model", _name(scenario.get("model"))),
        ("topology", _name(scenario.get("topology"))),
        ("devices in use", f"{len(set(devices)):,}" if devices else ""),
        ("plan", plan_words(scenario.get("plan"))),
        ("precision", ", ".join(f"{key.replace('_', ' ')} {_named(value)}" for key, value in precision.items())),
        ("scheduler", _name(serving.get("scheduler"))),
        ("engine", _name(serving.get("engine"))),
        ("workload", _workload(scenario.get("workload") or {})),
        ("seed", _name(summary.get("seed"))),
        ("digest", str(summary.get("digest") or "")[:16]),
    ]
    return [(what, value) for what, value in pairs if value]


def setup_words(summary: Mapping[str, Any]) -> str:
    """Return in one line what was simulated, such as ``llama-3.1-70b on dgx-h100, TP 4 × PP 2``."""
    scenario = summary.get("scenario") or {}
    model, topology = _name(scenario.get("model")), _name(scenario.get("topology"))
    on = " on ".join(part for part in (model, topology) if part)
    return ", ".join(part for part in (on, plan_words(scenario.get("plan"))) if part)


def plan_words(plan: Mapping[str, Any] | None) -> str:
    """Write a plan as its degrees above 1, such as ``TP 4 × PP 2 × SP 2 (ring, zigzag)``; of two pools, both."""
    pools = [(pool, plan[pool]) for pool in ("prefill", "decode") if plan and pool in plan]
    if pools:
        return ", ".join(f"{pool} {plan_words(own)}" for pool, own in pools)
    words = []
    for axis in ("dp", "pp", "sp", "tp", "ep"):
        value = (plan or {}).get(axis, 1)
        degree = value.get("degree", 1) if isinstance(value, Mapping) else value
        if degree is None or degree == 1:
            continue
        given = value if isinstance(value, Mapping) else {}
        details = [str(given[key]) for key in ("scheme", "partition", "scope") if given.get(key)]
        words.append(f"{axis.upper()} {degree}" + (f" ({', '.join(details)})" if details else ""))
    return " × ".join(words) if words else "one device"


def legality_words(summary: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the rules answered, as one word (``legal``, ``illegal`` or ``partly``) and in full.

    Examples
    --------
    >>> legality_words({"legal": True, "legality": {"P": "legal", "G": "legal"}})
    ('partly', 'plan and graph legal, timeline not audited')
    """
    legal, levels = summary.get("legal"), summary.get("legality")
    if legal is None:
        return "partly", "not checked"
    if not legal:
        return "illegal", "illegal: see verdict.json"
    if levels is None:  # a run of a version that did not say
        return "legal", "legal"
    said: dict[str, list[str]] = {}
    for level, what in _JUDGED.items():
        answer = levels.get(level, "not audited" if level == "T" else "not checked")
        said.setdefault(answer.replace("_", " "), []).append(what)
    if list(said) == ["legal"]:
        return "legal", f"legal: {_both(said['legal'])}"
    return "partly", ", ".join(f"{_both(what)} {answer}" for answer, what in said.items())


def _both(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def remarks(summary: Mapping[str, Any], requests: Columns | None = None, steps: Columns | None = None) -> list[str]:
    """Return what a reader of the numbers must know before believing them, most serious first; often nothing.

    Parameters
    ----------
    summary : mapping
        The object of ``summary.json``.
    requests, steps : Columns, optional
        The tables of the run; without them what only they tell is not looked at.
    """
    counts = summary["requests"]
    arrived = f"{counts['arrived']:,}"
    found = []
    if summary.get("legal") is False:
        found.append("The run broke legality rules: its numbers describe what could not have happened.")
    engine = ((summary.get("scenario") or {}).get("serving") or {}).get("engine")
    if isinstance(engine, Mapping) and engine.get("asked"):
        found.append(
            f"No engine {engine['asked']!r} is described: {_name(engine)!r}, the profile in force, stands for it."
        )
    found += _assumed_exchanges(summary.get("scenario") or {})
    found += [f"NOT SIMULATED: {what}." for what in summary.get("not_simulated") or ()]
    if counts["unfinished"]:
        found.append(
            f"{counts['unfinished']:,} of {arrived} requests did not finish before the end of the run; "
            "latencies and throughput cover finished requests only; latencies look better than they are."
        )
    for key, what in (
        ("rejected", "rejected"),
        ("cancelled", "given up by their clients"),
        ("lost", "lost when what served them failed"),
    ):
        if counts.get(key):
            why = _why(summary.get("reasons", {}).get(key, {}))
            one = counts[key] == 1
            whose = what.replace("their", "its").replace("clients", "client").replace("them", "it") if one else what
            is_, has = ("was", "has") if one else ("were", "have")
            found.append(f"{counts[key]:,} of {arrived} requests {is_} {whose} and {has} no latency{why}.")
    if requests is not None and steps is not None and queue_grows(requests, steps):
        found.append(
            f"The queue grew for as long as requests arrived: the load{_offered(summary, requests)} is more than this "
            "deployment serves, and TTFT depends on how long the run is."
        )
    found += _bent(summary)
    found += _preemptions(summary.get("preempted") or {})
    if 0 < (finished := counts["finished"]) < _FEW:
        found.append(f"Only {plural(finished, 'request')} finished: p99 is little more than the slowest of them.")
    return found


def _assumed_exchanges(scenario: Mapping[str, Any]) -> list[str]:
    """Say which constants stand in where a pool's devices have none of the DeepEP kernels that its plan asks for."""
    plan = scenario.get("plan") or {}
    pools = [part for part in (plan, plan.get("prefill"), plan.get("decode")) if isinstance(part, Mapping)]
    asked = [((pool.get("ep") or {}).get("exchange"), device)
             for pool in pools for device in _devices(scenario.get("topology") or {}, pool)]  # fmt: skip
    found = []
    for way, device in asked:
        kernels = [f"{str(way).removeprefix('deepep_')}_{direction}" for direction in ("dispatch", "combine")]
        lacking = [name for name in kernels if name in ASSUMED and name not in (device.get("collectives") or {})]
        if lacking:
            told = " and ".join(
                f"{format_seconds(ASSUMED[name]['base_s'])} and {ASSUMED[name]['efficiency']:.0%} of the links ({name})"
                for name in lacking
            )
            found.append(
                f"No DeepEP kernels were measured on {device.get('name')}; assumed constants stand in: {told}."
            )
    return list(dict.fromkeys(found))


def _devices(topology: Mapping[str, Any], pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the kinds of device that a pool may be on: that of its placement, of packed ones the first, or all."""
    groups = (topology.get("fabric") or {}).get("groups") or ()
    kinds = [one for one in (topology.get("device"), *(group.get("device") for group in groups))
             if isinstance(one, Mapping)]  # fmt: skip
    named = [one for one in kinds if one.get("name") == pool.get("placement")]
    return named or (kinds[:1] if pool.get("placement") in (None, "packed") else kinds)


def _offered(summary: Mapping[str, Any], requests: Columns) -> str:
    """Say how many requests arrive and are served per second."""
    arrived = requests["arrived_ns"]
    asked = int(np.count_nonzero(requests["output_tokens"]))  # the others failed in their log
    offered = (asked - 1) * NS_PER_S / float(arrived.max() - arrived.min())
    served = (summary.get("steady") or summary["throughput"])["requests_per_s"]
    if not served or served >= offered:
        return ""
    return f" ({number(offered)} requests/s, of which {number(served)} are served)"


def _bent(summary: Mapping[str, Any]) -> list[str]:
    """Say what rates are without warm-up and drain, where these change them."""
    steady, whole = summary.get("steady"), summary["throughput"]
    rate = whole["requests_per_s"]
    if not steady or not rate or abs(steady["requests_per_s"] / rate - 1) < _BENT:
        return []
    window = f"from {format_seconds(steady['from_s'])} to {format_seconds(steady['to_s'])}"
    return [
        f"Warm-up and drain bend the rates: {window}, when requests arrive and the first have been answered, it serves "
        f"{number(steady['requests_per_s'])} requests/s and {number(steady['output_tokens_per_s'])} output tokens/s."
    ]


def _preemptions(counts: Mapping[str, int]) -> list[str]:
    """Say how often requests lost their K/V blocks to others, and how often to what failed."""
    found = []
    ways = (("recomputed", "computed anew"), ("swapped", "copied to host memory"))
    told = [f"{plural(counts[key], 'time')} they were {what}" for key, what in ways if counts.get(key)]
    if told:
        found.append(f"Requests were preempted for want of K/V blocks: {', '.join(told)}.")
    if counts.get("moved"):
        found.append(f"Requests lost their K/V blocks to a fault (or to a client) {plural(counts['moved'], 'time')}.")
    return found


def _why(counts: Mapping[str, int]) -> str:
    """Return the most frequent reasons, and how many requests had each."""
    shown = [f"{count:,} × {reason}" for reason, count in list(counts.items())[:_SHOWN_REASONS]]
    others = sum(list(counts.values())[_SHOWN_REASONS:])
    return f" ({'; '.join([*shown, *([f'{others:,} for others'] if others else [])])})" if shown else ""


def queue_grows(requests: Columns, steps: Columns) -> bool:
    """Say whether the number of waiting requests grew steadily while requests arrived.

    The time from first to last arrival is cut in four; the queue grows when its mean rises from each quarter
    to the next and the last one holds at least 4 requests and twice as many as the second.
    """
    arrived = requests["arrived_ns"]
    if len(arrived) < 8 or arrived.min() == arrived.max():
        return False
    edges = time_edges(int(arrived.min()), int(arrived.max()), 4)
    waiting = np.nan_to_num(bin_function(gauge(steps, "waiting"), edges).mean)
    return bool((np.diff(waiting) > 0).all() and waiting[-1] >= max(4.0, 2 * waiting[len(waiting) // 3]))


def prefix_words(summary: Mapping[str, Any]) -> str | None:
    """Return what the prefix cache gave, in words; None where there is none or no prompt was looked up."""
    cache = summary.get("prefix_cache")
    if not cache or cache.get("hit_rate") is None:
        return None
    words = f"{cache['hit_rate']:.1%} of prompt tokens hit"
    if cache.get("block_hit_rate") is not None:
        words += f", {cache['block_hit_rate']:.1%} of the workload's blocks"
        words += f" ({cache['infinite_block_hit_rate']:.1%} came before)"
    return words


def target_lines(summary: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    """Return per target: the latency's name, whether it is met, and a sentence with both numbers."""
    lines = []
    for name, limit in targets_ns(summary.get("targets")).items():
        latency = summary.get(f"{name}_ms")
        if latency is None:
            lines.append((name, False, f"no finished request has a {LATENCIES[name]}"))
            continue
        met = target_met(latency, limit)
        p99, wanted = format_seconds(latency["p99"] / 1e3), format_seconds(limit / NS_PER_MS / 1e3)
        lines.append((name, met, f"p99 of {name.upper()} is {p99}, target {wanted}"))
    return lines


def _name(value: Any) -> str:
    if isinstance(value, Mapping):
        name = str(value.get("name", "inline"))
        nodes = value.get("nodes")
        return f"{name} × {nodes} nodes" if nodes not in (None, 1) else name
    return "" if value is None else str(value)


def _named(formats: Any) -> str:
    """Return a number format, or those of modules in one line."""
    if not isinstance(formats, Mapping):
        return str(formats)
    return " ".join(f"{module} {name}" for module, name in formats.items())


def _workload(workload: Mapping[str, Any]) -> str:
    trace = workload.get("trace")
    if isinstance(trace, Mapping):
        return f"trace {trace.get('path', '')}"
    arrivals = workload.get("arrivals")
    if isinstance(arrivals, Mapping):
        rate = arrivals.get("rate") or arrivals.get("concurrency") or ""
        return f"{arrivals.get('process', '')} {rate}".strip()
    return ""
