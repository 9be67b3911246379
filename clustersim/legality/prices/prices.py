"""What the cost classes of a template should last, in nanoseconds, at steps of given features.

The second opinion on what :mod:`clustersim.graph.prices.pricer` says, of which nothing is called here: seconds come
from ``legality.prices.kernels`` and ``legality.prices.links``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import fsum

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.graph.template import PassTemplate
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.legality.prices.features import Features
from clustersim.legality.prices.kernels import Kernels
from clustersim.legality.prices.links import Links, Rates, fastest
from clustersim.legality.prices.ways import WAYS
from clustersim.legality.prices.work import HOST, Work
from clustersim.legality.prices.works import Works
from clustersim.legality.timeline_rules.views.grouping import numbered
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.plan.exchange import Exchange
from clustersim.values import dataclass

ROUTED = ("expert_", "dispatch", "combine")
"""Operators that last as long as the experts of a rank are visited."""
KERNELS = ("gemm", "grouped_gemm", "attention_prefill", "attention_decode", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Operators of one cost class that do the same: their work, SP coordinate, and local ranks of each collective."""

    name: str
    layer: int
    work: Work
    s: int
    groups: tuple[tuple[int, ...], ...]


class Prices:
    """Prices of one pool's operators.

    Parameters
    ----------
    deployment : PricedDeployment
    first_replica : int
    """

    def __init__(self, deployment: PricedDeployment, first_replica: int) -> None:
        self.deployment, self.first_replica = deployment, first_replica
        self.kernels, self.works = Kernels(deployment), Works(deployment)
        self._of_formats = {deployment.precision.weights: self.kernels}
        self.links = Links(deployment.topology, deployment.collectives)
        layers, ep = deployment.model.layers, deployment.plan.ep
        self.alike = np.array([layers.index(one) for one in layers] + [-1], np.int64)
        """Layer → the first one whose operators do the same, those of experts that are visited unevenly apart."""
        self.visited_apart = ep.routing is not None or ep.redundant > 0
        self._rates: dict[tuple[int, str | Exchange, tuple[tuple[int, ...], ...], int], tuple[Rates, ...]] = {}
        self._alike_at: dict[tuple[tuple[Rates, ...], ...], int] = {}

    def of_template(self, template: PassTemplate) -> tuple[dict[int, list[Priced]], set[str]]:
        """Return, by cost class, what the operators of each do; and the names of those that tell nothing."""
        if not self._fits(template):
            return {}, {name for name, _, _ in template.symbols}
        found: dict[int, list[Priced]] = {}
        unknown: set[str] = set()
        cls = template.class_of_node
        for node, priced, name, groups in self._alike(template):
            if priced is None:
                unknown.add(name)
                continue
            priced = replace(priced, groups=tuple(groups))
            same = found.setdefault(int(cls[node]), [])
            if all((one.work, one.s, one.groups) != (priced.work, priced.s, priced.groups) for one in same):
                same.append(priced)
        return found, unknown

    def collectives(self, template: PassTemplate) -> tuple[list[tuple[Priced, Int64Array]], set[str]]:
        """Return the collectives of a template on each group, with their nodes; and the names that tell nothing."""
        if not self._fits(template):
            return [], {name for name, _, _ in template.symbols}
        found: list[tuple[Priced, Int64Array]] = []
        unknown: set[str] = set()
        for _, priced, name, groups in self._alike(template):
            for group, nodes in groups.items():
                if len(group) < 2:
                    continue
                if priced is None:
                    unknown.add(name)
                else:
                    found.append((replace(priced, groups=(group,)), np.array(nodes, np.int64)))
        return found, unknown

    def _alike(
        self, template: PassTemplate
    ) -> Iterator[tuple[int, Priced | None, str, dict[tuple[int, ...], list[int]]]]:
        """Yield nodes that do the same: the first one, what it does, its name, and nodes by group where they join."""
        tp, members = self.deployment.plan.tp, template.members
        first = np.array([one[0] for one in members], np.int64) // tp
        last = np.array([one[-1] for one in members], np.int64) // tp
        sizes = np.bincount(template.flat("members")[0], minlength=len(members))
        half = template.node_half if len(template.node_half) else np.zeros(len(members), np.int64)
        layer = self.alike[template.node_layer]
        if self.visited_apart:
            routed = np.array([name.startswith(ROUTED) for name, _, _ in template.symbols], bool)
            layer = np.where(routed[template.node_symbol], template.node_layer, layer)
        cls = template.class_of_node
        columns = np.stack((cls, template.node_symbol, layer, half, first, last, sizes))
        _, at, of = np.unique(numbered(columns), return_index=True, return_inverse=True)
        names = [symbol[0] for symbol in template.symbols]
        cached = tuple(
            layer
            for layer, symbol in zip(template.node_layer.tolist(), template.node_symbol.tolist(), strict=True)
            if names[symbol] == "kv_write"
        )
        cached = tuple(dict.fromkeys(cached))
        groups: list[dict[tuple[int, ...], list[int]]] = [{} for _ in at]
        joins = np.array([self.joins(op) for _, op, _ in template.symbols])[template.node_symbol]
        for node in np.flatnonzero(joins).tolist():
            groups[of[node]].setdefault(members[node], []).append(node)
        for number, node in enumerate(at.tolist()):
            name, op, _ = template.symbols[int(template.node_symbol[node])]
            at_layer, s = int(template.node_layer[node]), (int(first[node]), int(last[node]))
            work = self.works.of(name, op, at_layer, s, cached)
            if work is None or work.op != op or (self.joins(op) and op not in WAYS):
                yield node, None, name, groups[number]
                continue
            if half[node]:
                work = work.of_half(int(half[node]))
            yield node, Priced(name=name, layer=at_layer, work=work, s=s[0], groups=()), name, groups[number]

    def _fits(self, template: PassTemplate) -> bool:
        """Return whether layers, operators and ranks are among those that there are."""
        ranks = self.deployment.coordinates * self.deployment.plan.tp
        bounds = (
            (template.node_layer, -1, len(self.deployment.model.layers)),
            (template.node_symbol, 0, len(template.symbols)),
            (template.node_instance, 0, len(template.instance_class)),
            (template.instance_class, 0, template.num_classes),
        )
        return (
            bool(template.members)
            and all(low <= values.min() and values.max() < high for values, low, high in bounds)
            and all(some and min(some) >= 0 and max(some) < ranks for some in set(template.members))
        )

    @staticmethod
    def joins(op: str) -> bool:
        """Return whether an operator is one of several ranks together."""
        return op not in KERNELS and op not in HOST

    def in_graph(self, kind: str, features: Features) -> BoolArray:
        """Return which steps run as a captured graph: they only decode, and not too much on any replica."""
        if kind != "decode":
            return np.zeros(len(features), bool)
        coordinates = range(self.deployment.coordinates) if self.deployment.together else (0,)
        most: FloatArray = np.max([features.get("sequences", s) for s in coordinates], axis=0)
        found: BoolArray = most <= self.deployment.engine.graph_max_tokens
        return found

    def kernel_ns(self, one: Priced, features: Features, gap: FloatArray) -> FloatArray:
        """Return what a kernel or work of the host lasts; NaN where the record does not tell."""
        amount = self.amount(one.work, features, one.s)
        found = self._kernel_ns(one, amount, features, gap)
        unknown = np.isnan(amount)
        if one.work.keys:
            unknown |= np.isnan(features.get(one.work.keys, one.s))
        return np.where(unknown, np.nan, found) if unknown.any() else found

    def _kernel_ns(self, one: Priced, amount: FloatArray, features: Features, gap: FloatArray) -> FloatArray:
        work, engine = one.work, self.deployment.engine
        if work.op == "schedule":
            own = engine.schedule_s + (engine.stage_s if self.deployment.plan.pp > 1 else 0.0)
            return _ns(own + engine.schedule_per_request_s * amount)
        if work.op == "sample":
            return _ns(engine.sample_s + engine.sample_per_request_s * amount)
        if work.included:
            return np.ones(len(features))
        shape: dict[str, FloatArray | float] = dict(work.shape)
        if work.op == "memory":
            seconds = self.kernels.seconds("memory", {"bytes": amount})
            if work.fused:
                return _ns(seconds - self.kernels.seconds("memory", {"bytes": np.zeros(1)}))
        else:
            shape |= self._shape(work, amount, features, one.s)
            shape.pop("share", None)
            seconds = self._reading(work.weights).seconds(work.op, shape)
        return _ns(seconds + gap)

    def _reading(self, weights: str) -> Kernels:
        """Return the kernels that read weights of a format: ``multiply`` is of most weights alone."""
        if not weights:
            return self.kernels
        if weights not in self._of_formats:
            precision = replace(self.deployment.precision, weights=weights, modules=(), multiply=None)
            self._of_formats[weights] = Kernels(replace(self.deployment, precision=precision))
        return self._of_formats[weights]

    def _shape(self, work: Work, amount: FloatArray, features: Features, s: int) -> dict[str, FloatArray | float]:
        match work.op:
            case "gemm":
                return {"m": amount}
            case "grouped_gemm":
                share, experts = work.shape["share"], work.shape["experts"]
                if work.shares:
                    return {"rows": amount, "active": visited_unevenly(amount / fsum(work.shares), work.shares)}
                return {"rows": amount, "active": visited(amount / (share * experts), share, experts)}
            case "attention_prefill":
                return {
                    "queries": amount, "pairs": features.get(work.pairs, s), "keys": features.get(work.keys, s)
                }  # fmt: skip
        return {"batch": amount, "keys": features.get(work.keys, s)}

    def collective_ns(self, one: Priced, features: Features, replicas: Int64Array, stage: int) -> list[FloatArray]:
        """Return what a collective lasts on its groups, where these differ in what they last."""
        payload = self.amount(one.work, features, one.s)
        found: dict[tuple[Rates, ...], int] = {}
        launch, there = self.deployment.engine.collective_launch_s, np.bincount(replicas)
        for replica in np.flatnonzero(there).tolist():
            there[replica] = found.setdefault(self._rates_at(one, replica, stage), len(found))
        which, width = there[replicas], max(map(len, found), default=1)
        each = [np.full(len(payload), np.nan) for _ in range(width)]
        for rates, own in found.items():
            mine = which == own
            for number in range(width):
                each[number][mine] = _ns(fastest(rates[min(number, len(rates) - 1)], payload[mine]) + launch)
        return each

    def alike_at(self, joins: list[Priced], replicas: Int64Array, stage: int) -> Int64Array:
        """Return a number for each replica, the same where collectives take the same on the links of their groups."""
        there = np.bincount(replicas)
        for replica in np.flatnonzero(there).tolist():
            each = tuple(self._rates_at(one, replica, stage) for one in joins)
            there[replica] = self._alike_at.setdefault(each, len(self._alike_at))
        found: Int64Array = there[replicas]
        return found

    def _rates_at(self, one: Priced, replica: int, stage: int) -> tuple[Rates, ...]:
        """Return the algorithms of a collective on the groups of a replica, where these differ."""
        key = (replica, one.work.joins_by, one.groups, stage)
        if key not in self._rates:
            devices = (self.devices(replica, stage, group) for group in one.groups)
            self._rates[key] = tuple(dict.fromkeys(self.links.rates(one.work.joins_by, some) for some in devices))
        return self._rates[key]

    def devices(self, replica: int, stage: int, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return the devices of local ranks of a stage."""
        plan = self.deployment.plan
        own = 0 if self.deployment.together else replica - self.first_replica
        base = (own * plan.pp + stage) * plan.sp.degree * plan.tp
        return tuple(base + rank if plan.placement is None else plan.placement[base + rank] for rank in ranks)

    @staticmethod
    def amount(work: Work, features: Features, s: int) -> FloatArray:
        """Return rows, bytes or payload of an operator."""
        found, *least = (
            reduce(np.add, [features.get(name, s) * value for name, value in terms.items()])
            for terms in (work.amount, work.least)
            if terms
        )
        return np.maximum(found, least[0]) if least else found


def visited(tokens: FloatArray, share: FloatArray | float, experts: FloatArray | float) -> FloatArray:
    """Return how many of a rank's experts some of these tokens visit, each with a probability of ``share``."""
    whole = np.floor(tokens)
    found: FloatArray = experts * (1.0 - (1.0 - share) ** whole * (1.0 - (tokens - whole) * share))
    return found


def visited_unevenly(tokens: FloatArray, shares: Sequence[float]) -> FloatArray:
    """Return how many experts some of these tokens visit, each with a probability of its own."""
    return reduce(np.add, [visited(tokens, share, 1.0) for share in shares])


def _ns(seconds: FloatArray) -> FloatArray:
    found: FloatArray = np.maximum(np.rint(seconds * NS_PER_S), 1.0)
    return found
