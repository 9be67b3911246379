"""From a document whose nodes have names of their own to one in the words of :mod:`clustersim.graph.foreign.read`.

What a node says of itself stands. What it does not say is taken from its name, its other texts and the clusters around
it: operator, layer, ranks, stage. A collective whose ranks nothing tells joins those of its neighbours. A name that
stands for several operators becomes a chain of them, of which nothing else is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from clustersim.graph.blueprint import COLLECTIVE_OPS, OPS, TRANSFER_OPS
from clustersim.graph.foreign.chain import chain_of, next_in
from clustersim.graph.foreign.names import NameTable
from clustersim.graph.foreign.neighbours import Neighbours
from clustersim.graph.foreign.ranks import joined, ranks_of
from clustersim.graph.foreign.rows import Row, RowReader, is_own, key_of
from clustersim.graph.vocabulary import (
    BESIDE,
    CORE,
    PART_MARK,
    POST_ATTENTION,
    is_told,
    kind_of,
    nearest_name,
)
from clustersim.values import dataclass

_OF_EXPERTS: Final = {"ffn_norm": "moe_norm", "ffn_post_norm": "moe_post_norm", "ffn_add": "moe_add"}
_OF_MODULE: Final = ("o_proj", "qkv_proj", "q_proj")
"""Where a graph names one of these, its attention is the core alone, else the whole module."""


class Unknown(NamedTuple):
    """What patterns had to match of a name that none knows, and the nearest name that is known."""

    left: str
    nearest: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What became of the names of a graph.

    Parameters
    ----------
    document : dict
        In the words of step graphs.
    origins : tuple of int
        Per node of it, the node of the document as it was.
    unknown : dict from str to Unknown
        Names that no pattern knows.
    unplaced : tuple of str
        Names of nodes of which nothing tells the rank; they count as rank 0.
    modules : tuple of str
        Names that stand for several operators.
    foreign : bool
        Whether its names were not those of step graphs.
    """

    document: dict[str, Any]
    origins: tuple[int, ...]
    unknown: Mapping[str, Unknown]
    unplaced: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    foreign: bool = False


def in_own_words(document: Mapping[str, Any], tables: Sequence[NameTable]) -> Naming:
    """Return a document in the words of step graphs; one that has them already is as it was."""
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return Naming(document=dict(document), origins=(), unknown={})  # whoever reads it says so
    if all(is_own(node) for node in nodes):
        plain = [{key: value for key, value in node.items() if key != "said"} for node in nodes]
        return Naming(document={**document, "nodes": plain}, origins=tuple(range(len(nodes))), unknown={})
    return _Renaming(document, nodes, tables).naming()


_ROUNDS: Final = 2
"""An addition may be behind a norm that is told by what is before it."""


