"""Stages whose prompts are split over SP ranks: what each rank sends, and in which order stages take micro-batches."""

from __future__ import annotations

import numpy as np

from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.replay.replay import ReplayInput, replay
from tests.laws.cases import by_events, case_input
from tests.laws.corpus import CORPUS
from tests.round_numbers import deployment, stages_apart

LATE = "a step that only decodes would come to the next stage before a prompt that another SP rank still sends"


def two_stages(decode: str) -> ReplayInput:
    """One request of 5 prompt tokens, of which the first SP rank has 3, and 2 output tokens."""
    sp = SequencePlan(degree=2, scheme="ring", partition="contiguous", decode=decode)  # type: ignore[arg-type]
    plan = ParallelPlan(pp=2, sp=sp)
    return deployment([(0, 5, 2)], plan=plan, layers=2, topology=stages_apart(plan))


def test_each_sp_rank_sends_its_own_tokens_of_1000_bytes():
    for decode in ("idle", "dp"):
        found = replay(two_stages(decode))
        assert found.obstacle == ""
        assert found.timeline.transfer_bytes.tolist() == [3000, 2000, 1000, 0]  # the decode step is the first rank's
        assert by_events(two_stages(decode)).timeline.transfer_bytes.tolist() == [3000, 2000, 1000, 0]


def test_stages_take_micro_batches_as_launched_though_a_later_one_arrives_first():
    timeline = by_events(case_input(CORPUS[LATE])).timeline
    sends, ranks = timeline.transfers, 2
    first = np.flatnonzero(sends["stage"] == 0)
    ends = timeline.transfer_times[sends["at"][first, None] + ranks + np.arange(ranks)].max(axis=1)
    assert (np.diff(ends[np.argsort(sends["step"][first])]) < 0).any()
    passes = timeline.passes
    second = np.flatnonzero(passes["stage"] == 1)
    assert (np.diff(passes["start_ns"][second][np.argsort(passes["first_step"][second])]) > 0).all()
