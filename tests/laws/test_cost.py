"""Laws of every cost model: the same bits however asked, and more work never costs less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.catalog import names
from clustersim.cost import MeasuredPoints, Precision, RooflineCost, TableCost
from tests.effort import examples
from tests.shipped import device

HEADS = {"heads": 16.0, "kv_heads": 4.0, "qk_dim": 128.0, "v_dim": 128.0}
LATENT = {"heads": 16.0, "kv_heads": 1.0, "qk_dim": 576.0, "v_dim": 512.0, "shared_kv": 1.0}
SHAPES = {
    "gemm": {"m": (0, 65536), "n": (1, 65536), "k": (1, 65536)},
    "grouped_gemm": {"rows": (0, 65536), "experts": (1, 512), "active": (1, 512), "n": (1, 8192), "k": (1, 8192)},
    "attention_prefill": {"pairs": (0, 10**9), "queries": (0, 65536), "keys": (0, 10**6)},
    "attention_decode": {"batch": (0, 2048), "keys": (0, 10**7)},
    "memory": {"bytes": (0, 10**10)},
}
FIXED = {"attention_prefill": HEADS, "attention_decode": HEADS}


ROOFLINES = {
    (name, weights): RooflineCost(device(name), Precision(weights=weights, kv_cache=weights))
    for name in names("topologies/devices")
    for weights in ("bf16", "fp8")
}
H100 = ROOFLINES["h100-sxm-80gb", "bf16"]


def a_table():
    m = 2.0 ** np.arange(0, 14, 3)
    shape = {"m": m, "n": np.full(5, 4096.0), "k": np.full(5, 4096.0)}
    gemm = MeasuredPoints(op="gemm", dtype=None, shape=shape, seconds=1e-5 * (1.0 + np.sqrt(m)))
    batch, each = (axis.ravel() for axis in np.meshgrid([1.0, 8.0, 64.0], [100.0, 1000.0, 10000.0]))
    heads = {key: np.full(9, value) for key, value in {**HEADS, "shared_kv": 0.0}.items()}
    decode = MeasuredPoints(
        op="attention_decode", dtype=None, shape={"batch": batch, "keys": batch * each, **heads},
        seconds=1e-5 + 1e-9 * batch * each,
    )  # fmt: skip
    return TableCost([gemm, decode], H100)


def draw(data, op, size):
    return {
        key: np.array(data.draw(st.lists(st.integers(*bounds), min_size=size, max_size=size)), dtype=np.float64)
        for key, bounds in SHAPES[op].items()
    }


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("model", [H100, ROOFLINES["rtx-pro-6000", "bf16"], a_table()], ids=["h100", "rtx", "table"])
def test_one_element_and_a_thousand_give_the_same_bits(op, model):
    random = np.random.default_rng(7)
    shape = {key: np.floor(random.uniform(*bounds, 1000)) for key, bounds in SHAPES[op].items()}
    fixed = FIXED.get(op, {})
    counts = model.outside if isinstance(model, TableCost) else {}
    counts |= dict.fromkeys(counts, 0)
    many = model.seconds(op, {**shape, **fixed})
    outside = counts.get(op, 0)
    for index in range(1000):
        one = {key: values[index] for key, values in shape.items()}
        assert float(model.seconds(op, {**one, **fixed})) == many[index]
    assert counts.get(op, 0) == 2 * outside
    for start, stop in ((1, 2), (3, 500), (7, 1000)):  # other lengths and alignments
        part = {key: values[start:stop] for key, values in shape.items()}
        assert model.seconds(op, {**part, **fixed}).tobytes() == many[start:stop].tobytes()


@pytest.mark.parametrize("op", SHAPES)
@examples(15)
@given(data=st.data())
def test_more_never_costs_less(op, data):
    shape = draw(data, op, 3)
    key = data.draw(st.sampled_from(sorted(shape)))
    more = {**shape, key: shape[key] + np.array(data.draw(st.integers(0, 4096)), dtype=np.float64)}
    fixed = FIXED.get(op, {})
    for model in ROOFLINES.values():
        assert np.all(model.seconds(op, {**more, **fixed}) >= model.seconds(op, {**shape, **fixed}))


@examples(15)
@given(batch=st.integers(0, 1024), keys=st.integers(0, 10**7), more=st.integers(0, 10**5))
def test_more_keys_of_a_shared_latent_never_cost_less(batch, keys, more):
    shape = {"batch": float(batch), "keys": np.array([keys, keys + more], dtype=np.float64), **LATENT}
    for model in ROOFLINES.values():
        less, greater = model.seconds("attention_decode", shape)
        assert greater >= less


@pytest.mark.parametrize("op", SHAPES)
@examples(10)
@given(data=st.data())
def test_every_duration_is_finite_and_not_negative(op, data):
    shape = draw(data, op, 3) | FIXED.get(op, {})
    for model in (*ROOFLINES.values(), a_table()):
        seconds = model.seconds(op, shape)
        assert np.all(np.isfinite(seconds) & (seconds >= 0.0))


def test_decode_has_no_kink_or_jump_in_keys():
    keys = np.arange(1.0, 20_000.0)
    for model in ROOFLINES.values():
        slope = np.diff(model.seconds("attention_decode", {"batch": 8.0, "keys": keys, **HEADS}))
        assert np.all(slope > 0.0)
        assert np.all(np.abs(np.diff(slope)) < 0.05 * slope[-1])  # a kink or jump would change it at once
