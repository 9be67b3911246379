"""The step graph in other programs' formats: networkx, and JSON, GraphML and DOT, which clustersim reads back.

The JSON (format 1) is described in :mod:`clustersim.graph.foreign.read`, which reads it. In the others what is no text
or number is JSON in a text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Final

from clustersim.graph.batch import StepBatch
from clustersim.graph.blueprint import EDGE_KINDS, STREAMS, Node
from clustersim.graph.prices.priced import NO_DURATION, PricedGraph
from clustersim.graph.prices.work import AMOUNT_OF
from clustersim.model.architecture import Layer, ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan

if TYPE_CHECKING:
    import networkx

FORMAT: Final = 1

_PLAIN: Final = tuple(
    field.name
    for field in fields(Node)
    if field.name not in ("name", "op", "module", "amount", "least", "loads", "visits", "stream", "exchange")
)
_DEFAULTS: Final = {field.name: field.default for field in fields(Node)}
_EDGE_STYLE: Final = {
    "data": 'color="#1b2733"',
    "kv": 'color="#009E73", style=dashed',
    "sync": 'color="#D55E00", style=bold',
    "order": 'color="#8a97a3", style=dotted',
    "boundary": 'color="#B3261E", style=bold',
}


def node_facts(node: Node) -> dict[str, Any]:
    """Return what a node is, as plain data: only what differs from an operator without that property."""
    facts: dict[str, Any] = {"name": node.name, "op": node.op, "module": node.module}
    for key in _PLAIN:
        value = getattr(node, key)
        if value != _DEFAULTS[key]:
            facts[key] = str(value) if key == "variant" else value
    return facts


def nodes_of(priced: PricedGraph) -> Iterator[dict[str, Any]]:
    """Yield every node as plain data, in program order.

    ``layer`` and ``stream`` are None where there is none. Of ``amount``, ``of`` says what it counts, ``value`` how
    many in this step, and ``terms`` the linear form of the batch's features that gives the value; where there is
    another one, ``least``, the value is the larger of both.
    """
    graph = priced.graph
    plain = [node_facts(node) for node in graph.symbols]
    columns = (graph.symbol, graph.group, graph.layer, graph.stage, graph.unit, graph.stream)
    figures = (priced.amount, priced.flops, priced.bytes_moved, priced.duration_ns)
    rows = zip(*(column.tolist() for column in (*columns, *figures)), strict=True)
    for position, (symbol, group, layer, stage, unit, stream, value, flops, moved, duration) in enumerate(rows):
        node = graph.symbols[symbol]
        found = {
            "id": position,
            **plain[symbol],
            "layer": layer if layer >= 0 else None,
            "stage": stage,
            "unit": unit,
            "ranks": list(graph.groups[group]),
            "stream": STREAMS[stream] if stream >= 0 else None,
        }
        if node.amount:
            found["amount"] = {"of": AMOUNT_OF[node.op], "value": value, "terms": dict(node.amount)}
            if node.least:
                found["amount"]["least"] = dict(node.least)
        if flops:
            found["flops"] = flops
        if moved:
            found["bytes"] = moved
        if duration != NO_DURATION:
            found["duration_ns"] = duration
        yield found


def edges_of(priced: PricedGraph) -> Iterator[dict[str, Any]]:
    """Yield every edge as plain data."""
    graph = priced.graph
    for source, target, kind in zip(graph.source.tolist(), graph.target.tolist(), graph.kind.tolist(), strict=True):
        yield {"source": source, "target": target, "kind": EDGE_KINDS[kind]}


def plain_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node but for its id as numbers and texts, without what it lacks.

    Ranks are ``"0,1"``; amounts are split into ``amount``, ``amount_of``, ``terms`` and ``least``, the latter in JSON.
    """
    attributes = {key: value for key, value in found.items() if key not in ("id", "amount") and value is not None}
    attributes["ranks"] = ",".join(map(str, found["ranks"]))
    if (amount := found.get("amount")) is not None:
        attributes |= {"amount": amount["value"], "amount_of": amount["of"]}
        attributes |= {key: _json(amount[key]) for key in ("terms", "least") if key in amount}
    return attributes


def to_networkx(priced: PricedGraph) -> networkx.MultiDiGraph:
    """Return the graph for networkx: vertices are ids, the key of an edge is its kind.

    Attributes are numbers and texts only, so that every format of networkx can write them: see :func:`plain_facts`.
    """
    import networkx as nx

    graph = nx.MultiDiGraph()
    for found in nodes_of(priced):
        graph.add_node(found["id"], **plain_facts(found))
    for edge in edges_of(priced):
        graph.add_edge(edge["source"], edge["target"], key=edge["kind"], kind=edge["kind"])
    return graph


def graphml_text(priced: PricedGraph, about: Mapping[str, Any]) -> str:
    """Return the graph as GraphML, with ``about`` as attributes of the graph."""
    import networkx as nx

    graph = to_networkx(priced)
    graph.graph.update(_head(priced, about))
    target = io.BytesIO()
    nx.write_graphml_xml(graph, target, prettyprint=True)
    return target.getvalue().decode("utf-8")


