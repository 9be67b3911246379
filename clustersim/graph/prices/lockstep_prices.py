"""What replicas in lockstep pay for the steps that they take together: prompts, and runs of decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError
from clustersim.graph.prices.counts import COUNTS, fields, lockstep_counts
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.step_table import StepTable
from clustersim.graph.program import StageProgram

FEW: Final = 4
"""Up to so many steps plain numbers are faster than arrays (measured: Mixtral on EP 8, DeepSeek-V3 on EP 32)."""
TOKENS, DECODES = COUNTS["tokens"], COUNTS["decode_sequences"]


class Brought(NamedTuple):
    """What a replica brings to a step.

    Parameters
    ----------
    counts : tuple of int
        As :func:`~clustersim.graph.prices.counts.fields` names them.
    growth : tuple of int
        How many decode keys there are more with every step, without a window and within each.
    """

    counts: tuple[int, ...]
    growth: tuple[int, ...]


class LockstepPrices:
    """The steps of a group of replicas.

    Parameters
    ----------
    pricer : Pricer
    programs : mapping
        Kind of step → program, whose coordinates are the replicas.
    """

    def __init__(self, pricer: Pricer, programs: Mapping[str, StageProgram]) -> None:
        self.pricer = pricer
        self.windows = (None, *pricer.windows)
        names = [own[0] for own in fields(pricer.windows)]
        self.keys = [names.index("decode_keys" if one is None else f"decode_keys@{one}") for one in self.windows]
        """Which counts of a replica grow with every step."""
        counts = lockstep_counts(pricer.windows, pricer.sp.degree)
        kinds = ("prefill", "mixed", "decode")
        self.kinds = {kind: StepTable(pricer, programs[kind], counts) for kind in kinds}
        self.graphs = StepTable(pricer, programs["decode"], counts, graph=True)

    @property
    def supported(self) -> bool:
        """Whether prices here are those of the pricer: counts tell all classes."""
        return all(steps.told_by_counts for steps in self.kinds.values())

    def prompts(self, kind: str, brought: Sequence[Brought]) -> tuple[Int64Array, Int64Array]:
        """Return nanoseconds by class of a step with prompts, and its length.

        Raises
        ------
        InputError
            When an operator would take a day.
        """
        steps, counts = self.kinds[kind], _together(brought)
        try:
            row = steps.fill(counts)
            for one, _ in steps.attention:
                row[one.column] = one.ns(counts)
        except InputError:
            steps.price_whole(counts)
            raise
        return row, steps.path.lengths(row[None])

    def decodes(
        self, brought: Sequence[Brought], count: int
    ) -> tuple[Int64Array, tuple[int, ...], Int64Array, Int64Array]:
        """Price a run of decode steps.

        Parameters
        ----------
        brought : sequence
            To the first step.
        count : int
            Steps.

        Returns
        -------
        row, columns, varying, lengths
            What :meth:`Pricer.decode_run` says, and how long each step takes.
        """
        pricer, sequences = self.pricer, tuple([each.counts[DECODES] for each in brought])
        graph = pricer.in_graph(sequences)
        steps = self.graphs if graph else self.kinds["decode"]
        size = pricer.engine.padded(max(sequences)) if graph and pricer.engine.graph_sizes else 0
        try:
            row = steps.fill(_together(brought, size))
        except InputError:
            pricer.decode_row(steps.program, sequences)
            raise
        if count > FEW:
            varying = pricer.decode_attention(steps.program, sequences, self._keys(brought, count))
        else:
            each = [_together(self._later(brought, step)) for step in range(count)]
            varying = np.array([[one.ns(counts) for one, _ in steps.attention] for counts in each], np.int64)
        table = np.repeat(row[None], count, axis=0)
        table[:, steps.columns] = varying
        return row, steps.columns, varying, steps.path.lengths(table)

    def _later(self, brought: Sequence[Brought], step: int) -> list[Brought]:
        """Return what replicas bring so many steps later."""
        found = []
        for counts, growth in brought:
            later = list(counts)
            for at, more in zip(self.keys, growth, strict=True):
                later[at] += step * more
            found.append(Brought(tuple(later), growth))
        return found

    def _keys(self, brought: Sequence[Brought], count: int) -> dict[tuple[int, int | None], Int64Array]:
        """Return what each replica's decodes attend to in each of so many steps, by window."""
        grown = np.arange(count, dtype=np.int64)
        return {
            (s, window): each.counts[at] + more * grown
            for s, each in enumerate(brought)
            for window, at, more in zip(self.windows, self.keys, each.growth, strict=True)
        }


def _together(brought: Sequence[Brought], size: int = 0) -> list[int]:
    """Return the counts of a step, whose tokens are padded to so many on each replica; 0: they are not."""
    if size:
        found = [count for each in brought for count in (size, *each.counts[1:])]
    else:
        found = [count for each in brought for count in each.counts]
    tokens = found[TOKENS :: len(brought[0].counts)]
    return [*found, sum(tokens), max(tokens)]


def lockstep_prices(pricer: Pricer, programs: Mapping[str, StageProgram]) -> LockstepPrices:
    """Return the prices of steps that replicas take together, the same object as long as the pricer lives."""
    key = "lockstep", *(program.key for program in programs.values())
    if key not in pricer.made:
        pricer.made[key] = LockstepPrices(pricer, programs)
    found: LockstepPrices = pricer.made[key]
    return found
