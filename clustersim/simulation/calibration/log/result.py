"""The JSON result of ``vllm bench serve``, with or without the lists of ``--save-detailed``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError, Problem
from clustersim.inputs import number_of
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.log.requests import (
    is_number,
    numbers,
    per_token,
    requests_of,
    shown,
    wrong_tokens,
)
from clustersim.simulation.calibration.log.server_log import ServerLog
from clustersim.workload.arrivals import AllAtOnce, Arrivals, ClosedLoop, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload, generate
from clustersim.workload.lengths import Fixed
from clustersim.workload.requests import Requests

RESULT: Final = (
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_rate",
    "mean_ttft_ms",
    "mean_tpot_ms",
)
_FIGURES: Final = {
    "ttft mean": "mean_ttft_ms",
    "tpot mean": "mean_tpot_ms",
    "ttft p50": "median_ttft_ms",
    "tpot p50": "median_tpot_ms",
}
_OWN: Final = "clustersim"
"""Backend of results that ``--vllm-json`` wrote: its clients are at the replicas, behind any front end."""
_TOTALS: Final = {"prompt_tokens": "total_input_tokens", "output_tokens": "total_output_tokens"}
_LENGTHS_APART: Final = 0.2
"""Of mean lengths (assumed): of twenty requests drawn from 0 to twice the mean it varies by 13 %."""


def of_result(path: Path, result: Mapping[str, Any], scenario: Scenario) -> ServerLog:
    _, mistakes = numbers({**result, "request_rate": 1.0}, RESULT)
    rate = _rate(result.get("request_rate"))
    if rate is None:
        mistakes.append(f"request_rate: found {shown(result.get('request_rate'))}; expected a rate above 0, or inf")
    count = result.get("completed")
    if "completed" in result and not _is_count(count):
        mistakes = [one for one in mistakes if not one.startswith("completed")]
        mistakes.append(f"completed: found {shown(count)}; expected a whole number of requests above 0")
    concurrency = result.get("max_concurrency")
    if "max_concurrency" not in result:
        mistakes.append("max_concurrency: is missing; expected a whole number of clients, or null where none was given")
    if concurrency is not None and not _is_count(concurrency):
        mistakes.append(f"max_concurrency: found {shown(concurrency)}; expected a whole number above 0")
    mistakes = mistakes or _lists_wrong(result, scenario)
    if mistakes:
        raise InputError(Problem(file=str(path), path=mistake.partition(":")[0], message=mistake.partition(": ")[2])
                         for mistake in mistakes)  # fmt: skip
    count = int(result["completed"])
    arrivals = _arrivals(rate or math.inf, concurrency, result.get("burstiness"))
    drawn, notes = _drawn(path.name, result, arrivals, scenario)
    if result["total_output_tokens"] <= count:
        per_token(path, None, np.ones(1), np.ones(1))
    outside = result.get("backend") != _OWN
    if not all(
        isinstance(result.get(name), list) and len(result[name]) == count
        for name in ("input_lens", "output_lens", "ttfts", "itls")
    ):
        figures = {name: float(result[key]) for name, key in _FIGURES.items() if is_number(result.get(key))}
        return ServerLog(name=path.name, requests=drawn, figures=figures, has_front_end=outside, notes=notes)
    prompt, output = (np.asarray(result[name], np.float64) for name in ("input_lens", "output_lens"))
    starts = result.get("start_times")
    arrived = drawn.arrived_at_ns / NS_PER_S
    if concurrency is None and isinstance(starts, list) and len(starts) == count:
        arrived = np.asarray(starts, np.float64)
    order = np.argsort(arrived, kind="stable")
    return ServerLog(
        name=path.name,
        requests=requests_of(path, arrived[order], prompt[order], output[order], concurrency),
        ttft_ms=np.asarray(result["ttfts"], np.float64)[order] * 1e3,
        tpot_ms=np.array([np.mean(gaps) * 1e3 if gaps else np.nan for gaps in result["itls"]])[order],
        figures={},
        has_front_end=outside,
    )


def _lists_wrong(result: Mapping[str, Any], scenario: Scenario) -> list[str]:
    """Return what is wrong with the lists of ``--save-detailed``, by name and place."""
    for name in ("ttfts", "start_times", "input_lens", "output_lens"):
        for place, value in enumerate(_listed(result, name)):
            if numbers({name: value}, (name,))[1]:
                return [f"{name}[{place}]: found {shown(value)}; expected a number"]
    for place, gaps in enumerate(_listed(result, "itls")):
        if not isinstance(gaps, list) or any(numbers({"itls": gap}, ("itls",))[1] for gap in gaps):
            return [f"itls[{place}]: expected a list of seconds"]
    for place, lengths in enumerate(zip(_listed(result, "input_lens"), _listed(result, "output_lens"), strict=False)):
        if wrong := wrong_tokens(lengths, (f"input_lens[{place}]", f"output_lens[{place}]"), scenario):
            return wrong
    return []


def _is_count(value: object) -> bool:
    """Whether a value is a whole number above 0."""
    return isinstance(value, int) and is_number(value) and value > 0


def _listed(result: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = result.get(name)
    return value if isinstance(value, list) else ()


def _arrivals(rate: float, concurrency: int | None, burstiness: object) -> Arrivals:
    if concurrency is not None:
        return ClosedLoop(concurrency=concurrency)
    if math.isinf(rate):
        return AllAtOnce()
    if is_number(burstiness) and burstiness not in (0, 1):
        return Gamma(rate_per_s=rate, cv=1.0 / math.sqrt(burstiness), rescale=True)
    return Poisson(rate_per_s=rate, rescale=True)


def _drawn(
    name: str, result: Mapping[str, Any], arrivals: Arrivals, scenario: Scenario
) -> tuple[Requests, tuple[str, ...]]:
    """Return the requests of a result without lists, and what is to say of them.

    Lengths are those that the scenario draws where their means are the log's, give or take; else the mean ones.
    """
    count = int(result["completed"])
    mean = {key: max(1, round(result[total] / count)) for key, total in _TOTALS.items()}
    prompt, output = (Fixed(tokens=tokens) for tokens in mean.values())
    workload = DrawnWorkload(arrivals=arrivals, requests=count, prompt_tokens=prompt, output_tokens=output)
    told: list[str] = []
    if isinstance(scenario.workload, DrawnWorkload):
        own = replace(
            workload, prompt_tokens=scenario.workload.prompt_tokens, output_tokens=scenario.workload.output_tokens
        )
        requests = generate(own, np.random.SeedSequence(scenario.seed))
        for key, tokens in mean.items():
            found = float(getattr(requests, key).mean())
            if abs(found / tokens - 1.0) >= _LENGTHS_APART:
                told.append(f"{key}: {found:,.0f} in the mean as the scenario draws them, {tokens:,} in the log")
        if not told:
            return requests, ()
        told = [f"{name}: {'; '.join(told)}: requests of the log's mean lengths are taken"]
    return generate(workload, np.random.SeedSequence(scenario.seed)), tuple(told)


def _rate(value: object) -> float | None:
    number = None if isinstance(value, bool) else number_of(value)
    return number if number is not None and number > 0 else None
