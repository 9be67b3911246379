"""Reads step graphs from JSON: those that clustersim wrote, and those of other programs.

::

    {"format": 1,
     "step":  {"chunks": [{"request": 0, "start": 0, "count": 1024}], "decode_sequences": [8], "decode_keys": [8200]},
     "plan":  {"tp": 8, "pp": 2},
     "nodes": [{"id": 0, "name": "qkv_proj", "op": "gemm", "ranks": [0], "layer": 0, "n": 1280, "k": 8192}, …],
     "edges": [{"source": 0, "target": 1, "kind": "data"}, …]}

Nodes are in program order: each stream of each rank runs its nodes in the order of the list. Of a node ``id``,
``name``, ``op`` and ``ranks`` are required. What follows from these and the plan is filled in
(:mod:`clustersim.graph.foreign.implied`); the rest has the defaults of ``clustersim.graph.blueprint.Node``, and
``unsaid`` names it, so that nobody takes a default for a statement. ``amount`` is ``{"terms": {feature: coefficient}}``
with the features of ``clustersim.graph.batch``, or ``{"value": number}`` for this very step; of what counts in bytes,
``bytes`` says the same. Beside terms ``flops`` and ``bytes`` are those of :mod:`clustersim.graph.prices.work`, and
``of`` is what amounts of the operator count there. ``duration_ns`` is written for readers, and
``unit`` says which module of its stage an operator is of, from 0: what schedules or receives, each module of a layer,
what is behind. ``stages`` lists those that a graph of a part of the plan shows: ``[1]``; ``devices`` names each rank's,
and ``topology`` has the names of all ``devices`` by number, which is what a placement lists; ``replica`` says whose
ranks they are. ``step``, ``plan``, ``model`` and ``precision`` may be absent; ``model``
is an architecture as :func:`clustersim.graph.export.model_facts` writes it. Whether a graph is legal is not decided
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.cost.precision import Precision, format_problem
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.graph.batch import Chunk, StepBatch, features_of
from clustersim.graph.blueprint import COLLECTIVE_OPS, EDGE_KINDS, HOST_OPS, OPS, STREAMS, STRUCTURAL_OPS, Node, Terms
from clustersim.graph.export import FORMAT
from clustersim.graph.foreign.declared import DeclarationReader
from clustersim.graph.foreign.implied import implied_axis, implied_kind, implied_stage, is_outside_layers
from clustersim.graph.foreign.naming import Naming
from clustersim.graph.foreign.plain import ABSENT, as_json
from clustersim.graph.prices.work import AMOUNT_OF
from clustersim.graph.stepgraph import StepGraph, Written
from clustersim.graph.variant import PLAIN, Variant, read_variant
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan, SequencePlan
from clustersim.values import dataclass

if TYPE_CHECKING:
    from clustersim.graph.foreign.unread_keys import UnreadKey

TOP_KEYS: Final = (
    "format",
    "title",
    "scenario",
    "replica",
    "devices",
    "topology",
    "step",
    "plan",
    "stages",
    "model",
    "precision",
    "nodes",
    "edges",
)
_COLUMNS: Final = {"layer": int | None, "stage": int, "unit": int}
_OWN: Final = ("name", "op", "amount", "least", "loads", "visits", "stream", "exchange")
_PLAIN: Final = tuple(f.name for f in fields(Node) if f.name not in _OWN)
NODE_KEYS: Final = (
    "id", "name", "op", "ranks", "stream", "amount", *_PLAIN, *_COLUMNS, "flops", "bytes", "duration_ns",
)  # fmt: skip
_FEATURES: Final = tuple(features_of(StepBatch(chunks=(Chunk(request=0, start=0, count=1),)), SequencePlan()))
MOST_FIGURE: Final = 1e30
"""More than any step does or moves."""

FIGURES: Final = ("value", "flops", "bytes")
"""Numbers of a node for this very step."""

Placing = Callable[[Iterable[Problem]], list[Problem]]


@dataclass(frozen=True, kw_only=True, eq=False)
class ForeignGraph:
    """A graph with the step, plan, model and number formats that it is of; None where the document does not say.

    Parameters
    ----------
    graph : StepGraph
    batch, plan, model, precision
        The plan is that of what runs as one, such as of all replicas that share experts (``ParallelPlan.lockstep``).
    declared : ParallelPlan or None
        The plan as it is written.
    unsaid : tuple of frozenset of str
        Per symbol of the graph, the keys of a node that the document leaves out and that nothing else implies.
    figures : float array of shape (nodes, 3)
        What the document says of :data:`FIGURES`, NaN where it says nothing.
    durations : float array of shape (nodes,)
        What it says that operators take, ns, NaN where it says nothing.
    stages : tuple of int or None
        The stages that the graph shows, where these are not all of the plan's.
    split_said : frozenset of str
        The keys of ``plan.split`` that the document states.
    devices : tuple of str or None
        The device of each rank, None for a rank without one, where the document says them.
    topology : tuple of str or None
        The names of all devices that there are, by their numbers, where the document says them.
    replica : int or None
        Which one the ranks from 0 on are of, where the document says that.
    naming : Naming or None
        What became of the names of its nodes, where somebody else gave them.
    written : tuple of Written
        Per node, which one it is in the file; empty where there is none.
    placed : callable or None
        Problems with paths of the file → the same with its lines and columns.
    unread : tuple of UnreadKey
        Keys of the file that nobody reads.
    """

    graph: StepGraph
    batch: StepBatch | None
    plan: ParallelPlan | None
    declared: ParallelPlan | None
    model: ModelSpec | None
    precision: Precision | None
    unsaid: tuple[frozenset[str], ...]
    figures: FloatArray
    durations: FloatArray
    stages: tuple[int, ...] | None = None
    split_said: frozenset[str] = frozenset()
    devices: tuple[str | None, ...] | None = None
    topology: tuple[str, ...] | None = None
    replica: int | None = None
    naming: Naming | None = None
    written: tuple[Written, ...] = ()
    placed: Placing | None = None
    unread: tuple[UnreadKey, ...] = ()


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
    top = reading.mapping(document, TOP_KEYS, "")
    if top and (type(top.get("format")) is not int or top["format"] != FORMAT):
        reading.unexpected("format", str(FORMAT), top.get("format", ABSENT))
    batch = reading.batch(top["step"]) if top.get("step") is not None else None
    plan = reading.plan(top["plan"]) if top.get("plan") is not None else None
    model = reading.model(top["model"]) if top.get("model") is not None else None
    precision = reading.precision(top["precision"]) if top.get("precision") is not None else None
    stages = reading.value(top.get("stages"), tuple[int, ...] | None, "stages")
    devices = reading.devices(top["devices"]) if top.get("devices") is not None else None
    topology = reading.topology(top["topology"]) if top.get("topology") is not None else None
    replica = reading.value(top.get("replica"), int | None, "replica")
    split = plan is None or bool(reading.problems) or plan.pp > 1 or plan.sp.degree > 1
    together = plan if plan is None or split else plan.lockstep
    graph = reading.graph(top, together)
    if reading.problems or graph is None:
        raise InputError(reading.problems)
    return ForeignGraph(
        graph=graph, batch=batch, plan=together, model=model, precision=precision, unsaid=tuple(reading.unsaid),
        declared=plan, figures=np.array(reading.figures, np.float64).reshape(-1, len(FIGURES)), stages=stages,
        durations=np.array(reading.durations, np.float64),
        split_said=frozenset(top["plan"].get("split", ())) if plan is not None else frozenset(), devices=devices,
        topology=topology, replica=replica,
    )  # fmt: skip


class _Reading(DeclarationReader):
    def __init__(self, file: str | None) -> None:
        super().__init__(file)
        self.unsaid: list[frozenset[str]] = []
        self.figures: list[list[float]] = []
        self.durations: list[float] = []

    def graph(self, top: Mapping[str, Any], plan: ParallelPlan | None) -> StepGraph | None:
        symbols: dict[tuple[Node, frozenset[str]], int] = {}
        groups: dict[tuple[int, ...], int] = {}
        ids: dict[int | str, int] = {}
        nodes: list[Node] = []
        rows: list[tuple[int, ...]] = []
        for at, found in enumerate(self.items(top.get("nodes", ABSENT), "nodes")):
            path = f"nodes[{at}]"
            known = self.mapping(found, NODE_KEYS, path)
            self.identity(known.get("id", ABSENT), path, ids, at)
            node = self.node(known, path)
            self.figures.append(self.said_figures(known, path))
            self.durations.append(self.said_duration(known, path))
            ranks = self.value(known.get("ranks", ABSENT), tuple[int, ...], f"{path}.ranks")
            told = isinstance(ranks, tuple) and all(type(rank) is int for rank in ranks)
            if told and len(dict.fromkeys(ranks)) != max(1, len(ranks)):
                self.unexpected(f"{path}.ranks", "one or more ranks, each once", list(ranks))
            layer, stage, unit = (
                self.value(known.get(key, None if key == "layer" else 0), hint, f"{path}.{key}")
                for key, hint in _COLUMNS.items()
            )
            if node is None or self.problems:
                continue
            unsaid = {key for key in NODE_KEYS if key not in known}
            node, stage = self.implied(node, ranks, stage, plan, unsaid)
            nodes.append(node)
            stream = -1 if node.is_structural else STREAMS.index(node.stream)
            symbol = symbols.setdefault((node, frozenset(unsaid)), len(symbols))
            group = groups.setdefault(ranks, len(groups))
            rows.append((symbol, group, -1 if layer is None else layer, stage, unit, stream))
        if top.get("nodes") == []:
            self.wrong("nodes", "expected at least one node")
        edges = [
            self.edge(found, f"edges[{at}]", ids, nodes)
            for at, found in enumerate(self.items(top.get("edges", ABSENT), "edges"))
        ]
        if self.problems:
            return None
        self.unsaid = [unsaid for _, unsaid in symbols]
        names = ("symbol", "group", "layer", "stage", "unit", "stream")
        columns = dict(zip(names, _columns(rows, len(names)), strict=True))
        columns |= dict(zip(("source", "target", "kind"), _columns(edges, 3), strict=True))
        return StepGraph(symbols=tuple(node for node, _ in symbols), groups=tuple(groups), **columns)

    def implied(
        self, node: Node, ranks: tuple[int, ...], stage: int, plan: ParallelPlan | None, unsaid: set[str]
    ) -> tuple[Node, int]:
        """Return a node and its stage with what was left out and follows; ``unsaid`` loses what does."""
        if "layer" in unsaid and is_outside_layers(node):
            unsaid.remove("layer")
        if plan is None:
            return node, stage
        if "stage" in unsaid and (found := implied_stage(ranks, plan)) is not None:
            stage = found
            unsaid.remove("stage")
        if "axis" in unsaid and (axis := implied_axis(node, ranks, plan)) is not None:
            node = replace(node, axis=axis)
            unsaid.remove("axis")
        return node, stage

    def identity(self, found: Any, path: str, ids: dict[int | str, int], at: int) -> None:
        if isinstance(found, bool) or not isinstance(found, int | str):
            self.unexpected(f"{path}.id", "a number or a text", found)
        elif ids.setdefault(found, at) != at:
            self.wrong(f"{path}.id", f"{as_json(found):.60} is the id of nodes[{ids[found]}] already")

    def said_duration(self, known: Mapping[str, Any], path: str) -> float:
        """Return how long an operator is said to take, ns; NaN where nothing is said."""
        value, op = known.get("duration_ns"), known.get("op")
        most = 0 if isinstance(op, str) and op in STRUCTURAL_OPS else 2**63 - 1
        if value is None:
            return float("nan")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            expected = "a number of nanoseconds from 0" if most else "0, as it takes no time"
            self.unexpected(f"{path}.duration_ns", expected, value)
            return float("nan")
        return float(value)

    def node(self, known: Mapping[str, Any], path: str) -> Node | None:
        op = known.get("op", ABSENT)
        if op not in OPS:
            hint = did_you_mean(op, OPS) if isinstance(op, str) else f"; known: {', '.join(OPS)}"
            self.wrong(f"{path}.op", f"unknown operator {as_json(op):.60}{hint}")
            return None
        plain = {key: known[key] for key in ("name", "op", *_PLAIN) if key in known}
        stream = known.get("stream", _default_stream(op))
        if op in STRUCTURAL_OPS and stream is not None:
            self.unexpected(f"{path}.stream", f"null, since {op} takes no time", stream)
        elif op not in STRUCTURAL_OPS and stream not in STREAMS:
            self.unexpected(f"{path}.stream", " or ".join(map(repr, STREAMS)), stream)
        variant = self.variant(plain.pop("variant", ""), f"{path}.variant")
        amount, least = self.amount(known.get("amount"), op, f"{path}.amount")
        plain.setdefault("module", "")
        if isinstance(weights := plain.get("weights", ""), str) and weights and (why := format_problem(weights)):
            self.wrong(f"{path}.weights", why)
        own_stream = "compute" if stream is None else stream
        given = {"amount": amount, "least": least, "loads": (), "variant": variant, "stream": own_stream}
        return self.fields(plain, Node, path, **given)

    def variant(self, text: Any, path: str) -> Variant:
        found = read_variant(text) if isinstance(text, str) else None
        if found is None:
            self.unexpected(path, "'', or '@4096' for a window, and '#1' for a part of a ring or '*' by heads", text)
        return found or PLAIN

    def amount(self, amount: Any, op: str, path: str) -> tuple[Terms, Terms]:
        if amount is None:
            return (), ()
        known = self.mapping(amount, ("of", "value", "terms", "least"), path)
        if (counts := AMOUNT_OF.get(op)) is not None and known.get("of", counts) != counts:
            self.unexpected(f"{path}.of", f"{counts!r}, which amounts of {op} count", known["of"])
        least = self.terms(known["least"], f"{path}.least") if known.get("least") is not None else ()
        if known and "terms" not in known and known.get("value") is not None:
            return (), least
        return self.terms(known.get("terms", ABSENT), f"{path}.terms"), least

    def terms(self, terms: Any, path: str) -> Terms:
        found = []
        for feature, coefficient in self.mapping(terms, _FEATURES, path).items():
            if _is_number(coefficient):
                found.append((feature, float(coefficient)))
            else:
                self.unexpected(f"{path}.{feature}", "a number", coefficient)
        return tuple(found)

    def said_figures(self, known: Mapping[str, Any], path: str) -> list[float]:
        amount = known.get("amount")
        value = amount.get("value") if isinstance(amount, Mapping) else None
        found = []
        for key, figure in zip(FIGURES, (value, known.get("flops"), known.get("bytes")), strict=True):
            said = np.nan if figure is None else float(figure) if _is_number(figure) else -1.0
            if said < 0:
                place = f"{path}.amount.value" if key == "value" else f"{path}.{key}"
                self.unexpected(place, "a number of at least 0", figure)
            found.append(said)
        return found

    def edge(self, found: Any, path: str, ids: Mapping[int | str, int], nodes: Sequence[Node]) -> tuple[int, int, int]:
        known = self.mapping(found, ("source", "target", "kind"), path)
        ends = []
        for end in ("source", "target"):
            identity = known.get(end, ABSENT)
            if isinstance(identity, bool) or not isinstance(identity, int | str) or identity not in ids:
                self.unexpected(f"{path}.{end}", "the id of a node", identity)
            else:
                ends.append(ids[identity])
        kind = known.get("kind")
        if "kind" in known and kind not in EDGE_KINDS:
            self.unexpected(f"{path}.kind", " or ".join(map(repr, EDGE_KINDS)), kind)
        if self.problems:
            return (0, 0, 0)
        source, target = ends
        return source, target, EDGE_KINDS.index(kind or implied_kind(nodes[source], nodes[target]))


def _default_stream(op: str) -> str | None:
    if op in STRUCTURAL_OPS:
        return None
    if op in COLLECTIVE_OPS:
        return "comm"
    return "host" if op in HOST_OPS else op if op in STREAMS else "compute"


def _is_number(found: Any) -> bool:
    return type(found) in (int, float) and abs(found) <= MOST_FIGURE


def _columns(rows: list[tuple[int, ...]] | list[tuple[int, int, int]], width: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(-1, width).T
