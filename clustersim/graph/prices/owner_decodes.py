"""Prices of decode steps in which each SP rank decodes sequences of its own, and none waits for another one.

Such a pass is a path for each rank (:func:`~clustersim.graph.series_walk.paths_of`), and the longest one holds the
stage.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.scalar import DecodeNs
from clustersim.graph.prices.parts import Row, decode_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.steps import DecodePrice
from clustersim.graph.program import StageProgram
from clustersim.graph.series_walk import paths_of
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnerPrice(DecodePrice):
    """Decode steps of so many sequences on each SP rank; other parameters are those of :class:`DecodePrice`.

    Parameters
    ----------
    ranks : tuple of int
        SP rank of each class that varies with contexts, those of its own sequences.
    paths : tuple of (int, tuple of (int, int))
        Per path its nanoseconds without these classes, and which of them it has how often.
    """

    ranks: tuple[int, ...]
    paths: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


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
    paths : int64 array of shape (paths, classes), or None
        The cost classes of each path; None where paths meet, which is not priced here.
    """

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        super().__init__()
        self.pricer = pricer
        self.program = program
        self.rows = rows
        self.paths: Int64Array | None = paths_of(program.template)
        self._prices: dict[tuple[int, int, bool], DecodeNs] = {}

    def __missing__(self, sequences: tuple[int, ...]) -> OwnerPrice:
        assert self.paths is not None
        row, columns = self.pricer.decode_row(self.program, sequences)
        graph = self.pricer.in_graph(sequences)
        attend = [self.program.classes[column] for column in columns]
        template, bases = self.program.template, self.paths @ row
        paths = zip(bases.tolist(), self.paths[:, list(columns)].tolist(), strict=True)
        made = OwnerPrice(
            row=row,
            columns=columns,
            base_ns=int(np.max(bases)),
            counts=tuple(template.counts[list(columns)].tolist()),
            sends=tuple(row[list(template.send_classes)].tolist()),
            number=len(self.rows),
            ns=tuple([self._price(column, sequences, graph=graph) for column in columns]),
            ranks=tuple([cls.s for cls in attend]),
            windows=tuple([window_of(cls) for cls in attend]),
            paths=tuple([(base, tuple([(at, n) for at, n in enumerate(own) if n])) for base, own in paths]),
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
