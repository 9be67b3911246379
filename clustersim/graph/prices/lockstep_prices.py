"""What replicas in lockstep pay for the steps that they take together: prompts, and runs of decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.errors import InputError
from clustersim.graph.prices.lockstep_parts import DECODES, Brought
from clustersim.graph.prices.lockstep_steps import LockstepSteps, features_of_all, features_of_counts
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.table import price_groups
from clustersim.graph.program import StageProgram

FEW: Final = 4
"""Up to so many steps plain numbers are faster than arrays (measured: Mixtral on EP 8, DeepSeek-V3 on EP 32)."""


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
        self.kinds = {kind: LockstepSteps(pricer, programs[kind]) for kind in ("prefill", "mixed", "decode")}
        self.graphs = LockstepSteps(pricer, programs["decode"], graph=True)

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
        steps = self.kinds[kind]
        try:
            row = steps.row(brought)
            for one in steps.attention:
                row[one.indices] = one.ns(brought)
        except InputError:
            self._price_whole(steps.program, brought)
            raise
        return row, steps.path.lengths(row[None])

    def _price_whole(self, program: StageProgram, brought: Sequence[Brought]) -> None:
        """Price a step by arrays, so that an operator that takes too long is reported as the pricer reports it."""
        counts = [each.counts for each in brought]
        tokens = [own[0] for own in counts]
        features = features_of_counts(counts) | features_of_all((sum(tokens), max(tokens)), len(counts))
        for at, window in enumerate(self.windows):
            sums = zip(*(each.attended[at] for each in brought), strict=True)
            for name, values in zip(("pairs", "prefill_keys", "decode_keys"), sums, strict=True):
                features[name if window is None else f"{name}@{window}"] = tuple(map(float, values))
        self.pricer.price_groups(price_groups(program.classes), features, graph=False)

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
            row = steps.row(brought, size)
        except InputError:
            pricer.decode_row(steps.program, sequences)
            raise
        table = np.repeat(row[None], count, axis=0)
        if count > FEW:
            table[:, steps.varying] = pricer.decode_attention(steps.program, sequences, self._keys(brought, count))
        else:
            for step in range(count):
                for one in steps.attention:
                    table[step, one.indices] = one.ns(brought, step)
        return row, steps.columns, table[:, steps.varying], steps.path.lengths(table)

    def _keys(self, brought: Sequence[Brought], count: int) -> dict[tuple[int, int | None], Int64Array]:
        """Return what each replica's decodes attend to in each of so many steps, by window."""
        grown = np.arange(count, dtype=np.int64)
        return {
            (s, window): each.attended[at][2] + each.growth[at] * grown
            for s, each in enumerate(brought)
            for at, window in enumerate(self.windows)
        }
