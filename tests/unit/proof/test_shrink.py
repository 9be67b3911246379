"""What a proof keeps of a model and a plan, and what it makes smaller."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from clustersim.catalog import names
from clustersim.model import Moe, model_from_config
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan
from clustersim.plan.stages import stage_layers
from clustersim.proof import shrunk
from clustersim.proof.shrink import kept_layers
from tests.laws.proof_cases import is_legal
from tests.shipped import read


def shipped(name):
    return model_from_config(read("scenarios/models", name)["config"], name)


LLAMA, DEEPSEEK = shipped("llama-3.1-70b"), shipped("deepseek-v3")


def heads(model):
    return model.layers[0].attention.num_heads, model.layers[0].attention.num_kv_heads


@pytest.mark.parametrize(
    ("tp", "expected"),
    [(1, (16, 2)), (2, (32, 4)), (8, (64, 8)), (16, (16, 2))],  # one device; two a rank; one a rank; copies of two
)
def test_query_heads_per_kv_head_stay_and_so_does_whether_tp_copies(tp, expected):
    small, _ = shrunk(LLAMA, ParallelPlan(tp=tp))
    assert heads(small) == expected


def test_cuts_stay_inside_the_layers_that_they_divide():
    plan = ParallelPlan(pp=3, stages=(Cut(layer=12, before="ffn"), Cut(layer=40)))
    assert kept_layers(LLAMA, plan) == (12, 40)
    small, cut = shrunk(LLAMA, plan)
    assert stage_layers(small, cut) == (((0, "attention"),), ((0, "ffn"),), ((1, "attention"), (1, "ffn")))


def test_every_kind_of_layer_stays_on_every_stage_that_has_it():
    plan = ParallelPlan(pp=2, tp=8, ep=ExpertPlan(degree=8))
    assert kept_layers(DEEPSEEK, plan) == (0, 3, 31)
    small, _ = shrunk(DEEPSEEK, plan)
    kinds = [type(layer.ffn).__name__ for layer in small.layers]
    assert kinds == ["Ffn", "Moe", "Moe"]
    moe = small.layers[1].ffn
    assert isinstance(moe, Moe)
    assert (moe.num_experts, moe.top_k, moe.num_shared_experts) == (64, 2, 1)


def test_replicas_are_dropped_and_other_degrees_stay():
    plan = ParallelPlan(
        dp=4,
        tp=2,
        sp=SequencePlan(degree=2, scheme="ring", partition="zigzag", decode="dp"),
        placement=tuple(range(16)),
    )
    _, small = shrunk(LLAMA, plan)
    assert small == replace(plan, dp=1, placement=None)


@pytest.mark.parametrize("name", names("scenarios/models"))
def test_legal_plans_of_shipped_models_stay_legal(name):
    model, random, tried = shipped(name), Random(7), 0
    while tried < 6:
        degree = random.choice((1, 2, 4))
        sp = SequencePlan(
            degree=degree, scheme=random.choice(("all_gather", "ring", "all_to_all")), partition="zigzag", decode="dp"
        )
        plan = ParallelPlan(
            tp=random.choice((1, 2, 4, 5, 8, 10, 16)),
            pp=random.choice((1, 2, 4)),
            sp=sp if degree > 1 else SequencePlan(),
            ep=ExpertPlan(degree=random.choice((1, 2, 4, 8))),
        )
        if not is_legal(model, plan):
            continue
        tried += 1
        assert is_legal(*shrunk(model, plan)), plan
