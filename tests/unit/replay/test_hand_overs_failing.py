"""Two pools of which something fails: who is sent again, computed anew or lost; round numbers of ``test_hand_overs``.

A prompt of 10 tokens is computed by ``FIRST``, and its K/V is there at ``ARRIVES``, 11 µs later.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.plan.parallel import ParallelPlan
from clustersim.timeline.tokens import token_times
from tests.round_numbers import pools
from tests.unit.replay.test_hand_overs import chunk_end, facts, leaving, moves, ran

TWO = ParallelPlan(dp=2)
FIRST = chunk_end(ran(pools([(0, 10, 3)])).timeline)
ARRIVES = FIRST + 11_000
MIDDLE = FIRST + 5_000


def failing(arrivals, *faults, layerwise=False, **more):
    """What comes of requests of two pools when something fails, in both replays."""
    given = pools(arrivals, **more)
    return ran(replace(leaving(given, layerwise=layerwise), faults=faults))


def device(number, at, until=None, **more):
    return Fault(at_ns=at, until_ns=until, devices=(number,), name=f"device {number}", **more)


def kinds(result, request):
    return [fact[:2] for fact in facts(result.timeline, request)]


def nothing_is_kept(result):
    told = result.timeline.facts
    for replica in np.unique(told["replica"]):
        mine = (told["replica"] == replica) & (told["used"] >= 0)
        assert not mine.any() or told["used"][mine][-1] == 0, replica


@pytest.mark.parametrize("layerwise", [False, True])
def test_what_is_on_its_way_to_a_replica_that_fails_is_sent_again_to_another_one(layerwise):
    result = failing([(0, 10, 3)], device(1, MIDDLE), decode=TWO, layerwise=layerwise)
    assert kinds(result, 0)[2:] == [
        ("admitted", 1), ("preempted", 1), ("admitted", 2), ("handed_over", 0), ("received", 2), ("finished", 2),
    ]  # fmt: skip
    assert moves(result.timeline, "to_replica", "start_ns", "end_ns") == [(2, MIDDLE, MIDDLE + 11_000)]
    assert token_times(result.timeline, 1).count.tolist() == [3]
    nothing_is_kept(result)


def test_a_step_that_has_failed_passes_no_layer_any_more():
    end = chunk_end(ran(pools([(0, 10, 3)], layers=3)).timeline)
    result = failing([(0, 10, 3)], device(0, end // 2), prefill=TWO, layers=3, layerwise=True)
    assert moves(result.timeline, "from_replica", "layer") == [(1, 0), (1, 1), (1, 2)]


def test_what_is_on_its_way_from_a_replica_that_fails_is_computed_anew_elsewhere():
    result = failing([(0, 10, 3)], device(0, MIDDLE), prefill=TWO)
    assert kinds(result, 0) == [
        ("arrived", 0), ("admitted", 0), ("admitted", 2), ("preempted", 0), ("admitted", 1), ("preempted", 2),
        ("admitted", 2), ("handed_over", 1), ("received", 2), ("finished", 2),
    ]  # fmt: skip
    # its first token was sampled before: 11 tokens are computed, the second is sampled with them, and 11 entries move
    assert moves(result.timeline, "from_replica", "tokens") == [(1, 11)]
    assert token_times(result.timeline, 1).count.tolist() == [3]
    assert result.preemptions.tolist() == [2]
    nothing_is_kept(result)


@pytest.mark.parametrize("layerwise", [False, True])
def test_what_decodes_on_a_replica_that_fails_is_computed_anew_with_its_tokens(layerwise):
    healthy = failing([(0, 10, 9)], decode=TWO, layerwise=layerwise).timeline
    ends = healthy.steps["end_ns"][healthy.steps["replica"] == 1]
    result = failing([(0, 10, 9)], device(1, int(ends.max()) - 10), decode=TWO, layerwise=layerwise)
    assert kinds(result, 0)[-1] in [("finished", 0), ("finished", 2)]
    chunks = result.timeline.chunks
    assert chunks["count"].tolist()[0] == 10
    assert chunks["count"].tolist()[1] > 10
    assert token_times(result.timeline, 1).count.tolist() == [9]
    nothing_is_kept(result)


def test_who_is_computed_anew_for_its_last_token_ends_in_the_prefill_pool():
    result = failing([(0, 10, 2)], device(1, ARRIVES + 10), decode=TWO)
    assert kinds(result, 0)[-3:] == [("admitted", 0), ("preempted", 1), ("finished", 0)]
    assert token_times(result.timeline, 1).count.tolist() == [2]


def test_prompts_wait_with_their_blocks_for_the_decode_replica_to_come_back():
    back = ARRIVES + 50_000
    result = failing([(0, 10, 3)], device(1, MIDDLE, back))
    assert moves(result.timeline, "start_ns") == [(back,)]
    assert [kind for kind, _ in kinds(result, 0)][-1] == "finished"


def test_without_a_decode_replica_prompts_are_lost_and_others_turned_away():
    result = failing([(0, 10, 3), (MIDDLE + 1, 10, 3), (MIDDLE + 2, 10, 1)], device(1, MIDDLE))
    assert kinds(result, 0)[-3:] == [("preempted", 0), ("lost", 0), ("preempted", 1)]
    assert "device 1, which replica 1 needs, failed" in result.reasons[0]
    assert result.reasons[0].endswith("and no decode replica was left")
    assert result.reasons[1] == "every decode replica has failed, and none comes back"
    assert kinds(result, 2)[-1] == ("finished", 0)  # it has all that it asked for with its first token


def test_what_a_failure_loses_is_what_had_its_cache_there():
    """``lose`` of a decode replica: what decodes is lost, what is on its way is sent again."""
    late = ARRIVES + 1_000
    result = failing([(0, 10, 40), (ARRIVES - FIRST, 10, 3)], device(1, late, late + 10, loses=True))
    assert kinds(result, 0)[-2:] == [("preempted", 1), ("lost", 1)]
    assert kinds(result, 1)[-1] == ("finished", 1)
    assert list(result.reasons) == [0]


def test_what_cannot_be_computed_anew_is_lost_with_a_reason():
    """The prefill pool has blocks for 12 tokens: not for a prompt of 10 and 8 tokens that were decoded."""
    result = failing([(0, 10, 20)], device(1, ARRIVES + 70_000, ARRIVES + 70_001), kv_blocks=3)
    assert result.reasons[0].startswith("to be computed anew, it needs ")
    assert kinds(result, 0)[-1] == ("lost", 1)


def test_transfers_over_weak_links_take_longer():
    links = pools([(0, 10, 3)]).comm.links("send", (0, 1))
    result = failing([(0, 10, 3)], Fault(at_ns=0, links=tuple(links), share=0.5))
    assert moves(result.timeline, "start_ns", "end_ns") == [(FIRST, FIRST + 21_000)]


def test_replicas_that_hand_over_through_a_link_are_down_while_it_fails():
    links = pools([(0, 10, 3)]).comm.links("send", (0, 1))
    broken = Fault(at_ns=MIDDLE, until_ns=MIDDLE + 9_000, links=tuple(links), name="link")
    result = failing([(0, 10, 3)], broken)
    assert [fact for fact in kinds(result, 0) if fact[0] == "preempted"] == [("preempted", 0), ("preempted", 1)]
    assert kinds(result, 0)[-1] == ("finished", 1)


def test_who_is_given_up_on_its_way_is_gone_when_that_fails():
    given = pools([(0, 10, 3), (0, 10, 3)], decode=TWO)
    clients = replace(given.requests, cancel_after_ns=np.array([FIRST + 1_000, -1]))
    result = ran(replace(given, requests=clients, faults=(device(1, MIDDLE),)))
    assert kinds(result, 0)[-2:] in ([("cancelled", 0), ("preempted", 1)], [("preempted", 1), ("cancelled", 0)])
    assert kinds(result, 1)[-1][0] == "finished"
    nothing_is_kept(result)


@pytest.mark.parametrize("layerwise", [False, True])
@pytest.mark.parametrize("patience", [-1, 1, 5_000])
def test_the_last_token_that_is_computed_anew_may_be_a_decode_step(layerwise, patience):
    """Steps of 11 tokens: of 12 that are computed anew one is left, which also samples the next token."""
    healthy = pools([(0, 10, 9)], decode=TWO, max_batch_tokens=11)
    given = leaving(healthy, layerwise=layerwise)
    arrives = moves(ran(given).timeline, "end_ns")[-1][0]
    broken = replace(given, faults=(device(1, arrives + 9_000),))
    result = ran(broken)
    if patience >= 0:  # given up a little after the step with the last of them has begun
        chunks = result.timeline.steps
        begun = int(chunks["start_ns"][(chunks["replica"] == 0) & (chunks["decode_tokens"] > 0)].min())
        clients = replace(broken.requests, cancel_after_ns=np.array([begun + patience]))
        result = ran(replace(broken, requests=clients))
        assert list(result.reasons) == [0]
    else:
        assert token_times(result.timeline, 1).count.tolist() == [9]
        assert ((result.timeline.steps["replica"] == 0) & (result.timeline.steps["decode_tokens"] > 0)).any()
    nothing_is_kept(result)
