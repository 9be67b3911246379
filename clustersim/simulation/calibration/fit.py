"""Constants of an engine that describe logs best, found by simulating them: Gauss and Newton, a few steps.

What is minimised is Σ |log(predicted / measured)| over the fitted figures, by least squares with weights. A constant
is left as it is where the log can't tell it: figures don't move with it, or move as with another one. The K/V pool
is read off the log itself: what requests held whenever others waited although the batch had room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.cost.engine import KERNEL_TIMES, LONGEST_S
from clustersim.errors import InputError, Problem
from clustersim.processes import local_pool
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.calibration.figures import Figure, check_units, figures_of, predicted_ms, times_of
from clustersim.simulation.calibration.log.server_log import ServerLog
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import simulate
from clustersim.values import dataclass

_STEPS: Final = 3
_LEAST_EFFECT: Final = 0.01
"""A constant that moves no figure by that much, over its step, can't be told (two measurements differ by 2 %)."""
_LEAST_OWN: Final = 0.15
"""The same where less than this of its effect is not that of the others."""
_SMALL: Final = 0.02
_FEWEST_WAITS: Final = 20
_MOST_INSTANTS: Final = 2_000
"""Of a log at which the blocks that are held are counted, each over all of its requests."""

Times = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A constant that logs may tell: field of the engine, key in its file, words, and a step that shows.

    The step is in seconds, of ``kernel_time`` a ratio; so are ``least`` and ``most``.
    """

    field: str
    key: str
    words: str
    step: float
    least: float = 0.0
    most: float = LONGEST_S

    def written(self, value: float) -> str:
        """Return a value as an engine's file has it."""
        return f"{value * 1e6:.4g} us" if self.field.endswith("_s") else f"{value:.4g}"


