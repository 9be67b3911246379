"""From a document whose nodes have names of their own to one in the words of :mod:`clustersim.graph.foreign.read`.

What a node says of itself stands. What it does not say is taken from its name, its other texts and the clusters around
it: operator, layer, ranks, stage. A collective whose ranks nothing tells joins those of its neighbours. A name that
stands for several operators becomes a chain of them, of which nothing else is known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from clustersim.graph.blueprint import COLLECTIVE_OPS, OPS, TRANSFER_OPS
from clustersim.graph.foreign.names import Named, NameTable, read_name
from clustersim.graph.foreign.neighbours import Neighbours
from clustersim.graph.vocabulary import (
    BESIDE,
    CORE,
    PART_MARK,
    POST_ATTENTION,
    is_known,
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


@dataclass(slots=True, kw_only=True)
class _Row:
    """A node on its way: what is known of it, and what it may be called."""

    node: dict[str, Any]
    name: str
    names: tuple[str, ...]
    places: Mapping[str, int]
    own: bool
    moment: tuple[str, str] | None = None

    @property
    def layer(self) -> int | None:
        """Its layer, as it says itself or as its name does."""
        found = self.node.get("layer", self.places.get("layer"))
        return found if isinstance(found, int) else None


def in_own_words(document: Mapping[str, Any], tables: Sequence[NameTable]) -> Naming:
    """Return a document in the words of step graphs; one that has them already is as it was."""
    nodes = document.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return Naming(document=dict(document), origins=(), unknown={})  # whoever reads it says so
    if all(_is_own(node) for node in nodes):
        plain = [{key: value for key, value in node.items() if key != "said"} for node in nodes]
        return Naming(document={**document, "nodes": plain}, origins=tuple(range(len(nodes))), unknown={})
    return _Renaming(document, nodes, tables).naming()


def _is_own(node: Mapping[str, Any]) -> bool:
    """Whether a node needs no other words; what one of the JSON of step graphs lacks, its reader tells."""
    said = {"name", "op", "ranks"} <= set(node) if "said" in node else "name" in node
    return is_known(node) if said else "said" not in node


class _Renaming:
    def __init__(self, document: Mapping[str, Any], nodes: list[dict[str, Any]], tables: Sequence[NameTable]) -> None:
        self.document, self.tables = document, tables
        self.read: dict[str, Named] = {}
        self.rows = [self.row(node) for node in nodes]
        if len({row.moment for row in self.rows if row.moment is not None}) > 1:  # a file holds one step
            self.rows = [row if row.moment is None else replace(row, names=()) for row in self.rows]
        for _ in range(_ROUNDS):
            self.rows = self.beside_others()
        known = {name for row in self.rows for name in row.names}
        self.whole_attention = not known & set(_OF_MODULE)
        self.normed = {row.layer for row in self.rows if {"ffn_norm", "moe_norm"} & set(row.names)}
        self.moes = {row.layer for row in self.rows if {"gate", "expert_up"} & set(row.names)}
        ends = {_key(row.node.get("id")) for row in self.rows if "boundary" in (row.node.get("op"), *row.names)}
        self.last = {source for source, target in self.ends() if target in ends}

    def beside_others(self) -> list[_Row]:
        """Return the rows with the names that mean something beside others only in the words of step graphs."""
        if not any(BESIDE.intersection(row.names) for row in self.rows if not row.own):
            return self.rows
        keys = [_key(row.node.get("id")) for row in self.rows]
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

    def said(self, text: str) -> Named:
        found = self.read.get(text)
        if found is None:
            found = self.read[text] = read_name(text, self.tables)
        return found

    def row(self, node: dict[str, Any]) -> _Row:
        own, node = _is_own(node), dict(node)
        texts = [] if own else list(_texts(node))
        node.pop("said", None)
        if isinstance(node.get("op"), str):
            node["op"] = OP_WORDS.get(re.sub(r"[\W_]", "", node["op"]).lower(), node["op"])
        names: tuple[str, ...] = (str(node["name"]),) if is_known(node) else ()
        places: dict[str, int] = {}
        moment = None
        for text in texts:
            found = self.said(text)
            moment = moment if names else found.moment
            names = names or found.names
            places = {**found.places, **places}
        node.setdefault("name", texts[0] if texts else "")
        return _Row(node=node, name=str(node["name"]), names=names, places=places, own=own, moment=moment)

    def naming(self) -> Naming:
        unknown: dict[str, Unknown] = {}
        modules: dict[str, None] = {}
        told = [(row, self.operators(row)) for row in self.rows]
        for row, names in told:
            if not names and not self.told(row):
                left = self.said(row.name).rest
                unknown.setdefault(row.name, Unknown(left=left, nearest=nearest_name(left)))
            elif len(names) > 1:
                modules[row.name] = None
            self.place(row, names)
        unplaced = self.joined(told)
        nodes, origins, ends = [], [], {}
        for at, (row, names) in enumerate(told):
            chain = list(_chain(row.node, names))
            ends[_key(row.node.get("id"))] = (chain[0].get("id"), chain[-1].get("id"))
            nodes += chain
            origins += [at] * len(chain)
        return Naming(
            document={**self.document, "nodes": nodes, "edges": list(self.edges(ends, nodes))},
            origins=tuple(origins), unknown=unknown, unplaced=unplaced, modules=tuple(modules),
            foreign=not all(row.own or self.told(row) for row in self.rows),
        )  # fmt: skip

    def told(self, row: _Row) -> bool:
        """Whether the kind of an operator says enough.

        What exchanges tokens may be dispatch, combine, or neither; what ends a phase may move its K/V, or not.
        """
        exchanges = row.node.get("op") == "all_to_all" and row.layer in self.moes
        return is_told(row.node) and not exchanges and not self.ends_phase(row)

    def ends_phase(self, row: _Row) -> bool:
        """Whether a collective goes to the boundary of a phase: it is of no layer."""
        return row.node.get("op") in COLLECTIVE_OPS and _key(row.node.get("id")) in self.last

    def operators(self, row: _Row) -> tuple[str, ...]:
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

    def place(self, row: _Row, names: Sequence[str]) -> None:
        """Fill in what the name says of where a node is, and of what kind it is."""
        node, places = row.node, row.places
        for key in ("layer", "stage"):
            if key in places and key not in node:
                node[key] = places[key]
        if self.ends_phase(row):
            node.setdefault("layer", None)
        if "ranks" not in node and (ranks := self.ranks(places)) is not None:
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

    def ranks(self, places: Mapping[str, int]) -> list[int] | None:
        """Return the ranks that numbers in a name tell."""
        if "rank" in places:
            return [places["rank"]]
        if "first" in places and 0 <= places.get("last", -1) - places["first"] < MOST_IN_NAME:
            return list(range(places["first"], places["last"] + 1))
        degrees = _degrees(self.document.get("plan"))
        if degrees is None or not {"tp", "sp", "pp", "dp"} & set(places):
            return [0] if degrees is not None and set(degrees.values()) == {1} else None
        rank = 0
        for axis in ("dp", "pp", "sp", "tp"):
            at = places.get(axis, places.get("stage", 0) if axis == "pp" else 0)
            if axis not in places and degrees[axis] > 1 and not (axis == "pp" and "stage" in places):
                return None
            rank = rank * degrees[axis] + at
        return [rank]

    def joined(self, told: Sequence[tuple[_Row, Sequence[str]]]) -> tuple[str, ...]:
        """Give collectives without ranks those of their neighbours, and return who has none all the same."""
        ranks: dict[Any, set[int]] = defaultdict(set)
        linked: set[Any] = set()
        known = {_key(row.node.get("id")): row.node.get("ranks") for row, _ in told}
        for source, target in self.ends():
            linked |= {source, target}
            for one, other in ((source, target), (target, source)):
                found = known.get(other)
                if isinstance(found, list) and all(type(rank) is int for rank in found):
                    ranks[one].update(found)
        unplaced = []
        for row, _ in told:
            if "ranks" in row.node:
                continue
            joins = row.node.get("op") in COLLECTIVE_OPS
            others = sorted(ranks[_key(row.node.get("id"))]) if joins else []
            if not others and not (
                joins and _key(row.node.get("id")) not in linked
            ):  # what hangs on nothing is RUN-1's
                unplaced.append(row.name)
            row.node["ranks"] = others or [0]
        return tuple(dict.fromkeys(unplaced))

    def ends(self) -> Iterator[tuple[Any, Any]]:
        edges = self.document.get("edges")
        for edge in edges if isinstance(edges, list) else ():
            if isinstance(edge, dict):
                yield _key(edge.get("source")), _key(edge.get("target"))

    def edges(self, ends: Mapping[Any, tuple[Any, Any]], nodes: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        edges = self.document.get("edges", [])
        for edge in edges if isinstance(edges, list) else [edges]:
            if isinstance(edge, dict):
                changed = dict(edge)
                for key, side in (("source", 1), ("target", 0)):
                    if (found := ends.get(_key(edge.get(key)))) is not None:
                        changed[key] = found[side]
                yield changed
            else:
                yield edge
        for before, after in pairwise(nodes):
            if after.get("id") in (chained := _inside(before)):
                yield {"source": before.get("id"), "target": chained[0]}


_ROUNDS: Final = 2
"""An addition may be behind a norm that is told by what is before it."""

MOST_IN_NAME: Final = 4096
"""More ranks than a name tells."""

OP_WORDS: Final = {
    **{op.replace("_", ""): op for op in OPS},
    **dict.fromkeys(("matmul", "linear", "dense", "mm", "addmm"), "gemm"),
    **dict.fromkeys(("layernorm", "rmsnorm", "norm", "add", "elementwise", "activation", "embedding"), "memory"),
    "alltoall": "all_to_all",
    "p2psend": "send",
    "p2precv": "recv",
}
"""Kind of operator as other programs write it, in small letters alone → as step graphs have it."""

TELLING: Final = ("op", "type", "op_type", "module", "rank", "gpu", "gpus", "device", "devices", "layer_id", "xlabel")
"""Attributes beside the label that may tell what an operator is, or where."""


def _texts(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield what may name a node or its place: its name, its id, its other texts, the clusters around it."""
    if isinstance(node.get("name"), str):
        yield node["name"]
    said = [pair for pair in node.get("said", ()) if isinstance(pair[1], str)]
    for key, text in said:
        if key == "label":
            yield from text.split("\n")
    for key, text in said:
        if key in ("id", "cluster"):
            yield text
    if not said and isinstance(node.get("id"), str):
        yield node["id"]
    for key, text in said:
        if key in TELLING:
            yield f"{key} {text}"
            yield text


