"""Fit of a family's constants: ``base + steps × step + own part × copy + T + ramp × T / (T + half)``.

``T`` is the time that the algorithm's load takes on its busiest link at the fitted efficiency. The last
term is what a pipelined transfer loses while it fills up and changes protocol (NCCL: LL, LL128, Simple): it
grows with the size and ends at ``ramp``. The sum of relative errors is minimised: least squares, reweighted
towards the median so that a few outliers (another process on the machine, a change of kernel) have little
pull.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Final

import numpy as np

from clustersim.clock import FloatArray
from clustersim.values import dataclass

_ROUNDS: Final = 10  # of reweighting; the weights move by less than a percent after about eight
_GRID: Final = 21  # points per axis of the search over efficiency and half
_REFINEMENTS: Final = 4  # each narrows both axes to a quarter around the best point
_AT_ONCE: Final = 7 * _GRID  # points that are fitted together
_RIDGE: Final = 1e-13  # of the squared length of a column
_HALF_RANGE: Final = (1e-6, 1e-2)  # seconds; sizes of 100 kB to 1 GB at 100 GB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Measurements of one family of algorithms, one entry per measurement.

    Parameters
    ----------
    steps : array of float
        Serial steps of the algorithm (14 for a ring all-reduce over 8), or peers of a direct one.
    ideal_seconds : array of float
        Time on the busiest link at full capacity: payload × load per byte / capacity.
    latency_seconds : array of float
        What the routes of its steps take by themselves; it is not fitted.
    seconds : array of float
        What was measured.
    own_bytes : array of float
        The payload's part that a rank keeps, so that it crosses no link but is copied.
    """

    steps: FloatArray
    ideal_seconds: FloatArray
    latency_seconds: FloatArray
    seconds: FloatArray
    own_bytes: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Constants of a family, and how well they fit (relative errors: median and 90 % quantile)."""

    base_s: float
    step_s: float
    efficiency: float
    ramp_s: float
    ramp_half_s: float
    own_s_per_byte: float = 0.0
    median_error: float = float("nan")
    p90_error: float = float("nan")
    num_samples: int = 0

    def predict(self, samples: Samples) -> FloatArray:
        """Return the seconds that the constants give for samples."""
        transfer = samples.ideal_seconds / self.efficiency
        ramp = self.ramp_s * transfer / (transfer + self.ramp_half_s)
        own = self.own_s_per_byte * samples.own_bytes
        return self.base_s + self.step_s * samples.steps + samples.latency_seconds + transfer + ramp + own


def fit_family(
    samples: Samples,
    *,
    efficiency: tuple[float, float] = (0.1, 0.85),
    base_s: float | None = None,
    ramp: bool | tuple[float, float] = True,
) -> Fitted:
    """Fit a family's constants to measurements.

    Parameters
    ----------
    samples : Samples
        Several numbers of steps are needed to tell base from step; with one number the base takes it all.
    efficiency : (float, float)
        Range of efficiencies that are tried. The default ends at what headers leave of a link's rate: NCCL
        counts on 20.6 of 25 GB/s per NVLink 4 (src/graph/topo.h).
    base_s : float or None
        The base, when it is known from elsewhere; None to fit it.
    ramp : bool
        Whether to fit the last term; without it the model is the plain α + β × size. Or its two constants, where they
        are known.

    Returns
    -------
    Fitted
        All constants ≥ 0.
    """
    known = ramp if isinstance(ramp, tuple) else (0.0, 1.0)
    eta_range = efficiency
    half_range = (math.log(_HALF_RANGE[0]), math.log(_HALF_RANGE[1]))
    bounds = (eta_range, half_range)
    best, best_error = Fitted(base_s=0.0, step_s=0.0, efficiency=1.0, ramp_s=0.0, ramp_half_s=1.0), np.inf
    for _ in range(_REFINEMENTS):
        halves = np.exp(np.linspace(*half_range, _GRID)) if ramp is True else np.array([known[1]])
        grid = np.array(list(itertools.product(np.linspace(*eta_range, _GRID), halves)))
        for at in range(0, len(grid), _AT_ONCE):
            fitted, error = _fit_linear(samples, grid[at : at + _AT_ONCE], base_s, None if ramp is True else known[0])
            if error < best_error:
                best, best_error = fitted, error
        eta_range = _narrowed(eta_range, best.efficiency, bounds[0])
        half_range = _narrowed(half_range, math.log(best.ramp_half_s), bounds[1])
    return with_errors(best, samples)


def with_errors(fitted: Fitted, samples: Samples) -> Fitted:
    """Return ``fitted`` with its relative errors on ``samples``."""
    predicted = fitted.predict(samples)
    error = np.abs(predicted - samples.seconds) / samples.seconds
    return replace(
        fitted,
        median_error=float(np.median(error)),
        p90_error=float(np.quantile(error, 0.9)),
        num_samples=len(samples.seconds),
    )


def _narrowed(now: tuple[float, float], best: float, bounds: tuple[float, float]) -> tuple[float, float]:
    reach = (now[1] - now[0]) / 8
    return max(best - reach, bounds[0]), min(best + reach, bounds[1])


def _fit_linear(samples: Samples, grid: FloatArray, base_s: float | None, ramp_s: float | None) -> tuple[Fitted, float]:
    """Fit the linear constants for each efficiency and half; return those of the best, and its relative errors."""
    transfer = samples.ideal_seconds / grid[:, :1]
    fill = transfer / (transfer + grid[:, 1:])
    nothing = np.zeros_like(fill)
    one_count = base_s is None and float(np.ptp(samples.steps)) == 0.0
    unknowns = [
        nothing if one_count else nothing + samples.steps,
        nothing + samples.own_bytes,
        fill if ramp_s is None else nothing,
        nothing + 1.0 if base_s is None else nothing,
    ]
    columns = np.stack(unknowns, axis=2) / samples.seconds[:, None]
    target = 1.0 - (transfer + samples.latency_seconds + (base_s or 0.0) + (ramp_s or 0.0) * fill) / samples.seconds
    weight = np.ones_like(target)
    for _ in range(_ROUNDS):
        found = _least_squares(columns * weight[:, :, None], target * weight)
        error = np.abs((columns @ found[:, :, None])[:, :, 0] - target)
        weight = 1.0 / np.sqrt(np.maximum(error, 0.01))  # errors below 1 % are equally good
    best = int(np.argmin(error.sum(axis=1)))
    step, own, ramp, base = found[best].tolist()
    fitted = Fitted(
        base_s=base if base_s is None else base_s,
        step_s=step,
        efficiency=float(grid[best, 0]),
        ramp_s=ramp if ramp_s is None else ramp_s,
        ramp_half_s=float(grid[best, 1]),
        own_s_per_byte=own,
    )
    return fitted, float(error[best].sum())


def _least_squares(columns: FloatArray, target: FloatArray) -> FloatArray:
    """Non-negative least squares of many problems at once: problems × equations × unknowns, of which there are few.

    Of each problem, the positive unknowns solve the normal equations of some set of them: the set that takes most of
    the error away, among those in which none is negative. Columns are scaled to length one, and what makes equal ones
    solvable (``_RIDGE``) is far below what measurements tell.
    """
    lengths = np.sqrt((columns * columns).sum(axis=1))
    used = np.flatnonzero(lengths.any(axis=0))
    unit = columns[:, :, used] / np.where(lengths > 0.0, lengths, 1.0)[:, None, used]
    gram = unit.transpose(0, 2, 1) @ unit + _RIDGE * np.eye(len(used))
    right = (unit.transpose(0, 2, 1) @ target[:, :, None])[:, :, 0]
    best, best_gain = np.zeros(lengths.shape), np.zeros(len(target))
    for size in range(1, len(used) + 1):
        for chosen in map(list, itertools.combinations(range(len(used)), size)):
            found = np.linalg.solve(gram[:, chosen][:, :, chosen], right[:, chosen, None])[:, :, 0]
            gain = (found * right[:, chosen]).sum(axis=1)
            better = (found >= 0.0).all(axis=1) & (gain > best_gain)
            best[better] = 0.0
            best[np.ix_(better, used[chosen])] = found[better] / lengths[np.ix_(better, used[chosen])]
            best_gain[better] = gain[better]
    return best
