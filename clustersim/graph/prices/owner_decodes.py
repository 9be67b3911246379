"""Prices of decode steps in which each SP rank decodes sequences of its own, and none waits for another one.

Such a pass is a path for each rank (``LongestPath.sums``), and the longest one holds the
stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clustersim.clock import Int64Array
from clustersim.cost.scalar import DecodeNs
from clustersim.graph.prices.parts import Row, decode_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.steps import DecodePrice
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass

Path = tuple[int, tuple[tuple[int, int], ...]]
"""Nanoseconds without the classes that vary, and which of these how often."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerPrice(DecodePrice):
    """Decode steps of so many sequences on each SP rank; other parameters are those of :class:`DecodePrice`.

    Parameters
    ----------
    ranks : tuple of int
        SP rank of each class that varies with contexts, those of its own sequences.
    paths : tuple of (int, tuple of (int, int))
        Per path its nanoseconds without these classes, and which of them it has how often.
    leaves : tuple of (int, tuple of (int, int))
        The same up to where the output of each SP rank leaves.
    """

    ranks: tuple[int, ...]
    paths: tuple[Path, ...]
    leaves: tuple[Path, ...]


class OwnerDecodes(dict[tuple[int, ...], OwnerPrice]):
    """Prices by the sequences of each SP rank, made when first asked for.

    Parameters
    ----------
    pricer : Pricer
    program : StageProgram
    rows : list
        Where rows are added.

    Attributes
    ----------
    paths, leaving : int64 array of shape (…, classes), or None
        The cost classes of each path, and up to where the output of each SP rank leaves; None where paths meet, which
        is not priced here.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        super().__init__()
        self.pricer = pricer
        self.program = program
        self.rows = rows
        found = program.template.path.sums
        self.paths: Int64Array | None = None if found is None else found[0]
        self.leaving: Int64Array | None = None if found is None else found[1]
        self._prices: dict[tuple[int, int, bool], DecodeNs] = {}

    def __missing__(self, sequences: tuple[int, ...]) -> OwnerPrice:
        assert self.paths is not None
        assert self.leaving is not None
        row, columns = self.pricer.decode_row(self.program, sequences)
        graph = self.pricer.in_graph(sequences)
        attend = [self.program.classes[column] for column in columns]
        template = self.program.template
        paths, leaves = (_paths(counts, row, columns) for counts in (self.paths, self.leaving))
        made = OwnerPrice(
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
