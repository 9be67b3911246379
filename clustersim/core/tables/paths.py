"""The tables of steps that are longest paths (:mod:`clustersim.core.paths`), filled in when a step first asks.

Everything is :class:`~clustersim.graph.prices.step_table.StepTable`'s, so that no price is worked out in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage, set_field
from clustersim.core.paths import PassAttention, PassPart, PassTable
from clustersim.cost.attention import UNKNOWN
from clustersim.errors import InputError
from clustersim.graph.batch import Features
from clustersim.graph.longest_path import paths_of
from clustersim.graph.prices.step_table import NEAR, Part, PlacedPart, StepTable
from clustersim.graph.prices.table import node_amount

FEW_VALUES: Final = (1 << 12) - 1
"""Places of the first table of values; it grows when it is half full."""
MOST_KEYS: Final = 1 << 62
MOST_PLACES: Final = 3
"""The most counts that a part depends on."""


class PathTables:
    """The tables of some kinds of step.

    Parameters
    ----------
    tables : sequence of StepTable
        By number.
    attention : sequence of int
        The table of attention of each.
    radix : sequence of int
        How many values each count may have.
    ranks : int
        Ranks that send, by which sends differ.
    storage : Storage

    Attributes
    ----------
    obstacle : str
        Why these steps can't be priced so; empty if they can.
    parts : list of list of (PlacedPart, classes, counts)
        Of each table.
    """

    def __init__(
        self, tables: Sequence[StepTable], attention: Sequence[int], radix: Sequence[int], ranks: int, storage: Storage
    ) -> None:
        self.tables, self.attention, self.radix, self.ranks, self.storage = tables, attention, radix, ranks, storage
        self.parts = [[one for placed in table.parts for one in _of_coordinates(placed)] for table in tables]
        self.kinds: dict[int, int] = {}
        """Of what costs the same, by its id."""
        for placed, _, _ in (one for some in self.parts for one in some):
            self.kinds.setdefault(id(placed.part), len(self.kinds))
        self.obstacle = self._obstacle()
        self.places: dict[int, int] = {}
        """Key → where its values begin."""
        self.values = np.zeros(FEW_VALUES, np.int64)
        self.stored = storage.numbers(FEW_VALUES)
        """The same as one of the lists."""
        self.filled = 0
        self.known: list[dict[bytes, int]] = [{} for _ in tables]
        """Where values were found → the row of these, by table."""

    def _obstacle(self) -> str:
        if not all(table.told_by_counts for table in self.tables):
            return "what an operator does depends on more than counts"
        for _, _, places in (one for some in self.parts for one in some):
            if len(places) > MOST_PLACES or prod(self.radix[at] for at in places) * len(self.kinds) >= MOST_KEYS:
                return "what an operator does depends on too many counts"
        return ""

    # ---- lists ------------------------------------------------------------------------------------------------------
    def lists(self) -> dict[str, Any]:
        """Return what does not change, and room for all else, by the names of ``core.prices.Prices``."""
        storage, tables = self.storage, self.tables
        path = paths_of([table.path for table in tables], storage)
        exits = sum(len(table.path.exits) for table in tables)
        attends = sum(len(table.attention) for table in tables)
        self.records = storage.records(PassTable, len(tables))
        self.part_records = storage.records(PassPart, sum(map(len, self.parts)))
        self.attend_records = storage.records(PassAttention, attends)
        self.uses: list[int] = []
        self.uses_first: list[int] = [0]
        self.sends = np.full((len(tables), self.ranks, 2), -1, np.int64)
        at = dict.fromkeys(("attends", "exit", "part", "stretch", "term", "series"), 0)
        self.series_exits: list[int] = []
        for number, table in enumerate(tables):
            self._add(number, table, at)
        terms = at["term"]
        return {
            "pass_tables": self.records,
            "pass_parts": self.part_records,
            "attends": self.attend_records,
            "uses": storage.column(np.array(self.uses or [0], np.int64)),
            "uses_first": storage.column(np.array(self.uses_first, np.int64)),
            "found": storage.numbers(at["part"]),
            **path._asdict(),
            "series_ends": storage.numbers(at["series"]),
            "base_terms": storage.numbers(terms),
            "pass_terms": storage.numbers(terms),
            "exits": storage.column(np.array(self.series_exits or [0], np.int64)),
            "leaves_of": storage.numbers(max(1, exits)),
            "path_sends": storage.column(self.sends.ravel()),
            "counts": storage.numbers(len(self.radix)),
            **self._value_lists(FEW_VALUES),
        }

    def _add(self, number: int, table: StepTable, at: dict[str, int]) -> None:
        """Say where the parts of a table and all else are, behind those of others."""
        path = table.path
        values = {
            "of": self.attention[number], "graph": int(table.graph), "first_attends": at["attends"],
            "attends": len(table.attention), "first_exit": at["exit"], "exits": len(path.exits),
            "first_part": at["part"], "parts": len(self.parts[number]), "first_stretch": at["stretch"],
            "stretches": len(path.stretches), "first_term": at["term"], "terms": len(path.counts),
        }  # fmt: skip
        for name, value in values.items():
            set_field(self.records, number, name, value)
        self.series_exits += [one + at["series"] if one >= 0 else -1 for one in path.exits]
        sending = table.program.template.send_classes
        for placed, indices, places in self.parts[number]:
            radix = [self.radix[one] for one in places]
            of_counts = [*places, -1, -1, -1]
            part = {
                "classes": len(indices), "kind": self.kinds[id(placed.part)], "first_use": len(self.uses_first) - 1,
                "first": of_counts[0], "second": of_counts[1], "third": of_counts[2], "radix": [*radix, 0, 0][1],
                "third_radix": [*radix, 0, 0, 0][2],
            }  # fmt: skip
            for name, value in part.items():
                set_field(self.part_records, at["part"], name, value)
            for place, index in enumerate(indices):
                self._add_uses(table, index, at["term"])
                for rank in [one for one, cls in enumerate(sending[: self.ranks]) if cls == index]:
                    self.sends[number, rank] = at["part"], place
            at["part"] += 1
        for attention, _ in table.attention:
            of_counts = [-1] * (3 - len(attention.places)) + [*attention.places]
            for name, value in zip(("pairs", "queries", "keys"), of_counts, strict=True):
                set_field(self.attend_records, at["attends"], name, value)
            set_field(self.attend_records, at["attends"], "first_use", len(self.uses_first) - 1)
            self._add_uses(table, attention.column, at["term"])
            at["attends"] += 1
        at["exit"] += len(path.exits)
        at["stretch"] += len(path.stretches)
        at["term"] += len(path.counts)
        at["series"] += len(path.term)

    def _add_uses(self, table: StepTable, index: int, first_term: int) -> None:
        """Say which terms have a class, and how often."""
        times = table.path.counts[:, index]
        for term in np.flatnonzero(times).tolist():
            self.uses += [first_term + term, int(times[term])]
        self.uses_first.append(len(self.uses) // 2)

    def _value_lists(self, size: int) -> dict[str, Any]:
        """Return the table of values, with so many places."""
        keys, begins = self.storage.numbers(size, UNKNOWN), self.storage.numbers(size)
        for key, first in self.places.items():
            _put(keys, begins, key, first)
        self.size = size
        self.keys, self.begins = keys, begins
        return {"value_keys": keys, "value_at": begins, "values": self.stored}

    # ---- what is asked for ------------------------------------------------------------------------------------------
    def learn(self, number: int, counts: Sequence[int]) -> dict[str, Any]:
        """Fill in what the parts of a step take that are not known; return the lists that are others now.

        Raises
        ------
        InputError
            When an operator would take a day.
        """
        table, before = self.tables[number], self.stored
        try:
            for placed, _, places in self.parts[number]:
                self._learn(placed.part, tuple([counts[at] for at in places]), places)
        except InputError:
            table.price_whole(counts)
            raise
        if 2 * len(self.places) > self.size:
            return self._value_lists(4 * len(self.places) + 3)
        return {} if self.stored is before else {"values": self.stored}

    def _learn(self, part: Part, counts: tuple[int, ...], places: Sequence[int]) -> None:
        key = self._key(part, counts, places)
        if key in self.places:
            return
        alone = len(counts) == 1
        part.learn([counts[0] if alone else counts])
        first = counts[0] - counts[0] % NEAR if alone else 0
        for value in range(first, first + NEAR) if alone else ():
            if value in part.known:
                self._tell(part, (value,), self._key(part, (value,), places), part.known[value])
        if key not in self.places:
            self._tell(part, counts, key, part.known[counts[0] if alone else counts])

    def _key(self, part: Part, counts: Sequence[int], places: Sequence[int]) -> int:
        found = 0
        for value, at in zip(counts, places, strict=True):
            found = found * self.radix[at] + value
        return found * len(self.kinds) + self.kinds[id(part)]

    def _tell(self, part: Part, counts: Sequence[int], key: int, ns: Int64Array) -> None:
        """Add what classes take, and the bytes of those that send."""
        if key in self.places:
            return
        sends = [cls for cls in part.classes if cls.node.op == "send"]
        features: Features = {
            name: (float(one),) for one, names in zip(counts, part.names, strict=True) for name in names
        }
        sizes = [round(node_amount(cls.node, features, 0)) for cls in sends]
        block = np.array([*ns.tolist(), *sizes], np.int64)
        if self.filled + len(block) > len(self.values):
            more = len(self.values) + len(block)
            self.values = longer(self.values, np.zeros(more, np.int64))
            self.stored = longer(self.stored, self.storage.numbers(more))
        self.values[self.filled : self.filled + len(block)] = block
        self.stored[self.filled : self.filled + len(block)] = block.tolist()
        self.places[key] = self.filled
        self.filled += len(block)
        if 2 * len(self.places) <= self.size:
            _put(self.keys, self.begins, key, self.places[key])

    def attention_ns(self, number: int, counts: Sequence[int]) -> list[int]:
        """Return what attends takes in a step.

        Raises
        ------
        InputError
            When that is a day.
        """
        try:
            return [one.ns(counts) for one, _ in self.tables[number].attention]
        except InputError:
            self.tables[number].price_whole(counts)
            raise

    # ---- what was found ---------------------------------------------------------------------------------------------
    def rows(self, number: int, found: Int64Array) -> Int64Array:
        """Return the rows of steps whose values were found there; int64 of shape (steps, parts)."""
        table, known, values = self.tables[number], self.known[number], self.values
        keys = [row.tobytes() for row in np.ascontiguousarray(found)]
        first = {key: at for at, key in reversed([*enumerate(keys)]) if key not in known}
        at = sorted(first.values())
        made = np.zeros((len(at), len(table.program.classes)), np.int64)
        for place, (_, indices, _) in enumerate(self.parts[number]):
            made[:, indices] = values[found[at, place][:, None] + np.arange(len(indices))]
        for one, row in zip(at, made, strict=True):
            known[keys[one]] = len(table.rows)
            table.rows.append((row, table.columns))
        return np.array([known[key] for key in keys], np.int64)

    def sent_bytes(self, number: int, found: Int64Array) -> Int64Array:
        """Return what each rank sends of these; int64 of shape (steps, ranks)."""
        sent = np.zeros((len(found), self.ranks), np.int64)
        base = sum(map(len, self.parts[:number]))
        for rank, (part, place) in enumerate(self.sends[number].tolist()):
            if part >= 0:
                classes = self.parts[number][part - base][0].part.classes
                behind = sum(cls.node.op == "send" for cls in classes[:place])
                sent[:, rank] = self.values[found[:, part - base] + len(classes) + behind]
        return sent


def longer(one: Any, more: Any) -> Any:
    """Return a list with another one behind it."""
    return np.concatenate([one, more]) if isinstance(one, np.ndarray) else one + more


def _of_coordinates(placed: PlacedPart) -> list[tuple[PlacedPart, list[int], tuple[int, ...]]]:
    """Return a part coordinate by coordinate: its classes there, and the counts that these depend on."""
    size = len(placed.part.classes)
    each = enumerate(placed.all_places)
    return [(placed, placed.indices[at * size : (at + 1) * size], places) for at, places in each]


def _put(keys: Any, begins: Any, key: int, first: int) -> None:
    at = key % len(keys)
    while keys[at] != UNKNOWN:
        at = (at + 1) % len(keys)
    keys[at], begins[at] = key, first
