"""FLOPs and bytes of nodes, against the formulas of the model package and by hand."""

from __future__ import annotations

import pytest
from graph_models import BF16, DENSE, LATENT, MIXTURE, blueprint, body, node

from clustersim.cost.precision import Precision
from clustersim.graph.batch import Chunk, StepBatch, features_of
from clustersim.graph.blueprint import OPS, STRUCTURAL_OPS, Node
from clustersim.graph.expand import blueprint_of
from clustersim.graph.prices.work import AMOUNT_OF, bytes_moved, flops
from clustersim.model.work import module_bytes
from clustersim.plan.parallel import ParallelPlan, SequencePlan

BATCH = StepBatch(chunks=(Chunk(request=0, start=6, count=4),), decode_sequences=(3,), decode_keys=(30,))
FEATURES = features_of(BATCH, SequencePlan())
MIXED = Precision(weights="fp8", activations="bf16", kv_cache="fp32")


@pytest.mark.parametrize(
    ("facts", "count"),
    [
        ({"op": "gemm", "amount": (("tokens", 1.0),), "n": 10, "k": 20}, 2 * 7 * 10 * 20),
        ({"op": "grouped_gemm", "amount": (("tokens", 2.0),), "n": 10, "k": 20}, 2 * 14 * 10 * 20),
        ({"op": "attention_prefill", "heads": 2, "qk_dim": 5, "v_dim": 3}, 2 * (7 + 8 + 9 + 10) * 2 * 8),
        ({"op": "attention_decode", "heads": 2, "qk_dim": 5, "v_dim": 3}, 2 * 30 * 2 * 8),
        ({"op": "memory", "amount": (("tokens", 8.0),)}, 0),
        ({"op": "all_reduce", "amount": (("tokens", 8.0),)}, 0),
    ],
)
def test_flops_of_an_operator(facts, count):
    assert flops(Node(name="x", module="x", **facts), FEATURES, 0) == count


@pytest.mark.parametrize("model", [DENSE, LATENT])
@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_bytes_on_one_device_are_those_of_the_formulas(model, kind):
    prefill = kind == "prefill"
    batch = StepBatch(chunks=BATCH.chunks) if prefill else StepBatch(decode_sequences=(3,), decode_keys=(30,))
    features = features_of(batch, SequencePlan())
    absorbed = not prefill and model is LATENT
    tokens, keys = (4, 10) if prefill else (3, 30)
    expected = module_bytes(
        model, model.layers[0], tokens, keys, weight_bytes=1, activation_bytes=2, kv_bytes=4, absorbed=absorbed
    )
    expected[f"attention_{kind}"] = expected.pop("attention")
    units = blueprint_of(model, ParallelPlan(), MIXED, kind).stages[0]
    found = {n.name: bytes_moved(n, features, 0, MIXED) for unit in units if unit.layer == 0 for n in unit.body.nodes}
    assert {name: found[name] for name in expected} == expected


def test_bytes_of_experts_are_those_of_the_visited_ones():
    up = node(body(blueprint(MIXTURE), "moe"), "expert_up")
    one = features_of(StepBatch(decode_sequences=(1,), decode_keys=(1,)), SequencePlan())
    # one token visits two different experts of four
    assert bytes_moved(up, one, 0, BF16) == pytest.approx(2 * (2 * 12 * 10 + 2 * (12 + 10)))


@pytest.mark.parametrize(
    ("op", "moved"), [("memory", 56), ("all_gather", 56), ("send", 56), ("sample", 0), ("kv_read", 0)]
)
def test_bytes_of_other_operators_are_their_amount(op, moved):
    amount = () if op == "kv_read" else (("tokens", 8.0),)
    assert bytes_moved(Node(name="x", op=op, module="x", amount=amount), FEATURES, 0, BF16) == moved


def test_every_operator_that_takes_time_says_what_its_amount_counts():
    assert sorted(AMOUNT_OF) == sorted(set(OPS) - set(STRUCTURAL_OPS))