def _phase(node: Mapping[str, Any]) -> str | None:
    """Return the phase whose tokens an operator takes, where it says what it takes, and that is of one phase."""
    amount = node.get("amount")
    terms = amount.get("terms") if isinstance(amount, Mapping) else None
    found = {str(term).partition("_")[0] for term in terms} if isinstance(terms, Mapping) else set()
    return found.pop() if found in ({"prefill"}, {"decode"}) else None


def _degrees(plan: Any) -> dict[str, int] | None:
    if not isinstance(plan, dict):
        return None
    found = {}
    for axis in ("dp", "pp", "sp", "tp"):
        degree = plan.get(axis, 1)
        degree = degree.get("degree", 1) if isinstance(degree, dict) else degree
        if type(degree) is not int or degree < 1:
            return None
        found[axis] = degree
    return found


def _chain(node: Mapping[str, Any], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a node for each operator that it is."""
    if len(names) <= 1:
        yield {**node, **({"name": names[0]} if names else {})}
        return
    kept = {key: node[key] for key in ("ranks", "layer", "stage") if key in node}
    for at, name in enumerate(names):
        yield {"id": f"{node.get('id')}{_LINK}{at}", "name": name, "op": kind_of(name), **kept}


_LINK: Final = "\x1f"
"""Between the id of a module and the number of an operator in it."""


def _inside(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the id of the next operator of the same module, if a node is in one."""
    identity = node.get("id")
    if not isinstance(identity, str) or _LINK not in identity:
        return ()
    head, _, at = identity.rpartition(_LINK)
    return (f"{head}{_LINK}{int(at) + 1}",) if at.isdecimal() else ()


def _key(identity: Any) -> Any:
    return identity if isinstance(identity, int | str) else None
