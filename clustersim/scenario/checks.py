"""What the types of single keys cannot say: keys that need, or exclude, each other.

The checks read the raw document, so that they speak up beside wrong types; where a value has the wrong type
they say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim.errors import did_you_mean
from clustersim.scenario.document import KeyPath

Finding = tuple[KeyPath, str]
"""Where, and what is wrong."""

DRAWN_KEYS: Final = ("arrivals", "prompt_tokens", "output_tokens", "requests")
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
_REFUSED_SCHEDULERS: Final = {
    "static": "static batching is not simulated yet",
    "disaggregated": "prefill/decode disaggregation is not simulated yet",
}
SCHEDULERS: Final = ("continuous", "chunked_prefill")


def cross_findings(data: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong between the keys of a scenario document."""
    findings: list[Finding] = []
    workload = data.get("workload")
    if isinstance(workload, dict):
        findings += _workload(workload)
    serving = data.get("serving")
    if isinstance(serving, dict) and isinstance(serving.get("scheduler"), str):
        findings += _scheduler(serving["scheduler"])
    return findings


def _workload(workload: Mapping[str, Any]) -> Iterator[Finding]:
    drawn = [key for key in DRAWN_KEYS if workload.get(key) is not None]
    if workload.get("trace") is not None:
        for key in drawn:
            hint = "; write it inside trace" if key == "requests" else ""
            yield ("workload", key), f"a workload is a trace or drawn, not both{hint}"
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


def _scheduler(name: str) -> Iterator[Finding]:
    path: KeyPath = ("serving", "scheduler")
    if name in SCHEDULERS:
        return
    known = f"expected one of {', '.join(SCHEDULERS)}"
    if ":" in name:
        yield path, f"schedulers from files are not simulated yet (found {name!r}); {known}"
    elif name in _REFUSED_SCHEDULERS:
        yield path, f"{_REFUSED_SCHEDULERS[name]}; {known}"
    else:
        yield path, f"no scheduler {name!r}{did_you_mean(name, SCHEDULERS)}"
