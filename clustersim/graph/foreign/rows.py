"""What a node of a document in other names says of itself: what it may be called, and where it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from clustersim.graph.blueprint import OPS
from clustersim.graph.foreign.names import Named, NameTable, read_name
from clustersim.graph.vocabulary import is_known
from clustersim.values import dataclass

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


@dataclass(slots=True, kw_only=True)
class Row:
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


class RowReader:
    """Reads nodes, and each text once.

    Parameters
    ----------
    tables : sequence of NameTable
        What names mean.
    """

    def __init__(self, tables: Sequence[NameTable]) -> None:
        self.tables = tables
        self.read: dict[str, Named] = {}

    def said(self, text: str) -> Named:
        """Return what a text says."""
        found = self.read.get(text)
        if found is None:
            found = self.read[text] = read_name(text, self.tables)
        return found

    def row(self, node: dict[str, Any]) -> Row:
        """Return what a node says: what it says itself, then its name, then its other texts and clusters."""
        own, node = is_own(node), dict(node)
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
        return Row(node=node, name=str(node["name"]), names=names, places=places, own=own, moment=moment)


def is_own(node: Mapping[str, Any]) -> bool:
    """Whether a node needs no other words; what one of the JSON of step graphs lacks, its reader tells."""
    said = {"name", "op", "ranks"} <= set(node) if "said" in node else "name" in node
    return is_known(node) if said else "said" not in node


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


def key_of(identity: Any) -> Any:
    return identity if isinstance(identity, int | str) else None
