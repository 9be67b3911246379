"""Reads kernel tables of the shape that ai-dynamo/aiconfigurator publishes (``systems/data``, ``*_perf.parquet``).

The tables are not shipped; a user who wants to refit names a path. Latencies are in ms there. What is left out,
and why, is said at each reader; attention with a sliding window is not read.

Benchmarks run a kernel over and over on the same buffers: what fits the cache is read from it. In serving it is
not, since other layers come in between. ``cache_bytes`` is the size of that cache: points whose K/V or weights
could have been cached are dropped, except those too small for it to matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from clustersim import inputs
from clustersim.clock import FloatArray
from clustersim.cost.fit import MOE
from clustersim.cost.points import MeasuredPoints
from clustersim.cost.precision import dtype_bytes
from clustersim.cost.roofline import PricedDevice
from clustersim.errors import InputError, Problem, nearest, rename

Columns = Mapping[str, Any]
_WORDS: Final = re.compile(r"[a-z]*[0-9]+[a-z0-9]*|[a-z]+")
LEAST_CACHE_BYTES: Final = 5e7
"""Assumed of a device whose constants name no cache, or a smaller one: what element-wise kernels find there may be less
than what the cache holds (2 MB of A100's 40)."""

FORMATS: Final[Mapping[str, str]] = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
}
"""Names of formats in the tables, and here."""

_ROTATED: Final = 5  # weight buffers over which the tables' GEMM benchmark rotates
_CACHE_MARGIN: Final = 1.6  # K/V must exceed the cache by this much before all of it comes from memory
_MOST_HEADS_OVER_ONE: Final = 16
_SMALL_S: Final = 1.5e-6  # reading this little is hidden in the floor


