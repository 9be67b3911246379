"""An adversary of level G: every single change of a step graph, field by field, as columns and as a JSON file.

A change is told by its class, what it does to which field of which operator or edge: of many that are alike one is
drawn. Graphs are small, and of ten kinds of plan. What must be caught and what changes nothing is decided elsewhere
(``test_single_changes.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import Any, Final

import numpy as np
from foreign_cases import Document, document_of
from formats import TEXTS
from graph_cases_small import GATHER, PRECISION, RING, changed, cut, drawn, valued
from omissions import doubled, dropped
from plans import EXPERTS, GQA, LATENT, model, normed

from clustersim.errors import InputError
from clustersim.graph.batch import Chunk
from clustersim.graph.blueprint import EDGE_KINDS, OPS, STREAMS, Node
from clustersim.graph.steps import DecodeToken
from clustersim.graph.variant import read_variant
from clustersim.legality.graph_rules.views.graph import GraphView
from clustersim.legality.graph_rules.views.pairs import MOST_TOKENS
from clustersim.legality.graph_rules.views.reading import windows
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, TensorSplit
from clustersim.simulation.foreign.graph import check_read
from clustersim.simulation.foreign.graph_file import graph_in
from clustersim.simulation.graph_legality import StepContents, batch_of, graph_view, lockstep_story, story
from tests.laws.graph_cases import Case

MOE: Final = replace(EXPERTS, num_shared_experts=1, shared_intermediate=24)
WINDOW: Final = replace(GQA, sliding_window=4)
MIXED: Final = model(layers=1).layers + model(WINDOW, MOE, layers=1).layers
ROWS: Final = TensorSplit(
    ffn_up="rows", ffn_down="columns", attention_out="columns", lm_head="hidden", embedding="hidden"
)

GRAPHS: Final[dict[str, tuple[ModelSpec, ParallelPlan]]] = {
    "dense": (model(layers=2), ParallelPlan(tp=2)),
    "stages": (model(layers=3), ParallelPlan(tp=2, pp=2, dp=2, stages=(Cut(layer=1),))),
    "cut at ffn": (model(ffn=EXPERTS, layers=3), ParallelPlan(tp=2, pp=2, stages=(Cut(layer=1, before="ffn"),))),
    "copied heads": (model(layers=2), ParallelPlan(tp=8)),
    "other splits": (model(layers=2), ParallelPlan(tp=2, split=ROWS)),
    "latent": (model(LATENT, MOE, layers=2), ParallelPlan(tp=2, ep=ExpertPlan(degree=2))),
    "experts": (model(ffn=EXPERTS, layers=2), ParallelPlan(tp=4, ep=ExpertPlan(degree=2))),
    "ring": (model(layers=2), ParallelPlan(tp=2, sp=replace(RING, degree=3))),
    "ring of stages": (model(layers=2), ParallelPlan(pp=2, tp=2, sp=replace(RING, degree=2), stages=(Cut(layer=1),))),
    "stripes": (model(layers=2), ParallelPlan(tp=2, sp=replace(RING, degree=2, partition="striped"))),
    "gather": (model(LATENT, layers=2), ParallelPlan(tp=2, sp=replace(GATHER, degree=2))),
    "gathered heads": (model(layers=2), ParallelPlan(tp=2, sp=GATHER)),
    "by heads": (model(layers=2), ParallelPlan(tp=2, sp=replace(RING, degree=2, scheme="all_to_all"))),
    "halves": (model(ffn=EXPERTS, layers=2), ParallelPlan(tp=2, ep=ExpertPlan(degree=2, overlap="two_batch"))),
    "shared": (model(ffn=EXPERTS, layers=2), ParallelPlan(tp=2, dp=2, ep=ExpertPlan(degree=4, scope="global"))),
    "windows": (replace(model(), layers=MIXED), ParallelPlan(tp=2)),
    "normed": (normed(model(layers=2)), ParallelPlan(tp=2)),
    "normed experts": (
        normed(model(ffn=MOE, layers=2)), ParallelPlan(tp=2, pp=2, stages=(Cut(layer=1, before="ffn"),))
    ),
}  # fmt: skip

Label = tuple[str, ...]
"""Class of a change: field, what is done, operator (or both ends), kind of step."""


@cache
def view_of(name: str) -> GraphView:
    """Return the graph of every kind of step under a plan."""
    spec, plan = GRAPHS[name]
    if not plan.is_lockstep:
        return graph_view(spec, plan, PRECISION, in_full=True, steps=story(plan))
    together = plan.lockstep
    return graph_view(spec, together, PRECISION, in_full=True, steps=lockstep_story(together))


STEPS: Final = {
    "mixed": StepContents(
        chunks=(Chunk(request=0, start=0, count=7), Chunk(request=1, start=5, count=9)),
        decodes=(DecodeToken(request=2, position=11), DecodeToken(request=3, position=6)),
    ),
    "prefill": StepContents(chunks=(Chunk(request=0, start=4, count=13),)),
    "decode": StepContents(decodes=(DecodeToken(request=2, position=11), DecodeToken(request=3, position=6))),
    "long prefill": StepContents(chunks=(Chunk(request=0, start=4, count=MOST_TOKENS + 13),)),
}


@cache
def _text_of(name: str, kind: str) -> str:
    spec, plan = GRAPHS[name]
    batch = batch_of(STEPS[kind], plan, spec)
    case = Case(model=spec, plan=plan, batch=batch, prefills=(), decodes=())
    assert case.windows == windows(spec)
    devices = [f"gpu{rank}" for rank in range(plan.replica_ranks)]
    return json.dumps(document_of(case) | {"devices": devices})


def document(name: str, kind: str) -> Document:
    """Return the JSON of one step under a plan."""
    return json.loads(_text_of(name, kind))  # type: ignore[no-any-return]


WRITTEN: Final = tuple(
    (name, kind) for name, (_, plan) in GRAPHS.items() for kind in STEPS
    if not plan.is_two_batch and not plan.is_lockstep
)  # fmt: skip
"""Graphs that are tried as files as well."""


def verdict_of(found: Document, suffix: str = ".json") -> str:
    """Return the verdict on a file of a format; ``refused`` where it contradicts itself."""
    try:
        return check_read(graph_in(TEXTS[suffix](found), f"graph{suffix}", suffix)).verdict
    except InputError:
        return "refused"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of one graph."""

    graph: str
    label: Label
    make: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.graph}: {' '.join(self.label)}"


