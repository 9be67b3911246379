"""The pipeline's fill and drain: m micro-batches through pp equal stages of t take (m + pp − 1) · t.

Huang et al., "GPipe", NeurIPS 2019, section 2: a share (pp − 1)/(m + pp − 1) of the time is the bubble. Unequal stages
are a flow shop of equal jobs, to which the way between two stages is one more machine: Σ t + (m − 1) · max t, as long
as m ≤ pp: at most pp micro-batches are in flight, as in vLLM (its batch queue), so that one more waits for the first.
Each prompt of 4 tokens is a micro-batch here, since the budget of a step is 4 tokens.
"""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.cost.protocol import Shape
from clustersim.plan.parallel import ParallelPlan
from tests.audit import replayed
from tests.round_numbers import deployment, step_ends

PIPELINES = pytest.mark.parametrize(("pp", "m"), [(1, 5), (2, 1), (2, 7), (3, 3), (4, 16)])
MODES = pytest.mark.parametrize("mode", ["full", "folded"])


class LayersOnly:
    """1 ms per GEMM of a layer, and the least that there is (1 ns) for all else: equal stages."""

    def seconds(self, op: str, shape: Shape) -> np.ndarray:
        """Return seconds; the LM head is the GEMM of one row."""
        if op == "gemm":
            return np.where(np.asarray(shape["m"]) > 1, 1e-3, 0.0)
        return np.zeros(np.shape(shape["bytes" if op == "memory" else "keys"]))


def pipeline(pp, m, layers, mode, **options):
    """Prefill m prompts of 4 tokens, each a micro-batch."""
    given = deployment(
        [(0, 4, 1)] * m, mode=mode, plan=ParallelPlan(pp=pp), layers=layers, max_batch_tokens=4, **options
    )
    return replayed(given).timeline


@MODES
@PIPELINES
def test_equal_stages_take_m_plus_pp_minus_1_times_one(pp, m, mode):
    # 3 layers of 4 GEMMs a stage; the 5 µs of a send and the 1 ns of every other operator are below 1 in 1,000.
    assert pipeline(pp, m, 3 * pp, mode, cost=LayersOnly()).end_ns == pytest.approx((m + pp - 1) * 12e6, rel=1e-3)


@MODES
@PIPELINES
def test_the_bubble_is_a_share_of_pp_minus_1_over_m_plus_pp_minus_1(pp, m, mode):
    timeline = pipeline(pp, m, 3 * pp, mode, cost=LayersOnly())
    spans = timeline.unfold()
    work = spans.stream != 2
    work &= spans.stream != 3
    for rank in range(pp):
        mine = work & (spans.rank == rank)
        idle = 1 - (spans.end_ns - spans.start_ns)[mine].sum() / timeline.end_ns
        assert idle == pytest.approx((pp - 1) / (m + pp - 1), abs=1e-3)


def machines(pp):
    """Stages, and the ways between them: a layer takes 4,700, the ends 500 and 1,500 more, a send 5,000."""
    stages = [4_700] * pp
    stages[0] += 500
    stages[-1] += 1_500
    return [stages[i // 2] if i % 2 == 0 else 5_000 for i in range(2 * pp - 1)]


@MODES
@pytest.mark.parametrize(("pp", "m"), [(1, 1), (2, 1), (2, 2), (3, 3), (4, 4), (8, 5)])
def test_unequal_stages_are_a_flow_shop(pp, m, mode):
    assert pipeline(pp, m, pp, mode).end_ns == sum(machines(pp)) + (m - 1) * max(machines(pp))


@MODES
@PIPELINES
def test_at_most_pp_micro_batches_are_in_flight(pp, m, mode):
    """The flow shop job by job: a machine takes a job when it is free and the job is there, and the first machine
    takes one only when the job pp places before it has left.
    """
    free = [0] * (2 * pp - 1)
    left: list[int] = []
    for job in range(m):
        now = left[job - pp] if job >= pp else 0
        for machine, length in enumerate(machines(pp)):
            now = free[machine] = max(now, free[machine]) + length
        left.append(now)
    assert step_ends(pipeline(pp, m, pp, mode)) == left
