"""Figures of logs that predictions are held to: means of TTFT and TPOT over parts of the requests, some held out.

Of a log with lists, requests are cut in order of arrival: the first seven tenths into eight parts that are fitted,
the rest into three that are held out. Logs without lists have their figures of all requests; every third of them,
in the order given, is held out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_MS, FloatArray, Int64Array
from clustersim.errors import InputError, Problem
from clustersim.simulation.calibration.log.server_log import ServerLog
from clustersim.simulation.simulate import RunResult
from clustersim.values import dataclass

METRICS: Final = ("ttft", "tpot")
_FITTED: Final = 0.7
_PARTS: Final = (8, 3)
_FEWEST_LOGS: Final = 3
_NEAR: Final = 0.5
"""In powers of ten: a factor of three beside a thousand, which no server and no load makes of a time per token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Figure:
    """One measured figure.

    Parameters
    ----------
    log : int
        Of which log, by its place.
    metric, statistic : str
        ``ttft`` or ``tpot``; ``mean`` or ``p50``.
    requests : Int64Array or None
        Over which requests; None: over all.
    measured_ms : float
    is_held_out : bool
    """

    log: int
    metric: str
    statistic: str
    requests: Int64Array | None
    measured_ms: float
    is_held_out: bool


def figures_of(logs: Sequence[ServerLog]) -> tuple[Figure, ...]:
    """Return the figures of logs, fitted and held out.

    Raises
    ------
    InputError
        When nothing could be fitted or held out.
    """
    digests = [log.digest for log in logs]
    for place, log in enumerate(logs):
        if log.digest and (first := digests.index(log.digest)) < place:
            message = f"is the same as {logs[first].name}: one run counts once, and can't be held out from itself"
            raise InputError(Problem(file=log.name, message=message))
    found: list[Figure] = []
    plain = [place for place, log in enumerate(logs) if log.ttft_ms is None]
    if plain and len(plain) == len(logs) and len(logs) < _FEWEST_LOGS:
        message = (
            f"{len(logs)} logs without lists by request; expected {_FEWEST_LOGS} or more, so that one can be held out, "
            "or a log with lists (vllm bench serve --save-detailed)"
        )
        raise InputError(Problem(file=logs[0].name, message=message))
    for place, log in enumerate(logs):
        if log.ttft_ms is None:
            is_held_out = plain.index(place) % 3 == 1
            for name, measured in log.figures.items():
                metric, _, statistic = name.partition(" ")
                found.append(_figure(place, metric, statistic, None, measured, is_held_out))
            continue
        count = len(log.requests)
        cut = int(count * _FITTED)
        spans = (np.arange(cut), np.arange(cut, count))
        for span, parts, is_held_out in zip(spans, _PARTS, (False, True), strict=True):
            for part in np.array_split(span, parts):
                for metric, values in (("ttft", log.ttft_ms), ("tpot", log.tpot_ms)):
                    assert values is not None
                    known = part[~np.isnan(values[part])]
                    if len(known):
                        mean = float(values[known].mean())
                        found.append(_figure(place, metric, "mean", known, mean, is_held_out))
    above = tuple(figure for figure in found if figure.measured_ms > 0)
    if {figure.is_held_out for figure in above} != {False, True}:
        message = "found no latency above 0 in the part that is fitted, or in the one that is held out"
        raise InputError(Problem(file=logs[0].name, message=message))
    return above


def predicted_ms(figure: Figure, times: tuple[FloatArray, FloatArray]) -> float:
    """Return what a run says of a figure, given TTFT and TPOT of its requests in ms."""
    values = times[METRICS.index(figure.metric)]
    chosen = values if figure.requests is None else values[figure.requests]
    known = chosen[~np.isnan(chosen)]
    if not len(known):
        return float("nan")
    return float(np.mean(known) if figure.statistic == "mean" else np.median(known))


def check_units(logs: Sequence[ServerLog], figures: Sequence[Figure], predicted: FloatArray) -> None:
    """Refuse a log whose times per output token are a thousandth of what is predicted, or a thousand times that.

    Raises
    ------
    InputError
    """
    for place, log in enumerate(logs):
        own = [at for at, figure in enumerate(figures) if figure.log == place and figure.metric == "tpot"]
        ratios = [figures[at].measured_ms / predicted[at] for at in own]
        thousands = round(math.log10(float(np.median(ratios))) / 3.0) if ratios else 0
        if thousands and abs(math.log10(float(np.median(ratios))) - 3 * thousands) < _NEAR:
            told = f"{1000 ** abs(thousands):,} times {'longer' if thousands > 0 else 'shorter'}"
            message = (
                f"times per output token are some {told} than the scenario's ({np.median(ratios):.3g} times): expected "
                "seconds in stamps, ttfts and itls, milliseconds in what is called _ms"
            )
            raise InputError(Problem(file=log.name, message=message))


def times_of(result: RunResult) -> tuple[FloatArray, FloatArray]:
    """Return TTFT and TPOT in ms of all requests of a run; NaN where there is none."""
    columns = result.columns
    order = np.argsort(np.asarray(columns["request"]))
    arrived, first, last = (
        np.asarray(columns[name], np.float64)[order] for name in ("arrived_ns", "first_token_ns", "finished_ns")
    )
    tokens = np.asarray(columns["generated_tokens"], np.float64)[order]
    per_token = np.where(tokens > 1, (last - first) / np.maximum(tokens - 1.0, 1.0), np.nan)
    return (first - arrived) / NS_PER_MS, per_token / NS_PER_MS


def _figure(
    log: int, metric: str, statistic: str, requests: Int64Array | None, measured_ms: float, is_held_out: bool
) -> Figure:
    return Figure(
        log=log,
        metric=metric,
        statistic=statistic,
        requests=requests,
        measured_ms=measured_ms,
        is_held_out=is_held_out,
    )
