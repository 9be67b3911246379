"""Synthetic runs for tests of the report: tables and spans with the columns of a run directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clustersim.report.traces.spans import SpansLike

MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSpans:
    """Spans as plain arrays."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    rank: np.ndarray
    stream: np.ndarray
    name: np.ndarray
    op: np.ndarray
    layer: np.ndarray
    step: np.ndarray
    replica: np.ndarray
    stage: np.ndarray
    names: tuple[str, ...]
    ops: tuple[str, ...]


def spans_of(rows: list[tuple[Any, ...]]) -> PlainSpans:
    """Make spans of rows (start, end, rank, stream, name, op, layer, step, replica, stage), names as text."""
    rows = sorted(rows, key=lambda row: (row[0], row[2], row[3]))
    columns = list(zip(*rows, strict=True)) if rows else [()] * 10
    names, ops = tuple(sorted(set(columns[4]))), tuple(sorted(set(columns[5])))
    return PlainSpans(
        start_ns=np.array(columns[0], np.int64),
        end_ns=np.array(columns[1], np.int64),
        rank=np.array(columns[2], np.int32),
        stream=np.array(columns[3], np.int8),
        name=np.array([names.index(text) for text in columns[4]], np.int32),
        op=np.array([ops.index(text) for text in columns[5]], np.int32),
        layer=np.array(columns[6], np.int32),
        step=np.array(columns[7], np.int64),
        replica=np.array(columns[8], np.int32),
        stage=np.array(columns[9], np.int32),
        names=names,
        ops=ops,
    )


def pipeline_spans(*, steps: int, stages: int, tp: int, layers: int, start_ns: int = 0) -> PlainSpans:
    """Steps that pass one after the other through a pipeline, each layer five operators on every rank."""
    layer_ops = (
        ("qkv_proj", "gemm", 0, 30),
        ("attention", "attention_decode", 0, 25),
        ("out_proj", "gemm", 0, 20),
        ("attention_all_reduce", "all_reduce", 1, 15),
        ("gate_up_proj", "gemm", 0, 50),
        ("down_proj", "gemm", 0, 40),
        ("ffn_all_reduce", "all_reduce", 1, 15),
        ("norm", "memory", 0, 5),
    )
    rows: list[tuple[Any, ...]] = []
    free = [start_ns] * stages
    for step in range(steps):
        clock = free[0]
        for stage in range(stages):
            clock = max(clock, free[stage])
            for t in range(tp):
                rank = stage * tp + t
                if stage:
                    rows.append((clock - 8_000, clock, rank, 3, "stage_recv", "recv", -1, step, 0, stage))
                rows.append((clock, clock + 60_000, rank, 4, "schedule", "host", -1, step, 0, stage))
            clock += 60_000
            for layer in range(stage * layers, (stage + 1) * layers):
                for name, op, stream, micros in layer_ops:
                    end = clock + micros * 1000 + 37 * (layer % 3)
                    rows += [(clock, end, stage * tp + t, stream, name, op, layer, step, 0, stage) for t in range(tp)]
                    clock = end
            free[stage] = clock
            if stage + 1 < stages:
                rows += [
                    (clock, clock + 8_000, stage * tp + t, 2, "stage_send", "send", -1, step, 0, stage)
                    for t in range(tp)
                ]
                clock += 8_000
    return spans_of(rows)


