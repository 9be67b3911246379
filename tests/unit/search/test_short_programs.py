"""Short programs: every class runs as often as in the whole stage, told by a few units."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from clustersim.plan.mesh import Mesh
from clustersim.plan.parallel import ExpertPlan, ParallelPlan
from clustersim.replay.programs import compile_stage
from clustersim.search.plans.bounds.short_programs import short_program
from clustersim.simulation.priced import priced
from clustersim.simulation.replay_input import cost_models
from tests.unit.search.searching import SMALL, deployments


@pytest.mark.parametrize("kind", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_short_program_counts_classes_as_the_whole_one(tmp_path, kind, stage):
    scenario = deployments(tmp_path, SMALL.replace("plan: {tp: 1}", "plan: {tp: 2, pp: 2}"), devices=4).base
    plan = scenario.plan.__class__(tp=2, pp=2)
    found = priced(scenario.with_entry(plan=plan), cost_models(scenario))
    ((blueprints, _),) = found.pools
    whole = compile_stage(Mesh(plan=plan), blueprints, found.comm, stage)[kind]
    short, counts = short_program(Mesh(plan=plan), blueprints, found.comm, stage, kind)
    per_class = Counter(whole.classes[cls] for cls in whole.template.instance_class.tolist())
    assert dict(zip(short.classes, counts.tolist(), strict=True)) == {cls: per_class[cls] for cls in short.classes}
    assert set(short.classes) == set(whole.classes)
    assert len(short.template.instance_class) < len(whole.template.instance_class) / 4
    assert np.isfinite(counts).all()


def test_where_streams_overlap_the_busiest_one_is_counted(tmp_path):
    """TP ranks that gather what others computed: it was the stream of the host, so that nothing was bounded."""
    plan = ParallelPlan(tp=2, dp=4, ep=ExpertPlan(degree=8, scope="global"))
    scenario = deployments(tmp_path, SMALL.replace("llama-2-7b", "deepseek-v3"), devices=8).base
    found = priced(scenario.with_entry(plan=plan), cost_models(scenario))
    ((blueprints, _),) = found.pools
    short, counts = short_program(Mesh(plan=plan.lockstep), blueprints, found.comm, 0, "decode")
    counted = {cls.node.op for cls, count in zip(short.classes, counts.tolist(), strict=True) if count}
    assert {"gemm", "grouped_gemm"} <= counted
