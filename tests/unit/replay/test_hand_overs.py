"""Prompts computed on one device and decoded on another: when K/V moves, and what waits for it.

One layer of round numbers: 1,000 bytes of K/V per token, links of 1 GB/s, 1 µs per transfer beside its bytes, blocks of
4 tokens. K/V of 10 tokens takes 1 µs + 10 µs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.plan.parallel import ParallelPlan
from clustersim.replay.input import ReplayInput
from clustersim.replay.replay import replay
from clustersim.serving.decision import FACT_KINDS
from clustersim.serving.order import UNLIMITED, Order
from clustersim.timeline.tables import MOVE_COLUMNS
from clustersim.timeline.tokens import token_times
from tests.laws.accounts import account_for
from tests.legality.timeline.test_replay_mutations import document
from tests.round_numbers import pools, with_entry


def leaving(given: ReplayInput, *, layerwise: bool) -> ReplayInput:
    """The same, and K/V leaves layer by layer or all at once."""
    transfer = "layerwise" if layerwise else "whole"
    return with_entry(given, serving=replace(given.entry.serving, transfer=transfer))


def ran(given: ReplayInput):
    """Replay in both ways; return the one result."""
    folded, full = (replay(replace(given, mode=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    return folded


def moves(timeline, *columns):
    names = columns or list(MOVE_COLUMNS)
    return list(zip(*(timeline.moves[name].tolist() for name in names), strict=True))


def facts(timeline, request):
    mine = timeline.facts["request"] == request
    order = np.lexsort((timeline.facts["replica"][mine], timeline.facts["time_ns"][mine]))
    table = {name: values[mine][order].tolist() for name, values in timeline.facts.items()}
    return [(FACT_KINDS[k], r, t) for k, r, t in zip(table["kind"], table["replica"], table["time_ns"], strict=True)]


def chunk_end(timeline, replica=0):
    steps = timeline.steps
    return int(steps["end_ns"][(steps["replica"] == replica) & (steps["prefill_tokens"] > 0)].max())


def test_the_cache_moves_when_the_prompt_is_computed_and_decoding_waits_for_it():
    timeline = ran(pools([(0, 10, 3)])).timeline
    first = chunk_end(timeline)
    arrives = first + 1_000 + 10_000
    assert moves(timeline) == [(0, 0, 0, 1, 1, -1, 0, 2, 0, 10, 10_000, first, arrives)]
    assert facts(timeline, 0) == [
        ("arrived", 0, 0), ("admitted", 0, 0), ("admitted", 1, first), ("handed_over", 0, arrives),
        ("received", 1, arrives), ("finished", 1, timeline.end_ns),
    ]  # fmt: skip
    decodes = timeline.steps["start_ns"][timeline.steps["replica"] == 1]
    assert decodes.min() == arrives
    times = token_times(timeline, 1)
    assert (int(times.first_ns[0]), int(times.count[0])) == (first, 3)


def test_a_request_of_one_token_ends_where_it_was_prefilled():
    timeline = ran(pools([(0, 10, 1)])).timeline
    assert moves(timeline) == []
    assert [fact[0] for fact in facts(timeline, 0)] == ["arrived", "admitted", "finished"]


def test_a_rank_gets_its_shares_one_after_the_other():
    """Two ranks have half of the heads each: 5,000 bytes from each, and one stream that they reach."""
    timeline = ran(pools([(0, 10, 2)], prefill=ParallelPlan(tp=2))).timeline
    first = chunk_end(timeline)
    assert moves(timeline, "from_rank", "to_rank", "bytes", "start_ns", "end_ns") == [
        (0, 2, 5_000, first, first + 6_000), (1, 2, 5_000, first + 6_000, first + 12_000),
    ]  # fmt: skip


def test_stages_get_their_layers():
    timeline = ran(pools([(0, 10, 2)], decode=ParallelPlan(pp=2), layers=2)).timeline
    assert moves(timeline, "from_rank", "to_rank", "bytes") == [(0, 1, 10_000), (0, 2, 10_000)]


def test_a_full_decode_pool_holds_prompts_back_at_the_prefill_pool():
    """Blocks for one sequence of 12 tokens: the second one's K/V moves when the first has finished, not before."""
    timeline = ran(pools([(0, 10, 3), (0, 10, 3)], decode_blocks=3)).timeline
    starts = dict(moves(timeline, "request", "start_ns"))
    ended = {request: time for request in (0, 1) for kind, _, time in facts(timeline, request) if kind == "finished"}
    assert starts[1] == ended[0]
    told = timeline.facts
    before = (told["replica"] == 0) & (told["time_ns"] < starts[1]) & (told["used"] >= 0)
    assert told["used"][before][-1] == 3, "the prefill replica keeps the blocks of the second prompt"
    after = (told["replica"] == 0) & (told["time_ns"] > starts[1])
    assert told["used"][after].tolist() == [0]


