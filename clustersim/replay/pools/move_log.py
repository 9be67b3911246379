"""Moves of K/V that were not recorded one by one, until they are handed on together."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.timeline.record import Recorder

RECORD_TIMES: Final = 64
"""After so many times what has ended is handed on."""


class MoveLog:
    """Rows of moves that have ended; the columns are those of ``timeline.tables.MOVE_COLUMNS``."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ended: list[Int64Array] = []

    def add(self, rows: Int64Array) -> None:
        """Take note of moves that have ended."""
        self.ended.append(rows)
        if len(self.ended) >= RECORD_TIMES:
            self.flush()

    def flush(self) -> None:
        """Hand on what is recorded."""
        if self.ended:
            self.recorder.moves.extend(np.concatenate(self.ended))
            self.ended.clear()