def small_run(*, requests: int = 300, rate: float = 4.0, seed: int = 3) -> dict[str, Any]:
    """A run of continuous batching, as tables and token gaps. A step takes 15 ms + 0.1 ms per prompt token."""
    random = np.random.default_rng(seed)
    arrived = np.sort(np.cumsum(random.exponential(1e9 / rate, requests)).astype(np.int64))
    prompt = random.lognormal(6.3, 0.9, requests).astype(np.int64) + 1
    output = random.lognormal(4.6, 0.7, requests).astype(np.int64) + 1
    admitted, first, finished = (np.full(requests, np.nan) for _ in range(3))
    made = np.zeros(requests, np.int64)
    steps: dict[str, list[Any]] = {name: [] for name in STEP_COLUMNS}
    gaps: list[int] = []
    now, queue, running, coming = 0, [], [], 0
    last_token: dict[int, int] = {}
    while running or queue or coming < requests:
        while coming < requests and arrived[coming] <= now:
            queue.append(coming)
            coming += 1
        if not running and not queue:
            now = int(arrived[coming])
            continue
        prefill = 0
        admitted_now = []
        while queue and len(running) + len(admitted_now) < 48 and prefill + prompt[queue[0]] <= 8192:
            request = queue.pop(0)
            admitted[request] = now
            prefill += int(prompt[request])
            admitted_now.append(request)
        used = sum(int(prompt[r] + made[r]) // 16 + 1 for r in running + admitted_now)
        end = now + 15 * MS + int(0.1 * MS * prefill) + 40_000 * len(running)
        batch, kind = len(running) + len(admitted_now), "mixed" if prefill else "decode"
        row = (0, len(steps["step"]), 1, kind, now, end, batch, prefill, len(running), 0, len(queue), batch,
               used, 6000)  # fmt: skip
        for name, value in zip(STEP_COLUMNS[:-1], row, strict=True):
            steps[name].append(value)
        for request in admitted_now:
            first[request] = end
        gaps += [end - last_token[request] for request in running]
        running += admitted_now
        for request in running:
            made[request] += 1
            last_token[request] = end
            if made[request] == output[request]:
                finished[request] = end
        running = [r for r in running if made[r] < output[r]]
        empties = end if not running and not queue and (coming == requests or arrived[coming] > end) else -1
        steps["empties_ns"].append(empties)
        now = end
    table = {
        "request": np.arange(requests),
        "replica": np.zeros(requests, np.int32),
        "arrived_ns": arrived,
        "admitted_ns": admitted,
        "first_token_ns": first,
        "finished_ns": finished,
        "front_end_ns": np.zeros(requests, np.int64),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "generated_tokens": made,
        "preemptions": np.zeros(requests, np.int32),
        "cached_tokens": np.zeros(requests, np.int64),
        "outcome": np.full(requests, "finished", object),
    }
    values, weights = np.unique(np.array(gaps, np.int64), return_counts=True)
    return {
        "requests": table,
        "steps": {name: np.array(column) for name, column in steps.items()},
        "token_gaps": (values, weights),
    }


STEP_COLUMNS = (
    "replica", "step", "count", "kind", "start_ns", "end_ns", "batch_requests", "prefill_tokens",
    "decode_tokens", "context_tokens", "waiting", "running", "kv_blocks_used", "kv_blocks_total",
    "empties_ns",
)  # fmt: skip


def summary_of(run: dict[str, Any], *, ranks: int = 8) -> dict[str, Any]:
    """The object of ``summary.json`` for a synthetic run."""
    from clustersim.report.metrics.latencies import summarise

    return {
        "name": "llama70b-azure-chat",
        "digest": "4d1f" * 16,
        "seed": 7,
        **summarise(run["requests"], run["token_gaps"]),
        "steps": int(run["steps"]["count"].sum()),
        "spans": 1_234_567,
        "timeline_digest": "ab" * 32,
        "legal": True,
        "wall_s": {"total": 1.0, "simulate": 0.5},
        "scenario": {
            "model": "llama-3.1-70b",
            "topology": {"name": "dgx-h100", "nodes": 1},
            "plan": {"pp": 2, "tp": 4, "sp": 1, "dp": 1, "ep": {"degree": 1}},
            "precision": {"weights": "bf16", "kv_cache": "bf16"},
            "serving": {"scheduler": "continuous", "engine": "vllm-0.19"},
            "workload": {"arrivals": {"process": "poisson", "rate": "4/s"}},
        },
        "devices": [f"n0.g{index}" for index in range(ranks)],
        "targets": {"ttft": "1 s", "tpot": "50 ms"},
    }


@dataclass(frozen=True, slots=True)
class OnePiece:
    """Spans that are one piece."""

    spans: SpansLike

    @property
    def names(self) -> Sequence[str]:
        """What spans are called."""
        return self.spans.names

    @property
    def ops(self) -> Sequence[str]:
        """Kinds of operators."""
        return self.spans.ops

    @property
    def window(self) -> tuple[int, int]:
        """From the first start to the last end, ns."""
        some = len(self.spans.start_ns)
        return (int(self.spans.start_ns.min()), int(self.spans.end_ns.max())) if some else (0, 0)

    @property
    def transfers(self) -> SpansLike:
        """All spans: those of other streams make no pairs."""
        return self.spans

    def __iter__(self) -> Iterator[SpansLike]:
        yield self.spans
