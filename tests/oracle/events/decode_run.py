"""A decode run under way: the steps over which a decode jump (:mod:`tests.oracle.events.decode_jumps`) goes.

It prices its steps at once, holds the event with which it ends, is cut short where something happens, and knows which
of its steps have begun and ended. Who carries it out (a replica, or a group of them in lockstep) decides what its end
brings.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequences
from typing import TYPE_CHECKING, Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.graph.batch import StepBatch
from clustersim.graph.prices.pricer import Pricer, decode_keys, decoding
from clustersim.graph.program import StageProgram
from clustersim.replay.instant import COMPLETION, at, now_ns
from clustersim.timeline.record import Durations
from tests.oracle.events.pipelines import steps_before_change
from tests.oracle.replay.instant import asked
from tests.oracle.serving.sequence import Sequence

if TYPE_CHECKING:
    from clustersim.replay.events.pipeline import Pipeline

MAX_RUN: Final = 4096
"""Most steps of one run, so that progress shows and arrays stay small."""

Keys = dict[tuple[int, int | None], Int64Array]


class DecodeRun:
    """A decode run of one stage that begins now and has not been accounted for.

    Parameters
    ----------
    pipeline : Pipeline
        Of one stage, which is free.
    pricer : Pricer
    batch : StepBatch
        Of the first step; it decodes only.
    keys : dict
        :func:`keys_of_run`: what the steps attend.
    on_end : callable
        Called with the run when its last step has ended.

    Attributes
    ----------
    program : str
        Which program its steps run.
    """

    def __init__(
        self, pipeline: Pipeline, pricer: Pricer, batch: StepBatch, keys: Keys, on_end: Callable[[DecodeRun], None]
    ) -> None:
        self._env = pipeline.env
        self._on_end = on_end
        self._version = 0
        self.program = batch.program
        program = pipeline.stages[0].programs[self.program]
        self.row, self.columns, self.varying = pricer.decode_run(program, decoding(batch), keys)
        begin = now_ns(self._env)
        self.ends = begin + np.cumsum(self._lengths(program))
        self.starts = np.concatenate(([begin], self.ends[:-1]))
        self._keep(steps_before_change(pipeline, self.starts))
        self._arm()

    def _lengths(self, program: StageProgram) -> Int64Array:
        template = program.template
        if template.is_chain:
            lengths: Int64Array = int(template.counts @ self.row) + self.varying @ template.counts[list(self.columns)]
            return lengths
        return template.total_times(self.durations(len(self.varying)).table())

    def _keep(self, steps: int) -> bool:
        """Keep the first steps; return whether there were more."""
        if steps >= len(self.ends):
            return False
        self.starts, self.ends, self.varying = self.starts[:steps], self.ends[:steps], self.varying[:steps]
        return True

    def _arm(self) -> None:
        self._version += 1
        at(self._env, int(self.ends[-1]) - now_ns(self._env), COMPLETION, self._ended, self._version)

    def _ended(self, version: int) -> None:
        if version == self._version:
            self._on_end(self)

    def __len__(self) -> int:
        return len(self.ends)

    def begun(self, now: int) -> int:
        """Return how many steps have begun: before this instant, and at it where schedulers have been asked."""
        return int(np.searchsorted(self.starts, now + asked(self._env, now), side="left"))

    def ended(self, now: int) -> int:
        """Return how many steps have ended at this instant."""
        return int(np.searchsorted(self.ends, now, side="right"))

    def ends_step(self, now: int) -> bool:
        """Return whether a step ends now."""
        return now in self.ends[np.searchsorted(self.ends, now) :][:1]

    def cut(self, now: int) -> None:
        """End with the step that is under way: one that ends now, unless schedulers have been asked."""
        if self._keep(int(np.searchsorted(self.ends, now + asked(self._env, now), side="left")) + 1):
            self._arm()

    def abandon(self) -> None:
        """Let no end come: what the steps run on has failed."""
        self._version += 1

    def durations(self, steps: int) -> Durations:
        """Return the durations of the first steps."""
        return Durations(row=self.row, columns=self.columns, varying=self.varying[:steps])


def keys_of_run(batch: StepBatch, decodes: Sequences[Sequences[Sequence]], steps: int) -> Keys:
    """Return the keys that each of ``steps`` decode steps attends, by SP coordinate and window.

    Parameters
    ----------
    batch : StepBatch
        Of the first step.
    decodes : sequence of sequences of Sequence
        By SP coordinate (of two halves first those of one, then those of the other), those that decode there and grow
        by a token a step; a dummy batch has none, and stays as it is.
    steps : int
    """
    grown = np.arange(steps, dtype=np.int64)
    keys: Keys = {}
    for (s, window), count in decode_keys(batch).items():
        if window is None or not decodes[s]:
            keys[s, window] = count + len(decodes[s]) * grown
        else:
            owned = np.array([sequence.computed + 1 for sequence in decodes[s]], np.int64)
            keys[s, window] = np.minimum(owned[:, None] + grown[None, :], window).sum(axis=0)
    return keys
