"""The table of prices that the core reads, filled in when a step first asks.

Constants of attention are those of ``cost.scalar``; everything else comes from
:class:`~clustersim.graph.prices.steps.StepPrices`, so that no price is worked out twice in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import prod
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage, field_of, set_field
from clustersim.core.attention import UNKNOWN, Terms
from clustersim.core.prices import COUNTS, OF_DECODE, OF_MIXED, OF_PREFILL, Prices, Whole
from clustersim.cost.curves import Curves
from clustersim.cost.scalar import DecodeTerms, Measured, PrefillTerms, roofline_of
from clustersim.cost.table import TableCost
from clustersim.graph.prices.parts import COUNTS as PLACES
from clustersim.graph.prices.parts import Prompts, window_of
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.prices.table import attention_shape
from clustersim.graph.program import CostClass

FEW_ROWS: Final = (1 << 12) - 1
"""Places of the first table of rows; it grows when it is half full."""
MOST_VALUES: Final = 1 << 16
"""Values of a count up to which what depends on it alone is kept in a list."""
MOST_KEYS: Final = 1 << 62


class PriceTables:
    """Prices of the stages of replicas that have the same limits.

    Parameters
    ----------
    stages : sequence of sequence of StepPrices
        By replica, one per stage.
    most : sequence of int
        The most that each count of a step can be, in the order of ``graph.prices.parts.ALIASES``.
    storage : Storage
    apart : bool
        Whether ranks that send alike are told apart, since their sends may take different times.
    by_layer : bool
        Whether it is asked when steps pass single layers.

    Attributes
    ----------
    p : Prices
    obstacle : str
        Why the core can't price these steps; empty if it can.
    plain : bool
        Whether the core prices attention itself, and need not ask at each step.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[StepPrices]],
        most: Sequence[int],
        storage: Storage,
        *,
        apart: bool = False,
        by_layer: bool = False,
    ) -> None:
        self.by_layer = by_layer
        self.kinds = list(dict.fromkeys(one for each in stages for one in each))
        self.of_stage = [[self.kinds.index(one) for one in each] for each in stages]
        self.deepest = max(map(len, stages))
        self.most = most
        self.storage = storage
        self.apart = apart
        self.radix = [1 + one for one in most]
        self.prompts: list[Prompts] = [each for one in self.kinds for each in (one.prefill, one.mixed)]
        self.senders = self._senders()
        self.obstacle = self._obstacle()
        self.plain = True
        if not self.obstacle:
            self.p = self._made()
            self._explain_sends()

    def _obstacle(self) -> str:
        for prompts in self.prompts:
            if prod(self.radix[place] for place in prompts.used) >= MOST_KEYS:
                return "counts of a step exceed 62 bits"
        if any(len(one.pricer.windows) > 1 for one in self.kinds):
            return "the model attends within windows of several lengths"
        return ""

    def _adds_up(self, prompts: Prompts) -> bool:
        """Whether the core adds rows up of parts: none depends on more than one small count."""
        few = self.by_layer or self._width(prompts) <= MOST_VALUES
        return few and all(len(part.places) <= 1 for part in prompts.parts)

    def _width(self, prompts: Prompts) -> int:
        return max([1, *(self.radix[part.places[0]] for part in prompts.parts if part.places)])

    def _senders(self) -> list[tuple[int, ...]]:
        """Return the classes of sends of each program of each kind; one alone where all ranks do alike."""
        found = [
            one.programs[kind].template.send_classes for one in self.kinds for kind in ("prefill", "mixed", "decode")
        ]
        if not self.apart and all(len(set(classes)) <= 1 for classes in found):
            found = [classes[:1] for classes in found]
        return [tuple(classes) for classes in found]

    def _made(self) -> Prices:
        """Return the tables, of which only constants are filled in."""
        storage, kinds, tables = self.storage, len(self.kinds), 2 * len(self.kinds)
        adds_up = [self._adds_up(prompts) for prompts in self.prompts]
        width = max(
            self._width(one) for one, simple in zip(self.prompts, adds_up, strict=True) if simple or not any(adds_up)
        )
        width = width if any(adds_up) else 1
        parts = max(len(prompts.parts) for prompts in self.prompts)
        ranks = max([1, *map(len, self.senders)])
        attending = [self._attending(one, of) for one in self.kinds for of in (OF_PREFILL, OF_MIXED, OF_DECODE)]
        classes = max([1, *map(len, attending)])
        templates = [prompts.program.template for prompts in self.prompts] if self.by_layer else []
        columns = max((one.num_classes for one in templates), default=0)
        layers = max((len(one.passes_layers) for one in templates), default=0)
        whole = storage.records(Whole, kinds)
        decodes = self.most[PLACES["decode_sequences"]] + 1
        sends = max([1, *(self.radix[PLACES["tokens"]] for one in self.senders if one)])
        values: dict[str, Any] = {
            "longest_s": LONGEST_S, "kinds": kinds, "classes": classes, "width": width, "ranks": ranks,
            "size": FEW_ROWS, "columns": columns,
        }  # fmt: skip
        self.whole = values
        for name, value in values.items():
            set_field(whole, 0, name, value)
        for kind, one in enumerate(self.kinds):
            set_field(whole, kind, "gap_s", one.pricer.gap_s(graph=False))
            set_field(whole, kind, "graph_gap_s", one.pricer.gap_s(graph=True))
        p = Prices(
            whole=whole,
            of_stage=storage.table(len(self.of_stage), self.deepest),
            priced=storage.numbers(kinds),
            weights=storage.table(tables, COUNTS),
            keys=storage.table(tables, FEW_ROWS, UNKNOWN),
            row_ns=storage.table(tables, FEW_ROWS),
            row_number=storage.table(tables, FEW_ROWS),
            made=storage.table(tables, 2),
            part_count=storage.numbers(tables),
            part_place=storage.table(tables, parts, -1),
            part_ns=storage.table(tables, parts * width, UNKNOWN),
            send_place=storage.numbers(tables, -1),
            send_ns=storage.table(tables, sends * ranks),
            decode_ns=storage.table(kinds, decodes, UNKNOWN),
            decode_row=storage.table(kinds, decodes),
            decode_graph=storage.table(kinds, decodes),
            decode_send=storage.table(kinds, decodes * ranks),
            attending=storage.numbers(3 * kinds),
            terms=storage.grid(Terms, 3 * kinds, classes),
            layers=storage.numbers(kinds),
            class_place=storage.table(tables, columns, -1),
            class_ns=storage.table(tables, columns * width),
            layer_classes=storage.table(tables, columns * layers),
            layer_attention=storage.table(tables, classes * layers),
            curves=None,
            cost=storage.table(kinds, 2),
            sent=storage.numbers(kinds * ranks),
            varying=storage.numbers(kinds * classes),
            answer=storage.numbers(kinds * classes),
        )
        for r, each in enumerate(self.of_stage):
            for stage, kind in enumerate(each):
                p.of_stage[r][stage] = kind
        self.part_rows: list[list[Int64Array]] = []
        for table, (prompts, simple) in enumerate(zip(self.prompts, adds_up, strict=True)):
            for at, place in enumerate(prompts.used):
                p.weights[table][place] = prod(self.radix[later] for later in prompts.used[at + 1 :])
            p.made[table][0] = len(prompts.rows)  # those of others are there
            p.part_count[table] = len(prompts.parts) if simple else 0
            for number, part in enumerate(prompts.parts if simple else ()):
                p.part_place[table][number] = part.places[0] if part.places else -1
            sizes = [(self.radix[part.places[0]] if part.places else 1, part.classes) for part in prompts.parts]
            self.part_rows.append([np.zeros(size, np.int64) for size in sizes] if simple else [])
        for table, template in enumerate(templates):
            p.layers[table // 2] = len(template.passes_layers)
            self._fill_layers(p, table, columns, classes)
        self.classes = attending
        curves: list[float] = []
        for of, mine in enumerate(attending):
            p.attending[of] = len(mine)
            for core, (cls, instances) in enumerate(mine):
                self._fill(self.kinds[of // 3].pricer, p.terms[of], core, cls, instances, curves)
        return p._replace(curves=storage.column(np.array([*curves, 0.0])))

    def _fill_layers(self, p: Prices, table: int, columns: int, classes: int) -> None:
        """Say what a kind of step does from layer to layer."""
        prompts = self.prompts[table]
        template, begin = prompts.program.template, 0
        for layer, (instance, _) in enumerate(template.passes_layers):
            done = np.bincount(template.instance_class[begin : instance + 1], minlength=template.num_classes).tolist()
            begin = instance + 1
            for core, column in enumerate(prompts.columns):
                p.layer_attention[table][layer * classes + core], done[column] = done[column], 0
            p.layer_classes[table][layer * columns : layer * columns + len(done)] = done
        for part in prompts.parts:
            for column in part.indices:
                p.class_place[table][column] = part.places[0] if part.places else -1

    def _attending(self, one: StepPrices, of: int) -> list[tuple[CostClass, int]]:
        """Return the classes of a table that attend, and how many instances a pass has of each."""
        program = one.programs[("prefill", "mixed", "decode")[of]]
        if of == OF_DECODE:
            columns = [at for at, cls in enumerate(program.classes) if cls.node.op == "attention_decode"]
        else:
            columns = list((one.prefill, one.mixed)[of].columns)
        return [(program.classes[column], int(program.template.counts[column])) for column in columns]

    def _explain_sends(self) -> None:
        """Say which count sends depend on."""
        for table, prompts in enumerate(self.prompts):
            classes = self.senders[3 * (table // 2) + table % 2]
            for part in prompts.parts:
                if classes and classes[0] in part.indices and part.places:
                    self.p.send_place[table] = part.places[0]

    def _fill(self, pricer: Pricer, terms: Any, core: int, cls: CostClass, instances: int, curves: list[float]) -> None:
        """Fill in the constants of a class; where plain numbers do not price it, they are good for no key at all."""
        shape = attention_shape(cls.node)
        prefills = cls.node.op == "attention_prefill"
        roofline, measured = roofline_of(pricer.cost), Measured.of(pricer.cost, cls.node.op, shape)
        record: DecodeTerms | PrefillTerms | None = None
        plain = False
        if roofline is not None and prefills:
            record = PrefillTerms.of(roofline, shape)
            plain = record.plain(pricer.gap_s(graph=False), measured.least)
        elif roofline is not None:
            record = DecodeTerms.of(roofline, shape)
            plain = record.plain(1, min(pricer.gap_s(graph=False), pricer.gap_s(graph=True)), measured.least)
        self.plain = self.plain and plain
        found: dict[str, Any] = {
            "prefills": int(prefills), "instances": instances, "near": int(window_of(cls) is not None), "most": -1,
        }  # fmt: skip
        if record is not None and plain:
            found |= {one.name: getattr(record, one.name) for one in fields(record)}
            if measured.curves is not None:
                found |= _placed(measured.curves, measured.known, curves)
        for name, value in found.items():
            set_field(terms, core, name, value)

    def learn_decode(self, r: int, count: int) -> None:
        """Fill in what steps of so many decodes cost on a replica."""
        p, ranks = self.p, self.whole["ranks"]
        for kind in self.kinds_of(r):
            one = self.kinds[kind]
            price = one.decode(count)
            p.decode_ns[kind][count], p.decode_row[kind][count] = price.base_ns, price.number
            p.decode_graph[kind][count] = int(one.pricer.in_graph((count,)))
            for rank in range(min(ranks, len(price.sends))):
                p.decode_send[kind][count * ranks + rank] = price.sends[rank]

    def learn_parts(self, r: int, of: int, counts: Sequence[int]) -> None:
        """Fill in unknown costs of the parts of a replica's step; ``of``: 0 of steps that prefill, 1 of mixed ones."""
        p, ranks, width = self.p, self.whole["ranks"], self.whole["width"]
        for table in [2 * kind + of for kind in self.kinds_of(r)]:
            prompts = self.prompts[table]
            for number, part in enumerate(prompts.parts):
                at = counts[part.places[0]] if part.places else 0
                if p.part_ns[table][number * width + at] == UNKNOWN:
                    by_class, ns = part.price(tuple(counts))
                    p.part_ns[table][number * width + at] = ns
                    self.part_rows[table][number][at] = by_class
                    self._learn_sends(table, by_class, at, ranks)
                    for column in part.indices if self.by_layer else ():
                        p.class_ns[table][column * width + at] = int(by_class[column])

    def _learn_sends(self, table: int, by_class: Int64Array, at: int, ranks: int) -> None:
        classes = self.senders[3 * (table // 2) + table % 2]
        for rank, one in enumerate(classes):
            if by_class[one]:
                self.p.send_ns[table][at * ranks + rank] = int(by_class[one])

    def learn_rows(self, r: int, of: int, counts: Sequence[int]) -> None:
        """Fill in what a step of a replica costs whose parts are not added up in the core, and its row."""
        for kind in self.kinds_of(r):
            if self.p.part_count[2 * kind + of] == 0:
                self._learn_row(2 * kind + of, counts)

    def kinds_of(self, r: int) -> list[int]:
        """Return the kinds of the stages of a replica."""
        return list(dict.fromkeys(self.of_stage[r]))

    def values_of(self, replicas: Int64Array, tables: Int64Array) -> Int64Array:
        """Return how many values vary in steps of replicas that are priced by tables of attention."""
        each = np.array(
            [[sum(len(self.classes[3 * kind + of]) for kind in mine) for of in range(3)] for mine in self.of_stage]
        )
        found: Int64Array = each[replicas, tables]
        return found

    def _learn_row(self, table: int, counts: Sequence[int]) -> None:
        p, prompts = self.p, self.prompts[table]
        found = prompts.known.get(prompts.pick(tuple(counts))) or prompts.row(tuple(counts))
        key = sum(int(p.weights[table][place]) * counts[place] for place in prompts.used)
        self._put(table, key, found[0], found[1])
        p.made[table][1] += 1
        if 2 * p.made[table][1] > len(p.keys[table]):
            self.widen()

    def _put(self, table: int, key: int, ns: int, number: int) -> None:
        p, size = self.p, len(self.p.keys[table])
        at = key % size
        while p.keys[table][at] not in (UNKNOWN, key):
            at = (at + 1) % size
        p.keys[table][at], p.row_ns[table][at], p.row_number[table][at] = key, ns, number

    def widen(self) -> None:
        """Make room for more rows."""
        old, storage = self.p, self.storage
        size = 4 * len(old.keys[0]) + 3
        tables = len(self.prompts)
        self.p = old._replace(
            keys=storage.table(tables, size, UNKNOWN),
            row_ns=storage.table(tables, size),
            row_number=storage.table(tables, size),
        )
        self.whole["size"] = size
        set_field(self.p.whole, 0, "size", size)
        for table in range(tables):
            keys = np.asarray(old.keys[table])
            for at in np.flatnonzero(keys != UNKNOWN).tolist():
                self._put(table, int(keys[at]), int(old.row_ns[table][at]), int(old.row_number[table][at]))

    def forget(self) -> None:
        """Forget for which steps kinds of stage were priced: a run begins."""
        for kind in range(self.whole["kinds"]):
            self.p.priced[kind] = 0

    def settle(self) -> None:
        """Tell the prices of rows that the core has made since."""
        p = self.p
        for table, prompts in enumerate(self.prompts):
            known, made = len(prompts.rows), int(p.made[table][0])
            if made > known:
                self._tell(table, prompts, known)
            p.made[table][0] = len(prompts.rows)
        self._count_outside()

    def _tell(self, table: int, prompts: Prompts, known: int) -> None:
        """Add the rows from a number on to those that prices know."""
        all_keys, numbers = np.asarray(self.p.keys[table]), np.asarray(self.p.row_number[table])
        at = np.flatnonzero((all_keys != UNKNOWN) & (numbers >= known))
        at = at[np.argsort(numbers[at])]
        keys, values = all_keys[at], {}
        for place in reversed(prompts.used):
            keys, values[place] = np.divmod(keys, self.radix[place])
        found = np.zeros((len(at), prompts.parts[0].classes), np.int64)
        for part, rows in zip(prompts.parts, self.part_rows[table], strict=True):
            found += rows[values[part.places[0]] if part.places else 0]
        prompts.rows.extend((row, prompts.columns) for row in found)

    def _count_outside(self) -> None:
        """Tell a table of measured points how many durations lay outside of them."""
        for of, classes in enumerate(self.classes):
            cost = self.kinds[of // 3].pricer.cost
            if isinstance(cost, TableCost):
                for core, (cls, _) in enumerate(classes):
                    cost.count_outside(cls.node.op, int(field_of(self.p.terms[of], core, "outside")))
                    set_field(self.p.terms[of], core, "outside", 0)


class EventTables(PriceTables):
    """Stands for the table where all steps run by events."""

    p: Any = None

    def __init__(self) -> None:
        self.whole = {"classes": 1, "ranks": 1, "kinds": 0}

    def settle(self) -> None:
        """No prices were made."""

    def values_of(self, replicas: Int64Array, tables: Int64Array) -> Int64Array:
        """Return how many values vary in steps: none."""
        del tables
        return np.zeros_like(replicas)


def _placed(curves: Curves, known: bool, numbers: list[float]) -> dict[str, int]:
    """Put measured points behind other numbers, and return where."""
    found = {
        "curves": len(curves.outer), "curves_at": len(numbers), "points": len(curves.inner), "known": int(known),
    }  # fmt: skip
    for each in (curves.outer, curves.starts, curves.place, curves.inner, curves.ratio):
        numbers += np.asarray(each, np.float64).tolist()
    return found