def _points(path: Path, columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> MeasuredPoints:
    try:
        op, shape, seconds, chosen = _READERS[path.stem](columns, table_format, cache_bytes, bandwidth)
    except KeyError as error:
        wanted = str(error.args[0])
        guess = nearest(wanted, list(columns))
        message = f"has no column {wanted!r}{rename(wanted, guess) if guess else ''}"
        raise InputError(Problem(message=message, file=str(path))) from None
    except (ValueError, TypeError) as error:
        raise InputError(Problem(message=f"a column of numbers has something else: {error}", file=str(path))) from None
    if op == MOE:
        # Nemotron (2,688 × 1,856) and the models with top 22 have plain experts: one product less.
        chosen &= ~((shape["hidden"] == 2688) | (columns["topk"] == 22))
    if not np.any(chosen):
        raise InputError(Problem(message=f"has no usable rows of format {table_format!r}", file=str(path)))
    points = MeasuredPoints(op=op, dtype=FORMATS[table_format], shape=shape, seconds=seconds)
    return points.where(chosen)


def is_kernel_table(path: Path) -> bool:
    """Whether a file is called as such a table is."""
    return path.suffix == ".parquet" and path.stem in _READERS


def read_kernel_table(path: Path, device: PricedDevice) -> tuple[MeasuredPoints, ...]:
    """Read one table in every format that the device has a peak for; of two names of a format the first.

    Decode attention with a head of K/V for each of the queries is apart from the others: engines have kernels of
    their own for it.

    Parameters
    ----------
    path : Path
    device : PricedDevice
        That was measured.

    Raises
    ------
    InputError
        When nothing in it can be used.
    """
    cache_bytes = max(device.kernels.get("memory", {}).get("cache_bytes", 0.0), LEAST_CACHE_BYTES)
    found: dict[str, MeasuredPoints] = {}
    problems: list[Problem] = []
    columns = _of_device(path, _columns(path), device)
    for name, own in FORMATS.items():
        if own in found or (own not in device.flops and path.stem in {"gemm_perf", "moe_perf"}):
            continue
        try:
            found[own] = _points(path, columns, name, cache_bytes, float(device.memory_bytes_per_s))
        except InputError as error:
            problems += error.problems
    if not found:
        raise InputError(problems)
    return tuple(part for points in found.values() for part in _apart(points))


def _of_device(path: Path, columns: Columns, device: PricedDevice) -> Columns:
    """Return the rows of a device, which tables call as its maker does: ``NVIDIA H100 80GB HBM3``.

    Raises
    ------
    InputError
        When all rows are of other ones.
    """
    if "device" not in columns:
        return columns
    name, told = device.name, [str(one) for one in columns["device"].tolist()]
    is_own = {one: one == name or _called(name) <= set(_WORDS.findall(one.lower())) for one in dict.fromkeys(told)}
    chosen = np.array([is_own[one] for one in told], dtype=np.bool_)
    if not chosen.any():
        message = f"has no row of {name}; it has some of {', '.join(is_own)} (its column 'device')"
        raise InputError(Problem(message=message, file=str(path)))
    return {key: values[chosen] for key, values in columns.items()}


def _called(name: str) -> set[str]:
    """Return the words of a device's name that tell its model: h100 of h100-sxm-80gb."""
    words = _WORDS.findall(name.lower())
    return {word for word in words if re.search(r"\d", word) and not re.fullmatch(r"\d+gb", word)} or set(words)


def _apart(points: MeasuredPoints) -> tuple[MeasuredPoints, ...]:
    if points.op != "attention_decode" or np.any(points.shape["shared_kv"]):
        return (points,)
    alike = points.shape["heads"] == points.shape["kv_heads"]
    return tuple(points.where(chosen) for chosen in (~alike, alike) if np.any(chosen))


_Read = tuple[str, dict[str, FloatArray], FloatArray, Any]


def _columns(path: Path) -> Columns:
    table = inputs.read_parquet(path)
    return {name: np.asarray(table.column(name).to_pylist()) for name in table.column_names}


def _floats(columns: Columns, *names: str) -> list[FloatArray]:
    return [columns[name].astype(np.float64) for name in names]


def _gemm(columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> _Read:
    """Read products; n or k below 128 and m above 16,384 occur in no model's step and are left out."""
    m, n, k, ms = _floats(columns, "m", "n", "k", "latency")
    weights = n * k * dtype_bytes(FORMATS[table_format])
    cached = (_ROTATED * weights < cache_bytes) & (weights > bandwidth * _SMALL_S)
    chosen = (columns["gemm_dtype"] == table_format) & (n >= 128) & (k >= 128) & (m <= 16384) & ~cached
    return "gemm", {"m": m, "n": n, "k": k}, ms * 1e-3, chosen


def _moe(columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> _Read:
    """Read MoE modules without expert parallelism (the others permute all tokens all the same).

    Routing is balanced; or there is one token (its experts are as many as it has), or 64 rows per expert (all
    experts are active).
    """
    tokens, hidden, inter, top_k, experts, tp, ep, ms = _floats(
        columns, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size",
        "latency",
    )  # fmt: skip
    rows = tokens * top_k
    shape = {
        "rows": rows,
        "experts": experts,
        "active": np.minimum(rows, experts),
        "hidden": hidden,
        "intermediate": inter / tp,
    }
    weights = 3.0 * np.minimum(rows, experts) * hidden * inter / tp * dtype_bytes(FORMATS[table_format])
    known = (columns["distribution"] == "balanced") | (tokens == 1) | (rows >= 64.0 * experts)
    chosen = (columns["moe_dtype"] == table_format) & known & (ep == 1)
    chosen &= (tp <= 8) & (tokens <= 32768) & (weights > cache_bytes)
    return MOE, shape, ms * 1e-3, chosen


def _context_attention(columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> _Read:
    """Read prompts of equal length, of at least 64 tokens (padding dominates below) and 65,536 in all."""
    batch, length, heads, dim, ms = _floats(columns, "batch_size", "isl", "num_heads", "head_dim", "latency")
    shape = _prompts(batch, length) | _heads(columns, heads, dim)
    chosen = (columns["kv_cache_dtype"] == table_format) & (columns["attn_dtype"] == "bfloat16")
    chosen &= (length >= 64) & (batch * length <= 65536) & (dim >= 64) & (dim <= 128) & _full(columns)
    return "attention_prefill", shape, ms * 1e-3, chosen


def _generation_attention(columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> _Read:
    """Read decoding steps; A100's plain multi-head rows of vLLM do not split keys: left out.

    So are more than 16 heads to one of K/V, which occur in no model but over latents: kernels for 64 and more read
    the cache several times.
    """
    batch, step, heads, dim, ms = _floats(columns, "batch_size", "step", "num_heads", "head_dim", "latency")
    shape = {"batch": batch, "keys": batch * (step + 1.0)} | _heads(columns, heads, dim)
    cached_bytes = shape["keys"] * shape["kv_heads"] * 2.0 * dim * dtype_bytes(FORMATS[table_format])
    chosen = (columns["kv_cache_dtype"] == table_format) & (dim == 128) & _full(columns)
    chosen &= (step < 16) | (cached_bytes > _CACHE_MARGIN * cache_bytes)
    chosen &= ~((heads == shape["kv_heads"]) & (columns["kernel_source"] == "vllm_flash_attn"))
    chosen &= heads <= _MOST_HEADS_OVER_ONE * shape["kv_heads"]
    return "attention_decode", shape, ms * 1e-3, chosen


def _generation_mla(columns: Columns, table_format: str, cache_bytes: float, bandwidth: float) -> _Read:
    """Read decoding steps over a shared latent of 512 + 64 (DeepSeek-V3); at least 8 heads a rank."""
    batch, step, heads, ms = _floats(columns, "batch_size", "step", "num_heads", "latency")
    keys, one = batch * (step + 1.0), np.ones(len(batch))
    shape = {"batch": batch, "keys": keys, "heads": heads, "kv_heads": one}
    shape |= {"qk_dim": 576.0 * one, "v_dim": 512.0 * one, "shared_kv": one}
    chosen = (columns["kv_cache_dtype"] == table_format) & (batch <= 512) & (heads >= 8)
    chosen &= (step < 16) | (keys * 576.0 * dtype_bytes(FORMATS[table_format]) > _CACHE_MARGIN * cache_bytes)
    return "attention_decode", shape, ms * 1e-3, chosen


def _prompts(batch: FloatArray, length: FloatArray) -> dict[str, FloatArray]:
    tokens = batch * length
    return {"pairs": tokens * (length + 1.0) / 2.0, "queries": tokens, "keys": tokens}


def _heads(columns: Columns, heads: FloatArray, dim: FloatArray) -> dict[str, FloatArray]:
    kv_heads = columns["num_key_value_heads"].astype(np.float64)
    kv_heads = np.where(kv_heads == 0.0, heads, kv_heads)
    return {"heads": heads, "kv_heads": kv_heads, "qk_dim": dim, "v_dim": dim, "shared_kv": 0.0 * dim}


def _full(columns: Columns) -> Any:
    return columns["window_size"] == 0 if "window_size" in columns else np.array(True)


_READERS: Final[Mapping[str, Callable[[Columns, str, float, float], _Read]]] = {
    "gemm_perf": _gemm,
    "moe_perf": _moe,
    "context_attention_perf": _context_attention,
    "generation_attention_perf": _generation_attention,
    "generation_mla_perf": _generation_mla,
}
