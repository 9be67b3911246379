"""Where a node runs: its rank's coordinates, the slices of parameters that the plan gives it, and its rank's memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import Node
from clustersim.graph.turns import HALF
from clustersim.model.architecture import Attention, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.operators.values import ALL, Arrival, Columns, Dense, joined
from clustersim.proof.operators.weights import Weights
from clustersim.proof.tokens import BoolArray, StepTokens
from clustersim.values import dataclass

_EXPERT_MAPS: Final = ("expert_up", "expert_down")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shard:
    """The part of one linear map that a rank has: its matrix and bias, what it reads and what it makes."""

    matrix: FloatArray
    bias: FloatArray | None
    inputs: Columns
    outputs: Columns
    whole: tuple[int, int]
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """What every rank knows: the model, the plan and (its part of) the parameters."""

    model: ModelSpec
    plan: ParallelPlan
    weights: Weights
    shards: dict[tuple[int, Node, int], Shard] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class Memory:
    """What lives longer than a step.

    Parameters
    ----------
    caches : dict
        (rank, layer) → float64 array of shape (slots, K/V heads, width): NaN where there is no entry.
    sampled : dict
        (sequence, position) → the token that follows; by the host of whichever rank sampled it first.
    logits : dict
        (sequence, position) → each (rank, logits) that a sampler saw.
    counts : Counter
        What the rules looked at.
    """

    prompts: tuple[tuple[int, ...], ...]
    caches: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    sampled: dict[tuple[int, int], int] = field(default_factory=dict)
    logits: dict[tuple[int, int], list[tuple[int, FloatArray]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: one is made per node, rank and step
class Place:
    """One node on one rank of the mesh, in one step.

    Parameters
    ----------
    node : Node
    layer, stage, rank : int
    local, s, t : int
        Rank within its stage, and its SP and TP coordinates.
    setting : Setting
    tokens : StepTokens
    memory : Memory
    cached_layers : tuple of int
        Layers whose K/V the step has written on this rank before this node, as its edges say (``kv_move``).
    """

    node: Node
    layer: int
    stage: int
    rank: int
    local: int
    s: int
    t: int
    setting: Setting
    tokens: StepTokens
    memory: Memory
    cached_layers: tuple[int, ...] = ()

    @property
    def rows(self) -> Int64Array:
        """Rows of the step that the node works on, as its amount says."""
        return self.tokens.rows(self.node.amount[0][0] if self.node.amount else "tokens", self.s)

    @property
    def half(self) -> str:
        """``1`` or ``2`` where the node is of one half of the step, else empty."""
        return self.node.amount[0][0].partition(HALF)[2] if self.node.amount else ""

    @property
    def among(self) -> BoolArray:
        """Which rows of the step are of the node's half, or of the whole step."""
        found: BoolArray = self.tokens.half == int(self.half) if self.half else self.tokens.half >= 0
        return found

    @property
    def share(self) -> Int64Array:
        """Rows that the rank sends to the experts: its share of the tokens of the step, or of the node's half."""
        return self.tokens.share(self.s, self.t, self.half)

    @property
    def attention(self) -> Attention:
        """The attention of the node's layer."""
        return self.setting.model.layers[self.layer].attention

    @property
    def moe(self) -> Moe:
        """The experts of the node's layer."""
        found = self.setting.model.layers[self.layer].ffn
        assert isinstance(found, Moe)
        return found

    @property
    def gated(self) -> bool:
        """Whether the FFN or the experts of the layer are gated."""
        return self.setting.model.layers[self.layer].ffn.gated

    @property
    def expert_group(self) -> tuple[int, int, int]:
        """Which experts' ranks this one belongs to: (EP rank, place among those that share an expert, how many)."""
        plan = self.setting.plan
        if plan.ep.degree == 1:
            return 0, self.t, plan.tp
        group, place = divmod(self.local, plan.expert_tp)
        return group, place, plan.expert_tp

    def parameter(self, name: str) -> FloatArray | None:
        """Return a parameter of the layer, or of the ends of the model; None where the model has none."""
        weights = self.setting.weights
        if name == "lm_head":
            return weights.head
        return (weights.layers[self.layer] if self.layer >= 0 else weights.ends).get(name)

    def dense(self, arrived: list[Arrival], width: int, what: str = "hidden") -> FloatArray:
        """Return the one vector per token that arrived, from wherever its rows came."""
        parts = [
            one.value.data
            for one in arrived
            if one.kind in ("data", "sync") and isinstance(one.value, Dense) and one.value.what == what
        ]
        return joined(parts, (len(self.tokens), width))

    def made(self, block: FloatArray, width: int, columns: Columns = ALL, *, partial: bool = False) -> Dense:
        """Return a value that has ``block`` at this node's rows and some columns."""
        data, rows = np.full((len(self.tokens), width), np.nan), self.rows
        data[rows if isinstance(columns, slice) else rows[:, None], columns] = block
        return Dense(data=data, rows=rows, columns=columns, partial=partial)

    def shard(self) -> Shard:
        """Return this rank's part of the node's linear map."""
        key = (self.layer, self.node, self.local)
        found = self.setting.shards.get(key)
        if found is None:
            found = self.setting.shards[key] = self._shard()
        return found

    def _shard(self) -> Shard:
        node, plan = self.node, self.setting.plan
        matrix, bias = self.parameter(node.name), self.parameter(f"{node.name}_bias")
        assert matrix is not None
        inputs, outputs = matrix.shape[-2:]
        rule = linear_rule(node.rule, self)
        place, parts = self.expert_group[1:] if node.name in _EXPERT_MAPS else (self.t, plan.tp)
        reads, makes, partial = ALL, ALL, False
        if rule == "qkv":
            makes_columns: Columns = qkv_columns(self)[: node.n]
        elif rule == "columns" and parts > 1:
            halves = 2 if node.name.endswith("_up") and self.gated else 1
            makes_columns = part_of(outputs, place, parts, halves)[: node.n]
        else:
            makes_columns = makes if node.n == outputs else np.arange(min(node.n, outputs))
        reads_columns: Columns = reads
        if rule == "rows" and parts > 1:
            reads_columns, partial = part_of(inputs, place, parts)[: node.k], True
        elif node.k != inputs:
            reads_columns = np.arange(min(node.k, inputs))
        if bias is not None:
            bias = bias[..., makes_columns] if not partial or place == 0 else None
        return Shard(
            matrix=matrix[..., reads_columns, :][..., makes_columns],
            bias=bias,
            inputs=reads_columns,
            outputs=makes_columns,
            whole=(inputs, outputs),
            partial=partial,
        )


