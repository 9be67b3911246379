"""One replica that serves one request at a time is the queue of the textbooks.

A request of one output token is one prefill step: its service time is 6,600 ns + 10 ns per (query, key) pair of its
prompt (``tests.round_numbers``), whatever else happens. Poisson arrivals then make it M/D/1 (equal prompts) or
M/G/1, whose mean wait is that of Pollaczek and Khinchine: λ E[S²] / (2 (1 − ρ)), for M/D/1 ρ D / (2 (1 − ρ))
(Kleinrock, Queueing Systems, vol. 1, 1975, section 5.6).

The statistical test: ``RUNS`` independent runs of ``REQUESTS`` each from ``SeedSequence(SEED).spawn``; a run's mean
wait leaves its first 200 requests out, since it starts empty. The formula must lie within 4 standard errors of the
mean over the runs, which are not independent within a run but are among each other. A right program misses that for
0.3 % of all seeds (Student's t, 9 degrees of freedom); this one it does not.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from clustersim.replay.replay import replay
from clustersim.serving.decision import ADMITTED, FINISHED
from tests.audit import replayed, token_instants
from tests.round_numbers import deployment

SEED, RUNS, REQUESTS, WARM_UP = 1909, 10, 1_200, 200


def service_ns(prompt: int) -> int:
    """Service time of a request with one output token."""
    return 6_600 + 10 * prompt * (prompt + 1) // 2


def facts(timeline, kind, count):
    """Instants of the facts of a kind, by request."""
    found = np.zeros(count, np.int64)
    chosen = timeline.facts["kind"] == kind
    found[timeline.facts["request"][chosen]] = timeline.facts["time_ns"][chosen]
    return found


def poisson(seed, prompts, rho, count):
    """Arrivals (ns, prompt, 1) whose prompts are equally likely; the load of the replica is ``rho``."""
    draw = np.random.default_rng(seed)
    mean_service = np.mean([service_ns(p) for p in prompts])
    times = np.rint(np.cumsum(draw.exponential(mean_service / rho, count))).astype(int)
    return [(int(t), int(p), 1) for t, p in zip(times, draw.choice(prompts, count), strict=True)]


def waits(arrivals):
    """Simulate; return how long each request waited before it was admitted, ns."""
    result = replay(deployment(arrivals, max_batch_requests=1))
    return facts(result.timeline, ADMITTED, len(arrivals)) - result.arrived_ns


def test_each_wait_is_that_of_lindleys_recursion():
    """W' = max(0, W + S − A): exactly, request by request (Lindley, 1952)."""
    arrivals = poisson(np.random.SeedSequence(SEED), (1, 30, 60), 0.9, 500)
    expected = [0]
    for (before, prompt, _), (after, _, _) in pairwise(arrivals):
        expected.append(max(0, expected[-1] + service_ns(prompt) - (after - before)))
    assert max(expected) > 100_000
    assert waits(arrivals).tolist() == expected


@pytest.mark.parametrize(("prompts", "rho"), [((1,), 0.7), ((1, 60), 0.5)], ids=["M/D/1", "M/G/1"])
def test_the_mean_wait_is_that_of_pollaczek_and_khinchine(prompts, rho):
    services = np.array([service_ns(p) for p in prompts], float)
    rate = rho / services.mean()
    formula = rate * np.mean(services**2) / (2 * (1 - rho))
    if len(prompts) == 1:
        assert formula == pytest.approx(rho * services[0] / (2 * (1 - rho)))
    means = np.array(
        [
            waits(poisson(seed, prompts, rho, REQUESTS))[WARM_UP:].mean()
            for seed in np.random.SeedSequence(SEED).spawn(RUNS)
        ]
    )
    error = means.std(ddof=1) / np.sqrt(RUNS)
    assert error < 0.06 * formula, "a wider interval would prove nothing"
    assert abs(means.mean() - formula) < 4 * error


def integral(times, changes):
    """∫ N dt of a count that starts at 0 and changes by ``changes`` at ``times``, in request · ns; N ends at 0."""
    order = np.argsort(times, kind="stable")
    count = np.cumsum(changes[order])
    assert count[-1] == 0
    return int((count[:-1] * np.diff(times[order])).sum())


ARRIVALS = [(i * 1_700, 1 + 7 * i % 30, 1 + 5 * i % 17) for i in range(60)]


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_littles_law_is_an_identity_of_the_record(mode):
    """L = λ W over any period that starts and ends empty: ∫ N dt, from facts, is the sum of the requests' times in
    the system, from arrivals and last tokens (Little, Operations Research 9 (1961); Stidham, 1974, for sample paths).
    """
    result = replayed(deployment(ARRIVALS, mode=mode, max_batch_requests=8))
    last = np.array([instants[-1] for instants in token_instants(result.timeline, len(ARRIVALS))])
    finished = facts(result.timeline, FINISHED, len(ARRIVALS))
    ones = np.ones(len(ARRIVALS), np.int64)
    in_system = integral(np.concatenate((result.arrived_ns, finished)), np.concatenate((ones, -ones)))
    assert in_system == int((last - result.arrived_ns).sum())


@pytest.mark.parametrize("mode", ["full", "folded"])
def test_littles_law_holds_for_the_batch_by_its_steps(mode):
    """On one stage a running request is in every step from its admission to its end: the batch, weighed by the
    lengths of the steps, is the sum of the requests' times in it.
    """
    timeline = replayed(deployment(ARRIVALS, mode=mode, max_batch_requests=8)).timeline
    steps = timeline.steps
    in_batch = int((steps["running"] * (steps["end_ns"] - steps["start_ns"])).sum())
    admitted, finished = (facts(timeline, kind, len(ARRIVALS)) for kind in (ADMITTED, FINISHED))
    assert in_batch == int((finished - admitted).sum())


def test_the_busy_fraction_is_the_load():
    """Work is conserved: the replica is busy for the sum of the service times, however requests arrive."""
    arrivals = poisson(np.random.SeedSequence(SEED), (1, 30, 60), 0.6, 500)
    steps = replayed(deployment(arrivals, max_batch_requests=1)).timeline.steps
    assert int((steps["end_ns"] - steps["start_ns"]).sum()) == sum(service_ns(prompt) for _, prompt, _ in arrivals)
