"""Distributions of prompt and output lengths in tokens.

Lengths are drawn independently of one another and of the arrivals: that long prompts may go with short
outputs is not modelled (replay a trace for it).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, Literal

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError, Problem
from clustersim.units import plural
from clustersim.values import dataclass
from clustersim.workload.limits import MAX_CV, MAX_TOKENS, MIN_CV, check_between, check_positive, check_whole, raise_any
from clustersim.workload.traces.trace import read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Every length is ``tokens``."""

    tokens: int

    def __post_init__(self) -> None:
        raise_any(check_whole("fixed", self.tokens, low=0))

    def draw(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Return the lengths; nothing is drawn."""
        del rng
        return np.full(num_requests, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """All whole numbers from ``low`` to ``high``, both included, are equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        problems = check_whole("uniform.low", self.low, low=0) + check_whole("uniform.high", self.high, low=0)
        if not problems and self.low > self.high:
            message = f"found low {self.low} above high {self.high}; expected low <= high"
            problems = [Problem(path="uniform", message=message)]
        raise_any(problems)

    def draw(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Draw the lengths."""
        return rng.integers(self.low, self.high, num_requests, dtype=np.int64, endpoint=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """The logarithm of a length is normal(μ, σ); given are ``mean`` and ``cv``, or ``median`` and ``sigma``.

    median = exp(μ), mean = exp(μ + σ²/2), cv² = exp(σ²) − 1 [1]_. A draw is rounded to the nearest whole
    number (half to even) and then clipped to ``min_tokens`` … ``max_tokens``. The parameters are those before
    clipping, which moves the mean.

    References
    ----------
    .. [1] Johnson, Kotz, Balakrishnan: Continuous Univariate Distributions 1 (1994), chapter 14.
    """

    mean: float | None = None
    cv: float | None = None
    median: float | None = None
    sigma: float | None = None
    min_tokens: int = 1
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        given = {name: value for name in _PARAMETERS if (value := getattr(self, name)) is not None}
        problems = [
            problem
            for name, value in given.items()
            for problem in check_between(f"lognormal.{name}", value, *_PARAMETERS[name])
        ]
        if set(given) not in ({"mean", "cv"}, {"median", "sigma"}):
            message = f"found {', '.join(given) or 'none'}; expected mean and cv, or median and sigma"
            problems.append(Problem(path="lognormal", message=message))
        problems += check_whole("lognormal.min", self.min_tokens, low=0)
        problems += check_whole("lognormal.max", self.max_tokens, low=0)
        if not problems and self.min_tokens > self.max_tokens:
            message = f"found min {self.min_tokens} above max {self.max_tokens}; expected min <= max"
            problems.append(Problem(path="lognormal", message=message))
        raise_any(problems)

    @property
    def mu_sigma(self) -> tuple[float, float]:
        """μ and σ of the normal distribution of the logarithm."""
        if self.mean is not None and self.cv is not None:
            variance = math.log1p(self.cv**2)
            return math.log(self.mean) - variance / 2, math.sqrt(variance)
        assert self.median is not None
        assert self.sigma is not None
        return math.log(self.median), self.sigma

    def draw(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Draw the lengths."""
        mu, sigma = self.mu_sigma
        logs = np.minimum(rng.normal(mu, sigma, num_requests), math.log(MAX_TOKENS) + 1)
        return np.clip(np.rint(np.exp(logs)), self.min_tokens, self.max_tokens).astype(np.int64)


_PARAMETERS: Final = {"mean": (1, MAX_TOKENS), "cv": (MIN_CV, MAX_CV), "median": (1, MAX_TOKENS), "sigma": (1e-6, 20)}
"""Name → range: lengths are tokens; a σ of 20 spreads them over all that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """One of ``values``, with a probability in proportion to its weight (equal ones without ``weights``)."""

    values: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise InputError(Problem(path="empirical.values", message="found none; expected at least one"))
        problems = [
            problem
            for i, value in enumerate(self.values)
            for problem in check_whole(f"empirical.values[{i}]", value, low=0)
        ]
        raise_any(problems + self._weight_problems())

    def _weight_problems(self) -> list[Problem]:
        if self.weights is None:
            return []
        if len(self.weights) != len(self.values):
            message = f"found {plural(len(self.weights), 'weight')} for {plural(len(self.values), 'value')}"
            return [Problem(path="empirical.weights", message=message)]
        problems = [
            problem
            for i, weight in enumerate(self.weights)
            if weight != 0
            for problem in check_positive(f"empirical.weights[{i}]", weight)
        ]
        if not problems and not any(self.weights):
            problems.append(Problem(path="empirical.weights", message="found only zeros; expected one above 0"))
        return problems

    def draw(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Draw the lengths, by inverting the cumulative weights."""
        values = np.array(self.values, dtype=np.int64)
        weights = np.ones(values.size) if self.weights is None else np.array(self.weights, dtype=np.float64)
        cumulative = np.cumsum(weights / weights.max())
        drawn = np.searchsorted(cumulative, rng.random(num_requests) * cumulative[-1], side="right")
        # A product may round up to the end; the last value that can be drawn is the last with a weight.
        chosen: Int64Array = values[np.minimum(drawn, int(np.flatnonzero(weights)[-1]))]
        return chosen


Lengths = Fixed | Uniform | LogNormal | Empirical


def empirical_from_trace(
    path: Path,
    column: Literal["prompt_tokens", "output_tokens"],
    *,
    format: str | None = None,  # noqa: A002  (the word of the scenario file)
) -> Empirical:
    """Return lengths of a recorded trace, weighted by how often each occurs; requests that failed there don't count.

    Raises
    ------
    InputError
        When the trace cannot be read; see :func:`clustersim.workload.traces.trace.read_trace`.
    """
    recorded = read_trace(path, format=format)
    values, counts = np.unique(getattr(recorded, column)[recorded.output_tokens > 0], return_counts=True)
    return Empirical(values=tuple(values.tolist()), weights=tuple(counts.tolist()))
