"""Processes by which drawn requests arrive; time 0 is the instant at which the clients start.

Rates are constant: ramps and days with peaks are not modelled (replay a trace for them). The random processes
are renewal processes: request i arrives after i + 1 independent gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array, to_ns_array
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass
from clustersim.workload.limits import MAX_NS, check_cv, check_positive, check_whole, raise_any


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Gaps are exponential with mean 1 / ``rate_per_s``: many independent clients.

    With ``rescale``, all instants are stretched so that the last is at n / rate (see :class:`Gamma`).
    """

    rate_per_s: float
    rescale: bool = False

    def __post_init__(self) -> None:
        raise_any(check_positive("arrivals.rate", self.rate_per_s))

    def draw_ns(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Draw instants in ns; the gamma process with cv 1 draws the same ones."""
        return _renewal_ns(rng.exponential(1 / self.rate_per_s, num_requests), self.rate_per_s, self.rescale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gamma:
    """Gaps are gamma distributed with mean 1 / ``rate_per_s`` and coefficient of variation ``cv``.

    shape = 1 / cv² and scale = cv² / rate, from mean = shape·scale and cv = 1 / √shape [1]_. A cv above 1 is
    burstier than Poisson. With ``rescale``, all instants are stretched so that the last is at n / rate, as
    vLLM's benchmark does [2]_; its ``burstiness`` is the shape.

    References
    ----------
    .. [1] Johnson, Kotz, Balakrishnan: Continuous Univariate Distributions 1 (1994), chapter 17.
    .. [2] vLLM, vllm/benchmarks/serve.py, get_request.
    """

    rate_per_s: float
    cv: float
    rescale: bool = False

    def __post_init__(self) -> None:
        raise_any(check_positive("arrivals.rate", self.rate_per_s) + check_cv("arrivals.cv", self.cv))

    def draw_ns(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Draw instants in ns."""
        gaps_s = rng.gamma(1 / self.cv**2, self.cv**2 / self.rate_per_s, num_requests)
        return _renewal_ns(gaps_s, self.rate_per_s, self.rescale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Request i arrives at i / ``rate_per_s``; the first one at 0."""

    rate_per_s: float

    def __post_init__(self) -> None:
        raise_any(check_positive("arrivals.rate", self.rate_per_s))

    def draw_ns(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Return instants in ns; nothing is drawn."""
        del rng
        return _checked_ns(np.arange(num_requests) / self.rate_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllAtOnce:
    """All requests arrive at 0."""

    def draw_ns(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Return zeros; nothing is drawn."""
        del rng
        return np.zeros(num_requests, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """``concurrency`` requests are in flight at any time; the next one is released when one ends."""

    concurrency: int

    def __post_init__(self) -> None:
        raise_any(check_whole("arrivals.concurrency", self.concurrency, low=1))

    def draw_ns(self, num_requests: int, rng: np.random.Generator) -> Int64Array:
        """Return zeros: when a request is released is known only in the run."""
        del rng
        return np.zeros(num_requests, dtype=np.int64)


Arrivals = Poisson | Gamma | Constant | AllAtOnce | ClosedLoop

ARRIVALS: Final[Mapping[str, type[Arrivals]]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "constant": Constant,
    "all_at_once": AllAtOnce,
    "closed_loop": ClosedLoop,
}
"""Name of the process in a scenario → its class."""


def _renewal_ns(gaps_s: FloatArray, rate_per_s: float, rescale: bool) -> Int64Array:
    arrived_at_s = np.cumsum(gaps_s)
    if rescale and arrived_at_s.size and arrived_at_s[-1] > 0:
        arrived_at_s *= arrived_at_s.size / rate_per_s / arrived_at_s[-1]
    return _checked_ns(arrived_at_s)


def _checked_ns(arrived_at_s: FloatArray) -> Int64Array:
    last_s = float(arrived_at_s.max(initial=0.0))
    if not last_s < MAX_NS / NS_PER_S:
        message = f"the last request would arrive after {last_s:.3g} s; expected less than 292 years"
        raise InputError(Problem(path="arrivals", message=message))
    return to_ns_array(arrived_at_s)
