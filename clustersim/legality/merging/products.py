"""Operators in several parts: three projections into heads, gate and up apart, an activation and a product.

Y = X·[A B] is [X·A X·B], so products of one input are one product whose columns are theirs together. That holds where
all parts take the same input for the same tokens, and where each part reaches what reads it: see :data:`READERS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from clustersim.graph.blueprint import Node
from clustersim.legality.merging.rows import Link, Row, Rows
from clustersim.model.architecture import Attention, Ffn, Moe
from clustersim.values import dataclass

PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj")
GATED: Final[Mapping[str, tuple[str, str]]] = {
    "ffn_up": ("gate_proj", "up_proj"),
    "expert_up": ("expert_gate_proj", "expert_up_proj"),
    "shared_up": ("shared_gate_proj", "shared_up_proj"),
}
ROPES: Final = ("rope", "qk_norm_rope")
CORES: Final = ("attention_prefill", "attention_decode")

READERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "q_proj": (("q_norm",), ("q_rope",), ROPES, CORES),
    "k_proj": (("k_norm",), ("k_rope",), ROPES, ("kv_write",)),
    "v_proj": (ROPES, ("kv_write",)),
    "q_norm": (("q_rope",), ROPES, CORES),
    "k_norm": (("k_rope",), ROPES, ("kv_write",)),
    "q_rope": (CORES,),
    "k_rope": (("kv_write",),),
    "gate_proj": (("ffn_act",),),
    "up_proj": (("ffn_mul",), ("ffn_act",)),
    "expert_gate_proj": (("expert_act",),),
    "expert_up_proj": (("expert_act",),),
    "shared_gate_proj": (("shared_act",),),
    "shared_up_proj": (("shared_act",),),
    "ffn_act": (("ffn_mul",),),
}
"""Part → groups of operators: all that is there of the first group that is there must read it, of ``v_proj`` of any."""

FIX: Final = "draw the parts so that together they are the operator of the single-device graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Operators of one place that are one: which, of what name together, and whether they take one input."""

    whole: str
    rows: dict[str, int]
    parallel: bool = True


def merge_products(rows: Rows) -> None:
    """Put operators that are in parts together, and note which are not what they should be together."""
    for cell, names in list(rows.cells().items()):
        model, layer = rows.found.model, cell[1]
        spec = model.layers[layer] if model is not None and 0 <= layer < len(model.layers) else None
        attention = spec.attention if spec is not None else None
        ffn = spec.ffn if spec is not None else None
        here = {name: found[0] for name, found in names.items() if len(found) == 1 or name in CORES}
        for name, found in names.items():
            if name in READERS and len(found) > 1:
                rows.breaks("TP-8", found[1], f"{name} is there {len(found)} times", FIX)
        for part, at in here.items():
            _read(rows, part, at, names)
        for parts in _to_merge(here, ffn):
            lacks = [name for name, at in parts.rows.items() if at < 0]
            if lacks:
                at = next(at for at in parts.rows.values() if at >= 0)
                rows.breaks("TP-8", at, f"there is no {' and no '.join(lacks)} beside it", FIX)
            elif not parts.parallel or _alike(rows, parts):
                _widths(rows, parts, attention)
                _merge(rows, parts)


def _to_merge(here: Mapping[str, int], ffn: Ffn | Moe | None) -> Iterator[_Parts]:
    """Yield what is to be put together; −1 stands for a part that lacks."""

    def of(whole: str, *names: str, parallel: bool = True) -> _Parts:
        return _Parts(whole=whole, rows={name: here.get(name, -1) for name in names}, parallel=parallel)

    norms = [name for name in ("q_norm", "k_norm") if name in here]
    ropes = [name for name in ("q_rope", "k_rope") if name in here]
    if norms:
        yield of("qk_norm_rope", "q_norm", "k_norm", *(("q_rope", "k_rope") if ropes else ("rope",)), parallel=False)
    elif ropes:
        yield of("rope", "q_rope", "k_rope", parallel=False)
    if any(name in here for name in PROJECTIONS):
        yield of("qkv_proj", *PROJECTIONS)
    if "ffn_mul" in here:
        yield of("ffn_act", "ffn_act", "ffn_mul", parallel=False)
    for whole, (gate, up) in GATED.items():
        if gate in here:
            yield of(whole, gate, up)
        elif up in here:
            yield of(whole, gate, up) if ffn is not None and ffn.gated else of(whole, up)


