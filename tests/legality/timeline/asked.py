"""Which rules a mutated record is asked for: in a plain pytest those that are to catch it, with ``--long=1`` all.

A mutation is caught by its rule; what other rules say of the same record is the matrix, which ``--long=1`` holds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import pytest

import clustersim.simulation.simulate as made
from clustersim.legality.audit import TIMELINE_RULES, check_history
from clustersim.legality.history import History
from clustersim.replay.input import ReplayInput, ReplayResult
from clustersim.simulation.audit import audit_run
from clustersim.simulation.declared import history_of
from clustersim.simulation.simulate import RunResult
from tests.effort import is_whole
from tests.oracle.run import replay_by_oracle

OF_THE_RUN: Final = "RUN-4"
"""It compares what a run says of its requests as well, which no history has."""


def broken(judged: RunResult | History, rules: Collection[str]) -> set[str]:
    """Return which of some rules a run or a history breaks; with ``--long=1`` which of all."""
    asked = TIMELINE_RULES if is_whole() or not rules else rules
    if isinstance(judged, History):
        history = judged
    elif OF_THE_RUN in asked:
        return {found.rule for found in audit_run(judged).violations}
    else:
        history = history_of(judged.scenario, judged.timeline, judged.replayed.reasons)
    others = [rule for rule in TIMELINE_RULES if rule not in asked]
    return {found.rule for found in check_history(history, without=others).violations}


def is_illegal(judged: RunResult | History, first: Collection[str] = ("RUN-5",)) -> bool:
    """Return whether any rule is broken, asking first those that are likely to be; all others only where they hold."""
    return bool(broken(judged, first) or broken(judged, ()))


def replay_by_events(patch: pytest.MonkeyPatch) -> None:
    """Replay by events, but pass by pass, for as long as a patch holds."""

    def replay(inputs: ReplayInput, *_: object) -> ReplayResult:
        return replay_by_oracle(inputs)

    patch.setattr(made, "replay", replay)
