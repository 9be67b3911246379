"""The tables of steps that replicas take together (:mod:`clustersim.core.group_prices`), filled in when one asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage, field_of, set_field
from clustersim.core.group_prices import GRAPH_OF_HALVES, OF_DECODE, OF_GRAPH, OF_HALVES, PROGRAMS, Group
from clustersim.core.paths import PassAttention, PassPart, PassTable
from clustersim.core.prices import COUNTS, Prices, Whole
from clustersim.core.state import ASK_PART
from clustersim.core.tables.paths import PathTables
from clustersim.core.tables.prices import PriceTables
from clustersim.cost.attention import UNKNOWN, Terms
from clustersim.cost.table import TableCost
from clustersim.graph.prices.counts import COUNTS as PLACES
from clustersim.graph.prices.counts import Counts, fields, lockstep_counts
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.step_table import StepTable
from clustersim.graph.program import StageProgram
from clustersim.graph.turns import half_feature
from clustersim.plan.parallel import ParallelPlan

KINDS: Final = ("prefill", "mixed", "decode")
"""Kinds of step by their tables."""


class GroupKind(NamedTuple):
    """The programs of groups that cost the same.

    Parameters
    ----------
    pricer : Pricer
    plan : ParallelPlan
    programs : mapping
        Kind of step, or its halves' → program.
    most : tuple of int
        The most that each count of a replica can be, in the order of ``graph.prices.counts.ALIASES``.
    """

    pricer: Pricer
    plan: ParallelPlan
    programs: Mapping[str, StageProgram]
    most: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many replicas take their steps together."""
        return self.plan.dp if self.plan.is_lockstep else 1

    def counts(self) -> Counts:
        """Return where counts have the features of a step: those of both halves, then of each."""
        found = lockstep_counts(self.pricer.windows, self.size)
        block = self.size * len(fields(self.pricer.windows)) + 2
        places = dict(found.places)
        for half in (1, 2):
            for name, each in found.places.items():
                places[half_feature(name, half)] = [half * block + at for at in each]
        return Counts(places)

    def tables(self) -> list[StepTable]:
        """Return the tables of prices, by their numbers."""
        counts, found = self.counts(), dict[int, StepTable]()
        for of, kind in enumerate(KINDS):
            found[of] = StepTable(self.pricer, self.programs[kind], counts)
        found[OF_GRAPH] = StepTable(self.pricer, self.programs["decode"], counts, graph=True)
        for first, kind in enumerate(KINDS):
            for second, other in enumerate(KINDS):
                name = f"{kind}+{other}"
                if name in self.programs:
                    found[OF_HALVES + 3 * first + second] = StepTable(self.pricer, self.programs[name], counts)
        if "decode+decode" in self.programs:
            found[GRAPH_OF_HALVES] = StepTable(self.pricer, self.programs["decode+decode"], counts, graph=True)
        return [found.get(at, found[OF_DECODE]) for at in range(PROGRAMS if self.plan.is_two_batch else OF_HALVES)]

    def radix(self) -> dict[int, int]:
        """Return how many values each count may have, but for pairs that attend."""
        engine, found = self.pricer.engine, dict[int, int]()
        tokens = 1 + max(self.most[PLACES["tokens"]], engine.padded(self.most[PLACES["decode_sequences"]]))
        contexts = self.most[PLACES["exposed_tokens"]] + tokens
        for name, each in self.counts().places.items():
            plain = name.partition("~")[0]
            many = contexts if plain in ("context_tokens", "exposed_tokens", "ring_tokens", "prefill_keys") else tokens
            for at in each:
                found[at] = max(found.get(at, 0), many * (self.size if plain == "stage_tokens" else 1))
        return found

    def padded(self) -> list[int]:
        """Return the tokens that a captured graph computes for so many."""
        engine = self.pricer.engine
        return [
            engine.padded(one) if engine.graph_sizes and one else one
            for one in range(self.most[PLACES["decode_sequences"]] + 1)
        ]


