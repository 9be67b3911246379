"""Drawn gaps and lengths have the moments of their distributions.

Each test draws n values with a fixed seed and asks that an estimate lie within 4 standard errors of the
closed form: with a right program a fresh seed would fail once in 16,000; the seed is fixed, so it does not.
Relative standard errors: of a mean, cv/√n; of an estimated coefficient of variation, by the delta method on
mean and mean square, √((μ₄ − 1 + 4·cv² − 4·μ₃·cv)/(4n)) with the standardised moments μ₃, μ₄.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from clustersim.workload import DrawnWorkload, Empirical, Fixed, Gamma, LogNormal, Poisson, Uniform, generate

N = 100_000


def draw(arrivals=Poisson(rate_per_s=5.0), lengths=Fixed(tokens=1)):  # noqa: B008
    spec = DrawnWorkload(arrivals=arrivals, prompt_tokens=lengths, output_tokens=Fixed(tokens=1), requests=N)
    return generate(spec, np.random.SeedSequence(20231116))


def gaps_s(arrivals):
    return np.diff(draw(arrivals).arrived_at_ns, prepend=0) / 1e9


@pytest.mark.parametrize("cv", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_mean_one_over_rate_and_the_given_cv(cv):
    gaps = gaps_s(Gamma(rate_per_s=5.0, cv=cv))
    # Gamma of shape k = 1/cv²: skew 2/√k = 2·cv, fourth standardised moment 3 + 6/k = 3 + 6·cv².
    relative_error = math.sqrt((3 + 6 * cv**2 - 1 + 4 * cv**2 - 4 * (2 * cv) * cv) / (4 * N))
    assert gaps.mean() == pytest.approx(0.2, rel=4 * cv / math.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=4 * relative_error)


def test_poisson_counts_have_a_variance_equal_to_their_mean():
    arrived_at_s = draw(Poisson(rate_per_s=5.0)).arrived_at_ns / 1e9
    counts = np.histogram(arrived_at_s, bins=np.arange(0, 19_000, 2.0))[0]
    # Dispersion (n−1)·s²/mean of n Poisson counts is about χ²(n−1): relative standard error √(2/n).
    assert counts.mean() == pytest.approx(10.0, rel=4 / math.sqrt(10 * counts.size))
    assert counts.var(ddof=1) / counts.mean() == pytest.approx(1.0, abs=4 * math.sqrt(2 / counts.size))


def test_poisson_gaps_are_exponential():
    gaps = np.sort(gaps_s(Poisson(rate_per_s=5.0)))
    distance = np.abs(1 - np.exp(-5.0 * gaps) - np.arange(1, N + 1) / N).max()
    # Kolmogorov: P(√n·D > 2.23) = 2·exp(−2·2.23²) = 1e-4.
    assert math.sqrt(N) * distance < 2.23


def test_gaps_do_not_depend_on_the_gap_before():
    gaps = gaps_s(Gamma(rate_per_s=5.0, cv=2.0))
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0.0, abs=4 / math.sqrt(N))


def test_uniform_lengths_have_the_mean_and_variance_of_whole_numbers():
    tokens = draw(lengths=Uniform(low=10, high=19)).prompt_tokens
    # Ten whole numbers: mean 14.5, variance (10² − 1)/12 = 8.25.
    assert tokens.mean() == pytest.approx(14.5, abs=4 * math.sqrt(8.25 / N))
    assert np.bincount(tokens)[10:].min() > N / 10 - 4 * math.sqrt(N * 0.1 * 0.9)


@pytest.mark.parametrize("cv", [0.5, 1.0])
def test_lognormal_lengths_have_the_given_mean_and_cv(cv):
    tokens = draw(lengths=LogNormal(mean=10_000.0, cv=cv)).prompt_tokens
    w = 1 + cv**2
    skew = (w + 2) * cv
    fourth = w**4 + 2 * w**3 + 3 * w**2 - 3
    relative_error = math.sqrt((fourth - 1 + 4 * cv**2 - 4 * skew * cv) / (4 * N))
    assert tokens.mean() == pytest.approx(10_000, rel=4 * cv / math.sqrt(N))
    assert tokens.std() / tokens.mean() == pytest.approx(cv, rel=4 * relative_error)


def test_lognormal_lengths_have_the_given_median():
    tokens = draw(lengths=LogNormal(median=10_000.0, sigma=0.8)).prompt_tokens
    # ln of a sample median: standard error σ·√(π/2)/√n.
    assert math.log(np.median(tokens) / 10_000) == pytest.approx(0, abs=4 * 0.8 * math.sqrt(math.pi / 2 / N))


def test_empirical_lengths_have_the_given_weights():
    tokens = draw(lengths=Empirical(values=(7, 3, 5), weights=(1, 2, 7))).prompt_tokens
    for value, share in ((7, 0.1), (3, 0.2), (5, 0.7)):
        error = math.sqrt(share * (1 - share) / N)
        assert (tokens == value).mean() == pytest.approx(share, abs=4 * error)
