"""Prices of single steps of one stage without SP: what :class:`~clustersim.graph.prices.pricer.Pricer` says, memoised.

Classes that do not attend are priced in parts (:mod:`clustersim.graph.prices.parts`), and the parts of a step are added
up to its *row*; both are remembered, and only attention is worked out for each step. Every nanosecond is the
pricer's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.cost.scalar import DecodeNs
from clustersim.errors import InputError
from clustersim.graph.batch import Features, StepBatch
from clustersim.graph.prices.parts import Prompts, Row, decode_price, window_of
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.program import StageProgram
from clustersim.values import dataclass

StepPrice = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(nanoseconds of the pass, number of its row, nanoseconds of the columns, nanoseconds of each local rank's send)"""
FEW_STEPS: Final = 32
"""Up to so many steps plain numbers are faster than arrays (measured)."""
Windowed = Mapping[int, tuple[int, int, int]]
"""Sliding window → (pairs, prefill keys, decode keys) within it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePrice:
    """Decode steps of so many sequences.

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


class StepPrices:
    """Prices of the steps of one stage of a plan without SP: exact, memoised, in plain numbers.

    Parameters
    ----------
    pricer : Pricer
    programs : mapping
        Kind of step → program of the stage.

    Attributes
    ----------
    rows : dict of list
        Kind of step → its rows, in order of first use; numbers never change.
    decode : callable
        Number of sequences that decode → :class:`DecodePrice` of steps that do nothing else.
    """

    def __init__(self, pricer: Pricer, programs: Mapping[str, StageProgram]) -> None:
        self.pricer = pricer
        self.programs = programs
        self.rows: dict[str, list[Row]] = {kind: [] for kind in programs}
        self.decode: Callable[[int], DecodePrice] = _Decodes(
            pricer, programs["decode"], self.rows["decode"]
        ).__getitem__

    @cached_property
    def prefill(self) -> Prompts:
        """Parts of the steps that prefill and do nothing else."""
        return Prompts(self.pricer, self.programs["prefill"], self.rows["prefill"])

    @cached_property
    def mixed(self) -> Prompts:
        """Parts of those that decode besides."""
        return Prompts(self.pricer, self.programs["mixed"], self.rows["mixed"])

    @property
    def supported(self) -> bool:
        """Whether prices here are those of the pricer: no SP, and passes that are chains of even groups."""
        return (
            self.pricer.sp.degree == 1
            and all(program.template.is_chain and program.even for program in self.programs.values())
            and self.prefill.told_by_counts
            and self.mixed.told_by_counts
        )

    def prompts(
        self, chunks: int, new: int, context: int, pairs: int, prefill_keys: int, decodes: int, decode_keys: int,
        windowed: Windowed | None = None,
    ) -> StepPrice:  # fmt: skip
        """Price a step that prefills, and decodes too where ``decodes`` is not 0.

        Parameters
        ----------
        chunks : int
            Prompt chunks.
        new, context : int
            Sums of their tokens, and of the tokens before them.
        pairs, prefill_keys : int
            The features of these names, without a window.
        decodes, decode_keys : int
            Sequences that decode, and the keys that they attend to.
        windowed : mapping, optional
            Sliding window → (pairs, prefill keys, decode keys) within it; needed where the model has windows.

        Raises
        ------
        InputError
            When an operator would take a day.
        """
        prompts = self.mixed if decodes else self.prefill
        counts = (new + decodes, chunks + decodes, new, decodes, context, context + new, prefill_keys)
        try:
            total, number, sends = prompts.known.get(prompts.pick(counts)) or prompts.row(counts)
            varying = []
            for of_prefill, of_decode, times, window in prompts.cores.get(decodes) or prompts.cores_of(decodes):
                if window is None:
                    ns = of_prefill(pairs, new, prefill_keys) if of_prefill is not None else of_decode(decode_keys)
                else:
                    assert windowed is not None
                    p, k, d = windowed[window]
                    ns = of_prefill(p, new, k) if of_prefill is not None else of_decode(d)
                varying.append(ns)
                total += times * ns
        except InputError:
            prompts.price_whole(counts, {None: (pairs, prefill_keys, decode_keys)} | dict(windowed or {}))
            raise
        return total, number, tuple(varying), sends

    def by_class(self, batch: StepBatch, features: Features) -> Int64Array:
        """Return what :meth:`Pricer.durations` does: nanoseconds by class, int64 of shape (classes,)."""
        decodes, keys = batch.decode_sequences[0], batch.decode_keys[0]
        if batch.kind == "decode":
            price = self.decode(decodes)
            found = price.row.copy()
            for column, window, ns in zip(price.columns, price.windows, price.ns, strict=True):
                found[column] = ns(keys if window is None else batch.windowed_keys[window][0])
            return found
        windowed = {
            window: (
                int(features[f"pairs@{window}"][0]),
                int(features[f"prefill_keys@{window}"][0]),
                batch.windowed_keys[window][0] if decodes else 0,
            )
            for window in self.pricer.windows
        }
        _, number, varying, _ = self.prompts(
            len(batch.chunks), batch.prefill_tokens, sum([chunk.start for chunk in batch.chunks]),
            int(features["pairs"][0]), int(features["prefill_keys"][0]), decodes, keys, windowed,
        )  # fmt: skip
        row, columns = self.rows[batch.kind][number]
        found = row.copy()
        found[list(columns)] = varying
        return found

    def decode_run(
        self, sequences: int, keys: Mapping[tuple[int, int | None], Int64Array]
    ) -> tuple[Int64Array, tuple[int, ...], Int64Array]:
        """Return what :meth:`Pricer.decode_run` does; a few steps in plain numbers."""
        steps = len(next(iter(keys.values())))
        if steps > FEW_STEPS:
            return self.pricer.decode_run(self.programs["decode"], (sequences,), keys)
        price = self.decode(sequences)
        varying = [
            [ns(count) for count in keys[0, window].tolist()]
            for ns, window in zip(price.ns, price.windows, strict=True)
        ]
        return price.row, price.columns, np.array(varying, np.int64).T.reshape(steps, len(price.columns))


class _Decodes(dict[int, DecodePrice]):
    """Decode prices by number of sequences, made when first asked for: a hit costs a look-up and nothing else."""

    def __init__(self, pricer: Pricer, program: StageProgram, rows: list[Row]) -> None:
        super().__init__()
        self.pricer = pricer
        self.program = program
        self.rows = rows

    def __missing__(self, sequences: int) -> DecodePrice:
        pricer, template = self.pricer, self.program.template
        row, columns = pricer.decode_row(self.program, (sequences,))
        classes = [self.program.classes[column] for column in columns]
        made = DecodePrice(
            row=row,
            number=len(self.rows),
            columns=columns,
            base_ns=int(template.counts @ row),
            counts=tuple(template.counts[list(columns)].tolist()),
            windows=tuple(window_of(cls) for cls in classes),
            ns=tuple(decode_price(pricer, cls, sequences, graph=pricer.in_graph((sequences,))) for cls in classes),
            sends=tuple(row[list(template.send_classes)].tolist()),
        )
        self.rows.append((row, columns))
        self[sequences] = made
        return made
