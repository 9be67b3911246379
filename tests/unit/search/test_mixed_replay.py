"""A replica that computes prompts and decodes, replayed at times of round numbers: each step takes 10 ms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clustersim.search.plans.bounds.demand import Demand
from clustersim.search.plans.looks.mixed import MixedTimes


def _times(*, stages: int = 1, tokens: int = 100, requests: int = 4, kv_tokens: int = 10_000) -> MixedTimes:
    """Return a replica whose steps take 10 ms on each stage, whatever they carry."""
    return MixedTimes(
        stages=stages, tokens=tokens, requests=requests, kv_tokens=kv_tokens, tpot_ns=10e6 * stages,
        prompt_cell=[0] * (tokens + 1), decode_cell=[0] * (requests + 1), slowest_ns=[[10e6]],
        latency_ns=[[10e6 * stages]], key_ns=0.0, pair_ns=0.0,
    )  # fmt: skip


def _demand(count: int, *, prompt: float, decodes: float, ttft_ms: float = 30.0) -> Demand:
    none = np.zeros(count)
    return Demand(
        arrived_ns=none, prompt=none + prompt, decodes=none + decodes, keys=none, pairs=none,
        prompt_by_ns=none + ttft_ms * 1e6, decodes_by_ns=none + 1e12, tokens=none + prompt + decodes, shared=False,
    )  # fmt: skip


def test_prompts_fill_steps_in_order_of_arrival():
    assert _times().does(_demand(3, prompt=100.0, decodes=0.0), 0)
    assert not _times().does(_demand(4, prompt=100.0, decodes=0.0), 0)  # the fourth ends after 40 ms
    assert _times().does(_demand(4, prompt=100.0, decodes=0.0), 1)


def test_sequences_that_decode_take_room_from_prompts():
    first = _demand(2, prompt=100.0, decodes=1.0)  # the second prompt has 99 tokens in step 2 and one in step 3
    assert _times().does(replace(first, prompt_by_ns=np.array([10e6, 30e6])), 0)
    assert not _times().does(replace(first, prompt_by_ns=np.array([10e6, 20e6])), 0)


def test_a_slower_step_makes_tokens_late():
    slow = replace(_times(), latency_ns=[[10.1e6]])
    assert _times().does(_demand(2, prompt=10.0, decodes=5.0), 0)
    assert not slow.does(_demand(2, prompt=10.0, decodes=5.0), 0)


def test_who_misses_both_targets_counts_once():
    slow = replace(_times(), latency_ns=[[40e6]])
    assert slow.does(_demand(2, prompt=10.0, decodes=5.0), 2)
    assert not slow.does(_demand(2, prompt=10.0, decodes=5.0), 1)


def test_who_has_no_place_or_no_room_waits():
    assert _times(requests=2).does(_demand(2, prompt=10.0, decodes=5.0), 0)
    assert not _times(requests=2).does(_demand(3, prompt=10.0, decodes=5.0), 0)  # its first token comes after 60 ms
    assert not _times(kv_tokens=25).does(_demand(3, prompt=10.0, decodes=5.0), 0)


def test_stages_have_a_share_of_the_sequences_each():
    """All prompts end after 20 ms; two sequences go on at once, two 10 ms later, and have eight tokens at 190 ms."""
    two = _times(stages=2)
    assert replace(two, tpot_ns=170e6 / 8).does(_demand(4, prompt=10.0, decodes=8.0, ttft_ms=20.0), 0)
    assert not replace(two, tpot_ns=169e6 / 8).does(_demand(4, prompt=10.0, decodes=8.0), 0)
    assert replace(two, tpot_ns=20e6).does(_demand(4, prompt=10.0, decodes=8.0), 2)


def test_a_chunk_waits_for_the_one_before_it_to_leave_the_last_stage():
    long = _demand(1, prompt=200.0, decodes=0.0, ttft_ms=40.0)
    assert _times(stages=2).does(long, 0)
    assert not _times(stages=2).does(replace(long, prompt_by_ns=np.array([39e6])), 0)


def test_keys_and_pairs_make_steps_longer():
    one = _demand(1, prompt=10.0, decodes=5.0)
    assert not replace(_times(), key_ns=1.0).does(one, 0)
    assert not replace(_times(), pair_ns=1e6).does(_demand(1, prompt=10.0, decodes=0.0), 0)
