"""Durations of a program's cost classes for a batch: the one place where seconds become nanoseconds.

The seconds of kernels come from ``cost``, those of communication from ``collective.communications``. Whoever prices a
step asks here: the replay (often through :mod:`clustersim.graph.prices.steps`), ``graph.prices.priced`` and searches.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any, Final, Protocol, TypeVar

import numpy as np

from clustersim.clock import FloatArray, Int64Array, to_ns_array
from clustersim.cost.engine import Engine
from clustersim.cost.protocol import CostModel, in_format
from clustersim.errors import InputError, Problem
from clustersim.graph.batch import Features, StepBatch, features_of
from clustersim.graph.blueprint import COMPUTE_OPS, HOST_OPS, Node
from clustersim.graph.prices.table import SENT, PriceGroup, attention_shape, node_amount, price_groups
from clustersim.graph.program import CostClass, StageProgram
from clustersim.plan.parallel import SequencePlan
from clustersim.values import dataclass

LONGEST_S: Final = 86_400.0
"""No operator takes a day (assumed): such a figure is a slip, and sums of them would not fit int64 nanoseconds."""
FEW_PAYLOADS: Final = 32
"""Up to so many payloads of one kind of group plain numbers are faster than arrays (measured), and remembered."""
MIN_DURATION_NS: Final = 1
"""Every operator takes at least this long, so that no two instants of one stream coincide."""


Base = TypeVar("Base", float, FloatArray)


class CommPrice(Protocol):
    """Seconds of communication by the number that ``StageProgram`` gave to its kind of group."""

    def seconds(self, comm: int, payload_bytes: float) -> float:
        """Return uncontended seconds for a payload in bytes."""
        ...

    def each_seconds(self, comm: int, payload_bytes: FloatArray) -> FloatArray:
        """Return those of many payloads."""
        ...


def active_experts(node: Node, rows: float) -> float:
    """Return how many of a rank's experts are expected to get a token.

    A token visits ``top_k`` different ones of ``num_experts``, so an expert is empty after T tokens with probability
    (1 − top_k/num_experts)^T; the rank's rows are T × top_k × experts / num_experts. Where experts are visited unevenly
    each has a share p of its own (``node.visits``): it is empty with probability (1 − p)^T, and the rank's rows are T
    times the sum of shares. The power is taken by repeated squaring and the fraction of T linearly, which gives the
    same bits on every machine.
    """
    if node.visits:
        return _active_unevenly(node.visits[0], rows)
    share = node.top_k / node.num_experts
    tokens = rows / (share * node.experts)
    return node.experts * (1.0 - _missed(share, tokens))


@lru_cache(maxsize=1 << 15)
def _missed(share: float, tokens: float) -> float:
    """Return with which probability so many tokens all leave out an expert that gets a share; asked again and again."""
    whole = int(tokens)
    return _power(1.0 - share, whole) * (1.0 - (tokens - whole) * share)


def _active_unevenly(shares: tuple[float, ...], rows: float) -> float:
    tokens = rows / math.fsum(shares)
    whole = int(tokens)
    each = np.array(shares)
    missed = _power(1.0 - each, whole) * (1.0 - (tokens - whole) * each)
    return math.fsum((1.0 - missed).tolist())


def _power(base: Base, exponent: int) -> Base:
    result = base**0
    while exponent > 0:
        if exponent & 1:
            result = result * base
        base = base * base
        exponent >>= 1
    return result


Attending = Sequence[tuple[dict[str, float], Sequence[tuple[int, int, int | None, int | None]]]]
"""Shapes of attention, each with (place among the columns, SP coordinate, half, window) of what has it."""


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
    groups: dict[tuple[int, int, str], tuple[PriceGroup, ...]] = field(default_factory=dict)
    made: dict[Hashable, Any] = field(default_factory=dict, init=False)
    """What is made with these prices and kept for the next run: programs, and prices of steps."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: what is made it makes itself."""
        return {**self.__dict__, "made": {}}

    def features(self, batch: StepBatch) -> Features:
        """Return the features of a batch under this plan and model, with its padding where it runs as a graph."""
        found = features_of(batch, self.sp, self.windows)
        return self.padded(found, batch.decode_sequences) if batch.kind == "decode" else found

    def padded(self, features: Features, decode_sequences: tuple[int, ...]) -> Features:
        """Return the features of a decoding step with the tokens that its captured graph computes.

        Replicas in lockstep are all padded to the same size, of which each half has one half; other ranks each to
        their own. Attention, the LM head, the host and sends have what there is.
        """
        engine = self.engine
        if not engine.graph_sizes or not self.in_graph(decode_sequences):
            return features
        real = features["tokens"]
        if self.sp.whole:
            tokens = (float(engine.padded(int(max(real)))),) * len(real)
        else:
            tokens = tuple([float(engine.padded(int(count))) if count else 0.0 for count in real])
        found = {**features, **_summed(tokens, ""), SENT: real}
        if len(real) > 1 and not self.sp.whole:
            found["stage_tokens"] = features["stage_tokens"]
        if "tokens~1" in features:
            lower = tuple([count // 2 for count in tokens])
            upper = tuple([count - half for count, half in zip(tokens, lower, strict=True)])
            found |= {**_summed(lower, "~1"), **_summed(upper, "~2")}
        return found

    def durations(self, program: StageProgram, batch: StepBatch, features: Features) -> Int64Array:
        """Return nanoseconds per cost class, int64 of shape (classes,), for a batch and its features."""
        if batch.kind == "decode":
            keys = {at: np.array([count], np.int64) for at, count in decode_keys(batch).items()}
            row, columns, varying = self.decode_run(program, decoding(batch), keys)
            row = row.copy()
            row[list(columns)] = varying[0]
            return row
        return self.price_groups(self._groups(program), features, graph=False)

    def price(self, classes: Sequence[CostClass], batch: StepBatch) -> Int64Array:
        """Return nanoseconds of any cost classes in one step, int64 of shape (classes,)."""
        graph = batch.kind == "decode" and self.in_graph(batch.decode_sequences)
        return self.price_groups(price_groups(classes), self.features(batch), graph=graph)

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
            Sequences per SP coordinate, the same in every step; of two halves as :func:`decoding` has them.
        keys : mapping
            (SP coordinate, window or None) → keys attended in each step, int64 of shape (steps,); of two halves the
            coordinates of the second one follow those of the first.

        Returns
        -------
        (row, columns, varying)
            Nanoseconds by class; the classes that vary (0 in ``row``); their nanoseconds, (steps, len(columns)).
        """
        row, columns = self.decode_row(program, decode_sequences)
        return row, columns, self.decode_attention(program, decode_sequences, keys)

    def decode_attention(
        self,
        program: StageProgram,
        decode_sequences: tuple[int, ...],
        keys: Mapping[tuple[int, int | None], Int64Array],
    ) -> Int64Array:
        """Return what varies in a run of decode steps, (steps, columns), as :meth:`decode_run` does."""
        gap = self.gap_s(graph=self.in_graph(decode_sequences))
        steps = len(next(iter(keys.values())))
        nothing = np.zeros(steps, np.int64)
        attending = self._attending(program)
        varying = np.empty((steps, sum(len(some) for _, some in attending)), np.int64)
        second = len(decode_sequences) // 2
        for attends, some in attending:  # all ranks at once
            at = [s + (second if half == 2 else 0) for _, s, half, _ in some]
            counts = [decode_sequences[one] if one < len(decode_sequences) else 0 for one in at]
            attended = [keys.get((one, window), nothing) for one, (*_, window) in zip(at, some, strict=True)]
            shape: dict[str, FloatArray | float] = {
                **attends,
                "batch": np.repeat(np.array(counts, np.float64), steps),
                "keys": np.concatenate(attended).astype(np.float64),
            }
            seconds = self.cost.seconds("attention_decode", shape) + gap
            if not seconds.max(initial=0.0) < LONGEST_S:
                raise _too_long("attention_decode", seconds.max())
            varying[:, [place for place, *_ in some]] = _to_ns(seconds).reshape(len(some), steps).T
        return varying

    def decode_row(
        self, program: StageProgram, decode_sequences: tuple[int, ...]
    ) -> tuple[Int64Array, tuple[int, ...]]:
        """Return what does not vary in decode steps of a batch: the row and columns of :meth:`decode_run`."""
        row = self.memory.get((program.key, decode_sequences))
        attend = [group.indices.tolist() for group in self._groups(program) if group.op == "attention_decode"]
        columns = tuple(attend[0]) if attend else ()
        if row is None:
            batch = _without_keys(decode_sequences, halves=bool(program.blueprint.halves))
            graph = self.in_graph(decode_sequences)
            row = self.price_groups(self._groups(program), self.features(batch), graph=graph)
            row[list(columns)] = 0
            self.memory[program.key, decode_sequences] = row
        return row, columns

    def in_graph(self, decode_sequences: tuple[int, ...]) -> bool:
        """Whether a step of these decodes, by SP coordinate, and nothing else runs as a captured graph.

        Of replicas in lockstep the one with most decodes tells: vLLM pads all of them to it. Two halves are one graph.
        """
        ranks = self.sp.degree
        of_each = [sum(decode_sequences[s::ranks]) for s in range(ranks)] if self.sp.whole else [sum(decode_sequences)]
        return max(of_each) <= self.engine.graph_max_tokens

    def gap_s(self, *, graph: bool) -> float:
        """Return the gap before each kernel in seconds."""
        return self.engine.graph_launch_s if graph else self.engine.launch_s

    def _attending(self, program: StageProgram) -> Attending:
        """Return what attends in decode steps of a program, by the shape of it."""
        key = "attending", program.key
        if key not in self.made:
            found: dict[tuple[float, ...], tuple[dict[str, float], list[tuple[int, int, int | None, int | None]]]] = {}
            classes = [cls for cls in program.classes if cls.node.op == "attention_decode"]
            for place, cls in enumerate(classes):
                shape, variant = attention_shape(cls.node), cls.node.variant
                mine = found.setdefault(tuple(shape.values()), (shape, []))[1]
                mine.append((place, cls.s, variant.half, variant.window))
            self.made[key] = tuple(found.values())
        made: Attending = self.made[key]
        return made

    def _groups(self, program: StageProgram) -> tuple[PriceGroup, ...]:
        if program.key not in self.groups:
            self.groups[program.key] = price_groups(program.classes)
        return self.groups[program.key]

    def price_groups(self, groups: Sequence[PriceGroup], features: Features, *, graph: bool) -> Int64Array:
        """Return nanoseconds of grouped cost classes, int64 of shape (classes,); ``features`` are those they need."""
        seconds = np.empty(sum(len(group.indices) for group in groups))
        gap = self.gap_s(graph=graph)
        for group in groups:
            if group.op in COMPUTE_OPS:
                seconds[group.indices] = self._compute(group, features, gap)
            elif group.op in HOST_OPS:
                seconds[group.indices] = self._host(group, features)
            else:
                seconds[group.indices] = self._communication(group, features)
        if not seconds.max(initial=0.0) < LONGEST_S:
            worst = int(seconds.argmax())
            raise _too_long(next(group.op for group in groups if worst in group.indices), seconds[worst])
        return _to_ns(seconds)

    def _compute(self, group: PriceGroup, features: Features, gap: float) -> FloatArray:
        op, amounts = group.op, group.amounts(features)
        if op == "memory":
            seconds = self.cost.seconds(op, {"bytes": np.array(amounts)}) + gap
            empty = float(self.cost.seconds(op, {"bytes": 0.0})) + gap
            return np.where(group.included, 0.0, np.where(group.fused, seconds - empty, seconds))
        shape: dict[str, FloatArray | float] = dict(group.shape)
        if op == "gemm":
            shape["m"] = np.array(amounts)
        elif op == "grouped_gemm":
            shape["rows"] = np.array(amounts)
            shape["active"] = np.array(
                [active_experts(cls.node, rows) for cls, rows in zip(group.classes, amounts, strict=True)]
            )
        elif op == "attention_prefill":
            shape["queries"] = np.array(amounts)
            shape["keys"] = group.feature("prefill_keys", features)
            shape["pairs"] = group.feature("pairs", features)
        else:
            shape["batch"] = np.array(amounts)
            shape["keys"] = group.feature("decode_keys", features)
        return in_format(self.cost, group.weights).seconds(op, shape) + gap

    def _host(self, group: PriceGroup, features: Features) -> list[float]:
        engine = self.engine
        once, each = (
            (engine.schedule_s, engine.schedule_per_request_s)
            if group.op == "schedule"
            else (engine.sample_s, engine.sample_per_request_s)
        )
        return [once + each * sequences for sequences in group.amounts(features)]

    def _communication(self, group: PriceGroup, features: Features) -> list[float] | FloatArray:
        launch = self.engine.collective_launch_s + (self.engine.stage_s if group.op == "send" else 0.0)
        payloads, comm = group.amounts(features), group.classes[0].comm
        if len(payloads) > FEW_PAYLOADS and comm is not None and all(cls.comm == comm for cls in group.classes):
            return self.comm.each_seconds(comm, np.array(payloads)) + launch
        return [
            self.comm.seconds(cls.comm, payload) + launch
            for cls, payload in zip(group.classes, payloads, strict=True)
            if cls.comm is not None
        ]


def _summed(tokens: tuple[float, ...], ending: str) -> Features:
    """Return tokens by SP rank, with their sum and the most of them."""
    ranks = len(tokens)
    summed = {"tokens": tokens, "stage_tokens": (math.fsum(tokens),) * ranks, "peak_tokens": (max(tokens),) * ranks}
    return {name + ending: values for name, values in summed.items()}


def payload_bytes(program: StageProgram, features: Features, cls: int) -> float:
    """Return the payload of a communication class in bytes."""
    chosen = program.classes[cls]
    return node_amount(chosen.node, features, chosen.s)


def decoding(batch: StepBatch) -> tuple[int, ...]:
    """Return how many sequences decode by SP coordinate; of two halves first those of one, then those of the other."""
    if batch.halves:
        return tuple(count for half in batch.halves for count in half.decode_sequences)
    return batch.decode_sequences


def _without_keys(decode_sequences: tuple[int, ...], *, halves: bool) -> StepBatch:
    """Return a batch of these decodes that attend to nothing."""
    batch = StepBatch(decode_sequences=decode_sequences, decode_keys=(0,) * len(decode_sequences))
    if not halves:
        return batch
    ranks = len(decode_sequences) // 2
    parts = tuple(_without_keys(some, halves=False) for some in (decode_sequences[:ranks], decode_sequences[ranks:]))
    both = tuple(map(sum, zip(*(part.decode_sequences for part in parts), strict=True)))
    return StepBatch(decode_sequences=both, decode_keys=(0,) * ranks, halves=parts)


def decode_keys(batch: StepBatch) -> dict[tuple[int, int | None], int]:
    """Return the keys that a batch's decodes attend, by SP coordinate (see :func:`decoding`) and window."""
    if batch.halves:
        ranks = len(batch.decode_sequences)
        each = enumerate(map(decode_keys, batch.halves))
        return {(s + at * ranks, window): count for at, own in each for (s, window), count in own.items()}
    found: dict[tuple[int, int | None], int] = {(s, None): k for s, k in enumerate(batch.decode_keys)}
    for window, keys in batch.windowed_keys.items():
        found |= {(s, window): k for s, k in enumerate(keys)}
    return found


def _too_long(op: str, seconds: float) -> InputError:
    message = (
        f"an operator ({op}) would take {seconds:.3g} s, expected less than a day; look at the figures of the device, "
        "its links, the engine and the model"
    )
    return InputError(Problem(message=message))


def _to_ns(seconds: FloatArray) -> Int64Array:
    return np.maximum(to_ns_array(seconds), MIN_DURATION_NS)
