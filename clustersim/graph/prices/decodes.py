"""Steps that only decode: priced by the sequences that do, of which only attention changes as contexts grow."""

from __future__ import annotations

from clustersim.clock import Int64Array
from clustersim.graph.prices.attention import DecodeNs, decode_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.step_table import Row
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePrice:
    """Decode steps of so many sequences, or of so many on each SP rank.

    Parameters
    ----------
    row : int64 array of shape (classes,)
        Nanoseconds by class, 0 at ``columns``.
    number : int
        Position in ``StepPrices.rows["decode"]``.
    columns : tuple of int
        Classes that vary with contexts.
    base_ns : int
        Nanoseconds of a pass without them.
    counts : tuple of int
        Instances of each of them in a pass.
    windows : tuple of int or None
        Sliding window of each of them.
    ns : tuple of callable
        Nanoseconds of each of them by the keys that the batch attends to within its window.
    sends : tuple of int
        Nanoseconds of each local rank's send; empty on the last stage.
    """

    row: Int64Array
    number: int
    columns: tuple[int, ...]
    base_ns: int
    counts: tuple[int, ...]
    windows: tuple[int | None, ...]
    ns: tuple[DecodeNs, ...]
    sends: tuple[int, ...]


class Decodes(dict[tuple[int, ...], DecodePrice]):
    """Prices of steps that only decode by the sequences of each SP rank, made when first asked for.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    rows : list
        Where rows are added.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        super().__init__()
        self.pricer = pricer
        self.program = program
        self.rows = rows
        self._prices: dict[tuple[int, int, bool], DecodeNs] = {}

    def __missing__(self, sequences: tuple[int, ...]) -> DecodePrice:
        row, columns = self.pricer.decode_row(self.program, sequences)
        graph = self.pricer.in_graph(sequences)
        attend = [self.program.classes[column] for column in columns]
        template = self.program.template
        made = DecodePrice(
            row=row,
            columns=columns,
            base_ns=int(template.counts @ row),
            counts=tuple(template.counts[list(columns)].tolist()),
            sends=tuple(row[list(template.send_classes)].tolist()),
            number=len(self.rows),
            ns=tuple([self._price(column, sequences, graph=graph) for column in columns]),
            windows=tuple([window_of(cls) for cls in attend]),
        )
        self.rows.append((row, columns))
        self[sequences] = made
        return made

    def _price(self, column: int, sequences: tuple[int, ...], *, graph: bool) -> DecodeNs:
        """Return the price of a class that attends, beside so many sequences."""
        cls = self.program.classes[column]
        key = column, sequences[cls.s], graph
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = decode_price(self.pricer, cls, sequences[cls.s], graph=graph)
        return found


class ByNumber(dict[int, DecodePrice]):
    """The same by the number of sequences, where one rank decodes: a hit costs a look-up and nothing else."""

    def __init__(self, decodes: Decodes) -> None:
        super().__init__()
        self.decodes = decodes

    def __missing__(self, sequences: int) -> DecodePrice:
        found = self[sequences] = self.decodes[sequences,]
        return found
