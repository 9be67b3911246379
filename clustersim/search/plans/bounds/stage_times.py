"""The least time of one stage for steps, by what they carry: each operator at the fewest tokens, of one coordinate.

Without SP it is the time of the stage but for what rounding and attention's roots take away; tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.cost.protocol import in_format
from clustersim.graph.blueprint import HOST_OPS, Node
from clustersim.graph.prices.pricer import Pricer, active_experts
from clustersim.graph.prices.table import SHAPE_KEYS
from clustersim.graph.program import CostClass, StageProgram
from clustersim.values import dataclass

RATIO: Final = 1.04
"""Of neighbours on the grid: a bound loses about half of it."""
_MARGIN: Final = 1.0 - 1e-4
"""Of tangents, which are taken as differences."""
_FAR: Final = 1e15
_NEAR: Final = 1e-3
_ROUNDED_NS: Final = 0.5

_AXES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tokens", "peak_tokens"), "tokens"),
    "stage_tokens": "all",
    "rows": "rows",
    "sequences": "sequences",
    **dict.fromkeys(
        ("prefill_tokens", "segment_tokens", "all_prefill_tokens", "exposed_tokens", "ring_tokens", "prefill_keys"),
        "prompt",
    ),
    "decode_sequences": "decodes",
}
"""Feature of a batch (``graph.batch``) → what it is counted by here; the others count nothing."""
_OF_ALL: Final = "stage_tokens"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """Of one stage: its times, what of them experts take for the tokens of all, those of its sends, what keys add, by
    column; what pairs add."""

    ns: FloatArray
    shared_ns: FloatArray
    send_ns: FloatArray
    key_ns: FloatArray
    pair_ns: float


def cells(most: int, ratio: float = RATIO) -> tuple[FloatArray, FloatArray]:
    """Return the least and the most of each cell of a grid from 0 to ``most``: single numbers, then ever wider ones."""
    ends = [0]
    while ends[-1] < most:
        ends.append(min(most, max(ends[-1] + 1, int(ends[-1] * ratio))))
    high = np.array(ends, np.float64)
    return np.concatenate(([0.0], high[:-1] + 1.0)), high


class ClassTimes(NamedTuple):
    """Of a class of operators of one kind of step: its number, whether it is a send, and nanoseconds by column, what of
    them is for the tokens of all, what every key and every pair add."""

    number: int
    sends: bool
    ns: FloatArray
    shared_ns: FloatArray | float
    key_ns: FloatArray | float
    pair_ns: float


class Asked(NamedTuple):
    """What the least times of a stage are asked for.

    Parameters
    ----------
    prompt, decodes : array of shape (columns,)
        Fewest prompt tokens and decodes of each column, of one coordinate.
    context : float
        Keys of a decode where tangents are taken.
    several : bool
        Whether there are several coordinates, of which the one with most tokens is looked at: neither its keys are
        known, nor which of its tokens are prompts where a step has both, nor whether it has the last of a prompt.
    ranks : int
        Replicas in lockstep, or SP ranks, that share experts: each has the prompt tokens of a column, rounded up.
    whole : bool
        Whether they are replicas: each has its decodes, too.
    most : float
        Decodes of one of these at most.
    """

    prompt: FloatArray
    decodes: FloatArray
    context: float
    several: bool
    ranks: int = 1
    whole: bool = False
    most: float = 0.0

    def columns_of(self, kind: str) -> npt.NDArray[np.bool_]:
        """Return which columns are of one kind of step."""
        prompts, decodes = kind != "decode", kind != "prefill"
        found: npt.NDArray[np.bool_] = ((self.prompt > 0) == prompts) & ((self.decodes > 0) == decodes)
        return found

    def is_mean(self, kind: str) -> bool:
        """Whether what each of several replicas does by itself is told of their mean."""
        return kind == "decode" and self.whole and self.ranks > 1


def class_times(
    pricer: Pricer, program: StageProgram, path: Sequence[int], kind: str, asked: Asked
) -> list[ClassTimes]:
    """Return the least times of each class on a path, and of the sends, in the columns of one kind of step.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    path : sequence of int
        Its instances that count.
    kind : str
    asked : Asked
    """
    here, context = asked.columns_of(kind), 0.0 if asked.several and not asked.is_mean(kind) else asked.context
    axes = _Columns(_axes(asked, here, kind if asked.several else ""))
    graph = kind == "decode" and axes.by_column["decodes"] <= pricer.engine.graph_max_tokens
    gap = np.where(graph, pricer.gap_s(graph=True), pricer.gap_s(graph=False))
    sends = program.template.send_classes
    found = []
    for number in sorted({*program.template.instance_class[list(path)].tolist(), *sends}):
        cls = program.classes[number]
        node = cls.node
        own, slope = _class(pricer, cls, axes, context)
        of_all = [name for name, _ in node.amount] == [_OF_ALL]
        shared = np.maximum(own * NS_PER_S - _ROUNDED_NS, 0.0) if of_all else 0.0
        if node.op not in HOST_OPS and cls.comm is None and not node.included and not node.fused:
            own = own + gap
        ns, pair_ns = np.maximum(own * NS_PER_S - _ROUNDED_NS, 0.0), 0.0
        if node.op == "attention_prefill" and not asked.several and node.variant.window is None:
            pair_ns = _per_pair(pricer, node) * NS_PER_S
        key_ns = (float(slope.min()) / asked.ranks if asked.is_mean(kind) else slope) * NS_PER_S if slope.any() else 0.0
        found.append(ClassTimes(number, number in sends, ns, shared, key_ns, pair_ns))
    return found


def stage_times(counted: Callable[[str], tuple[list[ClassTimes], FloatArray, FloatArray]], asked: Asked) -> StageTimes:
    """Return the least times of a stage.

    Parameters
    ----------
    counted : callable
        Kind of step → times of its classes, how often each runs, and how often each rank does so by itself.
    asked : Asked
    """
    ns, shared_ns, send_ns, key_ns = (np.zeros(len(asked.prompt)) for _ in range(4))
    pair_ns = 0.0
    for kind in ("prefill", "decode", "mixed"):
        here = asked.columns_of(kind)
        if not here.any():
            continue
        classes, counts, alone = counted(kind)
        total, sending, by_key, own = (np.zeros(int(here.sum())) for _ in range(4))
        pairs, mean = 0.0, asked.is_mean(kind)
        for one in classes:
            if one.sends:
                sending = np.maximum(sending, one.ns)
                continue
            times = float(counts[one.number])
            lone = float(alone[one.number]) if mean else 0.0
            total += (times - lone) * one.ns
            own += lone * one.ns
            shared_ns[here] += times * one.shared_ns
            by_key += times * one.key_ns
            pairs += times * one.pair_ns
        if mean:
            tokens = asked.decodes[here]
            total += _convex(tokens, own, asked.most, (asked.ranks * (tokens - 1.0) + 1.0) / asked.ranks)
        ns[here], send_ns[here], key_ns[here] = total, sending, by_key
        if kind != "decode":
            pair_ns = pairs if kind == "prefill" else min(pair_ns, pairs)
    return StageTimes(ns=ns, shared_ns=shared_ns, send_ns=send_ns, key_ns=key_ns, pair_ns=pair_ns)


class _Columns:
    """What steps carry by axis, and the distinct values of each axis, sorted out once for all classes."""

    def __init__(self, by_column: dict[str, FloatArray]) -> None:
        self.by_column = by_column
        self._distinct: dict[str | None, tuple[FloatArray, Int64Array]] = {}

    def distinct(self, name: str | None) -> tuple[FloatArray, Int64Array]:
        """Return the values of an axis (zero: of none), and which of them each column has."""
        if name not in self._distinct:
            axis = np.zeros_like(self.by_column["tokens"]) if name is None else self.by_column[name]
            values, back = np.unique(axis, return_inverse=True)
            self._distinct[name] = values, back
        return self._distinct[name]


def _convex(tokens: FloatArray, values: FloatArray, most: float, at: FloatArray) -> FloatArray:
    """Return at some points the largest convex function that is nowhere above others: each of some values holds from
    its tokens on to the next ones, the last one to ``most``."""
    hull = [(float(tokens[0]), float(values[0]))]
    for x, y in zip([*tokens[1:].tolist(), most], values.tolist(), strict=True):
        while len(hull) > 1 and (y - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) <= (
            (hull[-1][1] - hull[-2][1]) * (x - hull[-2][0])
        ):
            hull.pop()
        hull.append((x, y))
    found: FloatArray = np.interp(at, *np.array(hull).T)
    return found


def _axes(asked: Asked, here: npt.NDArray[np.bool_], kind: str) -> dict[str, FloatArray]:
    """Return what steps carry by axis; of one of several coordinates in steps of this kind what is known."""
    prompt, decodes = asked.prompt[here], asked.decodes[here]
    tokens = prompt + decodes
    grid = cells(int(tokens.max(initial=0)))[0]
    floored = grid[np.searchsorted(grid, tokens, side="right") - 1]  # fewer values to price …
    floored = np.where((prompt > 0) & (decodes > 0), floored, tokens)  # … where the ends of two cells are added
    none = np.zeros_like(tokens)
    sequences = decodes + (prompt > 0)
    found = {"tokens": floored, "sequences": sequences, "rows": sequences, "prompt": prompt, "decodes": decodes}
    each = [
        (part - 1.0) * ranks + 1.0
        for part, ranks in ((prompt, asked.ranks), (decodes, asked.ranks if asked.whole else 1))
    ]
    found["all"] = floored if asked.ranks == 1 else np.maximum(each[0], 0.0) + np.maximum(each[1], 0.0)
    if kind in ("prefill", "mixed"):
        found |= {"sequences": none + 1.0, "rows": none}
    return found | {"prompt": none, "decodes": none} if kind == "mixed" else found


def _class(pricer: Pricer, cls: CostClass, axes: _Columns, context: float) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of a class without gaps between kernels, and what each key more of decodes adds."""
    node = cls.node
    names = {_AXES[name] for name, _ in node.amount if name in _AXES}
    none = np.zeros_like(axes.by_column["tokens"])
    if len(names) > 1:
        return none, none
    values, back = axes.distinct(next(iter(names), None))
    each = sum(each for name, each in node.amount if name in _AXES)
    if node.op == "attention_decode":
        own, slope = _decoding(pricer, node, values, context)
        return own[back], slope[back]
    return _seconds(pricer, cls, values * each)[back], none


