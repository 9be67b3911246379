"""Durations of a program's cost classes for a batch: the one place where seconds become nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from clustersim.clock import FloatArray, Int64Array, to_ns_array
from clustersim.cost.engine import Engine
from clustersim.cost.protocol import CostModel
from clustersim.graph.batch import Features, StepBatch, features_of
from clustersim.graph.blueprint import COMPUTE_OPS, Node, Terms
from clustersim.graph.program import CostClass, StageProgram
from clustersim.plan.parallel import SequencePlan

MIN_DURATION_NS: Final = 1
"""Every operator takes at least this long, so that no two instants of one stream coincide."""


class CommPrice(Protocol):
    """Seconds of communication by the number that ``StageProgram`` gave to its kind of group."""

    def seconds(self, comm: int, payload_bytes: FloatArray) -> FloatArray:
        """Return uncontended seconds for payloads in bytes."""
        ...


def amount(terms: Terms, features: Features, s: int) -> float:
    """Evaluate a linear form of features at SP coordinate ``s``."""
    total = 0.0
    for feature, coefficient in terms:
        total += coefficient * features[feature][s]
    return total


def active_experts(experts: int, visits: float) -> float:
    """Return how many of ``experts`` are expected to receive a token when ``visits`` fall on them at random.

    With R visits to E equally likely experts, one of them stays empty with probability (1 − 1/E)^R. The power is
    taken by repeated squaring and the fraction of R linearly, which gives the same bits on every machine.
    """
    whole = int(visits)
    miss = _power(1.0 - 1.0 / experts, whole) * (1.0 - (visits - whole) / experts)
    return experts * (1.0 - miss)


def _power(base: float, exponent: int) -> float:
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@dataclass(frozen=True, kw_only=True)
class Pricer:
    """Prices programs for batches.

    Parameters
    ----------
    cost : CostModel
    engine : Engine
    comm : CommPrice
    sp : SequencePlan
    windows : tuple of int
        Sliding windows of the model.
    """

    cost: CostModel
    engine: Engine
    comm: CommPrice
    sp: SequencePlan
    windows: tuple[int, ...] = ()
    memory: dict[tuple[tuple[int, int, str], tuple[int, ...]], Int64Array] = field(default_factory=dict)

    def durations(self, program: StageProgram, batch: StepBatch) -> Int64Array:
        """Return nanoseconds per cost class, int64 of shape (classes,)."""
        if batch.kind == "decode":
            keys = {at: np.array([count], np.int64) for at, count in decode_keys(batch).items()}
            row, columns, varying = self.decode_run(program, batch.decode_sequences, keys)
            row = row.copy()
            row[list(columns)] = varying[0]
            return row
        return self._price(program.classes, features_of(batch, self.sp, self.windows), graph=False)

    def price(self, classes: Sequence[CostClass], batch: StepBatch) -> Int64Array:
        """Return nanoseconds of any cost classes in one step, int64 of shape (classes,)."""
        graph = batch.kind == "decode" and batch.num_decodes <= self.engine.graph_max_tokens
        return self._price(classes, features_of(batch, self.sp, self.windows), graph=graph)

    def decode_run(
        self,
        program: StageProgram,
        decode_sequences: tuple[int, ...],
        keys: Mapping[tuple[int, int | None], Int64Array],
    ) -> tuple[Int64Array, tuple[int, ...], Int64Array]:
        """Price a run of decode steps of one batch: only attention changes as contexts grow.

        Parameters
        ----------
        program : StageProgram
        decode_sequences : tuple of int
            Sequences per SP coordinate, the same in every step.
        keys : mapping
            (SP coordinate, window or None) → keys attended in each step, int64 of shape (steps,).

        Returns
        -------
        (row, columns, varying)
            Nanoseconds by class; the classes that vary (0 in ``row``); their nanoseconds, (steps, len(columns)).
        """
        row = self.memory.get((program.key, decode_sequences))
        graph = sum(decode_sequences) <= self.engine.graph_max_tokens
        columns = tuple(i for i, cls in enumerate(program.classes) if cls.node.op == "attention_decode")
        if row is None:
            batch = StepBatch(decode_sequences=decode_sequences, decode_keys=(0,) * len(decode_sequences))
            row = self._price(program.classes, features_of(batch, self.sp, self.windows), graph=graph)
            row[list(columns)] = 0
            self.memory[program.key, decode_sequences] = row
        gap = self.engine.graph_launch_s if graph else self.engine.launch_s
        steps = len(next(iter(keys.values())))
        varying = np.empty((steps, len(columns)), np.int64)
        for place, index in enumerate(columns):
            cls = program.classes[index]
            window = int(cls.node.variant[1:]) if cls.node.variant else None
            counts = decode_sequences[cls.s] if cls.s < len(decode_sequences) else 0
            attended = keys.get((cls.s, window), np.zeros(steps, np.int64))
            shape: dict[str, FloatArray | float] = {
                **_attention_shape(cls.node), "batch": float(counts), "keys": attended.astype(np.float64)
            }  # fmt: skip
            varying[:, place] = _to_ns(self.cost.seconds("attention_decode", shape) + gap)
        return row, columns, varying

    def _price(self, classes: Sequence[CostClass], features: Features, *, graph: bool) -> Int64Array:
        seconds = np.zeros(len(classes))
        gap = self.engine.graph_launch_s if graph else self.engine.launch_s
        by_op: dict[str, list[int]] = {}
        for index, cls in enumerate(classes):
            by_op.setdefault(cls.node.op, []).append(index)
        for op, indices in by_op.items():
            chosen = [classes[i] for i in indices]
            if op in COMPUTE_OPS:
                seconds[indices] = self._compute(op, chosen, features, gap)
            elif op in ("schedule", "sample"):
                seconds[indices] = [self._host(cls, features) for cls in chosen]
            else:
                seconds[indices] = [self._communication(cls, features) for cls in chosen]
        return _to_ns(seconds)

    def _compute(self, op: str, classes: list[CostClass], features: Features, gap: float) -> FloatArray:
        nodes = [cls.node for cls in classes]
        amounts = np.array([amount(cls.node.amount, features, cls.s) for cls in classes])
        shape: dict[str, FloatArray | float]
        if op == "memory":
            fused = np.array([node.fused for node in nodes])
            seconds = self.cost.seconds(op, {"bytes": amounts}) + gap
            empty = self.cost.seconds(op, {"bytes": np.zeros_like(amounts)}) + gap
            return np.where(fused, seconds - empty, seconds)
        if op in ("gemm", "grouped_gemm"):
            shape = {"n": _column(nodes, "n"), "k": _column(nodes, "k")}
            if op == "gemm":
                shape["m"] = amounts
            else:
                shape["rows"] = amounts
                shape["experts"] = _column(nodes, "experts")
                shape["active"] = np.array(
                    [active_experts(node.experts, float(rows)) for node, rows in zip(nodes, amounts, strict=True)]
                )
        else:
            shape = {
                key: np.array([_attention_shape(node)[key] for node in nodes])
                for key in ("heads", "kv_heads", "qk_dim", "v_dim", "shared_kv")
            }
            prefix = "prefill_keys" if op == "attention_prefill" else "decode_keys"
            shape["keys"] = np.array([features[f"{prefix}{c.node.variant}"][c.s] for c in classes])
            if op == "attention_prefill":
                shape["pairs"] = np.array([features[f"pairs{c.node.variant}"][c.s] for c in classes])
                shape["queries"] = amounts
            else:
                shape["batch"] = amounts
        return self.cost.seconds(op, shape) + gap

    def _host(self, cls: CostClass, features: Features) -> float:
        sequences = amount(cls.node.amount, features, cls.s)
        engine = self.engine
        if cls.node.op == "schedule":
            return engine.schedule_s + engine.schedule_per_request_s * sequences
        return engine.sample_s + engine.sample_per_request_s * sequences

    def _communication(self, cls: CostClass, features: Features) -> float:
        payload = np.array([amount(cls.node.amount, features, cls.s)])
        if cls.comm is None:
            raise ValueError(f"{cls.node.op} has no group")
        return float(self.comm.seconds(cls.comm, payload)[0]) + self.engine.collective_launch_s


def payload_bytes(program: StageProgram, features: Features, cls: int) -> float:
    """Return the payload of a communication class in bytes."""
    chosen = program.classes[cls]
    return amount(chosen.node.amount, features, chosen.s)


def decode_keys(batch: StepBatch) -> dict[tuple[int, int | None], int]:
    """Return the keys that a batch's decodes attend, by SP coordinate and window."""
    found: dict[tuple[int, int | None], int] = {(s, None): k for s, k in enumerate(batch.decode_keys)}
    for window, keys in batch.windowed_keys.items():
        found |= {(s, window): k for s, k in enumerate(keys)}
    return found


def _attention_shape(node: Node) -> dict[str, float]:
    return {
        "heads": float(node.heads),
        "kv_heads": float(node.kv_heads),
        "qk_dim": float(node.qk_dim),
        "v_dim": float(node.v_dim),
        "shared_kv": float(node.shared_kv),
    }


def _column(nodes: list[Node], name: str) -> FloatArray:
    return np.array([float(getattr(node, name)) for node in nodes])


def _to_ns(seconds: FloatArray) -> Int64Array:
    return np.maximum(to_ns_array(seconds), MIN_DURATION_NS)
