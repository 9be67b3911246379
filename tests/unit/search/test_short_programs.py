"""Short programs: every class runs as often as in the whole stage, told by a few units."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from clustersim.graph.batch import StepBatch
from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.replay.programs import compile_stage
from clustersim.search.plans.bounds import short_programs
from clustersim.search.plans.bounds.short_programs import short_program, short_units
from clustersim.simulation.priced import priced
from clustersim.simulation.replay_input import cost_models
from tests.unit.search.searching import SMALL, deployments


@pytest.mark.parametrize("stage", [0, 1])
def test_a_short_program_counts_classes_as_the_whole_one(tmp_path, stage):
    scenario = deployments(tmp_path, SMALL.replace("plan: {tp: 1}", "plan: {tp: 2, pp: 2}"), devices=4).base
    plan = ParallelPlan(tp=2, pp=2)
    found = priced(scenario.with_entry(plan=plan), cost_models(scenario))
    ((blueprints, _),) = found.pools
    for kind in ("prefill", "decode", "mixed"):
        whole = compile_stage(Mesh(plan=plan), blueprints, found.comm, stage)[kind]
        made = short_program(Mesh(plan=plan), blueprints[kind], found.comm, stage)
        (counts, alone), short = made.counts(short_units(blueprints[kind].stages[stage])[1]), made.program
        per_class = Counter(whole.classes[cls] for cls in whole.template.instance_class.tolist())
        assert dict(zip(short.classes, counts.tolist(), strict=True)) == {cls: per_class[cls] for cls in short.classes}
        assert set(short.classes) == set(whole.classes)
        assert len(short.template.instance_class) < len(whole.template.instance_class) / 4
        assert np.isfinite(counts).all()
        assert not alone.any()  # no replicas in lockstep


def test_where_streams_overlap_a_path_through_them_is_counted(tmp_path, monkeypatch):
    """It is as long as a whole step but for what other paths take; where none is proven the busiest stream is
    counted, which was that of the host, so that nothing was bounded."""
    plan = ParallelPlan(tp=2, dp=4, ep=ExpertPlan(degree=8, scope="global"))
    scenario = deployments(tmp_path, SMALL.replace("llama-2-7b", "deepseek-v3"), devices=8).base
    found = priced(scenario.with_entry(plan=plan), cost_models(scenario))
    ((blueprints, pricer),) = found.pools
    asked = Mesh(plan=plan.lockstep), blueprints, found.comm, 0
    whole, batch = compile_stage(*asked)["decode"], StepBatch(decode_sequences=(16,) * 4, decode_keys=(9000,) * 4)
    step_ns = whole.template.pass_times(pricer.durations(whole, batch, pricer.features(batch)))[0]

    def counted():
        made = short_program(Mesh(plan=plan.lockstep), blueprints["decode"], found.comm, 0)
        (counts, _), short = made.counts(short_units(blueprints["decode"].stages[0])[1]), made.program
        path_ns = counts @ pricer.durations(short, batch, pricer.features(batch))
        return path_ns / step_ns, {cls.node.op for cls, n in zip(short.classes, counts.tolist(), strict=True) if n}

    share, ops = counted()
    assert 0.97 < share <= 1.0
    assert {"gemm", "grouped_gemm", "all_to_all", "all_reduce"} <= ops
    monkeypatch.setattr(short_programs, "_path", lambda *_: None)
    share, ops = counted()
    assert share < 0.93
    assert {"gemm", "grouped_gemm"} <= ops
