"""Drawn workloads: what each process and distribution gives, and which parameters are refused."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.workload import (
    ARRIVALS,
    AllAtOnce,
    ClosedLoop,
    Constant,
    DrawnWorkload,
    Empirical,
    Fixed,
    Gamma,
    LogNormal,
    Poisson,
    Uniform,
    empirical_from_trace,
    generate,
)

SEED = np.random.SeedSequence(7)


def drawn(arrivals=AllAtOnce(), prompt_tokens=Fixed(tokens=8), requests=1000):  # noqa: B008
    spec = DrawnWorkload(
        arrivals=arrivals, prompt_tokens=prompt_tokens, output_tokens=Fixed(tokens=2), requests=requests
    )
    return generate(spec, SEED)


def test_constant_starts_at_zero():
    arrived_at_ns = drawn(Constant(rate_per_s=4.0), requests=4).arrived_at_ns
    assert arrived_at_ns.tolist() == [0, 250_000_000, 500_000_000, 750_000_000]


def test_all_at_once_arrives_at_zero():
    requests = drawn(AllAtOnce(), requests=3)
    assert requests.arrived_at_ns.tolist() == [0, 0, 0]
    assert requests.concurrency is None


def test_closed_loop_hands_its_concurrency_on():
    requests = drawn(ClosedLoop(concurrency=16), requests=2)
    assert requests.arrived_at_ns.tolist() == [0, 0]
    assert requests.concurrency == 16


@pytest.mark.parametrize("process", [Poisson, lambda **given: Gamma(cv=2.0, **given)])
def test_rescale_puts_the_last_request_at_n_over_rate(process):
    plain = drawn(process(rate_per_s=4.0)).arrived_at_ns
    rescaled = drawn(process(rate_per_s=4.0, rescale=True)).arrived_at_ns
    assert rescaled[-1] == 250_000_000_000
    assert plain[-1] != rescaled[-1]
    np.testing.assert_allclose(rescaled / rescaled[-1], plain / plain[-1], atol=1e-11)


def test_gamma_with_cv_one_is_poisson():
    assert drawn(Gamma(rate_per_s=4.0, cv=1.0)) == drawn(Poisson(rate_per_s=4.0))


def test_fixed_is_fixed():
    requests = drawn(requests=3)
    assert requests.prompt_tokens.tolist() == [8, 8, 8]
    assert requests.output_tokens.tolist() == [2, 2, 2]


def test_uniform_includes_both_ends():
    assert np.unique(drawn(prompt_tokens=Uniform(low=3, high=5)).prompt_tokens).tolist() == [3, 4, 5]


def test_lognormal_by_mean_is_lognormal_by_median():
    # cv² = e^σ² − 1 and mean = median · e^(σ²/2); with σ² = ln 4: cv² = 3, mean = 2 · median.
    by_mean = LogNormal(mean=200.0, cv=3**0.5)
    by_median = LogNormal(median=100.0, sigma=np.log(4) ** 0.5)
    assert by_mean.mu_sigma == pytest.approx(by_median.mu_sigma, rel=1e-14)


def test_lognormal_is_clipped():
    tokens = drawn(prompt_tokens=LogNormal(median=100.0, sigma=1.0, min_tokens=50, max_tokens=200)).prompt_tokens
    assert (tokens.min(), tokens.max()) == (50, 200)


def test_lognormal_that_is_huge_stays_below_the_longest_prompt():
    assert drawn(prompt_tokens=LogNormal(median=2.0**31 - 1, sigma=1.0)).prompt_tokens.max() == 2**31 - 1


def test_empirical_draws_each_value_and_no_other():
    assert np.unique(drawn(prompt_tokens=Empirical(values=(9, 4))).prompt_tokens).tolist() == [4, 9]


def test_empirical_never_draws_a_value_without_weight():
    spec = Empirical(values=(1, 2, 3, 4), weights=(0.0, 1e-3, 1e-3, 0.0))
    assert np.unique(drawn(prompt_tokens=spec).prompt_tokens).tolist() == [2, 3]


def test_empirical_from_trace_weighs_lengths_by_how_often_they_occur(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1\n1,3,1\n2,5,2\n")
    assert empirical_from_trace(path, "prompt_tokens") == Empirical(values=(3, 5), weights=(1, 2))
    assert empirical_from_trace(path, "output_tokens") == Empirical(values=(1, 2), weights=(2, 1))


def test_prompts_and_outputs_of_one_distribution_are_drawn_apart():
    lengths = Uniform(low=1, high=10**6)
    spec = DrawnWorkload(arrivals=AllAtOnce(), prompt_tokens=lengths, output_tokens=lengths, requests=9)
    requests = generate(spec, SEED)
    assert requests.prompt_tokens.tolist() != requests.output_tokens.tolist()


def test_table_names_every_process():
    assert list(ARRIVALS) == ["poisson", "gamma", "constant", "all_at_once", "closed_loop"]


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        (Poisson, {"rate_per_s": 0}, "arrivals.rate: found 0; expected a finite number above 0"),
        (Poisson, {"rate_per_s": float("inf")}, "arrivals.rate: found inf; expected a finite number above 0"),
        (Constant, {"rate_per_s": True}, "arrivals.rate: found True; expected a finite number above 0"),
        (
            Gamma,
            {"rate_per_s": -1, "cv": 0},
            "arrivals.rate: found -1; expected a finite number above 0\n"
            "arrivals.cv: found 0; expected a number from 1e-06 to 1e+06",
        ),
        (
            Gamma,
            {"rate_per_s": 1.0, "cv": 1e300},
            "arrivals.cv: found 1e+300; expected a number from 1e-06 to 1e+06",
        ),
        (
            ClosedLoop,
            {"concurrency": 1.5},
            "arrivals.concurrency: found 1.5; expected a whole number from 1 to 2147483647",
        ),
        (Fixed, {"tokens": -1}, "fixed: found -1; expected a whole number from 0 to 2147483647"),
        (Uniform, {"low": 5, "high": 4}, "uniform: found low 5 above high 4; expected low <= high"),
        (LogNormal, {"mean": 5.0}, "lognormal: found mean; expected mean and cv, or median and sigma"),
        (LogNormal, {}, "lognormal: found none; expected mean and cv, or median and sigma"),
        (
            LogNormal,
            {"mean": 5.0, "cv": 1.0, "median": 4.0},
            "lognormal: found mean, cv, median; expected mean and cv, or median and sigma",
        ),
        (
            LogNormal,
            {"mean": 5.0, "cv": 1e-300},
            "lognormal.cv: found 1e-300; expected a number from 1e-06 to 1e+06",
        ),
        (
            LogNormal,
            {"mean": -5.0, "cv": 1.0},
            "lognormal.mean: found -5.0; expected a number from 1 to 2147483647",
        ),
        (
            LogNormal,
            {"mean": 5.0, "cv": 1.0, "min_tokens": 9, "max_tokens": 8},
            "lognormal: found min 9 above max 8; expected min <= max",
        ),
        (Empirical, {"values": ()}, "empirical.values: found none; expected at least one"),
        (
            Empirical,
            {"values": (1, -2)},
            "empirical.values[1]: found -2; expected a whole number from 0 to 2147483647",
        ),
        (Empirical, {"values": (1, 2), "weights": (1.0,)}, "empirical.weights: found 1 weight for 2 values"),
        (
            Empirical,
            {"values": (1, 2), "weights": (1.0, float("nan"))},
            "empirical.weights[1]: found nan; expected a finite number above 0",
        ),
        (
            Empirical,
            {"values": (1, 2), "weights": (0.0, 0.0)},
            "empirical.weights: found only zeros; expected one above 0",
        ),
    ],
)
def test_parameter_that_makes_no_sense_is_refused(spec, given, message):
    with pytest.raises(InputError) as caught:
        spec(**given)
    assert str(caught.value) == message


def test_workload_without_requests_is_refused():
    with pytest.raises(InputError, match="requests: found 0; expected a whole number from 1"):
        drawn(requests=0)


def test_workload_of_centuries_is_refused():
    with pytest.raises(InputError, match=r"arrivals: the last request would arrive after .* less than 292 years"):
        drawn(Constant(rate_per_s=1e-9))