class GroupTables(PriceTables):
    """The prices of groups of replicas, of one stage each.

    Parameters
    ----------
    groups : sequence of GroupKind
    of_replicas : sequence of int
        The kind of each replica.
    storage : Storage
    """

    def __init__(self, groups: Sequence[GroupKind], of_replicas: Sequence[int], storage: Storage) -> None:
        self.groups, self.storage = groups, storage
        self.of_stage = [[kind] for kind in of_replicas]
        self.by_layer = self.apart = False
        self.ranks, self.split, self.plain = None, True, True
        self.tables = [each.tables() for each in groups]
        self.firsts = np.cumsum([0, *map(len, self.tables)])
        every = [table for some in self.tables for table in some]
        radix: dict[int, int] = {}
        for each in groups:
            for at, many in each.radix().items():
                radix[at] = max(radix.get(at, 1), many)
        sizes = [radix.get(at, 1) for at in range(max(radix) + 1)]
        self.paths = PathTables(every, range(len(every)), sizes, 1, storage)
        self.every = every
        self.parts = np.array([len(some) for some in self.paths.parts], np.int64)
        """How many parts each table has …"""
        self.attends = np.array([len(table.attention) for table in every], np.int64)
        """… and how many classes that attend."""
        self.obstacle = self.paths.obstacle
        self.p = self._made()

    def _made(self) -> Prices:
        storage, kinds, none = self.storage, len(self.groups), self.storage.numbers(0)
        paths = {} if self.obstacle else self.paths.lists()
        classes = max(1, int(self.attends.max()))
        values: dict[str, Any] = {
            "longest_s": LONGEST_S, "kinds": kinds, "classes": classes, "width": 1, "ranks": 1, "size": 1, "columns": 0,
            "part_kinds": len(self.paths.kinds), "value_places": 0 if self.obstacle else self.paths.size,
        }  # fmt: skip
        whole = storage.records(Whole, kinds)
        self.whole = values
        for name, value in values.items():
            set_field(whole, 0, name, value)
        padded = [each.padded() for each in self.groups]
        groups = storage.records(Group, kinds)
        first = 0
        for kind, each in enumerate(self.groups):
            engine, experts = each.pricer.engine, each.plan.ep
            set_field(whole, kind, "gap_s", each.pricer.gap_s(graph=False))
            set_field(whole, kind, "graph_gap_s", each.pricer.gap_s(graph=True))
            of_group = {
                "asks": int(bool(self.obstacle)), "counts": len(fields(each.pricer.windows)), "first_padded": first,
                "first_pass": int(self.firsts[kind]), "graph_most": engine.graph_max_tokens,
                "pads": int(bool(engine.graph_sizes)), "halves": int(each.plan.is_two_batch),
                "decode_tokens": experts.overlap_decode_tokens, "prefill_tokens": experts.overlap_prefill_tokens,
            }  # fmt: skip
            for name, value in of_group.items():
                set_field(groups, kind, name, value)
            first += len(padded[kind])
        lists: dict[str, Any] = {name: storage.table(1, 1) for name in Prices._fields}
        lists |= dict.fromkeys(
            ("priced", "part_count", "send_place", "attending", "layers", "sent", "leaves", "sums", "chunk_at",
             "chunk_sums", "asked"), none,
        )  # fmt: skip
        sizes = 2 * 2 * max(each.size for each in self.groups)
        lists |= {
            "whole": whole, "of_stage": storage.table(len(self.of_stage), 1), "weights": storage.table(1, COUNTS),
            "keys": storage.table(1, 1, UNKNOWN), "terms": storage.grid(Terms, len(self.every), classes),
            "cost": storage.table(kinds, 2), "varying": storage.numbers(kinds * classes),
            "answer": storage.numbers(kinds * classes), "asked": storage.numbers(2), "sums": storage.numbers(sizes),
            "padded": storage.column(np.array([one for some in padded for one in some], np.int64)), "groups": groups,
        }  # fmt: skip
        if self.obstacle:
            lists |= {
                "pass_tables": storage.records(PassTable, 0), "pass_parts": storage.records(PassPart, 0),
                "attends": storage.records(PassAttention, 0),
            }  # fmt: skip
            readable = ("uses", "uses_first", "stretches", "series", "waits_first", "waits", "exits", "path_sends")
            lists |= dict.fromkeys(readable, storage.column(np.zeros(0, np.int64)))
            lists |= dict.fromkeys(
                ("value_keys", "value_at", "values", "found", "series_ends", "base_terms", "pass_terms", "leaves_of",
                 "counts"), none,
            )  # fmt: skip
        else:
            lists |= paths
        p = Prices(**lists)
        for r, (kind,) in enumerate(self.of_stage):
            p.of_stage[r][0] = kind
        curves: list[float] = []
        for of, table in enumerate(self.every):
            for core, (attention, _) in enumerate(table.attention):
                self._fill(table.pricer, p.terms[of], core, attention.cls, 1, curves)
        return p._replace(curves=storage.column(np.array([*curves, 0.0])))

    def answer(self, r: int, status: int) -> None:
        """Fill in what is asked for of a group's step."""
        number, counts = int(self.p.asked[1]), np.asarray(self.p.counts).tolist()
        if status == ASK_PART:
            self._replace(self.paths.learn(number, counts))
            self.whole["value_places"] = self.paths.size
            set_field(self.p.whole, 0, "value_places", self.paths.size)
            return
        base = self.of_stage[r][0] * self.whole["classes"]
        for core, ns in enumerate(self.paths.attention_ns(number, counts)):
            self.p.answer[base + core] = ns

    def forget(self) -> None:
        """Nothing is priced before a run begins."""

    def settle(self) -> None:
        """Tell a table of measured points how many durations lay outside of them."""
        for of, table in enumerate(self.every):
            cost = table.pricer.cost
            if isinstance(cost, TableCost):
                for core, (attention, _) in enumerate(table.attention):
                    cost.count_outside(attention.cls.node.op, int(field_of(self.p.terms[of], core, "outside")))
                    set_field(self.p.terms[of], core, "outside", 0)

    def rows(self, number: int, found: Int64Array) -> list[tuple[Int64Array, tuple[int, ...]]]:
        """Return the row of each step whose values were found there, and the columns that vary; keep none of them."""
        table = self.every[number]
        at = self.paths.rows(number, found).tolist()
        rows = [table.rows[one] for one in at]
        table.rows.clear()
        self.paths.known[number].clear()
        return rows
