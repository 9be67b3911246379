"""The table of prices that the core reads, filled in when a step first asks.

Constants of attention are those of ``cost.attention``; everything else comes from
:class:`~clustersim.graph.prices.steps.StepPrices`, so that no price is worked out twice in two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.compiled import Storage, field_of, set_field
from clustersim.core.group_prices import Group
from clustersim.core.paths import PassAttention, PassPart, PassTable
from clustersim.core.prices import COUNTS, OF_DECODE, OF_MIXED, OF_PREFILL, Prices, Whole
from clustersim.core.ranks import PROGRAMS
from clustersim.core.state import ASK_PART, ASK_ROW
from clustersim.core.tables.ranks import Member, RankTables
from clustersim.cost.attention import UNKNOWN, Terms, constants
from clustersim.cost.table import TableCost
from clustersim.graph.prices.attention import window_of
from clustersim.graph.prices.counts import COUNTS as PLACES
from clustersim.graph.prices.pricer import LONGEST_S, Pricer
from clustersim.graph.prices.step_table import StepTable
from clustersim.graph.prices.steps import SplitPrices, StepPrices
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
        The most that each count of a step can be, in the order of ``graph.prices.counts.ALIASES``.
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
        self.split = isinstance(self.kinds[0], SplitPrices)
        """Whether prompts are split over SP ranks."""
        self.ranks: RankTables | None = None
        self.most = most
        self.storage = storage
        self.apart = apart
        self.radix = [1 + one for one in most]
        self.prompts: list[StepTable] = [each for one in self.kinds for each in (one.prefill, one.mixed)]
        self.senders = self._senders()
        if self.split:
            self.ranks = RankTables(self.kinds, most, max([1, *map(len, self.senders)]), storage)
        self.obstacle = self._obstacle()
        self.plain = True
        if not self.obstacle:
            self.p = self._made()
            self._explain_sends()

    def _obstacle(self) -> str:
        if self.ranks is not None:
            return self.ranks.paths.obstacle
        for prompts in self.prompts:
            if prod(self.radix[place] for place in prompts.used) >= MOST_KEYS:
                return "counts of a step exceed 62 bits"
        if any(len(one.pricer.windows) > 1 for one in self.kinds):
            return "the model attends within windows of several lengths"
        return ""

    def _adds_up(self, prompts: StepTable) -> bool:
        """Whether the core adds rows up of parts: none depends on more than one small count."""
        if self.split:
            return False
        few = self.by_layer or self._width(prompts) <= MOST_VALUES
        return few and all(len(part.places) <= 1 for part in prompts.parts)

    def _width(self, prompts: StepTable) -> int:
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
        width = max([1, *(self._width(one) for one, simple in zip(self.prompts, adds_up, strict=True) if simple)])
        parts = max(len(prompts.parts) for prompts in self.prompts)
        ranks = max([1, *map(len, self.senders)])
        attending = [self._attending(one, of) for one in self.kinds for of in (OF_PREFILL, OF_MIXED, OF_DECODE)]
        classes = max([1, *map(len, attending)])
        templates = [prompts.program.template for prompts in self.prompts] if self.by_layer else []
        columns = max((one.num_classes for one in templates), default=0)
        layers = max((len(one.passes_layers) for one in templates), default=0)
        whole, none = storage.records(Whole, kinds), storage.numbers(0)
        lists = dict.fromkeys(Prices._fields[Prices._fields.index("pass_tables") :], none)
        lists |= {
            "pass_tables": storage.records(PassTable, 0), "pass_parts": storage.records(PassPart, 0),
            "attends": storage.records(PassAttention, 0), "groups": storage.records(Group, 0),
        }  # fmt: skip
        readable = (
            "uses",
            "uses_first",
            "stretches",
            "series",
            "waits_first",
            "waits",
            "exits",
            "path_sends",
            "padded",
        )
        lists |= dict.fromkeys(readable, storage.column(np.zeros(0, np.int64)))
        if self.ranks is not None:
            lists |= self.ranks.lists()
        decodes = self.most[PLACES["decode_sequences"]] + 1
        sends = max([1, *(self.radix[PLACES["tokens"]] for one in self.senders if one)])
        values: dict[str, Any] = {
            "longest_s": LONGEST_S, "kinds": kinds, "classes": classes, "width": width, "ranks": ranks,
            "size": FEW_ROWS, "columns": columns, **({} if self.ranks is None else self.ranks.whole),
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
            leaves=storage.numbers(kinds * ranks),
            varying=storage.numbers(kinds * classes),
            answer=storage.numbers(kinds * classes),
            **lists,
        )
        for r, each in enumerate(self.of_stage):
            for stage, kind in enumerate(each):
                p.of_stage[r][stage] = kind
        self.part_rows: list[list[Int64Array]] = []
        for table, (prompts, simple) in enumerate(zip(self.prompts, adds_up, strict=True)):
            for at, place in enumerate(() if self.split else prompts.used):
                p.weights[table][place] = prod(self.radix[later] for later in prompts.used[at + 1 :])
            p.made[table][0] = len(prompts.rows)  # those of others are there
            p.part_count[table] = len(prompts.parts) if simple else 0
            for number, part in enumerate(prompts.parts if simple else ()):
                p.part_place[table][number] = part.places[0] if part.places else -1
            added = prompts.parts if simple else []
            sizes = [(self.radix[part.places[0]] if part.places else 1, part.classes) for part in added]
            self.part_rows.append([np.zeros(size, np.int64) for size in sizes])
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
            for part in () if self.split else prompts.parts:
                if classes and classes[0] in part.indices and part.places:
                    self.p.send_place[table] = part.places[0]

    def _fill(self, pricer: Pricer, terms: Any, core: int, cls: CostClass, instances: int, curves: list[float]) -> None:
        """Fill in the constants of a class; where plain numbers do not price it, they are good for no key at all."""
        shape = attention_shape(cls.node)
        prefills = cls.node.op == "attention_prefill"
        gap_s = pricer.gap_s(graph=False) if prefills else min(pricer.gap_s(graph=False), pricer.gap_s(graph=True))
        plain = constants(pricer.cost, cls.node.op, shape, gap_s, curves, 0 if self.split else 1)
        self.plain = self.plain and bool(plain)
        found: dict[str, Any] = {
            "prefills": int(prefills), "instances": instances, "near": int(window_of(cls) is not None), "most": -1,
        }  # fmt: skip
        found |= plain
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
                if p.part_ns[table][number * width + at] != UNKNOWN:
                    continue
                limit = self.radix[part.places[0]] if part.places else 1
                for value, by_class, ns in part.prices(counts):
                    if value >= limit:
                        continue
                    p.part_ns[table][number * width + value] = ns
                    self.part_rows[table][number][value] = by_class
                    self._learn_sends(table, by_class, value, ranks)
                    for column in part.indices if self.by_layer else ():
                        p.class_ns[table][column * width + value] = int(by_class[column])

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

    def answer_ranks(self, r: int, status: int, chunks: Sequence[Member]) -> None:
        """Fill in what is asked for of a step of SP ranks."""
        assert self.ranks is not None
        paths, number, counts = self.ranks.paths, int(self.p.asked[1]), np.asarray(self.p.counts).tolist()
        if status == ASK_ROW:
            self._replace(self.ranks.learn_chunks(chunks, self.p))
        elif status == ASK_PART:
            self._replace(paths.learn(number, counts))
            self.whole["value_places"] = paths.size
            set_field(self.p.whole, 0, "value_places", paths.size)
        else:
            for kind in self.kinds_of(r):
                base = kind * self.whole["classes"]
                for core, ns in enumerate(paths.attention_ns(self.ranks.number(kind, number % PROGRAMS), counts)):
                    self.p.answer[base + core] = ns

    def _replace(self, lists: dict[str, Any]) -> None:
        """Put other lists in the place of some."""
        if lists:
            self.p = self.p._replace(**lists)

    def classes_of(self, r: int, of: int) -> list[tuple[CostClass, int]]:
        """Return the classes that attend on the first stage of a replica."""
        return self.classes[3 * self.of_stage[r][0] + of]

    def kinds_of(self, r: int) -> list[int]:
        """Return the kinds of the stages of a replica."""
        return list(dict.fromkeys(self.of_stage[r]))

    def values_of(self, replicas: Int64Array, tables: Int64Array, counts: Int64Array) -> Int64Array:
        """Return how many values vary in so many steps of replicas that are priced by tables of attention."""
        each = np.array(
            [[sum(len(self.classes[3 * kind + of]) for kind in mine) for of in range(3)] for mine in self.of_stage]
        )
        if self.ranks is None:
            return each[replicas, tables] * counts
        each[:, OF_DECODE] += [self.is_timed(r) for r in range(len(self.of_stage))]
        once = np.array([[self.ranks.found_of(mine, of) for of in range(3)] for mine in self.of_stage])
        found: Int64Array = each[replicas, tables] * counts + once[replicas, tables]
        return found

    def is_timed(self, r: int) -> bool:
        """Whether what varies in decode steps of a replica ends with how long each takes."""
        return self.ranks is not None and self.ranks.decodes and len(self.of_stage[r]) == 1

    def _learn_row(self, table: int, counts: Sequence[int]) -> None:
        p, prompts = self.p, self.prompts[table]
        found = prompts.known.get(prompts.pick(tuple(counts))) or prompts.row(tuple(counts))
        key = sum(int(p.weights[table][place]) * counts[place] for place in prompts.used)
        self._put(table, key, sum(found[1]), found[0])
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
        for table, prompts in enumerate(() if self.split else self.prompts):
            known, made = len(prompts.rows), int(p.made[table][0])
            if made > known:
                self._tell(table, prompts, known)
            p.made[table][0] = len(prompts.rows)
        self._count_outside()

    def _tell(self, table: int, prompts: StepTable, known: int) -> None:
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
        self.ranks = None

    def settle(self) -> None:
        """No prices were made."""

    def values_of(self, replicas: Int64Array, tables: Int64Array, counts: Int64Array) -> Int64Array:
        """Return how many values vary in steps: none."""
        del tables, counts
        return np.zeros_like(replicas)