class _Renaming:
    def __init__(self, document: Mapping[str, Any], nodes: list[dict[str, Any]], tables: Sequence[NameTable]) -> None:
        self.document, self.reader = document, RowReader(tables)
        self.rows = [self.reader.row(node) for node in nodes]
        if len({row.moment for row in self.rows if row.moment is not None}) > 1:  # a file holds one step
            self.rows = [row if row.moment is None else replace(row, names=()) for row in self.rows]
        for _ in range(_ROUNDS):
            self.rows = self.beside_others()
        known = {name for row in self.rows for name in row.names}
        self.whole_attention = not known & set(_OF_MODULE)
        self.normed = {row.layer for row in self.rows if {"ffn_norm", "moe_norm"} & set(row.names)}
        self.moes = {row.layer for row in self.rows if {"gate", "expert_up"} & set(row.names)}
        ends = {key_of(row.node.get("id")) for row in self.rows if "boundary" in (row.node.get("op"), *row.names)}
        self.last = {source for source, target in self.ends() if target in ends}

    def beside_others(self) -> list[Row]:
        """Return the rows with the names that mean something beside others only in the words of step graphs."""
        if not any(BESIDE.intersection(row.names) for row in self.rows if not row.own):
            return self.rows
        keys = [key_of(row.node.get("id")) for row in self.rows]
        joins = {
            key
            for key, row in zip(keys, self.rows, strict=True)
            if row.node.get("op") in COLLECTIVE_OPS or (row.names and kind_of(row.names[0]) in COLLECTIVE_OPS)
        }
        near = Neighbours(self.ends(), dict(zip(keys, (row.names for row in self.rows), strict=True)), joins)
        found = []
        for key, row in zip(keys, self.rows, strict=True):
            name = row.names[0] if len(row.names) == 1 and not row.own else None
            meant = near.meaning(name, key, row.node.get("op"), row.layer) if name in BESIDE else None
            found.append(row if meant is None else replace(row, names=(meant,)))
        return found

    def naming(self) -> Naming:
        unknown: dict[str, Unknown] = {}
        modules: dict[str, None] = {}
        told = [(row, self.operators(row)) for row in self.rows]
        for row, names in told:
            if not names and not self.told(row):
                left = self.reader.said(row.name).rest
                unknown.setdefault(row.name, Unknown(left=left, nearest=nearest_name(left)))
            elif len(names) > 1:
                modules[row.name] = None
            self.place(row, names)
        unplaced = joined(self.rows, list(self.ends()))
        nodes, origins, ends = [], [], {}
        for at, (row, names) in enumerate(told):
            chain = list(chain_of(row.node, names))
            ends[key_of(row.node.get("id"))] = (chain[0].get("id"), chain[-1].get("id"))
            nodes += chain
            origins += [at] * len(chain)
        return Naming(
            document={**self.document, "nodes": nodes, "edges": list(self.edges(ends, nodes))},
            origins=tuple(origins), unknown=unknown, unplaced=unplaced, modules=tuple(modules),
            foreign=not all(row.own or self.told(row) for row in self.rows),
        )  # fmt: skip

    def told(self, row: Row) -> bool:
        """Whether the kind of an operator says enough.

        What exchanges tokens may be dispatch, combine, or neither; what ends a phase may move its K/V, or not.
        """
        exchanges = row.node.get("op") == "all_to_all" and row.layer in self.moes
        return is_told(row.node) and not exchanges and not self.ends_phase(row)

    def ends_phase(self, row: Row) -> bool:
        """Whether a collective goes to the boundary of a phase: it is of no layer."""
        return row.node.get("op") in COLLECTIVE_OPS and key_of(row.node.get("id")) in self.last

    def operators(self, row: Row) -> tuple[str, ...]:
        """Return the operators that a node is, in the words of its layer and step."""
        if row.own:
            return row.names
        if not row.names and row.node.get("op") in TRANSFER_OPS:
            return (row.node["op"],)
        names = () if BESIDE.intersection(row.names) else row.names
        if POST_ATTENTION in names:
            names = ("attention_post_norm" if row.layer in self.normed else "ffn_norm",)
        names = tuple(_OF_EXPERTS.get(name, name) if row.layer in self.moes else name for name in names)
        if CORE in names:
            op = row.node.get("op")
            phase = row.moment[0] if row.moment is not None else _phase(row.node)
            said = f"attention_{phase}" if phase else self.core()
            core = op if op in ("attention_prefill", "attention_decode") else said
            whole = (("qkv_proj", core, "o_proj") if self.whole_attention else (core,)) if core else ()
            names = tuple(inner for name in names for inner in (whole if name == CORE else (name,)))
        part = row.places.get("part")
        if part is not None and len(names) == 1 and kind_of(names[0]) in COLLECTIVE_OPS:
            names = (f"{names[0]}{PART_MARK}{part}",)
        return names

    def core(self) -> str | None:
        """Return the attention that the step has; None where it has both, or nothing tells."""
        step = self.document.get("step")
        if not isinstance(step, dict):
            return "attention_prefill"
        decodes = step.get("decode_sequences")
        decodes = isinstance(decodes, list) and any(decodes)
        if step.get("chunks"):
            return None if decodes else "attention_prefill"
        return "attention_decode"

    def place(self, row: Row, names: Sequence[str]) -> None:
        """Fill in what the name says of where a node is, and of what kind it is."""
        node, places = row.node, row.places
        for key in ("layer", "stage"):
            if key in places and key not in node:
                node[key] = places[key]
        if self.ends_phase(row):
            node.setdefault("layer", None)
        if "ranks" not in node and (ranks := ranks_of(places, self.document.get("plan"))) is not None:
            node["ranks"] = ranks
        if names and node.get("op") not in OPS:
            kind = self.move() if names[0] == "kv_move" else kind_of(names[0])
            spread = names[0] in ("dispatch", "combine") and len(node.get("ranks", ())) != 1
            node["op"] = "all_to_all" if spread else kind
        elif not names and node.get("op") not in OPS:
            node["op"] = "memory"
            for key in ("amount", "bytes", "flops"):  # what it counts is not known either
                node.pop(key, None)

    def move(self) -> str:
        """Return the collective by which K/V leaves the ranks that a prompt was split over, as the plan says."""
        plan = self.document.get("plan")
        sp = plan.get("sp") if isinstance(plan, Mapping) else None
        return "gather" if isinstance(sp, Mapping) and sp.get("decode") == "idle" else "all_to_all"

    def ends(self) -> Iterator[tuple[Any, Any]]:
        edges = self.document.get("edges")
        for edge in edges if isinstance(edges, list) else ():
            if isinstance(edge, dict):
                yield key_of(edge.get("source")), key_of(edge.get("target"))

    def edges(self, ends: Mapping[Any, tuple[Any, Any]], nodes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        edges = self.document.get("edges", [])
        for edge in edges if isinstance(edges, list) else [edges]:
            if isinstance(edge, dict):
                changed = dict(edge)
                for key, side in (("source", 1), ("target", 0)):
                    if (found := ends.get(key_of(edge.get(key)))) is not None:
                        changed[key] = found[side]
                yield changed
            else:
                yield edge
        for before, after in pairwise(nodes):
            if after.get("id") in (chained := next_in(before)):
                yield {"source": before.get("id"), "target": chained[0]}


def _phase(node: Mapping[str, Any]) -> str | None:
    """Return the phase whose tokens an operator takes, where it says what it takes, and that is of one phase."""
    amount = node.get("amount")
    terms = amount.get("terms") if isinstance(amount, Mapping) else None
    found = {str(term).partition("_")[0] for term in terms} if isinstance(terms, Mapping) else set()
    return found.pop() if found in ({"prefill"}, {"decode"}) else None
