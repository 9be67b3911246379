"""Names that say what an operator is beside others only: a norm, an addition, a gate, the output of the model.

What comes before and behind counts through collectives, which change nothing of what a value is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from clustersim.graph.vocabulary import ADD, CORE, FIRST, GATE, NORM, OUTPUT, UP

_FAR: Final = 4
"""Collectives in a row that are looked through."""

_INTO_ATTENTION: Final = ("qkv_proj", "q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj", CORE)
_INTO_FFN: Final = (
    "ffn_up", "gate_proj", "up_proj", FIRST, GATE, UP, "gate", "dispatch", "expert_up", "expert_gate_proj",
    "expert_up_proj", "shared_up", "shared_gate_proj", "shared_up_proj",
)  # fmt: skip
_OUT_OF_ATTENTION: Final = ("o_proj",)
_OUT_OF_FFN: Final = ("ffn_down", "aggregate", "combine", "expert_down", "shared_down", "shared_add")
_GATED: Final = ("ffn_mul", "ffn_act", "ffn_down")
_BEHIND_PRODUCTS: Final = {
    "q_proj": "q_norm",
    "k_proj": "k_norm",
    "q_a_proj": "q_a_norm",
    "kv_a_proj": "kv_a_norm_rope",
}


class Neighbours:
    """What the nodes of a graph are called that nodes read, or that read them.

    Parameters
    ----------
    ends : iterable of (key, key)
        Edges.
    names : mapping
        Node → the operators it stands for, in order; none where that is not known.
    through : collection
        Nodes that are collectives.
    """

    def __init__(
        self, ends: Iterable[tuple[Any, Any]], names: Mapping[Any, tuple[str, ...]], through: Collection[Any]
    ) -> None:
        self._names, self._through = names, through
        self._gated = any("gate_proj" in some for some in names.values())
        self._into: dict[Any, list[Any]] = defaultdict(list)
        self._out: dict[Any, list[Any]] = defaultdict(list)
        for source, target in ends:
            self._out[source].append(target)
            self._into[target].append(source)

    def meaning(self, name: str, node: Any, op: object, layer: int | None) -> str | None:
        """Return the operator that a name means beside its neighbours; None where they do not tell.

        Parameters
        ----------
        name : str
            Of :data:`clustersim.graph.vocabulary.BESIDE`.
        node, op, layer
            Its key, the kind of operator that it says it is, and its layer.
        """
        before, behind = (self._near(node, links) for links in (self._into, self._out))
        beside = [other for one in before for other in self._near(one, self._out)]
        around = _Around(
            self._called(before, -1), self._called(behind, 0), self._called(beside, 0), op, layer, self._gated
        )
        return _MEANINGS[name](around)

    def _called(self, nodes: Iterable[Any], end: int) -> set[str]:
        """Return the first (0) or the last (−1) operators that nodes stand for."""
        return {self._names[one][end] for one in nodes if self._names.get(one)}

    def _near(self, node: Any, links: Mapping[Any, list[Any]]) -> list[Any]:
        """Return what a node is linked to, through collectives."""
        edge, seen, near = [node], {node}, list[Any]()
        for _ in range(_FAR):
            found = dict.fromkeys(other for one in edge for other in links.get(one, ()) if other not in seen)
            seen.update(found)
            near += (one for one in found if one not in self._through)
            edge = [one for one in found if one in self._through]
        return near


class _Around(NamedTuple):
    """What makes what an operator reads, what reads what it makes, what reads the same, its kind and its layer.

    And whether anything in the graph is called the activated projection of an FFN.
    """

    before: set[str]
    behind: set[str]
    beside: set[str]
    op: object
    layer: int | None
    gated: bool


def _norm(around: _Around) -> str | None:
    if around.behind.intersection(_INTO_ATTENTION):
        return "attention_norm"
    if around.behind.intersection(_INTO_FFN):
        return "ffn_norm"
    if around.layer is None or around.behind.intersection(("lm_head", OUTPUT)):
        return "final_norm"
    for source, name in _BEHIND_PRODUCTS.items():
        if source in around.before:
            return name
    if around.before.intersection(_OUT_OF_ATTENTION):
        return "attention_post_norm"
    return "ffn_post_norm" if around.before.intersection(_OUT_OF_FFN) else None


def _add(around: _Around) -> str | None:
    if around.before.intersection((*_OUT_OF_ATTENTION, "attention_post_norm", CORE)):
        return "attention_add"
    return "ffn_add" if around.before.intersection((*_OUT_OF_FFN, "ffn_post_norm")) else None


def _output(around: _Around) -> str:
    projects = around.op == "gemm" or around.before.intersection(("final_norm", NORM))
    return "lm_head" if projects else "sample"


def _first(around: _Around) -> str:
    return "gate_proj" if GATE in around.beside else "ffn_up"


def _gate(around: _Around) -> str:
    return "up_proj" if FIRST in around.beside or around.behind.intersection(_GATED) else "gate"


def _up(around: _Around) -> str:
    return "up_proj" if around.gated else "ffn_up"


_MEANINGS: Final[Mapping[str, Callable[[_Around], str | None]]] = {
    NORM: _norm, ADD: _add, OUTPUT: _output, FIRST: _first, GATE: _gate, UP: _up,
}  # fmt: skip