def _read(rows: Rows, part: str, at: int, names: Mapping[str, list[int]]) -> None:
    """Note where a part does not reach what must read it."""
    groups = READERS.get(part, ())
    present = [[one for name in group for one in names.get(name, ())] for group in groups]
    needed = [group for group in present if group]
    targets = {target for target, _ in rows.out[at]}
    if not needed or (part == "ffn_act" and "ffn_mul" not in names):
        return
    enough = needed if part == "v_proj" else needed[:1]
    if not any(targets.issuperset(group) for group in enough):
        reader = next((one for one in needed[0] if one not in targets), needed[0][0])
        rows.breaks("TP-8", at, f"{rows.rows[reader].node.name} does not read {part}", FIX)


def _alike(rows: Rows, parts: _Parts) -> bool:
    """Whether parts take one input for the same tokens; notes where they do not."""
    (first_name, first), *others = parts.rows.items()
    for name, at in others:
        if rows.into[at] != rows.into[first]:
            rows.breaks("TP-8", at, f"{name} does not read what {first_name} reads", FIX)
            return False
        one, two = rows.rows[first], rows.rows[at]
        amounts = [{*row.node.amount} for row in (one, two) if row.node.amount]
        values = [row.figures[0] for row in (one, two) if row.figures[0] == row.figures[0]]
        for key, different in (
            ("amount", len(amounts) == 2 and amounts[0] != amounts[1]),
            ("amount", len(values) == 2 and values[0] != values[1]),
            ("k", not (one.unsaid | two.unsaid) & {"k"} and one.node.k != two.node.k),
        ):
            if different:
                rows.breaks(
                    "TP-9", at, f"{key} of {name} is not that of {first_name}, which takes the same tokens", FIX
                )
                return False
    return True


def _widths(rows: Rows, parts: _Parts, attention: Attention | None) -> None:
    """Note columns that add up and are not each part's own."""
    said = {name: rows.rows[at].node.n for name, at in parts.rows.items() if "n" not in rows.rows[at].unsaid}
    if len(said) < len(parts.rows) or len(said) < 2:
        return
    if parts.whole in GATED:
        gate, up = GATED[parts.whole]
        if said[gate] != said[up]:
            rows.breaks("TP-9", parts.rows[up], f"{up} has {said[up]} columns, and {gate} {said[gate]}", FIX)
    elif parts.whole == "qkv_proj" and attention is not None:
        plan = rows.found.plan
        queries = attention.num_heads * attention.head_dim // max(1, plan.tp if plan is not None else 1)
        if plan is not None and said["q_proj"] != queries:
            rows.breaks(
                "TP-9", parts.rows["q_proj"], f"q_proj has {said['q_proj']} columns, where {queries} are its heads", FIX
            )
        if said["k_proj"] * attention.v_head_dim != said["v_proj"] * attention.head_dim:
            rows.breaks(
                "TP-9", parts.rows["v_proj"], f"v_proj has {said['v_proj']} columns, and k_proj {said['k_proj']}", FIX
            )


def _merge(rows: Rows, parts: _Parts) -> None:
    members = list(parts.rows.values())
    found = [rows.rows[at] for at in members]
    first = found[0]
    unsaid = frozenset().union(*(row.unsaid for row in found))
    node = replace(first.node, name=parts.whole)
    if parts.parallel:
        node = replace(node, n=sum(row.node.n for row in found), width=sum(row.node.width for row in found))
    else:
        node, unsaid = _elementwise(node, found, unsaid)
    figures = (first.figures[0], sum(row.figures[1] for row in found), float("nan"))
    values = {name: set(rows.out[at]) for name, at in parts.rows.items()}
    at = min(members) if parts.parallel else max(members)
    rows.merge(members, Row(node=node, cell=first.cell, unsaid=unsaid, figures=figures), at=at)
    if parts.whole == "qkv_proj":
        _passed_on(rows, at, values["v_proj"] - values["q_proj"] - values["k_proj"])


def _elementwise(node: Node, found: list[Row], unsaid: frozenset[str]) -> tuple[Node, frozenset[str]]:
    """Return one element-wise operator for several: of what they move nothing is said."""
    shapes = {(row.node.heads, row.node.kv_heads, row.node.qk_dim, row.node.v_dim) for row in found}
    lost = {"amount"} | ({"heads", "kv_heads", "qk_dim", "v_dim"} if len(shapes) > 1 else set())
    return replace(node, amount=(), least=()), unsaid | lost


def _passed_on(rows: Rows, at: int, past: set[Link]) -> None:
    """Drop the edges by which values go past the rotation: in step graphs it hands them on with queries and keys."""
    if not any(rows.rows[one].node.name in ROPES for one, _ in rows.out[at]):
        return
    for target, _ in past:
        if target in rows.rows and rows.rows[target].node.name in ("kv_write", *CORES):
            rows.cut(at, target)
