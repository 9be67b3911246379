"""Sheets: the operators of some passes, span by span, with what each needs; rules on operators look at these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cached_property, wraps
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import Finding
from clustersim.legality.history import STREAMS, Declared, SpanTable
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.values import dataclass

COMPUTE: Final = STREAMS.index("compute")


@dataclass(frozen=True, kw_only=True, eq=False)
class Sheet:
    """Spans of whole passes.

    Parameters
    ----------
    declared : Declared
    symbols : tuple of (name, op, module)
    start, end : int64 arrays of shape (spans,)
    rank : int64 array
        Local to the stage: s × tp + t.
    stream, symbol, layer, step, replica, stage : int64 arrays
    pass_of : int64 array
        Equal for the spans of one pass of one stage, or of one half of it: twice the number of the pass, plus one for
        the second half of a step that runs as two.
    group : int64 array
        Equal for the spans of one execution of a collective, −1 for other work.
    sources, targets : int64 arrays of shape (edges,)
        Positions of spans that must have ended before others start.
    least : int64 array or None
        What each span costs at least, ns; −1 where that was not said.
    kind : int64 array of shape (spans,)
        Kind of step (``KINDS``), −1 where it was not said.
    numbered : bool
        Whether the numbers of steps were told.
    begins : int64 array or None
        When the pass of each span begins, whoever runs an operator then; None where passes were not recorded.
    before : int64 array or None
        Span that is to run before each in its pass on its stream of its rank, −1 for the first; None alike.
    copies : int
        How many parts of equal length it has, one after the other, that differ in nothing but their times, and in
        which pass of which step and replica they are: all that is nothing but structure is the same for each.
    """

    declared: Declared
    symbols: tuple[tuple[str, str, str], ...]
    start: Int64Array
    end: Int64Array
    rank: Int64Array
    stream: Int64Array
    symbol: Int64Array
    layer: Int64Array
    step: Int64Array
    replica: Int64Array
    stage: Int64Array
    pass_of: Int64Array
    group: Int64Array
    sources: Int64Array
    targets: Int64Array
    least: Int64Array | None
    kind: Int64Array
    numbered: bool = True
    begins: Int64Array | None = None
    before: Int64Array | None = None
    copies: int = 1

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def one(self) -> Sheet:
        """The first of its copies."""
        if self.copies == 1:
            return self
        first: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray):
                first[each.name] = column[: len(column) // self.copies]
        return replace(self, **first, copies=1)

    @cached_property
    def made(self) -> dict[str, BoolArray]:
        """What several rules need, once one of them has worked it out."""
        return {}

    @cached_property
    def place(self) -> Int64Array:
        """Equal for the spans of one rank in one pass."""
        return self.pass_of * self.declared.stage_ranks + self.rank

    @cached_property
    def holder(self) -> Int64Array:
        """Equal for the spans of what holds the same layers: a stage; a rank, where nobody knows which is where."""
        return self.stage if self.declared.mesh else self.rank

    @cached_property
    def pass_begins(self) -> Int64Array:
        """When the pass of each span starts, of both halves together."""
        number = self.pass_of // 2
        starts = np.full(int(number.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(starts, number, self.start)
        found: Int64Array = starts[number]
        return found

    @cached_property
    def site(self) -> Int64Array:
        """Equal for the spans of one rank in one layer of one pass."""
        return self.place * (int(self.layer.max(initial=0)) + 2) + self.layer + 1

    @cached_property
    def global_ranks(self) -> Int64Array:
        """Rank of each span among all."""
        stage = (self.replica - self.declared.first_replica) * self.declared.pp + self.stage
        return self.declared.first_rank + stage * self.declared.stage_ranks + self.rank

    @cached_property
    def s(self) -> Int64Array:
        """SP coordinate of each span."""
        return self.rank // self.declared.tp

    def named(self, *prefixes: str) -> BoolArray:
        """Return which spans have a name that begins with one of ``prefixes``."""
        chosen = np.array([name.startswith(prefixes) for name, _, _ in self.symbols], bool)
        return self._of(chosen)

    def in_module(self, *modules: str) -> BoolArray:
        """Return which spans belong to one of ``modules``."""
        return self._of(np.array([module in modules for _, _, module in self.symbols], bool))

    def _of(self, chosen: BoolArray) -> BoolArray:
        found: BoolArray = chosen[self.symbol] if len(chosen) else np.zeros(len(self), bool)
        return found

    def name(self, at: int) -> str:
        """Return the name of a span's operator."""
        return self.symbols[int(self.symbol[at])][0] or "another operator"

    def of_step(self, at: int) -> str:
        """Return the name of a span's operator and its step: ``o_proj of step 7``."""
        return f"{self.name(at)} of step {self.step[at]}" if self.numbered else self.name(at)

    def global_rank(self, at: int) -> int:
        """Return the rank of a span among all."""
        stages = (int(self.replica[at]) - self.declared.first_replica) * self.declared.pp + int(self.stage[at])
        return self.declared.first_rank + stages * self.declared.stage_ranks + int(self.rank[at])

    def where(self, at: int) -> str:
        """Return where a span is, as far as that was told: ``replica 0, stage 1, step 7, layer 3, rank 5, o_proj``."""
        words = [f"replica {self.replica[at]}", f"stage {self.stage[at]}"] if self.declared.mesh else []
        if self.numbered:
            words.append(f"step {self.step[at]}")
        if self.layer[at] >= 0:
            words.append(f"layer {self.layer[at]}")
        words.append(f"rank {self.global_rank(at)}")
        return ", ".join(filter(None, (*words, self.symbols[int(self.symbol[at])][0])))


def of_structure(look: Callable[[Sheet], Finding]) -> Callable[[Sheet], Finding]:
    """Let a rule that reads no times look at one of a sheet's copies, and at all where something is wrong with it."""

    @wraps(look)
    def looked(sheet: Sheet) -> Finding:
        found = look(sheet.one)
        if sheet.copies == 1:
            return found
        return look(sheet) if found.faults else replace(found, looked_at=found.looked_at * sheet.copies)

    return looked


def sheet_of_spans(table: SpanTable, declared: Declared, kinds: dict[tuple[int, int], int]) -> Sheet:
    """Return single spans as a sheet.

    Parameters
    ----------
    table : SpanTable
    declared : Declared
    kinds : dict
        (replica, step) → kind of step, where it is known.
    """
    names = ("start_ns", "end_ns", "rank", "stream", "symbol", "layer", "step", "replica", "stage", "group")
    start, end, rank, stream, symbol, layer, step, replica, stage, group = (
        np.asarray(table.columns[name], np.int64) for name in names
    )
    _, pass_of = np.unique((replica << 48) | (stage << 36) | step, return_inverse=True)
    kind = np.array([kinds.get(at, -1) for at in zip(replica.tolist(), step.tolist(), strict=True)], np.int64)
    nothing = np.empty(0, np.int64)
    sources, targets = table.after if table.after is not None else (nothing, nothing)
    least = table.columns.get("cost_ns")
    least = None if least is None or (least < 0).all() else least
    return Sheet(
        declared=declared, symbols=table.symbols, start=start, end=end, rank=rank % declared.stage_ranks, stream=stream,
        symbol=symbol, layer=layer, step=step, replica=replica, stage=stage, pass_of=2 * pass_of.reshape(-1),
        group=group, sources=sources, targets=targets, least=least, kind=kind, numbered=table.numbered,
    )  # fmt: skip
