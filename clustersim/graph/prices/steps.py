"""Prices of single steps of one stage: what :class:`~clustersim.graph.prices.pricer.Pricer` says, memoised.

Steps that prefill are priced by :class:`~clustersim.graph.prices.step_table.StepTable`, those that only decode by
:class:`~clustersim.graph.prices.decodes.Decodes`. Every nanosecond is the pricer's own, bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

from clustersim.clock import Int64Array
from clustersim.graph.batch import Features, StepBatch
from clustersim.graph.prices.counts import Counts, SplitCounts, whole_counts
from clustersim.graph.prices.decodes import ByNumber, Decodes
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.step_table import Row, StepTable
from clustersim.graph.program import StageProgram

StepPrice = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(nanoseconds of the pass, number of its row, nanoseconds of the columns, nanoseconds of each local rank's send)"""
Windowed = Mapping[int, tuple[int, int, int]]
"""Sliding window → (pairs, prefill keys, decode keys) within it."""


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
        self.decodes = Decodes(pricer, programs["decode"], self.rows["decode"])
        self.decode = ByNumber(self.decodes).__getitem__
        self.counts = self._counts()

    def _counts(self) -> Counts:
        return whole_counts(self.pricer.windows)

    @cached_property
    def prefill(self) -> StepTable:
        """Steps that prefill and do nothing else."""
        return StepTable(self.pricer, self.programs["prefill"], self.counts, self.rows["prefill"])

    @cached_property
    def mixed(self) -> StepTable:
        """Those that decode besides."""
        return StepTable(self.pricer, self.programs["mixed"], self.counts, self.rows["mixed"])

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
        near = [count for window in self.pricer.windows for count in (windowed or {})[window]]
        counts = (
            new + decodes, chunks + decodes, new, decodes, context, context + new, prefill_keys, pairs, decode_keys,
            *near,
        )  # fmt: skip
        return (self.mixed if decodes else self.prefill).price(counts)[:4]

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


class SplitPrices(StepPrices):
    """Prices of the steps of one stage of a plan with SP."""

    counts: SplitCounts

    def _counts(self) -> SplitCounts:
        pricer, programs = self.pricer, self.programs
        return SplitCounts(pricer.sp, pricer.windows, (*programs["prefill"].classes, *programs["mixed"].classes))


def step_prices(pricer: Pricer, programs: Mapping[str, StageProgram]) -> StepPrices:
    """Return the prices of a stage's steps, the same object as long as the pricer lives for stages that cost the same.

    These are programs of replicas that are placed alike, and stages of as many equal layers.
    """
    key = "stage", *(program.key for program in programs.values())
    if key not in pricer.made:
        split = pricer.sp.degree > 1
        alike = "steps", *((kind, _told(program, split=split)) for kind, program in programs.items())
        if alike not in pricer.made:
            pricer.made[alike] = SplitPrices(pricer, programs) if split else StepPrices(pricer, programs)
        pricer.made[key] = pricer.made[alike]
    found: StepPrices = pricer.made[key]
    return found


def _told(program: StageProgram, *, split: bool) -> Hashable:
    """Return all of a program that prices of its steps depend on."""
    template = program.template
    alone = program.classes, tuple(template.counts.tolist()), template.send_classes, template.is_chain, program.even
    if not split:
        return alone
    order = template.after, template.instance_s, template.exits, template.instance_class.tobytes()
    return *alone, *order, template.instance_stream.tobytes()


def rows_made(pricer: Pricer) -> int:
    """Return how many rows of durations a pricer holds."""
    found = {id(made): made for made in pricer.made.values() if isinstance(made, StepPrices)}.values()
    return sum(len(rows) for prices in found for rows in prices.rows.values())
