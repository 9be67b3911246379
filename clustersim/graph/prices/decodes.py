"""Steps that only decode: priced by the sequences that do, of which only attention changes as contexts grow.

Where SP ranks decode sequences of their own, and none waits for another one, such a pass is a path for each rank, and
the longest one holds the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.clock import Int64Array
from clustersim.graph.prices.attention import DecodeNs, decode_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.step_table import Row
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass

Path = tuple[int, tuple[tuple[int, int], ...]]
"""Nanoseconds without the classes that vary, and which of these how often."""


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
        Sliding window of each of them …
    ranks : tuple of int
        … and SP rank.
    ns : tuple of callable
        Nanoseconds of each of them by the keys that the batch attends to within its window.
    sends : tuple of int
        Nanoseconds of each local rank's send; empty on the last stage.
    paths : tuple of (int, tuple of (int, int))
        Per path that meets no other one its nanoseconds without what varies, and which of it it has how often.
    leaves : tuple of (int, tuple of (int, int))
        The same up to where the output of each SP rank leaves.
    """

    row: Int64Array
    number: int
    columns: tuple[int, ...]
    base_ns: int
    counts: tuple[int, ...]
    windows: tuple[int | None, ...]
    ranks: tuple[int, ...]
    ns: tuple[DecodeNs, ...]
    sends: tuple[int, ...]
    paths: tuple[Path, ...]
    leaves: tuple[Path, ...]


class Decodes(dict[tuple[int, ...], DecodePrice]):
    """Prices of steps that only decode by the sequences of each SP rank, made when first asked for.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    rows : list
        Where rows are added.

    Attributes
    ----------
    paths : (int64 array, int64 array) or None
        As ``LongestPath.sums`` has them; None where paths meet.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        super().__init__()
        self.pricer = pricer
        self.program = program
        self.rows = rows
        self.paths = program.template.path.sums
        self._prices: dict[tuple[int, int, bool], DecodeNs] = {}

    def __missing__(self, sequences: tuple[int, ...]) -> DecodePrice:
        row, columns = self.pricer.decode_row(self.program, sequences)
        graph = self.pricer.in_graph(sequences)
        attend = [self.program.classes[column] for column in columns]
        template = self.program.template
        paths, leaves = (_paths(counts, row, columns) for counts in self.paths or (template.counts[None],) * 2)
        made = DecodePrice(
            row=row,
            columns=columns,
            base_ns=max([base for base, _ in paths]),
            counts=tuple(template.counts[list(columns)].tolist()),
            sends=tuple(row[list(template.send_classes)].tolist()),
            number=len(self.rows),
            ns=tuple([self._price(column, sequences, graph=graph) for column in columns]),
            ranks=tuple([cls.s for cls in attend]),
            windows=tuple([window_of(cls) for cls in attend]),
            paths=paths,
            leaves=paths if leaves == paths else leaves,
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


def _paths(counts: Int64Array, row: Int64Array, columns: Sequence[int]) -> tuple[Path, ...]:
    """Return what paths with so many instances of each class cost, whose classes take as long as a row says."""
    each = zip((counts @ row).tolist(), counts[:, list(columns)].tolist(), strict=True)
    return tuple([(base, tuple([(at, n) for at, n in enumerate(own) if n])) for base, own in each])


def lengths_of(paths: Sequence[Path], took: Sequence[int]) -> Iterator[int]:
    """Return how long paths take of which the classes that vary take so long."""
    for base, classes in paths:
        length = base
        for at, times in classes:
            length += times * took[at]
        yield length


class ByNumber(dict[int, DecodePrice]):
    """The same by the number of sequences, where one rank decodes: a hit costs a look-up and nothing else."""

    def __init__(self, decodes: Decodes) -> None:
        super().__init__()
        self.decodes = decodes

    def __missing__(self, sequences: int) -> DecodePrice:
        found = self[sequences] = self.decodes[sequences,]
        return found