def _seconds(pricer: Pricer, cls: CostClass, amounts: FloatArray) -> FloatArray:
    node, engine = cls.node, pricer.engine
    cost = in_format(pricer.cost, node.weights)
    shape = {key: float(getattr(node, key)) for key in SHAPE_KEYS.get(node.op, ())}
    if node.op in HOST_OPS:
        first = node.op == "schedule"
        once = engine.schedule_s if first else engine.sample_s
        return once + (engine.schedule_per_request_s if first else engine.sample_per_request_s) * amounts
    if cls.comm is not None:
        launch = engine.collective_launch_s + (engine.stage_s if node.op == "send" else 0.0)
        return pricer.comm.each_seconds(cls.comm, amounts) + launch
    if node.op == "memory":
        if node.included:
            return np.zeros_like(amounts)
        found = cost.seconds("memory", {"bytes": amounts})
        return found - float(cost.seconds("memory", {"bytes": 0.0})) if node.fused else found
    if node.op == "gemm":
        return cost.seconds("gemm", {**shape, "m": amounts})
    if node.op == "grouped_gemm":
        active = np.array([active_experts(node, rows) for rows in amounts.tolist()])
        return cost.seconds("grouped_gemm", {**shape, "rows": amounts, "active": active})
    none = np.zeros_like(amounts)  # attention_prefill: keys are left out, pairs are added by each
    return cost.seconds("attention_prefill", {**shape, "queries": amounts, "keys": none, "pairs": none})


def _decoding(pricer: Pricer, node: Node, sequences: FloatArray, context: float) -> tuple[FloatArray, FloatArray]:
    """Return the tangents of decode attention in the keys: seconds without keys, and of each."""
    shape = {key: float(getattr(node, key)) for key in SHAPE_KEYS["attention_decode"]}

    def at(keys: FloatArray) -> FloatArray:
        return pricer.cost.seconds("attention_decode", {**shape, "batch": sequences, "keys": keys})

    if node.variant.window is not None or not context:
        return at(np.zeros_like(sequences)), np.zeros_like(sequences)
    keys = np.maximum(sequences, 1.0) * context
    near = keys * (1.0 - _NEAR)
    slope = (at(keys) - at(near)) / (keys - near) * _MARGIN
    return (at(near) - slope * keys) * _MARGIN, slope


def _per_pair(pricer: Pricer, node: Node) -> float:
    """Return the seconds that each pair adds to prefill attention: what it tends to with many."""
    shape = {key: float(getattr(node, key)) for key in SHAPE_KEYS["attention_prefill"]}
    found = pricer.cost.seconds("attention_prefill", {**shape, "queries": 0.0, "keys": 0.0, "pairs": _FAR})
    return float(found) / _FAR * _MARGIN