def dot_text(priced: PricedGraph, about: Mapping[str, Any]) -> str:
    """Return the graph in the DOT language of Graphviz, a cluster per stage, with ``about`` as attributes."""
    lines = ["digraph step {", f"  label={_quoted(about.get('title', 'step graph'))}; labelloc=t; rankdir=TB;"]
    lines += [f"  {key}={_quoted(text)};" for key, text in _head(priced, about).items()]
    lines.append('  node [shape=box, fontname="sans-serif", fontsize=10];')
    stages: dict[int, list[str]] = {}
    for found in nodes_of(priced):
        stages.setdefault(found["stage"], []).append(f"    {found['id']} [{_dot_attributes(found)}];")
    for stage, nodes in stages.items():
        lines += [f"  subgraph cluster_stage_{stage} {{", f'    label="stage {stage}";', *nodes, "  }"]
    for edge in edges_of(priced):
        lines.append(f"  {edge['source']} -> {edge['target']} [kind={edge['kind']}, {_EDGE_STYLE[edge['kind']]}];")
    return "\n".join([*lines, "}", ""])


def _dot_attributes(found: Mapping[str, Any]) -> str:
    where = "" if found["layer"] is None else f"layer {found['layer']}, "
    ranks = found["ranks"]
    label = [found["name"], where + (f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks")]
    if "duration_ns" in found:
        label.append(f"{found['duration_ns'] / 1e3:.1f} us")
    shape = ", shape=ellipse" if found["stream"] is None else ""
    tooltip = ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("name", "amount"))
    facts = ", ".join(f"{key}={_quoted(value)}" for key, value in plain_facts(found).items())
    return f"label={_quoted(chr(10).join(label))}, tooltip={_quoted(tooltip)}{shape}, {facts}"


def _head(priced: PricedGraph, about: Mapping[str, Any]) -> dict[str, str]:
    """Return what a graph is of, as texts: those of ``about`` as they are, all else in JSON."""
    head = {"format": FORMAT, "step": batch_facts(priced.batch), "plan": plan_facts(priced.plan), **about}
    return {key: value if isinstance(value, str) else _json(value) for key, value in head.items()}


def _quoted(text: object) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def json_text(priced: PricedGraph, about: Mapping[str, Any]) -> str:
    """Return the graph as JSON of format 1, a line per node and per edge; ``about`` may name the plan it is of."""
    head = {"format": FORMAT, "step": batch_facts(priced.batch), "plan": plan_facts(priced.plan), **about}
    lines = [f"{json.dumps(key)}: {_json(value)}," for key, value in head.items()]
    nodes = ",\n".join(_json(node) for node in nodes_of(priced))
    edges = ",\n".join(_json(edge) for edge in edges_of(priced))
    return "{\n" + "\n".join(lines) + f'\n"nodes": [\n{nodes}\n],\n"edges": [\n{edges}\n]\n}}\n'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def batch_facts(batch: StepBatch) -> dict[str, Any]:
    """Return a batch as plain data."""
    return {
        "kind": batch.kind,
        "chunks": [asdict(chunk) for chunk in batch.chunks],
        "decode_sequences": list(batch.decode_sequences),
        "decode_keys": list(batch.decode_keys),
        "windowed_keys": {str(window): list(keys) for window, keys in batch.windowed_keys.items()},
    }


def plan_facts(plan: ParallelPlan) -> dict[str, Any]:
    """Return a plan as plain data; cuts are written ``12.ffn``, as in scenarios."""
    facts = asdict(plan)
    facts["stages"] = None if plan.stages is None else [str(cut) for cut in plan.stages]
    facts["placement"] = None if plan.placement is None else list(plan.placement)
    del facts["sp"]["whole"]  # replicas that step together say so by the scope of their experts
    if not isinstance(plan.ep.placement, str):
        facts["ep"]["placement"] = list(plan.ep.placement)
    return facts


def told(part: Any) -> dict[str, Any]:
    """Return a part of an architecture, or number formats, as plain data, without lists of formats that are empty."""
    return {key: value for key, value in asdict(part).items() if value or key not in ("formats", "modules")}


def model_facts(model: ModelSpec) -> dict[str, Any]:
    """Return an architecture as plain data; equal layers in a row are one entry with a ``count``."""
    layers: list[dict[str, Any]] = []
    before: Layer | None = None
    for layer in model.layers:
        if layer == before:
            layers[-1]["count"] += 1
            continue
        part = "moe" if isinstance(layer.ffn, Moe) else "ffn"
        inside = {"attention": told(layer.attention), part: told(layer.ffn)}
        layers.append({"count": 1, **inside, "post_norms": layer.post_norms})
        before = layer
    plain = {key: value for key, value in told(replace(model, layers=())).items() if key not in ("layers", "notes")}
    return {**plain, "unused_keys": list(model.unused_keys), "layers": layers}


WRITERS: Final[Mapping[str, Callable[[PricedGraph, Mapping[str, Any]], str]]] = {
    ".graphml": graphml_text,
    ".dot": dot_text,
    ".json": json_text,
}
"""Suffix → the function that writes the graph, given what it is about (``title``, ``scenario``, …)."""
