"""Reading kernel tables as aiconfigurator publishes them."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from clustersim.cost.aiconfigurator import read_kernel_table
from clustersim.cost.fit import MOE
from clustersim.errors import InputError


def table(tmp_path, kind, rows):
    path = tmp_path / f"{kind}.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def read(path, dtype="bf16"):
    """Read a table as of a device with 50 MB of cache and 3 TB/s: the points of one format."""
    device = SimpleNamespace(
        kernels={"memory": {"cache_bytes": 50e6}}, flops={"bf16": 1e15, "fp8": 2e15}, memory_bytes_per_s=3e12
    )
    (points,) = (found for found in read_kernel_table(path, device) if found.dtype == dtype)
    return points


def gemm(m, n, k, ms, dtype="bfloat16"):
    return {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": ms}


def test_gemms_of_one_format_are_read_in_seconds(tmp_path):
    points = read(table(tmp_path, "gemm_perf", [gemm(1, 4096, 4096, 0.015), gemm(1, 4096, 4096, 0.01, "fp8")]))
    assert (points.op, points.dtype) == ("gemm", "bf16")
    assert points.seconds == pytest.approx([15e-6])


def test_weights_that_could_have_been_cached_are_dropped(tmp_path):
    # Five buffers of 2048 × 2048 × 2 B = 8.4 MB fit 50 MB; of 4096 × 4096 not; 256 × 1024 is too small to matter.
    rows = [gemm(1, 2048, 2048, 0.01), gemm(1, 4096, 4096, 0.02), gemm(1, 256, 1024, 0.003)]
    assert read(table(tmp_path, "gemm_perf", rows)).shape["n"].tolist() == [4096.0, 256.0]


def test_decoding_from_the_cache_is_dropped_but_not_short_contexts(tmp_path):
    row = {"batch_size": 8, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0}
    row |= {"kv_cache_dtype": "bfloat16", "kernel_source": "fa3", "latency": 0.02}
    path = table(tmp_path, "generation_attention_perf", [row | {"step": step} for step in (1, 1023, 16383)])
    assert read(path).shape["keys"].tolist() == [16.0, 131072.0]


def test_decoding_of_thousands_of_sequences_is_read(tmp_path):
    row = {"batch_size": 2048, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0}
    row |= {"kv_cache_dtype": "bfloat16", "kernel_source": "fa3", "latency": 0.486, "step": 127}
    assert read(table(tmp_path, "generation_attention_perf", [row])).shape["keys"].tolist() == [262144.0]


def test_prompts_attend_to_themselves(tmp_path):
    row = {"batch_size": 2, "isl": 100, "num_heads": 8, "num_key_value_heads": 0, "head_dim": 128, "latency": 0.1}
    row |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}
    points = read(table(tmp_path, "context_attention_perf", [row, row | {"window_size": 128}]))
    assert points.shape["pairs"].tolist() == [2 * 5050.0]
    assert points.shape["kv_heads"].tolist() == [8.0]


def test_moe_rows_are_token_expert_pairs(tmp_path):
    row = {"moe_dtype": "fp8_block", "num_tokens": 16, "hidden_size": 2048, "inter_size": 768, "topk": 8}
    row |= {"num_experts": 128, "moe_tp_size": 2, "moe_ep_size": 1, "distribution": "balanced", "latency": 0.3}
    points = read(table(tmp_path, "moe_perf", [row, row | {"moe_ep_size": 2}]), "fp8")
    assert (points.op, points.dtype) == (MOE, "fp8")
    assert {key: values.tolist() for key, values in points.shape.items()} == {
        "rows": [128.0], "experts": [128.0], "active": [128.0], "hidden": [2048.0], "intermediate": [384.0]
    }  # fmt: skip


def test_mla_is_one_latent_for_all_heads(tmp_path):
    row = {"batch_size": 64, "step": 4095, "num_heads": 16, "kv_cache_dtype": "bfloat16", "latency": 0.09}
    points = read(table(tmp_path, "generation_mla_perf", [row]))
    assert [points.shape[key].tolist() for key in ("kv_heads", "qk_dim", "v_dim", "shared_kv")] == [
        [1.0], [576.0], [512.0], [1.0]
    ]  # fmt: skip


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no usable rows of format 'fp8'"):
        read(table(tmp_path, "gemm_perf", [gemm(1, 4096, 4096, 0.015, "int8")]))
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "moe_perf.parquet")
