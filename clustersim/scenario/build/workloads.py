"""From the ``workload`` of a scenario to a recorded or a drawn workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

from clustersim.clock import to_ns
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.inputs import resolved
from clustersim.scenario.document import Document, KeyPath, dotted
from clustersim.scenario.lookup import find_file
from clustersim.scenario.scenario import TraceWorkload
from clustersim.scenario.workload_schema import (
    ArrivalsPart,
    CancelPart,
    LengthsPart,
    PriorityPart,
    TracePart,
    WorkloadPart,
)
from clustersim.workload.arrivals import AllAtOnce, Arrivals, ClosedLoop, Constant, Gamma, Poisson
from clustersim.workload.clients import Patience, Priorities
from clustersim.workload.draws import DrawnWorkload
from clustersim.workload.lengths import Empirical, Fixed, Lengths, LogNormal, Uniform, empirical_from_trace
from clustersim.workload.shared_prefixes import SharedPrefixes
from clustersim.workload.traces.formats import FORMATS
from clustersim.workload.traces.plain_csv import NamedColumns

Value = TypeVar("Value")
LengthsKey = Literal["prompt_tokens", "output_tokens"]

_WORKLOAD: Final[KeyPath] = ("workload",)


def build_workload(part: WorkloadPart, document: Document) -> TraceWorkload | DrawnWorkload:
    """Return the workload; the files that it names must exist, the trace itself is not read.

    Raises
    ------
    InputError
        With every problem, placed in the scenario.
    """
    if part.trace is not None:
        return _trace(part.trace, document)
    assert part.arrivals is not None
    assert part.prompt_tokens is not None
    assert part.output_tokens is not None
    assert part.requests is not None
    drawn, prompts, outputs, requests = part.arrivals, part.prompt_tokens, part.output_tokens, part.requests
    problems: list[Problem] = []

    def attempt(build: Callable[[], Value], prefix: KeyPath) -> Value | None:
        try:
            return build()
        except InputError as error:
            problems.extend(document.placed(error.problems, prefix))
            return None

    arrivals = attempt(lambda: _arrivals(drawn), _WORKLOAD)
    prompt = attempt(lambda: _lengths(prompts, "prompt_tokens", document), (*_WORKLOAD, "prompt_tokens"))
    output = attempt(lambda: _lengths(outputs, "output_tokens", document), (*_WORKLOAD, "output_tokens"))
    if arrivals is None or prompt is None or output is None:
        raise InputError(problems)
    shared = part.shared_prefixes
    prefixes = attempt(lambda: None if shared is None else SharedPrefixes(**shared.model_dump()), _WORKLOAD)
    cancel_after = attempt(lambda: _patience(part.cancel_after, document), _WORKLOAD)
    if problems:
        raise InputError(problems)
    return DrawnWorkload(
        arrivals=arrivals,
        prompt_tokens=prompt,
        output_tokens=output,
        requests=requests,
        shared_prefixes=prefixes,
        priority=_priorities(part.priority),
        cancel_after=cancel_after,
    )


def _priorities(part: PriorityPart | None) -> Priorities | None:
    if part is None:
        return None
    return Priorities(values=tuple(part.values), weights=None if part.weights is None else tuple(part.weights))


def _patience(part: CancelPart | None, document: Document) -> Patience | None:
    """Build when clients give up; that there is exactly one time has been checked."""
    if part is None:
        return None
    if part.uniform is not None:
        low, high = part.uniform.low, part.uniform.high
        if high < low:
            path: KeyPath = (*_WORKLOAD, "cancel_after", "uniform", "high")
            raise InputError(document.problem(path, "is less than low"))
        return Patience(share=part.share, kind="uniform", low_s=low, high_s=high)
    if part.exponential is not None:
        return Patience(share=part.share, kind="exponential", low_s=part.exponential)
    return Patience(share=part.share, kind="fixed", low_s=part.fixed or 0.0)


def _trace(part: TracePart, document: Document) -> TraceWorkload:
    problems: list[Problem] = []
    path: Path | None = None
    try:
        path = trace_file(document, (*_WORKLOAD, "trace", "path"), part.path)
    except InputError as error:
        problems += error.problems
    problems += _format_problems(part.format, document, (*_WORKLOAD, "trace", "format"))
    window = None if part.window is None else (to_ns(part.window[0]), to_ns(part.window[1]))
    if window is not None and window[0] >= window[1]:
        message = "the window holds no time; expected [from, to] such as [0 s, 60 s]"
        problems.append(document.problem((*_WORKLOAD, "trace", "window"), message))
    if part.columns is not None and part.format not in (None, "csv"):
        message = f"the format {part.format} has its own; expected columns or this format"
        problems.append(document.problem((*_WORKLOAD, "trace", "columns"), message))
    if part.repeat and part.requests is None:
        message = "a trace is repeated until there are enough requests; say how many with requests"
        problems.append(document.problem((*_WORKLOAD, "trace", "repeat"), message))
    if problems or path is None:
        raise InputError(problems)
    return TraceWorkload(
        path=path,
        format=part.format,
        columns=None if part.columns is None else NamedColumns(**part.columns.model_dump()),
        block_tokens=part.block_tokens,
        benchmark=part.benchmark,
        requests=part.requests,
        window_ns=window,
        rate_scale=part.rate_scale,
        repeat=part.repeat,
        turns=part.turns,
    )


def trace_file(document: Document, path: KeyPath, text: str) -> Path:
    """Return the absolute path of a trace that the document names."""
    written = path if path in document.marks else path[:-1]
    found = find_file(
        text, kind="trace", mark=document.mark(path), path=dotted(written), base=Path(document.file).parent
    )
    return resolved(found)


def _format_problems(name: str | None, document: Document, path: KeyPath) -> list[Problem]:
    if name is None or name in FORMATS:
        return []
    return [document.problem(path, f"unknown trace format {name!r}{did_you_mean(name, list(FORMATS))}")]


def _arrivals(part: ArrivalsPart) -> Arrivals:
    """Build the process; that its keys are there has been checked."""
    rate, cv, concurrency = part.rate or 0.0, part.cv or 0.0, part.concurrency or 0
    match part.process:
        case "poisson":
            return Poisson(rate_per_s=rate, rescale=part.rescale)
        case "gamma":
            return Gamma(rate_per_s=rate, cv=cv, rescale=part.rescale)
        case "constant":
            return Constant(rate_per_s=rate)
        case "all_at_once":
            return AllAtOnce()
        case "closed_loop":
            return ClosedLoop(concurrency=concurrency)


def _lengths(part: LengthsPart, key: LengthsKey, document: Document) -> Lengths:
    if part.fixed is not None:
        return Fixed(tokens=part.fixed)
    if part.uniform is not None:
        return Uniform(low=part.uniform.low, high=part.uniform.high)
    if part.lognormal is not None:
        log = part.lognormal
        return LogNormal(
            mean=log.mean,
            cv=log.cv,
            median=log.median,
            sigma=log.sigma,
            min_tokens=log.min,
            max_tokens=log.max,
        )
    empirical = part.empirical
    assert empirical is not None
    if empirical.trace is None:
        weights = None if empirical.weights is None else tuple(empirical.weights)
        return Empirical(values=tuple(empirical.values or ()), weights=weights)
    path: KeyPath = ("workload", key, "empirical")
    problems = _format_problems(empirical.format, document, (*path, "format"))
    if problems:
        raise InputError(problems)
    file = trace_file(document, (*path, "trace"), empirical.trace)
    return empirical_from_trace(file, key, format=empirical.format)
