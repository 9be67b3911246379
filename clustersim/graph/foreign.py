"""Reads step graphs from JSON: those that clustersim wrote, and those of other programs.

::

    {"format": 1,
     "step":  {"chunks": [{"request": 0, "start": 0, "count": 1024}], "decode_sequences": [8], "decode_keys": [8200]},
     "plan":  {"tp": 8, "pp": 2},
     "nodes": [{"id": 0, "name": "qkv_proj", "op": "gemm", "ranks": [0], "layer": 0, "n": 1280, "k": 8192}, …],
     "edges": [{"source": 0, "target": 1, "kind": "data"}, …]}

Nodes are in program order: each stream of each rank runs its nodes in the order of the list. Of a node ``id``,
``name``, ``op`` and ``ranks`` are required; the rest has the defaults of ``clustersim.graph.blueprint.Node``, and the
stream that fits the operator. ``amount`` is ``{"terms": {feature: coefficient}}`` with the features of
``clustersim.graph.batch``; its ``of`` and ``value``, and ``flops``, ``bytes`` and ``duration_ns``, are written for
readers and not read. ``step``, ``plan``, ``model`` and ``precision`` may be absent; ``model`` is an architecture as
:func:`clustersim.graph.export.model_facts` writes it. Whether a graph is legal is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, get_type_hints

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.precision import Precision
from clustersim.errors import InputError, did_you_mean
from clustersim.graph.batch import Chunk, StepBatch, features_of
from clustersim.graph.blueprint import COLLECTIVE_OPS, EDGE_KINDS, HOST_OPS, OPS, STREAMS, STRUCTURAL_OPS, Node, Terms
from clustersim.graph.export import FORMAT
from clustersim.graph.plain import PlainReader
from clustersim.graph.stepgraph import StepGraph
from clustersim.model.architecture import Attention, Ffn, Layer, ModelSpec, Moe
from clustersim.plan.parallel import Cut, ExpertPlan, ParallelPlan, SequencePlan, TensorSplit

_TOP: Final = (
    "format",
    "title",
    "scenario",
    "replica",
    "devices",
    "step",
    "plan",
    "model",
    "precision",
    "nodes",
    "edges",
)
_COLUMNS: Final = {"layer": int | None, "stage": int, "unit": int}
_HINTS: Final = get_type_hints(Node)
_PLAIN: Final = tuple(f.name for f in fields(Node) if f.name not in ("name", "op", "amount", "stream"))
_NODE_KEYS: Final = (
    "id", "name", "op", "ranks", "stream", "amount", *_PLAIN, *_COLUMNS, "flops", "bytes", "duration_ns",
)  # fmt: skip
_FEATURES: Final = tuple(features_of(StepBatch(chunks=(Chunk(request=0, start=0, count=1),)), SequencePlan()))


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeignGraph:
    """A graph with the step, plan, model and number formats that it is of; None where the document does not say."""

    graph: StepGraph
    batch: StepBatch | None
    plan: ParallelPlan | None
    model: ModelSpec | None = None
    precision: Precision | None = None


def graph_from_json(document: Mapping[str, Any], file: str | None = None) -> StepGraph:
    """Return the graph of a document; see :func:`read_graph`."""
    return read_graph(document, file).graph


def read_graph(document: Mapping[str, Any], file: str | None = None) -> ForeignGraph:
    """Read a graph of format 1.

    Parameters
    ----------
    document : mapping
        The parsed JSON.
    file : str, optional
        Where it is from, for messages.

    Raises
    ------
    InputError
        With every problem: unknown keys and operators, values of the wrong type, edges from or to nowhere.
    """
    reading = _Reading(file)
    top = reading.mapping(document, _TOP, "")
    if top and top.get("format") != FORMAT:
        reading.unexpected("format", str(FORMAT), top.get("format"))
    batch = reading.batch(top["step"]) if top.get("step") is not None else None
    plan = reading.plan(top["plan"]) if top.get("plan") is not None else None
    model = reading.model(top["model"]) if top.get("model") is not None else None
    precision = reading.precision(top["precision"]) if top.get("precision") is not None else None
    graph = reading.graph(top)
    if reading.problems or graph is None:
        raise InputError(reading.problems)
    return ForeignGraph(graph=graph, batch=batch, plan=plan, model=model, precision=precision)


class _Reading(PlainReader):
    def batch(self, step: Any) -> StepBatch | None:
        known = self.mapping(step, ("kind", *get_type_hints(StepBatch)), "step")
        chunks = [
            self.fields(chunk, Chunk, f"step.chunks[{at}]")
            for at, chunk in enumerate(self.items(known.get("chunks", []), "step.chunks"))
        ]
        windowed = self.mapping(known.get("windowed_keys", {}), None, "step.windowed_keys")
        keys = {}
        for window, counts in windowed.items():
            path = f"step.windowed_keys.{window}"
            if not window.isdecimal():
                self.wrong(path, "expected a window in tokens as the key")
                continue
            keys[int(window)] = self.value(counts, tuple[int, ...], path)
        plain = {key: known[key] for key in ("decode_sequences", "decode_keys") if key in known}
        found = self.fields(
            plain, StepBatch, "step", chunks=tuple(chunk for chunk in chunks if chunk is not None), windowed_keys=keys
        )
        if found is not None and known.get("kind", found.kind) != found.kind:
            self.unexpected("step.kind", f"{found.kind!r}, as chunks and decode_sequences say", known["kind"])
        return found

    def plan(self, plan: Any) -> ParallelPlan | None:
        if not isinstance(plan, Mapping):
            self.unexpected("plan", "an object", plan)
            return None
        parts: dict[str, Any] = {
            key: self.fields(plan[key], kind, f"plan.{key}")
            for key, kind in (("split", TensorSplit), ("sp", SequencePlan), ("ep", ExpertPlan))
            if key in plan
        }
        if plan.get("stages") is not None:
            parts["stages"] = tuple(self.cut(cut) for cut in self.items(plan["stages"], "plan.stages"))
        return self.fields(plan, ParallelPlan, "plan", **parts)

    def model(self, model: Any) -> ModelSpec | None:
        if not isinstance(model, Mapping):
            self.unexpected("model", "an object", model)
            return None
        layers: list[Layer] = []
        for at, found in enumerate(self.items(model.get("layers"), "model.layers")):
            path = f"model.layers[{at}]"
            known = self.mapping(found, ("count", "attention", "ffn", "moe"), path)
            count = self.value(known.get("count", 1), int, f"{path}.count")
            if not count or ("ffn" in known) == ("moe" in known):
                self.wrong(path, "expected a count of at least 1, an attention, and either ffn or moe")
                continue
            attention = self.fields(known.get("attention"), Attention, f"{path}.attention")
            kind: type[Ffn] | type[Moe] = Ffn if "ffn" in known else Moe
            part = "ffn" if kind is Ffn else "moe"
            second: Ffn | Moe | None = self.fields(known[part], kind, f"{path}.{part}")
            if attention is not None and second is not None:
                layers += [Layer(attention=attention, ffn=second)] * count
        return self.fields({k: v for k, v in model.items() if k != "layers"}, ModelSpec, "model", layers=tuple(layers))

    def precision(self, precision: Any) -> Precision | None:
        try:
            return self.fields(precision, Precision, "precision")
        except InputError as error:
            self.problems += [replace(problem, path="precision", file=self.file) for problem in error.problems]
            return None

    def cut(self, cut: Any) -> Cut:
        layer, _, before = str(cut).partition(".")
        if not layer.isdecimal() or before not in ("attention", "ffn"):
            self.unexpected("plan.stages", "a cut such as '12.attention' or '12.ffn'", cut)
            return Cut(layer=0)
        return Cut(layer=int(layer), before="ffn" if before == "ffn" else "attention")

    def graph(self, top: Mapping[str, Any]) -> StepGraph | None:
        symbols: dict[Node, int] = {}
        groups: dict[tuple[int, ...], int] = {}
        ids: dict[int | str, int] = {}
        rows: list[tuple[int, ...]] = []
        for at, found in enumerate(self.items(top.get("nodes"), "nodes")):
            path = f"nodes[{at}]"
            known = self.mapping(found, _NODE_KEYS, path)
            self.identity(known.get("id"), path, ids, at)
            node = self.node(known, path)
            ranks = self.value(known.get("ranks"), tuple[int, ...], f"{path}.ranks")
            if isinstance(ranks, tuple) and len(dict.fromkeys(ranks)) != max(1, len(ranks)):
                self.unexpected(f"{path}.ranks", "one or more ranks, each once", list(ranks))
            layer, stage, unit = (
                self.value(known.get(key, None if key == "layer" else 0), hint, f"{path}.{key}")
                for key, hint in _COLUMNS.items()
            )
            if node is None or self.problems:
                continue
            stream = -1 if node.is_structural else STREAMS.index(node.stream)
            symbol = symbols.setdefault(node, len(symbols))
            group = groups.setdefault(ranks, len(groups))
            rows.append((symbol, group, -1 if layer is None else layer, stage, unit, stream))
        if not ids:
            self.wrong("nodes", "expected at least one node")
        edges = [
            self.edge(found, f"edges[{at}]", ids) for at, found in enumerate(self.items(top.get("edges"), "edges"))
        ]
        if self.problems:
            return None
        names = ("symbol", "group", "layer", "stage", "unit", "stream")
        columns = dict(zip(names, _columns(rows, len(names)), strict=True))
        columns |= dict(zip(("source", "target", "kind"), _columns(edges, 3), strict=True))
        return StepGraph(symbols=tuple(symbols), groups=tuple(groups), **columns)

    def identity(self, found: Any, path: str, ids: dict[int | str, int], at: int) -> None:
        if isinstance(found, bool) or not isinstance(found, int | str):
            self.unexpected(f"{path}.id", "a number or a text", found)
        elif ids.setdefault(found, at) != at:
            self.wrong(f"{path}.id", f"{found!r} is the id of nodes[{ids[found]}] already")

    def node(self, known: Mapping[str, Any], path: str) -> Node | None:
        op = known.get("op")
        if op not in OPS:
            hint = did_you_mean(op, OPS) if isinstance(op, str) else ""
            self.wrong(f"{path}.op", f"unknown operator {op!r:.60}{hint}")
            return None
        plain = {key: known[key] for key in ("name", "op", *_PLAIN) if key in known}
        stream = known.get("stream", _default_stream(op))
        if op in STRUCTURAL_OPS and stream is not None:
            self.unexpected(f"{path}.stream", f"null, since {op} takes no time", stream)
        elif op not in STRUCTURAL_OPS and stream not in STREAMS:
            self.unexpected(f"{path}.stream", " or ".join(map(repr, STREAMS)), stream)
        amount = self.terms(known.get("amount"), f"{path}.amount")
        plain.setdefault("module", "")
        return self.fields(plain, Node, path, amount=amount, stream="compute" if stream is None else stream)

    def terms(self, amount: Any, path: str) -> Terms:
        if amount is None:
            return ()
        known = self.mapping(amount, ("of", "value", "terms"), path)
        found = []
        for feature, coefficient in self.mapping(known.get("terms"), _FEATURES, f"{path}.terms").items():
            if isinstance(coefficient, bool) or not isinstance(coefficient, int | float):
                self.unexpected(f"{path}.terms.{feature}", "a number", coefficient)
            else:
                found.append((feature, float(coefficient)))
        return tuple(found)

    def edge(self, found: Any, path: str, ids: Mapping[int | str, int]) -> tuple[int, int, int]:
        known = self.mapping(found, ("source", "target", "kind"), path)
        ends = []
        for end in ("source", "target"):
            identity = known.get(end)
            if isinstance(identity, bool) or not isinstance(identity, int | str) or identity not in ids:
                self.unexpected(f"{path}.{end}", "the id of a node", identity)
            else:
                ends.append(ids[identity])
        kind = known.get("kind", "data")
        if kind not in EDGE_KINDS:
            self.unexpected(f"{path}.kind", " or ".join(map(repr, EDGE_KINDS)), kind)
        return (*ends, EDGE_KINDS.index(kind)) if len(ends) == 2 and kind in EDGE_KINDS else (0, 0, 0)  # type: ignore[return-value]


def _default_stream(op: str) -> str | None:
    if op in STRUCTURAL_OPS:
        return None
    if op in COLLECTIVE_OPS:
        return "comm"
    return "host" if op in HOST_OPS else op if op in STREAMS else "compute"


def _columns(rows: list[tuple[int, ...]] | list[tuple[int, int, int]], width: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(-1, width).T
