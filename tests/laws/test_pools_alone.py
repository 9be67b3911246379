"""A pool by itself at the least times of its steps: no simulated plan with two pools does better."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from clustersim.search.plans import limits, pool_alone
from clustersim.search.plans.demand import Demand
from clustersim.search.plans.grid import rate_of
from clustersim.search.plans.pool_alone import PoolAlone, _Replays
from clustersim.search.plans.trial import try_rate
from tests.unit.search.searching import SMALL, search

SPARE = 1
"""Steps of the grid."""
LOADS = {
    "prompts": SMALL.replace("low: 5, high: 40", "low: 2, high: 6"),
    "tokens": SMALL.replace("low: 200, high: 1200", "low: 10, high: 60").replace(
        "low: 5, high: 40", "low: 60, high: 90"
    ),
    "few places": SMALL.replace("max_batch_requests: 32", "max_batch_requests: 6"),
}


@pytest.mark.parametrize("load", LOADS)
def test_no_two_pools_do_better_than_one_of_them_alone_at_the_least_times(tmp_path, load):
    with search(tmp_path, LOADS[load], devices=3) as found:
        plain = [one for one in found.standings() if len(one.candidate.replicas) == 2]
        plain = [one for one in plain if all(r.plan.sp.degree == 1 for r in one.candidate.replicas)]
        plain = [one for one in plain if one.bound.why == limits.RATE and one.bound.step is not None]
        found.look([(one, one.bound.step - 150) for one in plain])
        looked = 0
        for one in plain:
            assert one.alone is not None
            assert one.alone <= one.bound.step
            row = try_rate(found.trial_at(one, one.alone + SPARE, 0.9))
            assert row["numbers"]["goodput.share"] < 0.9, (one.words, rate_of(one.alone))
            looked += one.alone < one.bound.step
        assert looked


def test_a_pool_whose_steps_take_longer_than_they_do_is_seen(tmp_path, monkeypatch):
    init = _Replays.__init__

    def slower(self, *args):
        init(self, *args)
        self._latency_ns = [2.0 * one for one in self._latency_ns]
        self._step_ns = [2.0 * one for one in self._step_ns]

    monkeypatch.setattr(pool_alone._Replays, "__init__", slower)
    with pytest.raises(AssertionError, match="tp 1"):
        test_no_two_pools_do_better_than_one_of_them_alone_at_the_least_times(tmp_path, "tokens")


def _replays(duty: str, *, pp: int = 1, **most: int) -> _Replays:
    """Return replays of a pool whose steps take 10 ms, and 10 ms more through the other stages."""
    made = object.__new__(_Replays)
    made._pool = PoolAlone(duty=duty, replicas=1, ranks=1, **{"tokens": 100, "requests": 4, "kv_tokens": 10_000} | most)
    made._limits = {"tpot": 10e6, "ttft": 30e6}
    made._step_ns, made._latency_ns = [10e6] * 101, [10e6 * pp] * 101
    made._pair_ns, made._key_ns = 0.0, [0.0] * 101

    made._scenario = SimpleNamespace(plan=SimpleNamespace(pp=pp))
    return made


def _demand(count: int, *, prompt: float, decodes: float) -> Demand:
    none = np.zeros(count)
    return Demand(
        arrived_ns=none, prompt=none + prompt, decodes=none + decodes, keys=none, pairs=none,
        prompt_by_ns=none + 30e6, decodes_by_ns=none + 1e12, tokens=none + prompt + decodes, shared=False,
    )  # fmt: skip


def test_prompts_that_come_together_take_as_many_steps_as_their_tokens_need():
    alone = _replays("prefill")
    assert alone._prefills(_demand(3, prompt=100.0, decodes=0.0), 0)
    assert not alone._prefills(_demand(4, prompt=100.0, decodes=0.0), 0)
    assert alone._prefills(_demand(4, prompt=100.0, decodes=0.0), 1)
    assert alone._prefills(_demand(6, prompt=50.0, decodes=0.0), 0)


def test_stages_overlap_and_the_last_one_is_waited_for():
    alone = _replays("prefill", pp=2)
    assert alone._prefills(_demand(2, prompt=100.0, decodes=0.0), 0)
    assert not alone._prefills(_demand(3, prompt=100.0, decodes=0.0), 0)


def test_who_has_no_place_among_those_that_decode_waits_for_one():
    alone = _replays("decode")
    assert alone._decodes(_demand(4, prompt=10.0, decodes=5.0), 0)
    assert not alone._decodes(_demand(5, prompt=10.0, decodes=5.0), 0)
    assert alone._decodes(_demand(5, prompt=10.0, decodes=5.0), 1)


def test_who_has_no_room_in_the_cache_waits_for_it():
    assert _replays("decode", kv_tokens=60)._decodes(_demand(4, prompt=10.0, decodes=5.0), 0)
    assert not _replays("decode", kv_tokens=30)._decodes(_demand(4, prompt=10.0, decodes=5.0), 0)
