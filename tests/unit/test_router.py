"""Which replica a request goes to."""

from __future__ import annotations

from clustersim.serving.router import least_outstanding, round_robin
from tests.round_numbers import deployment


def test_round_robin_takes_replicas_in_turn():
    assert [round_robin(request, [0, 0, 0]) for request in range(5)] == [0, 1, 2, 0, 1]


def test_least_outstanding_takes_the_replica_with_fewest_tokens():
    assert least_outstanding(0, [5, 3, 4]) == 1


def test_least_outstanding_takes_the_first_among_equals():
    assert least_outstanding(7, [5, 3, 3]) == 1


def test_least_outstanding_counts_prompt_and_output_tokens_of_what_has_not_finished(run, two_replicas):
    # 10 + 1 tokens go to replica 0, 2 + 1 and then 3 + 1 to replica 1 (3 < 11, 7 < 11), then 9 + 1 too (7 < 11).
    arrivals = [(0, 10, 1), (1, 2, 1), (2, 3, 1), (3, 9, 1)]
    result = run(deployment(arrivals, plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 1, 1, 1]


def test_least_outstanding_forgets_what_has_finished(run, two_replicas):
    # A step takes 6.6 µs + 10 ns per pair: both are done by 20 µs, so that the third finds two idle replicas.
    result = run(deployment([(0, 1, 1), (0, 10, 1), (20_000, 1, 1)], plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 1, 0]


def test_a_rejected_request_leaves_nothing_outstanding(run, two_replicas):
    # 5,000 tokens need 1,250 blocks of 4, the pool has 1,000.
    result = run(deployment([(0, 5000, 1), (0, 1, 1)], plan=two_replicas, router="least_outstanding"))
    assert result.replica.tolist() == [0, 0]
    assert result.reasons == {0: "needs 1250 K/V blocks for 5000 tokens, but the pool has 1000"}
