"""A pool by itself at the least times of its steps: no simulated plan with two pools does better."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clustersim.search.plans.bounds import limits
from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.looks import alone
from clustersim.search.plans.looks.lockstep import LockstepDecodes, LockstepTimes
from clustersim.search.plans.looks.mixed import MixedTimes
from clustersim.search.plans.looks.times import DecodeTimes, PrefillTimes
from clustersim.search.plans.looks.two_pools import PoolTimes
from clustersim.search.plans.trial import try_rate
from tests.effort import is_whole
from tests.unit.search.searching import SMALL, bounded, look, search

SPARE = 1
SHORT = 8
"""Steps of the grid."""
LOADS = {
    "prompts": SMALL.replace("low: 5, high: 40", "low: 2, high: 6"),
    "tokens": SMALL.replace("low: 200, high: 1200", "low: 10, high: 60").replace(
        "low: 5, high: 40", "low: 60, high: 90"
    ),
    "few places": SMALL.replace("max_batch_requests: 32", "max_batch_requests: 6"),
    "wide decodes": SMALL.replace("dgx-h100", "dgx-h200").replace("llama-2-7b", "gpt-oss-20b")
    .replace("low: 200, high: 1200", "low: 10, high: 60").replace("low: 5, high: 40", "low: 30, high: 60")
    .replace("25 ms", "12 ms"),
}  # fmt: skip
LOADS |= {
    f"{name}, by load": LOADS[name].replace("serving: {", "serving: {router: least_outstanding, ")
    for name in ("prompts", "tokens")
}


@pytest.mark.parametrize("load", LOADS)
def test_no_two_pools_do_better_than_one_of_them_alone_at_the_least_times(tmp_path, load):
    with search(tmp_path, LOADS[load], devices=3) as found:
        plain = [one for one in bounded(found) if len(one.candidate.replicas) == 2]
        plain = [one for one in plain if all(r.plan.sp.degree == 1 for r in one.candidate.replicas)]
        plain = [one for one in plain if one.bound.why == limits.RATE and one.bound.step is not None]
        if load == "wide decodes":
            plain = [
                one for one in plain if one.candidate.replicas[-1].plan.is_lockstep and one.candidate.counts == (1, 1)
            ]
        if "by load" in load:
            plain = [one for one in plain if max(one.candidate.counts) > 1]
        plain = plain if is_whole() else plain[::3] if load != "wide decodes" else plain[:1]
        look(found, [(one, one.bound.step - 150) for one in plain])
        apart = {one.words: one.alone for one in plain}
        found.looks.look_at_both([(one, one.alone - 100) for one in plain])
        looked = 0
        for one in plain:
            assert one.is_paired
            assert one.alone <= apart[one.words] <= one.bound.step
            row = try_rate(found.trial_at(one, one.alone + SPARE, 0.9))
            assert row["numbers"]["goodput.share"] < 0.9, (one.words, rate_of(one.alone))
            looked += one.alone < one.bound.step
        assert looked


def test_where_prompts_go_by_load_their_pool_runs_by_itself_before_a_plan_does(tmp_path):
    with search(tmp_path, LOADS["prompts, by load"], devices=3) as found:
        one = next(one for one in bounded(found) if one.candidate.counts == (2, 1) and not one.is_lockstep)
        look(found, [(one, one.bound.step - 150)])
        low, high = one.alone - 30, one.alone + SPARE
        assert not found.trial_at(one, low, 0.9).hopeful
        passes, fails = found.refused_first([(one, low), (one, high)])
        assert passes is None
        assert fails is not None
        assert fails["numbers"]["alone"] == "prefill pool"
        assert found.trial_at(one, low, 0.9).hopeful
        assert found.begins_s(one, low) > found.begins_s(one, high) == 0.0  # what is known takes no time


def test_a_pool_whose_steps_take_longer_than_they_do_is_seen(tmp_path, monkeypatch):
    times = alone.decode_times

    def slower(*args, **most):
        found = times(*args, **most)
        return replace(found, step_ns=2.0 * found.step_ns)

    monkeypatch.setattr(alone, "decode_times", slower)
    alone._times.cache_clear()
    with pytest.raises(AssertionError, match="tp 1"):
        test_no_two_pools_do_better_than_one_of_them_alone_at_the_least_times(tmp_path, "tokens")
    alone._times.cache_clear()


STAGES = SMALL.replace("low: 200, high: 1200", "low: 600, high: 3000").replace("low: 5, high: 40", "low: 2, high: 4")


def test_a_prefill_pool_alone_reaches_next_to_what_it_does_at_the_least_times(tmp_path):
    with search(tmp_path, STAGES.replace("requests: 40", "requests: 200"), devices=5) as found:
        pools = {}
        for one in bounded(found):
            if len(one.candidate.replicas) == 2 and one.bound.step is not None and one.bound.why == limits.RATE:
                first = one.candidate.replicas[0]
                if first.plan.sp.degree == 1 and one.candidate.counts == (1, 1):
                    pools.setdefault((first.plan.tp, first.plan.pp), one)
        assert {pp for _, pp in pools} >= {1, 2, 3, 4}
        looked = [one for (_, pp), one in pools.items() if is_whole() or pp > 1]
        look(found, [(one, one.bound.step - 200) for one in looked])
        for one in looked:
            trial = replace(found.sides.prefill_alone(one.candidate).trial, step=one.alone - SHORT)
            assert try_rate(trial)["numbers"]["goodput.share"] >= 0.9, one.words


def test_a_prefill_pool_with_sp_does_no_better_than_alone_at_the_least_times(tmp_path):
    with search(tmp_path, STAGES, devices=5) as found:
        pools = {}
        for one in bounded(found):
            plan, counts = one.candidate.replicas[0].plan, one.candidate.counts
            if counts == (1, 1) and plan.sp.degree > 1 and one.bound.why == limits.RATE:
                pools.setdefault((plan.sp.degree, plan.sp.scheme, min(plan.pp, 2)), one)
        assert {pp for _, _, pp in pools} == {1, 2}
        assert len({scheme for _, scheme, _ in pools}) > 1
        looked = [
            one
            for (degree, scheme, pp), one in pools.items()
            if is_whole() or (degree, pp) == (2, 1) or scheme == "ring"
        ]
        look(found, [(one, one.bound.step - 200) for one in looked])
        for one in looked:
            alone = replace(found.sides.prefill_alone(one.candidate).trial, step=one.alone + SPARE)
            assert try_rate(alone)["numbers"]["goodput.share"] < 0.9, one.words
        assert any(one.alone < one.bound.step for one in looked)


@pytest.mark.parametrize(
    ("model", "router"),
    [("llama-2-7b", "round_robin"), ("mixtral-8x7b", "round_robin"), ("llama-2-7b", "least_outstanding")],
)
def test_no_plan_with_sp_or_stages_does_better_than_at_the_least_times(tmp_path, model, router):
    text = SMALL.replace("requests: 40", "requests: 80").replace("llama-2-7b", model)
    text, by_load = text.replace("serving: {", f"serving: {{router: {router}, "), router != "round_robin"
    with search(tmp_path, text, devices=4 if is_whole() or by_load else 2) as found:
        plans = {}
        for one in bounded(found):
            if len(one.candidate.replicas) == 1 and not one.is_plain and one.bound.why == limits.RATE:
                if by_load and one.candidate.counts == (1,):
                    continue
                plan = one.candidate.replicas[0].plan
                if model == "llama-2-7b" or plan.ep.degree > 1 < plan.sp.degree:  # experts on several SP ranks
                    plans.setdefault((plan.sp.decode, min(plan.pp, 2), is_whole() and plan.sp.scheme), one)
        assert {decode for decode, _, _ in plans} == {"idle", "dp", None} - {None if model != "llama-2-7b" else ""}
        assert {pp for _, pp, _ in plans} == ({1, 2} if model == "llama-2-7b" or is_whole() else {1})
        looked = list(plans.values())
        look(found, [(one, one.bound.step - 200) for one in looked])
        for one in looked:
            row = try_rate(found.trial_at(one, one.alone + SPARE, 0.9))
            assert row["numbers"]["goodput.share"] < 0.9, (one.words, rate_of(one.alone))
        assert any(one.alone < one.bound.step for one in looked)


def _prefill(*, stages: int = 1, tokens: int = 100, pair: float = 0.0) -> PrefillTimes:
    """Return a pool each stage of which takes 10 ms for a step."""
    none = np.zeros((1, tokens + 1))
    kinds = np.zeros(stages, np.int64)
    return PrefillTimes(budget=tokens, kinds=kinds, own=none + 10e6, sending=none, pair=np.array([pair]))


def _decode(kv_tokens: int = 10_000) -> DecodeTimes:
    """Return a pool of four places whose steps take 10 ms."""
    return DecodeTimes(step_ns=np.full(5, 10e6), key_ns=np.zeros(5), tpot_ns=10e6, kv_tokens=kv_tokens)


def _demand(count: int, *, prompt: float, decodes: float) -> Demand:
    none = np.zeros(count)
    return Demand(
        arrived_ns=none, prompt=none + prompt, decodes=none + decodes, keys=none, pairs=none,
        prompt_by_ns=none + 30e6, decodes_by_ns=none + 1e12, tokens=none + prompt + decodes, shared=False,
    )  # fmt: skip


def test_prompts_that_come_together_take_as_many_steps_as_their_tokens_need():
    assert _prefill().does(_demand(3, prompt=100.0, decodes=0.0), 0)
    assert not _prefill().does(_demand(4, prompt=100.0, decodes=0.0), 0)
    assert _prefill().does(_demand(4, prompt=100.0, decodes=0.0), 1)
    assert _prefill().does(_demand(6, prompt=50.0, decodes=0.0), 0)
    assert not _prefill(pair=10.0).does(_demand(3, prompt=100.0, decodes=0.0), 0)  # pairs make steps longer


def test_stages_overlap_and_the_last_one_is_waited_for():
    assert _prefill(stages=2).does(_demand(2, prompt=100.0, decodes=0.0), 0)
    assert not _prefill(stages=2).does(_demand(3, prompt=100.0, decodes=0.0), 0)
    # A chunk waits for the one before it to leave the last stage: 40 ms, of which a stage is busy for 20.
    assert not _prefill(stages=2).does(_demand(1, prompt=200.0, decodes=0.0), 0)


def test_a_short_step_behind_a_long_one_waits_on_each_stage():
    times = replace(_prefill(stages=2), own=np.array([[1e6] * 100 + [14e6]]))
    one = _demand(3, prompt=100.0, decodes=0.0)
    mixed = replace(one, prompt=np.array([100.0, 100.0, 10.0]))  # 28 ms, 42 ms, and behind it 43 ms
    assert not times.does(mixed, 1)
    assert times.does(mixed, 2)


def test_who_has_no_place_among_those_that_decode_or_no_room_in_the_cache_waits_for_it():
    assert _decode().does(_demand(4, prompt=10.0, decodes=5.0), 0)
    assert not _decode().does(_demand(5, prompt=10.0, decodes=5.0), 0)
    assert _decode().does(_demand(5, prompt=10.0, decodes=5.0), 1)
    assert _decode(kv_tokens=60).does(_demand(4, prompt=10.0, decodes=5.0), 0)
    later = replace(_demand(2, prompt=10.0, decodes=5.0), arrived_ns=np.array([0.0, 10e6]))
    assert _decode().does(later, 0)
    assert not replace(_decode(), waits=True).does(later, 0)  # its K/V comes during the step that begins then
    assert replace(_decode(), waits=True).does(later, 1)
    assert replace(_decode(), waits=True).does(replace(later, arrived_ns=np.array([0.0, 60e6])), 0)  # nobody decodes
    assert not _decode(kv_tokens=30).does(_demand(4, prompt=10.0, decodes=5.0), 0)


def test_each_request_counts_once_that_is_late_in_either_of_two_pools():
    # Prompts come out at 10, 20, 30 and 40 ms, the last one too late; a fifth sequence waits for a place.
    both = PoolTimes(prefill=_prefill(), decode=_decode(), replicas=(1, 1))
    four, five = (_demand(count, prompt=100.0, decodes=5.0) for count in (4, 5))
    assert both.does(four, 1)
    assert not both.does(four, 0)
    assert both.does(five, 2)  # who waits for a place was late before
    assert not both.does(five, 1)
    assert both.does(replace(five, decodes=np.array([5.0, 5.0, 5.0, 0.0, 0.0])), 2)  # the last two are not handed over
    two = replace(both, replicas=(2, 1))  # 10, 10, 20, 20, 30 ms: all in time, and the fifth waits for its place
    assert two.does(five, 1)
    assert not two.does(five, 0)
    assert replace(two, replicas=(2, 2)).does(five, 0)


def _lockstep(ranks: int) -> LockstepTimes:
    """Return replicas whose steps take a millisecond, and one more for each prompt token."""
    alone = MixedTimes(
        stages=1, tokens=10, requests=4, kv_tokens=1000, tpot_ns=2e6, prompt_cell=list(range(11)),
        decode_cell=list(range(5)), slowest_ns=[], latency_ns=[[1e6 + 1e6 * prompt] * 5 for prompt in range(11)],
        key_ns=0.0, pair_ns=0.0,
    )  # fmt: skip
    return LockstepTimes(ranks=ranks, alone=alone, shared_ns=np.zeros(10 * ranks + 1), decodes=True)


def test_who_decodes_waits_for_prompts_of_others_in_lockstep():
    # The second of two requests comes while the first one decodes: on one rank or two its 8 tokens keep that waiting.
    demand = replace(_demand(2, prompt=8.0, decodes=4.0), arrived_ns=np.array([0.0, 10e6]))
    assert _lockstep(2).does(replace(demand, arrived_ns=np.array([0.0, 20e6])), 0)
    for ranks in (1, 2):
        assert not _lockstep(ranks).does(demand, 0)  # 1 + 9 + 1 + 1 ms for 4 tokens of at most 2 ms
        assert _lockstep(ranks).does(demand, 1)


def test_decodes_in_lockstep_wait_for_the_fullest_rank_and_for_experts_of_all():
    # A sequence takes a millisecond, two on a rank two: of two ranks that have one each no one waits for the other.
    times = LockstepDecodes(
        ranks=2, requests=4, kv_tokens=1000, own_ns=1e6 * np.arange(5), key_ns=np.zeros(5),
        shared_ns=np.zeros(17), padded=np.zeros(5, np.int64), tpot_ns=1e6,
    )  # fmt: skip
    two, three = (_demand(count, prompt=8.0, decodes=4.0) for count in (2, 3))
    assert times.does(two, 0)
    assert not times.does(three, 2)
    assert replace(times, tpot_ns=2e6).does(three, 0)
    assert times.does(replace(three, decodes=np.array([4.0, 4.0, 0.0])), 0)
    assert not replace(times, shared_ns=np.arange(17) * 1e5).does(two, 1)  # 1.2 ms
    padded = replace(times, shared_ns=np.where(np.arange(17) > 2, 1e5, 0.0))
    assert padded.does(two, 0)
    assert not replace(padded, padded=np.array([0, 2, 2, 4, 4])).does(two, 1)  # four are computed
    assert not replace(times, tpot_ns=1.9e6, requests=1).does(three, 0)  # the third waits for four steps
    many = replace(three, tokens=np.array([5.0, 34.0, 5.0]))  # one rank has two sequences, the other one 30 keys
    attend = replace(times, key_ns=np.full(5, 1e5), tpot_ns=4.6e6)
    assert attend.does(many, 0)
    assert not replace(attend, padded=np.array([0, 2, 2, 4, 4])).does(many, 0)  # which computes two, too
    later = replace(two, arrived_ns=np.array([0.0, 1e6]))
    assert times.does(later, 0)
    assert not replace(times, waits=True).does(later, 0)  # its K/V comes during the step of the other rank
    assert replace(times, waits=True).does(later, 1)


def test_prompts_on_several_ranks_in_lockstep_are_computed_together():
    demand = replace(_demand(4, prompt=8.0, decodes=0.0), prompt_by_ns=np.full(4, 20e6))
    assert _lockstep(4).does(demand, 0)  # 9 ms
    assert not replace(_lockstep(4), shared_ns=np.arange(41) * 0.4e6).does(demand, 0)  # and 12.8 ms for 32 tokens
    assert _lockstep(2).does(demand, 0)  # 11 and 7 ms: a step takes 10 tokens
    assert not _lockstep(1).does(demand, 0)
