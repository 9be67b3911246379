"""Arrows from requests to steps that served them: each chunk of a prompt, and the first step of each decode episode."""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.report.traces.phases import DECODE, Phases, RequestPhases
from clustersim.report.traces.slices import arrows_of
from clustersim.timeline.timeline import Timeline

FIRST: Final = 1 << 40
"""The number of the first: those of sends count from 1."""


class Arrows:
    """The arrows of some requests, looked up from either end.

    Parameters
    ----------
    timeline : Timeline
    lives : RequestPhases
    requests : int64 array
        Whose.
    """

    def __init__(self, timeline: Timeline, lives: RequestPhases, requests: Int64Array) -> None:
        self._chunks = np.flatnonzero(np.isin(lives.chunks["request"], requests))
        decodes = timeline.decodes
        rows = np.flatnonzero(np.isin(decodes["request"], requests))
        self._request = decodes["request"][rows].astype(np.int64)
        replica, step = decodes["replica"][rows], decodes["first_step"][rows]
        self._start_ns = lives.times_of(replica, step)[0] if len(rows) else np.empty(0, np.int64)
        ends = [(lives.chunks["replica"][self._chunks], lives.chunks["step"][self._chunks]), (replica, step)]
        code = np.concatenate([_code(*end) for end in ends])
        self._order = np.argsort(code, kind="stable")
        self._codes = code[self._order]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._codes)

    def of_requests(self, requests: Int64Array, phases: Phases) -> Int64Array:
        """Return the arrows that begin in requests, in phases and in chunks, one below the other."""
        before = len(requests) + len(phases.of)
        at = np.searchsorted(self._chunks, phases.chunk)
        known = np.flatnonzero(np.append(self._chunks, -1)[at] == phases.chunk)
        of, numbers = [before + known], [FIRST + at[known]]
        decodes = np.flatnonzero(phases.phase == DECODE)
        for arrow, (request, start) in enumerate(zip(self._request.tolist(), self._start_ns.tolist(), strict=True)):
            mine = decodes[requests[phases.of[decodes]] == request]
            inside = mine[(phases.start_ns[mine] <= start) & (start < phases.end_ns[mine])]
            of.append(len(requests) + inside)
            numbers.append(np.full(len(inside), FIRST + len(self._chunks) + arrow))
        return arrows_of(before + len(phases.chunk), np.concatenate(of), np.concatenate(numbers))

    def of_steps(self, replica: Int64Array, step: Int64Array) -> Int64Array:
        """Return the arrows that end in steps."""
        code = _code(replica, step)
        order = np.argsort(code, kind="stable")
        at = np.minimum(np.searchsorted(code[order], self._codes), len(code) - 1)
        known = np.flatnonzero(code[order][at] == self._codes) if len(code) else np.empty(0, np.int64)
        return arrows_of(len(code), order[at[known]], FIRST + self._order[known])


def _code(replica: Int64Array, step: Int64Array) -> Int64Array:
    return replica.astype(np.int64) << 32 | step.astype(np.int64)