CONSTANTS: Final = (
    Constant(field="schedule_s", key="schedule", words="host time of a step", step=5e-4),
    Constant(
        field="schedule_per_request_s",
        key="schedule_per_request",
        words="host time per request of a step",
        step=2e-5,
    ),
    Constant(field="front_end_s", key="front_end", words="time in front of and behind the server", step=5e-3),
    Constant(field="stage_s", key="stage", words="host time of each stage in each pass", step=5e-4),
    Constant(field="launch_s", key="launch", words="gap before each kernel outside captured graphs", step=5e-6),
    Constant(
        field="kernel_time",
        key="kernel_time",
        words="time of kernels over what the device's file says",
        step=0.05,
        least=KERNEL_TIMES[0],
        most=KERNEL_TIMES[1],
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """What logs tell of an engine.

    Parameters
    ----------
    constants : mapping
        Seconds (of ``kernel_time`` a ratio) by key of the engine's file, of those that were fitted.
    refused : mapping
        Why the others were not, by key.
    kv_blocks : int or None
        Of the K/V pool; None where the log can't tell.
    figures : tuple of Figure
    before_ms, pooled_ms, after_ms : FloatArray, shape (figures,)
        Predictions with the engine as it was, also with that K/V pool, and with the constants.
    """

    constants: Mapping[str, float]
    refused: Mapping[str, str]
    kv_blocks: int | None
    figures: tuple[Figure, ...]
    before_ms: FloatArray
    pooled_ms: FloatArray
    after_ms: FloatArray

    @property
    def at_limit(self) -> tuple[str, ...]:
        """What is to say of constants that ended at the least or the most that they may be."""
        told = []
        for one in CONSTANTS:
            value = self.constants.get(one.key)
            if value is not None and value in (one.least, one.most):
                which, ask = ("least", "less") if value == one.least else ("most", "more")
                told.append(
                    f"{one.key} ended at {one.written(value)}, the {which} that it may be: the logs ask for {ask}"
                )
        return tuple(told)

    def error(self, predicted_ms: FloatArray, *, held_out: bool) -> float:
        """Return the median relative error of the figures that were fitted, or held out."""
        chosen = np.array([figure.is_held_out == held_out for figure in self.figures])
        measured = np.array([figure.measured_ms for figure in self.figures])
        return float(np.median(np.abs(predicted_ms[chosen] / measured[chosen] - 1.0)))


def fit_engine(scenario: Scenario, logs: Sequence[ServerLog], *, workers: int = 2) -> EngineFit:
    """Fit the constants of a scenario's engine to logs of servers that it describes.

    Parameters
    ----------
    scenario : Scenario
        Everything but the requests: model, devices, plan, limits, and the engine that is started from.
    logs : sequence of ServerLog
    workers : int
        Processes that simulate; the result does not depend on it.

    Raises
    ------
    InputError
        When nothing can be held out, or a request of a log is not served.
    """
    figures = figures_of(logs)
    measured = np.log([figure.measured_ms for figure in figures])
    fitted = np.array([not figure.is_held_out for figure in figures])
    blocks, refused = pool_blocks_of(scenario, logs)
    pooled = scenario if blocks is None else scenario.with_entry(serving=replace(scenario.serving, kv_blocks=blocks))
    with _Runs(logs, figures, workers) as runs:
        (before,) = runs.predictions(scenario, [{}])
        check_units(logs, figures, before)
        start = {constant.field: float(getattr(scenario.engine, constant.field)) for constant in CONSTANTS}
        base = runs.predictions(pooled, [start])[0] if blocks is not None else before
        values, best = dict(start), base
        told: list[Constant] = []
        for step in range(_STEPS):
            chosen = list(CONSTANTS) if step == 0 else told
            moved = [values | {constant.field: values[constant.field] + constant.step} for constant in chosen]
            slopes = np.array([np.log(row / best) for row in runs.predictions(pooled, moved)]).T[fitted]
            if step == 0:
                told, reasons = _told(slopes)
                refused |= reasons
                slopes = slopes[:, [constant in told for constant in CONSTANTS]]
            if not told:
                break
            residual = (np.log(best) - measured)[fitted]
            values, best, gained = _improved(runs, pooled, told, values, best, slopes, residual, measured, fitted)
            if not gained:
                break
    return EngineFit(
        constants={constant.key: values[constant.field] for constant in told},
        refused=refused,
        kv_blocks=blocks,
        figures=figures,
        before_ms=before,
        pooled_ms=base,
        after_ms=best,
    )


def pool_blocks_of(scenario: Scenario, logs: Sequence[ServerLog]) -> tuple[int | None, dict[str, str]]:
    """Return the blocks of the K/V pool that logs tell, or why they don't.

    Blocks that requests held when one was taken up while others waited: their median, since then the pool is full.
    A log in which the batch was full, too, tells nothing.
    """
    serving, held = scenario.serving, []
    for log in logs:
        if log.queued_s is None or log.admitted_s is None or log.ended_s is None or log.ttft_ms is None:
            continue
        first = log.queued_s + log.ttft_ms / 1e3
        prompt, output = log.requests.prompt_tokens, log.requests.output_tokens
        of_log, instants = [], np.sort(log.admitted_s)
        ended = np.searchsorted(np.sort(log.ended_s), instants, side="right")
        most = int(np.max(np.searchsorted(instants, instants, side="right") - ended))
        for now in instants[:: -(-len(instants) // _MOST_INSTANTS)]:
            running = (log.admitted_s <= now) & (now < log.ended_s)
            if np.any((log.queued_s <= now) & (now < log.admitted_s)):
                share = np.clip((now - first) / np.maximum(log.ended_s - first, 1e-9), 0.0, 1.0)
                tokens = (prompt + share * output)[running]
                of_log.append(float(np.ceil(tokens / serving.kv_block_tokens).sum()))
        if most < serving.max_batch_requests:  # else they may have waited for a place in the batch
            held += of_log
    if len(held) < _FEWEST_WAITS:
        why = "requests did not wait for blocks, or for places in the batch, too, or the log has no scheduled_ts"
        return None, {"kv_blocks": why}
    return int(np.median(held)), {}


def _told(slopes: FloatArray) -> tuple[list[Constant], dict[str, str]]:
    """Return the constants that figures tell, and why they don't tell the others."""
    told: list[Constant] = []
    columns: list[FloatArray] = []
    reasons: dict[str, str] = {}
    for constant, column in zip(CONSTANTS, slopes.T, strict=True):
        effect = float(np.max(np.abs(column), initial=0.0))
        own = column
        if columns:
            basis = np.array(columns).T
            own = column - basis @ np.linalg.lstsq(basis, column, rcond=None)[0]
        if effect < _LEAST_EFFECT:
            reasons[constant.key] = f"{constant.written(constant.step)} more move no figure by more than {effect:.1%}"
        elif np.linalg.norm(own) < _LEAST_OWN * np.linalg.norm(column):
            others = " and ".join(other.key for other in told)
            reasons[constant.key] = f"it moves figures as {others} does: batches are too much alike"
        else:
            told.append(constant)
            columns.append(column)
    return told, reasons


def _improved(
    runs: _Runs, scenario: Scenario, told: Sequence[Constant], values: dict[str, float], best: FloatArray,
    slopes: FloatArray, residual: FloatArray, measured: FloatArray, fitted: FloatArray,
) -> tuple[dict[str, float], FloatArray, bool]:  # fmt: skip
    """Return constants after one step, what they predict, and whether that is nearer; the step is halved twice."""
    weight = 1.0 / np.sqrt(np.maximum(np.abs(residual), _SMALL))
    least = np.array([(constant.least - values[constant.field]) / constant.step for constant in told])
    change = _bounded(slopes * weight[:, None], -residual * weight, least)
    tried = []
    for share in (1.0, 0.5, 0.25):
        moved = [values[constant.field] + share * one * constant.step
                 for constant, one in zip(told, change, strict=True)]  # fmt: skip
        within = [float(np.clip(value, one.least, one.most)) for one, value in zip(told, moved, strict=True)]
        tried.append(values | {one.field: value for one, value in zip(told, within, strict=True)})
    now = float(np.abs(residual).sum())
    found = runs.predictions(scenario, tried)
    sums = [float(np.abs((np.log(row) - measured)[fitted]).sum()) for row in found]
    chosen = int(np.argmin(sums))
    if not sums[chosen] < 0.999 * now:
        return values, best, False
    return tried[chosen], found[chosen], True


def _bounded(slopes: FloatArray, wanted: FloatArray, least: FloatArray) -> FloatArray:
    """Return the least squares solution with lower bounds: columns that would fall below stay there."""
    free = np.ones(len(least), dtype=bool)
    found = np.zeros(len(least))
    for _ in range(len(least)):
        rest = wanted - slopes[:, ~free] @ found[~free]
        found[free] = np.linalg.lstsq(slopes[:, free], rest, rcond=None)[0]
        below = free & (found < least)
        if not below.any():
            break
        found[below], free = least[below], free & ~below
    return found


class _Runs:
    """Predictions of all figures with other constants, in several processes."""

    def __init__(self, logs: Sequence[ServerLog], figures: Sequence[Figure], workers: int) -> None:
        self.logs, self.figures = logs, figures
        self.stack = ExitStack()
        self.pool = self.stack.enter_context(local_pool(workers)) if workers > 1 else None

    def __enter__(self) -> _Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stack.__exit__(kind, error, trace)

    def predictions(self, scenario: Scenario, changes: Sequence[Mapping[str, float]]) -> list[FloatArray]:
        """Return ms of every figure for each set of constants."""
        engines = [replace(scenario.engine, **change) for change in changes]  # type: ignore[arg-type]
        scenarios = [replace(scenario, engine=engine) for engine in engines]
        pairs = [(one, log) for one in scenarios for log in self.logs]
        run = map if self.pool is None else self.pool.map
        times = list(run(_times, *zip(*pairs, strict=True)))
        rows = []
        for place in range(len(scenarios)):
            own = times[place * len(self.logs) : (place + 1) * len(self.logs)]
            rows.append(np.array([predicted_ms(figure, own[figure.log]) for figure in self.figures]))
        if np.isnan(rows).any():
            raise InputError(
                Problem(message="some requests of the log are not served by this scenario; see its limits")
            )
        return rows


_PRICES: Final = KeptPrices()
"""What logs of one engine have in common that this process simulates."""


def _times(scenario: Scenario, log: ServerLog) -> Times:
    ttft_ms, tpot_ms = times_of(simulate(scenario, requests=log.requests, kept=_PRICES))
    return ttft_ms + (scenario.engine.front_end_s * 1e3 if log.has_front_end else 0.0), tpot_ms