# --- columns --------------------------------------------------------------------------------------------------------

Made = tuple[Label, Callable[[], GraphView]]

_TEXTS: Final[dict[str, tuple[str | None, ...]]] = {
    "op": OPS,
    "module": ("attention", "ffn", "moe", "lm_head", "embedding", "host"),
    "stream": STREAMS,
    "axis": (None, "tp", "sp", "stage", "expert_tp"),
    "variant": tuple(map(read_variant, ("", "@3", "@4", "#0", "#1", "*"))),
    "where": ("all", "s0"),
    "rule": ("replicate", "columns", "rows", "heads"),
}
_NUMBERS: Final = tuple(field.name for field in fields(Node) if field.type == "int")
_DEFAULTS: Final = {field.name: field.default for field in fields(Node)}
_TRUTHS: Final = tuple(field.name for field in fields(Node) if field.type == "bool")


def _others(now: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(value for value in (now * 2, now // 2, now + 1, 0, 3) if value != now))


def of_view(name: str, random: Random) -> Iterator[Change]:
    """Yield a change of every class, in columns; which of many that are alike is drawn."""
    view = view_of(name)
    for part in (_of_nodes, _of_members, _of_edges, _of_more_edges, _of_steps):
        for label, make in part(view, random):
            yield Change(graph=name, label=label, make=make)


def _kind_of(view: GraphView, node: int) -> str:
    return view.steps[int(view.step[node])].kind


def _name_of(view: GraphView, node: int) -> str:
    return view.symbols[int(view.symbol[node])].name


def _classes(view: GraphView, random: Random) -> Iterator[tuple[Label, int]]:
    alike: dict[Label, list[int]] = {}
    for node in range(len(view)):
        alike.setdefault((_name_of(view, node), _kind_of(view, node)), []).append(node)
    for label, nodes in alike.items():
        yield label, random.choice(nodes)


def _of_nodes(view: GraphView, random: Random) -> Iterator[Made]:
    names = sorted({symbol.name for symbol in view.symbols})
    for label, node in _classes(view, random):
        symbol = view.symbols[int(view.symbol[node])]
        for field, values in {"name": tuple(names), **_TEXTS}.items():
            rest = [value for value in values if value != getattr(symbol, field)]
            for value in random.sample(rest, min(len(rest), 3)):
                yield (field, str(value), *label), lambda node=node, f=field, v=value: changed(view, [node], **{f: v})
        for field in _NUMBERS:
            for value in _others(getattr(symbol, field)):
                yield (field, "other", *label), lambda node=node, f=field, v=value: changed(view, [node], **{f: v})
        for field in _TRUTHS:
            value = not getattr(symbol, field)
            yield (field, "turned", *label), lambda node=node, f=field, v=value: changed(view, [node], **{f: v})
        for column in ("amount", "attended"):
            now = float(getattr(view, column)[node])
            if np.isnan(now):
                continue
            for what, value in (("half", now / 2), ("more", now * 1.05), ("one more", now + 1), ("none", 0.0)):
                if value != now:
                    yield (
                        (column, what, *label),
                        lambda node=node, c=column, v=value: valued(view, [node], c, lambda _: v),
                    )
        for column in ("layer", "stage", "step"):
            least, most = (-1 if column == "layer" else 0), int(getattr(view, column).max())
            now = int(getattr(view, column)[node])
            rest = [value for value in range(least, most + 1) if value != now]
            for value in random.sample(rest, min(len(rest), 2)):
                yield (
                    (column, "other", *label),
                    lambda node=node, c=column, v=value: replace(view, **{c: _put(getattr(view, c), node, v)}),
                )
        yield ("node", "dropped", *label), lambda node=node: dropped(view, [node])
        yield ("node", "doubled", *label), lambda node=node: doubled(view, node)


def _put(column: Any, at: int, value: Any) -> Any:
    found = column.copy()
    found[at] = value
    return found


def _of_members(view: GraphView, random: Random) -> Iterator[Made]:
    for label, node in _classes(view, random):
        at = random.choice(np.flatnonzero(view.member_node == node).tolist())
        kept = np.arange(len(view.member_node)) != at
        yield ("rank", "dropped", *label), lambda kept=kept: _kept(view, kept)
        absent = np.setdiff1d(np.arange(view.num_ranks), view.member_rank[view.member_node == node])
        if len(absent):
            other = random.choice(absent.tolist())
            yield (
                ("rank", "other", *label),
                lambda at=at, other=other: replace(view, member_rank=_put(view.member_rank, at, other)),
            )
            yield (
                ("rank", "added", *label),
                lambda at=at, other=other: replace(
                    view, member_node=np.append(view.member_node, view.member_node[at]),
                    member_position=np.append(view.member_position, view.member_position[at]),
                    member_rank=np.append(view.member_rank, other),
                ),
            )  # fmt: skip
        same = np.flatnonzero(view.member_rank == view.member_rank[at])
        same = same[np.argsort(view.member_position[same], kind="stable")]
        place = int(np.flatnonzero(same == at)[0])
        for what, target in (("next", place + 1), ("far", random.randrange(len(same)))):
            if target < len(same) and target != place:
                yield (
                    ("position", what, *label),
                    lambda at=at, other=int(same[target]): replace(
                        view,
                        member_position=_put(
                            _put(view.member_position, at, view.member_position[other]),
                            other,
                            view.member_position[at],
                        ),
                    ),
                )


def _kept(view: GraphView, members: Any) -> GraphView:
    columns = ("member_node", "member_rank", "member_position")
    return replace(view, **{name: getattr(view, name)[members] for name in columns})


def _like(view: GraphView, node: int, random: Random) -> dict[str, int]:
    """Return nodes that might be mistaken for one: in which way → node."""
    rank, layer, step, symbol = view.rank, view.layer, view.step, view.symbol
    named = np.array([s.name == _name_of(view, node) for s in view.symbols], bool)[symbol]
    own = view.takes_part(np.arange(len(view)), np.full(len(view), rank[node]))
    here = step == step[node]
    ways = {
        "of another layer": named & own & here & (layer != layer[node]),
        "of another rank": named & ~own & here & (layer == layer[node]),
        "of another step": named & own & ~here & (layer == layer[node]),
        "beside it": ~named & own & here & (layer == layer[node]),
        "anywhere in its step": here & ~named,
    }
    found = {}
    for way, mask in ways.items():
        nodes = np.flatnonzero(mask)
        if len(nodes):
            found[way] = random.choice(nodes.tolist())
    return found


def _of_edges(view: GraphView, random: Random) -> Iterator[Made]:
    alike: dict[Label, list[int]] = {}
    for edge, (source, target) in enumerate(zip(view.source.tolist(), view.target.tolist(), strict=True)):
        across = "on" if view.step[source] != view.step[target] else ""
        label = (f"{_name_of(view, source)}→{_name_of(view, target)}{across}", _kind_of(view, target))
        alike.setdefault(label, []).append(edge)
    for label, edges in alike.items():
        edge = random.choice(edges)
        yield ("edge", "dropped", *label), lambda edge=edge: cut(view, [edge])
        ends = int(view.source[edge]), int(view.target[edge]), EDGE_KINDS[int(view.kind[edge])]
        yield ("edge", "doubled", *label), lambda ends=ends: drawn(view, [ends])
        yield (
            ("edge", "turned round", *label),
            lambda edge=edge, ends=ends: replace(
                view, source=_put(view.source, edge, ends[1]), target=_put(view.target, edge, ends[0])
            ),
        )
        for kind, word in enumerate(EDGE_KINDS):
            if kind != view.kind[edge]:
                yield (
                    ("edge", f"of kind {word}", *label),
                    lambda edge=edge, kind=kind: replace(view, kind=_put(view.kind, edge, kind)),
                )
        for end in ("source", "target"):
            for way, other in _like(view, int(getattr(view, end)[edge]), random).items():
                yield (
                    ("edge", f"{end} {way}", *label),
                    lambda edge=edge, end=end, other=other: replace(
                        view, **{end: _put(getattr(view, end), edge, other)}
                    ),
                )


def _of_more_edges(view: GraphView, random: Random) -> Iterator[Made]:
    """Yield edges more: from each operator to such as come later, in its layer, another one, another rank or step."""
    there = set(zip(view.source.tolist(), view.target.tolist(), strict=True))
    for label, node in _classes(view, random):
        for way, other in _like(view, node, random).items():
            first, second = sorted((node, other))
            if (first, second) not in there:
                for kind in random.sample(("data", "kv", "order", "sync", "boundary"), 2):
                    yield (
                        ("more edges", f"{kind} {way}", *label),
                        lambda ends=(first, second, kind): drawn(view, [ends]),
                    )


def _of_steps(view: GraphView, random: Random) -> Iterator[Made]:
    del random
    for at, step in enumerate(view.steps):
        changes: list[tuple[str, dict[str, Any]]] = []
        for number, chunk in enumerate(step.chunks):
            for field, value in (
                ("start", chunk.start + 1), ("count", chunk.count + 1), ("count", chunk.count - 1),
                ("request", chunk.request + 7), ("owner", 1 - chunk.owner),
            ):  # fmt: skip
                if field == "owner" and (view.plan is None or view.plan.sp.degree == 1):
                    continue
                chunks = list(step.chunks)
                chunks[number] = replace(chunk, **{field: value})  # type: ignore[arg-type]
                changes.append((f"chunk.{field}", {"chunks": tuple(chunks)}))
        for number, token in enumerate(step.decodes or ()):
            for field, value in (("position", token.position + 1), ("tokens", 2), ("request", token.request + 7)):
                tokens = list(step.decodes or ())
                tokens[number] = replace(token, **{field: value})
                changes.append((f"decode.{field}", {"decodes": tuple(tokens)}))
        for field, value in (("lane", step.lane + 1), ("kind", "decode" if step.kind != "decode" else "prefill")):
            changes.append((f"step.{field}", {field: value}))
        for field, change in changes:
            steps = (*view.steps[:at], replace(step, **change), *view.steps[at + 1 :])
            yield (field, "other", step.kind), lambda steps=steps: replace(view, steps=steps)


# --- files ----------------------------------------------------------------------------------------------------------


def of_file(name: str, kind: str, random: Random) -> Iterator[Change]:
    """Yield a change of every class of the JSON of one step."""
    text = _text_of(name, kind)
    for label, change in (*_of_keys(name, kind, random), *_of_lines(name, kind, random), *_of_head(name, kind)):

        def make(change: Callable[[Document], None] = change) -> Document:
            found = json.loads(text)
            change(found)
            return found  # type: ignore[no-any-return]

        yield Change(graph=f"{name}, {kind}", label=("file", *label), make=make)


Edit = tuple[Label, Callable[[Document], None]]


def _scaled(node: dict[str, Any], factor: float) -> None:
    """Scale an amount in all of the ways in which a node says it."""
    amount = node["amount"]
    for part in ("terms", "least"):
        if part in amount:
            amount[part] = {feature: factor * value for feature, value in amount[part].items()}
    amount["value"] *= factor
    for key in ("flops", "bytes"):
        if key in node:
            node[key] *= factor


def _said(node: dict[str, Any], value: float) -> None:
    """Say another amount, for this step only."""
    node["amount"] = {"value": value}
    node.pop("flops", None)
    node.pop("bytes", None)


def _of_keys(name: str, kind: str, random: Random) -> Iterator[Edit]:
    found = document(name, kind)
    alike: dict[str, list[int]] = {}
    for at, node in enumerate(found["nodes"]):
        alike.setdefault(node["name"], []).append(at)
    names, ranks = sorted(alike), sorted({rank for node in found["nodes"] for rank in node["ranks"]})
    said = {key: tuple(None if value is None else str(value) for value in values) for key, values in _TEXTS.items()}
    texts = {"name": tuple(names), **said}
    for operator, nodes in alike.items():
        at = random.choice(nodes)
        node = found["nodes"][at]

        def put(key: str, value: Any, at: int = at) -> Callable[[Document], None]:
            return lambda document: document["nodes"][at].update({key: value})

        for key in (*texts, *_NUMBERS, *_TRUTHS, "layer", "stage", "unit", "flops", "bytes", "duration_ns"):
            now = node.get(key, str(_DEFAULTS[key]) if key == "variant" else _DEFAULTS.get(key))
            values: list[Any]
            if key in texts:
                rest = [value for value in texts[key] if value != now and value is not None]
                values = random.sample(rest, min(len(rest), 3))
            elif key in _TRUTHS:
                values = [not now]
            elif key in ("flops", "bytes", "duration_ns"):
                values = [now * 2, now / 2, now * 1.05, 0] if now else [1000]
            else:
                values = [value for value in (*_others(now or 0), None) if value != now]
            for value in values:
                yield (key, "none" if value is None else "other", operator), put(key, value)
        absent = [rank for rank in ranks if rank not in node["ranks"]]
        if absent:
            other = random.choice(absent)
            yield ("ranks", "other", operator), put("ranks", [other, *node["ranks"][1:]])
            yield ("ranks", "added", operator), put("ranks", sorted([*node["ranks"], other]))
        if len(node["ranks"]) > 1:
            yield ("ranks", "dropped", operator), put("ranks", node["ranks"][1:])
            yield ("ranks", "dropped", operator), put("ranks", node["ranks"][:-1])
        if "amount" in node:
            for what, factor in (("half", 0.5), ("more", 1.05), ("double", 2.0), ("none", 0.0)):
                yield ("amount", what, operator), lambda d, at=at, factor=factor: _scaled(d["nodes"][at], factor)
                value = factor * node["amount"]["value"]
                if value != node["amount"]["value"]:
                    yield ("value", what, operator), lambda d, at=at, value=value: _said(d["nodes"][at], value)
            for feature in ("tokens", "prefill_tokens", "decode_sequences", "rows", "sequences", "segment_tokens"):
                terms = node["amount"]["terms"]
                if len(terms) == 1 and feature not in terms:
                    (coefficient,) = terms.values()
                    bare = {"amount": {"terms": {feature: coefficient}}}
                    yield (
                        ("terms", feature, operator),
                        lambda d, at=at, bare=bare: (
                            d["nodes"][at].update(bare),
                            d["nodes"][at].pop("flops", None),
                            d["nodes"][at].pop("bytes", None),
                        ),
                    )  # type: ignore[misc]
        yield ("node", "dropped", operator), lambda d, at=at: _without(d, at)
        to = random.randrange(len(found["nodes"]))
        yield ("node", "moved", operator), lambda d, at=at, to=to: d["nodes"].insert(to, d["nodes"].pop(at))


def _without(document: Document, at: int) -> None:
    lost = document["nodes"].pop(at)["id"]
    document["edges"] = [edge for edge in document["edges"] if lost not in (edge["source"], edge["target"])]


def _of_lines(name: str, kind: str, random: Random) -> Iterator[Edit]:
    """Yield changes of edges: another end, another kind, away, twice, and more of them."""
    found = document(name, kind)
    nodes = found["nodes"]
    alike: dict[str, list[int]] = {}
    for at, edge in enumerate(found["edges"]):
        alike.setdefault(f"{nodes[edge['source']]['name']}→{nodes[edge['target']]['name']}", []).append(at)

    def put(at: int, key: str, value: Any) -> Callable[[Document], None]:
        return lambda document: document["edges"][at].update({key: value})

    for ends, edges in alike.items():
        at = random.choice(edges)
        edge = found["edges"][at]
        yield ("edge", "dropped", ends), lambda d, at=at: d["edges"].pop(at)
        yield ("edge", "doubled", ends), lambda d, at=at: d["edges"].append(dict(d["edges"][at]))
        for word in EDGE_KINDS:
            if word != edge["kind"]:
                yield ("edge", f"of kind {word}", ends), put(at, "kind", word)
        for end in ("source", "target"):
            for way, other in _alike(nodes, edge[end], random):
                yield ("edge", f"{end} {way}", ends), put(at, end, other)
    there = {(edge["source"], edge["target"]) for edge in found["edges"]}
    for at in {node["name"]: at for at, node in enumerate(nodes)}.values():
        for way, other in _alike(nodes, at, random):
            first, second = sorted((at, other))
            if (first, second) not in there:
                word = random.choice(("data", "kv", "order"))
                new = {"source": first, "target": second, "kind": word}
                yield ("more edges", f"{word} {way}", nodes[at]["name"]), lambda d, new=new: d["edges"].append(new)


def _alike(nodes: list[dict[str, Any]], at: int, random: Random) -> Iterator[tuple[str, int]]:
    own = nodes[at]
    ways = {
        "of another layer": lambda n: n["name"] == own["name"] and n["ranks"] == own["ranks"],
        "of another rank": lambda n: n["name"] == own["name"] and n["layer"] == own["layer"],
        "beside it": lambda n: n["layer"] == own["layer"] and set(n["ranks"]) & set(own["ranks"]),
        "anywhere": lambda _: True,
    }
    for way, test in ways.items():
        found = [number for number, node in enumerate(nodes) if number != at and test(node)]
        if found:
            yield way, random.choice(found)


def _of_head(name: str, kind: str) -> Iterator[Edit]:
    """Yield changes of every number and word of the step, plan, model and number formats that a file declares."""
    found = document(name, kind)

    def numbers(value: Any, here: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in inside:
            yield from numbers(inner, (*here, key))
        if not isinstance(value, dict | list):
            yield here, value

    for what, devices in _other_devices(found["devices"]):
        yield ("devices", what), lambda d, devices=devices: d.update(devices=devices)
    products = {node["name"] for node in found["nodes"]}
    for part in ("step", "plan", "model", "precision"):
        for place, value in numbers(found[part], (part,)):
            if place[:2] == ("plan", "split") and SPLIT_BY[place[2]] not in products:
                continue  # it splits nothing
            others: tuple[Any, ...] = ()
            if isinstance(value, bool):
                others = (not value,)
            elif isinstance(value, int):
                others = _others(value)
            elif isinstance(value, float):
                others = (value * 2,)
            elif isinstance(value, str) and part in ("plan", "precision"):
                others = tuple(word for word in _WORDS.get(place[-1], ()) if word != value)
            for other in others:
                path = ".".join(key for key in place if isinstance(key, str))
                yield (path, "other"), lambda d, place=place, other=other: _set(d, place, other)


def _other_devices(devices: list[str]) -> Iterator[tuple[str, list[str | None]]]:
    yield "all on one", devices[:1] * len(devices)
    yield "two on one", [*devices[:-1], devices[0]]
    yield "of half of the ranks", list(devices[: len(devices) // 2])
    yield "one more", [*devices, "another"]
    yield "one rank has none", [None, *devices[1:]]


SPLIT_BY: Final = {
    "attention_out": "o_proj",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
    "lm_head": "lm_head",
    "embedding": "embedding",
}
"""Part of ``plan.split`` → the operator that it splits."""

_WORDS: Final = {
    "scheme": ("ring", "all_gather", "all_to_all"),
    "partition": ("contiguous", "zigzag"),
    "decode": ("idle", "dp"),
    "attention_out": ("rows", "columns"),
    "ffn_up": ("rows", "columns"),
    "ffn_down": ("rows", "columns"),
    "embedding": ("vocab", "hidden"),
    "lm_head": ("vocab", "hidden"),
    "weights": ("bf16", "fp8"),
    "activations": ("bf16", "fp8"),
    "kv_cache": ("bf16", "fp8"),
}


def _set(document: Document, place: tuple[Any, ...], value: Any) -> None:
    found: Any = document
    for key in place[:-1]:
        found = found[key]
    found[place[-1]] = value