def linear_rule(rule: str, place: Place) -> str:
    """Return ``columns``, ``rows``, ``qkv`` or ``replicate``: along which dimension the plan splits a linear map."""
    split = place.setting.plan.split
    by_name = {
        "attention_out": split.attention_out,
        "ffn_up": split.ffn_up,
        "ffn_down": split.ffn_down,
        "lm_head": "columns" if split.lm_head == "vocab" else "rows",
        "expert_up": "columns",
        "expert_down": "rows",
    }
    return by_name.get(rule, rule)


def part_of(width: int, place: int, parts: int, halves: int = 1) -> Int64Array:
    """Return the columns of one of ``parts`` even shares; of a gate and what it gates, the same share of both."""
    each = width // halves // parts
    share = np.arange(place * each, (place + 1) * each)
    return np.concatenate([share + half * (width // halves) for half in range(halves)])


def kv_range(place: Place) -> range:
    """Return the K/V heads that a rank keeps: as many as the node says, from that of its first query head on."""
    a, node = place.attention, place.node
    first = place.t * node.heads // (a.num_heads // a.num_kv_heads)
    return range(first, first + node.kv_heads)


def qkv_columns(place: Place) -> Int64Array:
    """Return the columns of queries, keys and values of a rank's heads."""
    a, node = place.attention, place.node
    kv = kv_range(place)
    keys_at, values_at = a.num_heads * a.head_dim, (a.num_heads + a.num_kv_heads) * a.head_dim
    return np.concatenate(
        (
            np.arange(place.t * node.heads * a.head_dim, (place.t + 1) * node.heads * a.head_dim),
            np.arange(keys_at + kv.start * a.head_dim, keys_at + kv.stop * a.head_dim),
            np.arange(values_at + kv.start * a.v_head_dim, values_at + kv.stop * a.v_head_dim),
        )
    )