def test_a_full_prefill_pool_waits_for_the_decode_pool():
    """Both pools have blocks for one prompt: the third is admitted when the second has been handed over."""
    timeline = ran(pools([(0, 10, 3)] * 3, kv_blocks=3, decode_blocks=3)).timeline
    handed = {request: time for request in range(3) for kind, _, time in facts(timeline, request) if "over" in kind}
    admitted = {request: next(t for kind, _, t in facts(timeline, request) if kind == "admitted") for request in (1, 2)}
    assert admitted == {1: handed[0], 2: handed[1]}


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        (4_001, 1, "needs 1001 K/V blocks for 4001 tokens, but the pool has 1000"),
        (40, 10, "to decode, it needs 13 K/V blocks for 49 tokens, but the pool has 12"),
    ],
)
def test_what_fits_into_one_pool_only_is_rejected_on_arrival(prompt, output, reason):
    assert ran(pools([(0, prompt, output)], decode_blocks=12)).reasons == {0: reason}


def test_what_a_decode_replica_preempts_is_computed_anew_there():
    """Two sequences of 10 and 12 tokens fit into 6 blocks until the first needs a fourth one."""
    result = ran(pools([(0, 12, 9), (0, 10, 9)], decode_blocks=6))
    told = facts(result.timeline, 1)
    assert [fact[:2] for fact in told if fact[0] in ("preempted", "finished")] == [("preempted", 1), ("finished", 1)]
    assert len(moves(result.timeline)) == 2
    assert result.preemptions.tolist() == [0, 1]


def test_transfers_share_links_with_collectives():
    """Decode TP 2: while the second prompt's K/V comes in, all-reduces on the same links take longer."""
    arrivals = [(0, 10, 40), (30_000, 200, 3)]
    timeline = ran(pools(arrivals, decode=ParallelPlan(tp=2))).timeline
    stretched = timeline.passes["start_ns"][timeline.passes["irregular"] >= 0]
    moving = timeline.moves["request"] == 1
    assert len(stretched)
    assert stretched.max() < timeline.moves["end_ns"][moving].max()
    assert stretched.min() > chunk_end(timeline) - 20_000


def test_the_router_of_the_decode_pool_takes_turns():
    timeline = ran(pools([(0, 10, 3)] * 4, decode=ParallelPlan(dp=2))).timeline
    assert sorted(moves(timeline, "request", "to_replica")) == [(0, 1), (1, 2), (2, 1), (3, 2)]


def test_ranks_and_replicas_of_both_pools_are_numbered_one_after_the_other():
    plan = ParallelPlan(dp=2, tp=2)
    timeline = ran(pools([(0, 10, 3)] * 2, prefill=plan, decode=ParallelPlan(pp=2), layers=2)).timeline
    spans = timeline.unfold()
    assert len(spans) == timeline.num_spans
    found = {(int(r), int(s)): set() for r, s in zip(spans.replica, spans.stage, strict=True)}
    for replica, stage, rank in zip(spans.replica, spans.stage, spans.rank, strict=True):
        found[int(replica), int(stage)].add(int(rank))
    assert found == {(0, 0): {0, 1}, (1, 0): {2, 3}, (2, 0): {4}, (2, 1): {5}}


def test_limits_of_queues_are_those_of_the_pool_in_which_requests_arrive():
    # one at a time: the second waits for the prefill replica, the third finds it waiting; both would wait too long
    arrivals = [(0, 400, 3), (10, 4, 3), (20, 4, 3)]
    limited = ran(pools(arrivals, max_batch_requests=1, max_batch_tokens=8, queue_limit=1))
    assert limited.reasons == {2: "the queue of replica 0 is full: serving.queue_limit is 1"}
    patient = ran(pools(arrivals, max_batch_requests=1, max_batch_tokens=8, queue_timeout_ns=50_000))
    assert list(patient.reasons) == [1, 2]
    assert set(patient.reasons.values()) == {"not admitted for 5e-05 s, which is serving.queue_timeout"}


def test_pools_of_as_many_ranks_with_sp_in_prefill_are_written_and_read_again():
    sp = {"degree": 2, "scheme": "all_gather", "partition": "zigzag", "decode": "dp"}
    given = document(
        plan={"prefill": {"tp": 1, "sp": sp}, "decode": {"tp": 2}},
        serving={"scheduler": "disaggregated"},
        workload={"requests": 2},
    )
    assert account_for(given)["finished"] == 2


def test_who_is_on_its_way_counts_where_the_next_one_is_routed():
    given = pools(
        [(0, 12, 9)] * 3, decode=ParallelPlan(dp=2), decode_serving={"router": "fewest_waiting"}, max_batch_tokens=12
    )
    found = moves(ran(given).timeline, "request", "to_replica", "start_ns", "end_ns")
    assert [to for _, to, *_ in found] == [1, 2, 1]
    second_leaves = 2 * chunk_end(ran(pools([(0, 12, 9)])).timeline)
    assert second_leaves < found[0][3]  # K/V of the first one was on its way


def test_decodes_give_way_in_the_order_of_their_own_pool():
    order = {"order": Order(by="shortest_prompt", patience_ns=UNLIMITED)}
    given = [(0, 12, 20), (0, 4, 20)]  # 8 blocks of 4 tokens at its end, and 6, of 10
    in_turn = ran(pools(given, decode_blocks=10, max_batch_tokens=16))
    ranked = ran(pools(given, decode_blocks=10, max_batch_tokens=16, decode_serving=order))
    assert in_turn.preemptions.tolist() == [0, 1]
    assert ranked.preemptions.tolist() == [1, 0]
