"""The shape of one stage's pass as plain arrays: who runs what, in which order, and when, given durations.

An *instance* is one operator for all ranks that do the same work at the same time (see ``graph.program``); a *node*
is one operator on one rank or one collective over its ranks. Starts and ends of instances are the longest path
through dependencies and in-order streams; nodes take those of their instance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.longest_path import LongestPath
from clustersim.graph.shrink import Series, waits_of
from clustersim.values import dataclass

AT_TIMES: Final = ("node_half", "node_class")
"""What only some templates say: of steps of two halves, and of groups that cost differently."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PassTemplate:
    """One stage's part of one kind of step.

    Parameters
    ----------
    kind, stage, variant : str, int, int
        Kind of step; stage; which of the (few) differing placements of replicas.
    ranks : int
        Ranks of the stage.
    symbols : tuple of (name, op, module)
        What nodes and cost classes can be.
    class_symbol : tuple of int
        A symbol that shows what a cost class is.
    instance_class, instance_stream : int64 arrays of shape (instances,)
    instance_s : tuple of tuple of int
        SP coordinates of each instance.
    after : tuple of tuple of int
        Earlier instances that each instance needs.
    exits : tuple of int
        Per SP coordinate the instance whose end releases the stage's output; −1 where there is none.
    node_instance, node_symbol, node_layer : int64 arrays of shape (nodes,)
        Nodes with a span, sends and receives excluded.
    members : tuple of tuple of int
        Local ranks of each node.
    send_classes : tuple of int
        Cost class of each local rank's send; empty on the last stage.
    receives : bool
        Whether the stage receives its input from another one.
    node_half : int64 array of shape (nodes,)
        Where a step runs as two halves that overlap: of which one each node is, 0 for both; else empty.
    node_class : int64 array of shape (nodes,)
        Where groups of one instance cost differently on their links: the cost class of each node; else empty.
    """

    kind: str
    stage: int
    variant: int
    ranks: int
    symbols: tuple[tuple[str, str, str], ...]
    class_symbol: tuple[int, ...]
    instance_class: Int64Array
    instance_stream: Int64Array
    instance_s: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    exits: tuple[int, ...]
    node_instance: Int64Array
    node_symbol: Int64Array
    node_layer: Int64Array
    members: tuple[tuple[int, ...], ...]
    send_classes: tuple[int, ...]
    receives: bool
    node_half: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    node_class: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def num_classes(self) -> int:
        """Number of cost classes."""
        return len(self.class_symbol)

    @property
    def class_of_node(self) -> Int64Array:
        """Cost class of each node, int64 of shape (nodes,)."""
        return self.node_class if len(self.node_class) else self.instance_class[self.node_instance]

    @cached_property
    def num_inner_spans(self) -> int:
        """Spans of one pass, without its sends and receives."""
        return len(self.flat("members")[1])

    def flat(self, name: str) -> tuple[Int64Array, Int64Array]:
        """Return a field of rows (``members``, ``after``, ``instance_s``) as the row and the value of each in them."""
        found = self._flat.get(name)
        if found is None:
            rows = getattr(self, name)
            values = np.fromiter(chain.from_iterable(rows), np.int64)
            sizes = np.fromiter(map(len, rows), np.int64, len(rows))
            found = self._flat[name] = (np.repeat(np.arange(len(rows)), sizes), values)
        return found

    @cached_property
    def _flat(self) -> dict[str, tuple[Int64Array, Int64Array]]:
        return {}

    @cached_property
    def collectives(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Every (operator, local ranks) that communicates inside the stage, each once."""
        distinct = dict.fromkeys(zip(self.node_symbol.tolist(), self.members, strict=True))
        return tuple((self.symbols[symbol][1], members) for symbol, members in distinct if len(members) > 1)

    @cached_property
    def prompt_layers(self) -> tuple[tuple[int, Int64Array], ...]:
        """Each layer whose prompts are attended here, with the nodes that do so: when all have ended it is passed."""
        attends = np.array([op == "attention_prefill" for _, op, _ in self.symbols], bool)
        nodes = np.flatnonzero(attends[self.node_symbol])
        return tuple(
            (layer, nodes[self.node_layer[nodes] == layer]) for layer in np.unique(self.node_layer[nodes]).tolist()
        )

    @cached_property
    def passes_layers(self) -> list[tuple[int, int]]:
        """The last instance that attends to prompts in each layer of a chain, and that layer, in order."""
        return sorted((int(self.node_instance[nodes].max()), layer) for layer, nodes in self.prompt_layers)

    @cached_property
    def made(self) -> dict[type, Any]:
        """What others work out of the template once, by its kind."""
        return {}

    @cached_property
    def counts(self) -> Int64Array:
        """Instances per cost class, int64 of shape (classes,)."""
        return np.bincount(self.instance_class, minlength=self.num_classes).astype(np.int64)

    @cached_property
    def is_chain(self) -> bool:
        """Whether every instance can start only when the one before it has ended, and the last one is the exit."""
        single = all(s == self.instance_s[0] and len(s) == 1 for s in self.instance_s)
        streams = self.instance_stream
        linked = all(
            index - 1 in after or streams[index] == streams[index - 1]
            for index, after in enumerate(self.after)
            if index > 0
        )
        last = len(self.after) - 1
        return single and linked and all(e in (-1, last) for e in self.exits)

    @cached_property
    def waits(self) -> list[tuple[int, ...]]:
        """What each instance waits for: what it needs, and what its streams run before it."""
        return waits_of(self.instance_s, self.instance_stream, self.after)

    @cached_property
    def kinds(self) -> list[int]:
        """What each instance is, the same in stretches that are equal: its class, stream, coordinates and nodes."""
        sets = {some: at for at, some in enumerate(dict.fromkeys(self.instance_s))}
        sizes = np.fromiter(map(len, self.members), np.int64, len(self.members))
        many = len(self.instance_s)
        symbol = np.zeros(many, np.int64)
        symbol[self.node_instance[::-1]] = self.node_symbol[::-1]  # of the first one
        found = self.instance_class
        coordinates = np.array([sets[some] for some in self.instance_s], np.int64)
        nodes = np.bincount(self.node_instance, minlength=many)
        ranks = np.bincount(self.node_instance, sizes, many).astype(np.int64)
        for more in (self.instance_stream, coordinates, symbol, nodes, ranks):
            found = found * (int(more.max(initial=0)) + 2) + more + 1
        kinds: list[int] = found.tolist()
        return kinds

    @cached_property
    def path(self) -> LongestPath:
        """The longest path through the pass."""
        return LongestPath(self.waits, self.instance_class, self.num_classes, self.exits, self.kinds)

    @cached_property
    def series(self) -> Series:
        """The pass instance by instance."""
        return Series(self.waits)

    def ends(self, by_instance: Int64Array) -> Int64Array:
        """Return the end of every instance, in ns from the start of the pass.

        Parameters
        ----------
        by_instance : int64 array of shape (instances,) or (instances, passes)
            Duration of each instance, of one pass or of several.
        """
        return np.cumsum(by_instance, axis=0) if self.is_chain else self.series.ends(by_instance)

    def pass_times(self, by_class: Int64Array) -> tuple[int, tuple[int, ...]]:
        """Return how long the pass holds its stage, and when each SP coordinate's output leaves, in ns.

        Parameters
        ----------
        by_class : int64 array of shape (classes,)
        """
        return self.path.ends(self.path.terms(by_class).tolist())

    def total_times(self, by_class: Int64Array) -> Int64Array:
        """Return how long each of several passes holds its stage, ns.

        Parameters
        ----------
        by_class : int64 array of shape (passes, classes)
        """
        return self.path.lengths(by_class)

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 of all that the template says."""
        names = (self.kind, self.stage, self.variant, self.ranks, self.symbols, self.receives)
        found = hashlib.sha256(json.dumps(names).encode())
        flat = (self.class_symbol, self.exits, self.send_classes)
        arrays = (self.instance_class, self.instance_stream, self.node_instance, self.node_symbol, self.node_layer)
        ragged = ("instance_s", "after", "members")
        rows, values = zip(*(self.flat(name) for name in ragged), strict=True)
        lengths = [np.bincount(at, minlength=len(getattr(self, name))) for at, name in zip(rows, ragged, strict=True)]
        halves = (self.node_half,) if len(self.node_half) else ()
        uneven = (np.array([-1], np.int64), self.node_class) if len(self.node_class) else ()
        for part in (*flat, *arrays, *lengths, *values, *halves, *uneven):
            numbers = np.ascontiguousarray(part, "<i8")
            found.update(len(numbers).to_bytes(8, "little") + numbers.tobytes())
        return found.digest()

    def as_mapping(self) -> dict[str, object]:
        """Return the template as plain rows, for a file."""
        return {
            "kind": self.kind,
            "stage": self.stage,
            "variant": self.variant,
            "ranks": self.ranks,
            "symbols": [list(symbol) for symbol in self.symbols],
            "class_symbol": list(self.class_symbol),
            "instance_class": self.instance_class.tolist(),
            "instance_stream": self.instance_stream.tolist(),
            "instance_s": self.instance_s,
            "after": self.after,
            "exits": list(self.exits),
            "node_instance": self.node_instance.tolist(),
            "node_symbol": self.node_symbol.tolist(),
            "node_layer": self.node_layer.tolist(),
            "members": self.members,
            "send_classes": list(self.send_classes),
            "receives": self.receives,
            **{name: getattr(self, name).tolist() for name in AT_TIMES if len(getattr(self, name))},
        }


def template_from(values: Mapping[str, object]) -> PassTemplate:
    """Rebuild a template from :meth:`PassTemplate.as_mapping`."""
    fields: dict[str, object] = dict(values)
    for name in ("instance_class", "instance_stream", "node_instance", "node_symbol", "node_layer", *AT_TIMES):
        if name in fields:
            fields[name] = np.array(fields[name], np.int64)
    for name in ("symbols", "instance_s", "after", "members"):
        fields[name] = _nested(fields[name])
    for name in ("class_symbol", "exits", "send_classes"):
        fields[name] = tuple(fields[name])  # type: ignore[arg-type]
    return PassTemplate(**fields)  # type: ignore[arg-type]


def _nested(rows: object) -> tuple[tuple[object, ...], ...]:
    assert isinstance(rows, Sequence)
    return tuple(map(tuple, rows))
