"""Replays of pools are the same as machine code and in Python, and stop as soon as too many are late."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.search.plans.looks.kernels import decodes_late, prompts_late
from clustersim.search.plans.looks.lockstep_kernels import lockstep_decodes_late, lockstep_late
from clustersim.search.plans.looks.mixed_kernel import mixed_late
from clustersim.search.plans.looks.replays import COMPILER_S, REPLAY_S, is_worth_compiling, kernel
from tests.effort import is_whole

BUDGET = 512


def _prompts(stages: int, load: float, seed: int) -> tuple:
    """Return a pool whose first and last stage differ from the others, at a share of what it could do."""
    random = np.random.default_rng(seed)
    kinds = np.minimum(np.arange(stages), 1)
    kinds[-1] = 2
    tokens = np.arange(BUDGET + 1.0)
    own = np.concatenate([np.maximum(2e6, tokens * (3e4 + kind)) / stages for kind in range(3)])
    prompt = random.integers(0, 3 * BUDGET, 60).astype(np.float64)
    arrived = np.cumsum(random.exponential(prompt.mean() * 3e4 / stages / load, len(prompt)))
    sending, pair = np.concatenate([100.0 * tokens] * 3), np.array([0.01, 0.02, 0.03])
    return BUDGET, kinds, own, sending, pair, arrived, prompt, arrived + 2e8, np.zeros(60)


def _decodes(room: float, seed: int, *, waits: bool = False) -> tuple:
    random = np.random.default_rng(seed)
    arrived, decodes = np.cumsum(random.exponential(1e7, 80)), random.integers(0, 90, 80)
    context = random.integers(1, 900, 80).astype(np.float64)
    return (
        2e6 + 1e5 * np.arange(17),
        np.full(17, 2.0),
        room,
        waits,
        waits,
        arrived,
        decodes,
        context,
        decodes * 6e6,
        arrived + 4e7,
    )


def _lockstep(load: float, seed: int) -> tuple:
    """Return three ranks, whose steps are filled up to 512 tokens, 4 sequences each."""
    random = np.random.default_rng(seed)
    prompt = random.integers(1, 3 * BUDGET, 70).astype(np.float64)
    decodes = random.integers(0, 20, 70)
    arrived = np.cumsum(random.exponential(prompt.mean() * 1e4 / load, 70))
    ns = np.add.outer(np.arange(BUDGET + 1) * 3e4, 1e6 + 1e5 * np.arange(5)).ravel()
    cells = np.arange(BUDGET + 1), np.arange(5)
    return (
        3,
        BUDGET,
        4,
        6000.0,
        *cells,
        5,
        ns,
        np.arange(3 * BUDGET + 1) * 1e3,
        1.0,
        0.01,
        5e6,
        arrived,
        prompt,
        decodes,
        arrived + 9e7,
        arrived + 1e9,
        19,
    )


def _lockstep_decodes(seed: int) -> tuple:
    """Return three ranks with five places each, of which those that the fullest one has are padded to 4 or 8."""
    _, key, *_, arrived, decodes, context, within, by = _decodes(0.0, seed)
    own, padded = 1e6 + 3e5 * np.arange(6), np.array([0, 4, 4, 4, 4, 8])
    return (
        3, 5, 2000.0, seed == 2, seed == 2, own, key[:6], 5e4 * np.arange(25), padded,
        arrived, decodes + 1, context, within, by, 90,
    )  # fmt: skip


def _mixed(stages: int, load: float, seed: int) -> tuple:
    """Return a replica whose steps are filled up to 512 tokens, 4 sequences."""
    _, budget, most, room, rows, columns, width, ns, _, *rest, _ = _lockstep(load, seed)
    return stages, budget, most, room, rows, columns, width, ns / stages, ns, *rest


CASES = [
    *((mixed_late, _mixed(stages, load, seed)) for stages in (1, 3) for load in (0.3, 1.5) for seed in (1, 2)),
    *((lockstep_decodes_late, _lockstep_decodes(seed)) for seed in (1, 2)),
    *((lockstep_late, _lockstep(load, seed)) for load in (0.3, 1.5) for seed in (1, 2)),
    *((prompts_late, _prompts(stages, load, seed)) for stages in (1, 2, 5) for load in (0.8, 1.3) for seed in (1, 2)),
    *((decodes_late, _decodes(room, seed, waits=seed == 2)) for room in (3000.0, 1e6) for seed in (1, 2)),
]


def test_what_waits_for_a_place_is_late_where_its_first_token_came_from_the_pool_before():
    """One place, steps of 10 ns: the second request has it from 20 ns on, and its two tokens may take 20 ns."""
    for streams, by, told in (
        (False, 19.0, (1, 60.0, 4, 40.0)), (True, 20.0, (0, 40.0, 4, 40.0)), (True, 19.0, (1, 40.0, 4, 40.0)),
    ):  # fmt: skip
        asked = [0.0, 0.0], [2, 2], [1.0, 1.0], [20.0, 20.0], [by, by]
        assert decodes_late([0.0, 10.0], [0.0, 0.0], 100.0, False, streams, *asked, 9) == told
        steps = [0.0, 10.0], [0.0, 0.0], [0.0, 0.0], [0, 0]
        found = lockstep_decodes_late(1, 1, 100.0, False, streams, *steps, *asked, 2, 9)
        assert found == told


def _lists(arrays: tuple) -> list:
    return [one.tolist() if isinstance(one, np.ndarray) else one for one in arrays]


@pytest.mark.skipif(not is_whole(), reason="the compiler takes seconds: --long=1")
def test_machine_code_and_python_find_the_same_late_ones():
    pytest.importorskip("numba")
    late = [replay(*_lists(case), 10**6) for replay, case in CASES]
    assert late == [kernel(replay, True)(*case, 10**6) for replay, case in CASES]
    assert 0 in late
    assert len(set(late)) > 4


def test_a_replay_ends_once_more_than_may_are_late():
    for replay, case in CASES:
        whole, some = (np.ravel(replay(*_lists(case), free))[0] for free in (10**6, 5))
        assert min(whole, 6) <= some <= whole


def test_few_replays_are_not_compiled(monkeypatch):
    most = int(COMPILER_S / REPLAY_S)
    assert not is_worth_compiling(most - 1)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not is_worth_compiling(most * 100)
