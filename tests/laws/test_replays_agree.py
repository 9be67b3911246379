"""The law of the two replays: for every scenario ``full`` and ``folded`` give the same timeline, bit for bit.

``python -m tests.laws.hunt`` tries as many scenarios as one likes; what it finds goes to ``tests/laws/corpus.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from clustersim.simulation.simulate import RunResult, simulate
from tests.effort import examples
from tests.laws.agreement import agree, figures_agree
from tests.laws.cases import (
    Case,
    case_input,
    cases,
    clocked,
    clocked_hand_overs,
    clocked_splits,
    grouped,
    grouped_hand_overs,
    hand_overs,
    meeting,
    sharing,
    split_hand_overs,
    splits,
)
from tests.laws.corpus import CORPUS
from tests.laws.everything import everything
from tests.laws.hunt import MOST, WINDOWS
from tests.laws.random_scenarios import Crowd, crowd_input, crowds, documents, scenario_of

Window = tuple[float, float]


@pytest.mark.parametrize("name", CORPUS)
def test_replays_agree_when(name: str) -> None:
    agree(case_input(CORPUS[name]))


def test_replays_agree_when_copies_to_a_host_meet_collectives_of_a_replica_that_is_back() -> None:
    case = {
        "plan": {"tp": 2},
        "scheduler": "continuous",
        "max_batch_requests": 2,
        "max_batch_tokens": 4,
        "kv_block_tokens": 1,
        "kv_blocks": 64,
        "host": 100,
        "port": False,
        "arrivals": (
            *((0, 4, 26), (0, 29, 12), (0, 0, 0), (0, 29, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)),
            *((12090, 18, 6), (530960, 4, 2), (557980, 4, 0), (557980, 4, 3)),
        ),
        "order": ("shortest_prompt", 100_000),
        "priorities": [2, 1, 0, 3, 2, 2, 1, 2, 1, 0, 1],
        "failures": ((455250, 462250, 0), (344800, 444800, 0), (739110, 746110, 1)),
    }
    agree(case_input(case))


@examples(30, sieved=True)
@given(cases(), WINDOWS, MOST)
def test_replays_agree_on_round_numbers_where_much_coincides(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(clocked(), WINDOWS, MOST)
def test_replays_agree_where_ranks_limits_clients_and_failures_decide(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(grouped(), WINDOWS, MOST)
def test_replays_agree_where_replicas_share_experts_or_steps_run_in_halves(
    case: Case, window: Window, most: int
) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(grouped_hand_overs(), WINDOWS, MOST)
def test_replays_agree_where_a_group_hands_requests_over_or_receives_them(
    case: Case, window: Window, most: int
) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(splits(), WINDOWS, MOST)
def test_replays_agree_where_prompts_are_split_over_sp_ranks(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(10, sieved=True)
@given(clocked_splits(), WINDOWS, MOST)
def test_replays_agree_on_split_prompts_where_more_decides(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(split_hand_overs(), WINDOWS, MOST)
def test_replays_agree_where_split_prompts_are_handed_over(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(hand_overs(), WINDOWS, MOST)
def test_replays_agree_where_requests_are_handed_over(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(10, sieved=True)
@given(clocked_hand_overs(), WINDOWS, MOST)
def test_replays_agree_on_hand_overs_where_more_decides(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(sharing(), WINDOWS, MOST)
def test_replays_agree_where_prompts_share_cached_prefixes(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(20, sieved=True)
@given(meeting(), WINDOWS, MOST)
def test_replays_agree_where_communications_meet(case: Case, window: Window, most: int) -> None:
    agree(case_input(case), window, most)


@examples(15, sieved=True)
@given(crowds(), WINDOWS, MOST)
def test_replays_agree_on_crowds_of_requests(crowd: Crowd, window: Window, most: int) -> None:
    agree(crowd_input(crowd), window, most)


def both(document: dict[str, Any]) -> tuple[RunResult, RunResult]:
    """Run a document in both replays."""
    return simulate(scenario_of(document, replay="folded")), simulate(scenario_of(document, replay="full"))


@examples(15, sieved=True)
@given(documents())
def test_full_and_folded_give_the_same_timeline(document: dict[str, Any]) -> None:
    folded, full = both(document)
    assert folded.timeline.digest == full.timeline.digest
    assert folded.timeline.num_spans == full.timeline.num_spans
    assert folded.timeline.num_steps == full.timeline.num_steps
    for column in ("replica", "arrived_ns", "generated_tokens", "preemptions", "outcome"):
        assert np.array_equal(folded.requests[column], full.requests[column])
    for column in ("admitted_ns", "first_token_ns", "finished_ns"):
        assert np.array_equal(folded.requests[column].filled(-1), full.requests[column].filled(-1))
    assert all(np.array_equal(a, b) for a, b in zip(folded.token_gaps, full.token_gaps, strict=True))
    figures_agree(folded, full)


@examples(5, sieved=True)
@given(everything().filter(lambda document: document["workload"].get("requests", 5) > 4))
def test_dashboards_do_not_tell_which_replay_they_are_of(document: dict[str, Any]) -> None:
    figures_agree(*both(document), dashboard=True)


@examples(8, sieved=True)
@given(documents())
def test_unfolding_gives_the_spans_that_full_recorded(document: dict[str, Any]) -> None:
    folded, full = both(document)
    ours, theirs = folded.timeline.unfold(), full.timeline.unfold()
    assert len(ours) == folded.timeline.num_spans
    for column in ("start_ns", "end_ns", "rank", "stream", "name", "op", "layer", "step", "replica", "stage"):
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column


@examples(15, sieved=True)
@given(documents())
def test_every_request_is_accounted_for_and_streams_run_one_operator_at_a_time(document: dict[str, Any]) -> None:
    result = simulate(scenario_of(document))
    outcome = result.requests["outcome"]
    assert set(outcome.tolist()) <= {"finished", "rejected", "unfinished"}
    if document["run"]["horizon"] is None:
        done = outcome == "finished"
        assert len(outcome) == document["workload"]["requests"]
        assert np.array_equal(result.requests["generated_tokens"][done], result.requests["output_tokens"][done])
    spans = result.timeline.unfold()
    lane = spans.rank.astype(np.int64) * 8 + spans.stream
    order = np.lexsort((spans.start_ns, lane))
    same = lane[order][1:] == lane[order][:-1]
    assert np.all(spans.start_ns[order][1:][same] >= spans.end_ns[order][:-1][same])
