"""The least time of one stage for steps, by what they carry: each operator at the fewest tokens, of one coordinate.

Without SP it is the time of the stage but for what rounding and attention's roots take away; tests compare both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.graph.blueprint import HOST_OPS, Node
from clustersim.graph.prices.pricer import Pricer, active_experts
from clustersim.graph.prices.table import SHAPE_KEYS
from clustersim.graph.program import CostClass
from clustersim.search.plans.bounds.short_programs import ShortProgram
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
    """Of one stage: its times, the same for what all coordinates carry, and those of its sends, what keys add, by
    column; what pairs add."""

    ns: FloatArray
    carried_ns: FloatArray
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


def stage_times(
    pricer: Pricer,
    program_of: Callable[[str], ShortProgram],
    points: tuple[FloatArray, FloatArray],
    context: float,
    *,
    several: bool,
    ranks: int = 1,
    most: float = 0.0,
    carried: FloatArray | None = None,
) -> StageTimes:
    """Return the least times of a stage.

    Parameters
    ----------
    pricer : Pricer
    program_of : callable
        Kind of step → program of the stage.
    points : (array, array)
        Fewest prompt tokens and decodes of each column, of one coordinate.
    context : float
        Keys of a decode where tangents are taken.
    several : bool
        Whether there are several coordinates, of which the one with most tokens is looked at: neither its keys are
        known, nor which of its tokens are prompts where a step has both, nor whether it has the last of a prompt.
    ranks : int
        Replicas in lockstep, each of which has the tokens of a column, rounded up; else 1.
    most : float
        Decodes of one of these at most.
    carried : array, optional
        Most tokens of all coordinates together in each column, none of which decodes. An expert computes those of all:
        of fewer than these at least as much of each as of any number of them, so that no column is cheaper by token.
    """
    prompt, decodes = points
    ns, carried_ns, send_ns, key_ns = (np.zeros(len(prompt)) for _ in range(4))
    pair_ns = 0.0
    for kind in ("prefill", "decode", "mixed"):
        here = {"prefill": decodes == 0, "decode": prompt == 0}.get(kind, (prompt > 0) & (decodes > 0))
        if not here.any():
            continue
        axes = _Columns(_axes(prompt[here], decodes[here], kind if several else "", ranks))
        total, sending, by_key, more, alone = (np.zeros(int(here.sum())) for _ in range(5))
        program, counts, by_itself = program_of(kind)
        mean = kind == "decode" and ranks > 1
        least = []
        for number, cls in enumerate(program.classes):
            sends = number in program.template.send_classes
            times = float(counts[number])
            if not times and not sends:
                continue
            gap = [pricer.gap_s(graph=graph) for graph in (False, True)]
            graph = kind == "decode" and axes.by_column["decodes"] <= pricer.engine.graph_max_tokens
            own, slope = _class(pricer, cls, axes, 0.0 if several and not mean else context)
            if cls.node.op not in HOST_OPS and cls.comm is None and not cls.node.included and not cls.node.fused:
                own = own + np.where(graph, gap[1], gap[0])
            each = np.maximum(own * NS_PER_S - _ROUNDED_NS, 0.0)
            if sends:
                sending = np.maximum(sending, each)
            else:
                lone = float(by_itself[number]) if mean else 0.0
                total += (times - lone) * each
                alone += lone * each
                if carried is not None and [name for name, _ in cls.node.amount] == [_OF_ALL]:
                    by_token = _least_by_token(pricer, cls, float(carried.max())) * NS_PER_S
                    more += times * np.maximum(by_token * carried[here] - _ROUNDED_NS - each, 0.0)
                by_key += times * (slope.min() / ranks if mean else slope) * NS_PER_S
                if cls.node.op == "attention_prefill" and not several and cls.node.variant.window is None:
                    least.append(times * _per_pair(pricer, cls.node) * NS_PER_S)
        if mean:
            total += _convex(decodes[here], alone, most, axes.by_column["all"] / ranks)
        ns[here], carried_ns[here], send_ns[here], key_ns[here] = total, total + more, sending, by_key
        if kind != "decode":
            pair_ns = sum(least) if kind == "prefill" else min(pair_ns, sum(least))
    return StageTimes(ns=ns, carried_ns=carried_ns, send_ns=send_ns, key_ns=key_ns, pair_ns=pair_ns)


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


def _axes(prompt: FloatArray, decodes: FloatArray, kind: str, ranks: int) -> dict[str, FloatArray]:
    """Return what steps carry by axis; of one of several coordinates in steps of this kind what is known."""
    tokens = prompt + decodes
    grid = cells(int(tokens.max(initial=0)))[0]
    floored = grid[np.searchsorted(grid, tokens, side="right") - 1]  # fewer values to price …
    floored = np.where((prompt > 0) & (decodes > 0), floored, tokens)  # … where the ends of two cells are added
    none = np.zeros_like(tokens)
    sequences = decodes + (prompt > 0)
    found = {"tokens": floored, "sequences": sequences, "rows": sequences, "prompt": prompt, "decodes": decodes}
    first = [np.where(part > 0, ranks * (part - 1.0) + 1.0, 0.0) for part in (prompt, decodes)]
    found["all"] = floored if ranks == 1 else first[0] + first[1]
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


def _least_by_token(pricer: Pricer, cls: CostClass, most: float) -> float:
    """Return the seconds of each token of all coordinates that a class takes at least, of at most so many."""
    low, high = cells(math.ceil(most))
    ((_, each),) = cls.node.amount
    return float((_seconds(pricer, cls, low[1:] * each) / high[1:]).min())


def _seconds(pricer: Pricer, cls: CostClass, amounts: FloatArray) -> FloatArray:
    node, cost, engine = cls.node, pricer.cost, pricer.engine
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
