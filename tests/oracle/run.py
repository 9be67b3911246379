"""The oracle: a run simulated by objects on SimPy's clock, and code that runs with it instead of the core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from clustersim.replay.input import Progress, ReplayInput, ReplayResult
from clustersim.replay.prepared import Prepared
from tests.oracle.events.run import EventReplay


def replay_by_oracle(inputs: ReplayInput, progress: Progress | None = None, *_: object, **__: object) -> ReplayResult:
    """Simulate by objects until every request has ended, or until the horizon; see ``replay``."""
    return EventReplay(Prepared(inputs.of_replicas), progress, "a test").run()


@contextmanager
def by_oracle() -> Iterator[None]:
    """Let the oracle simulate whatever is simulated."""
    with (
        mock.patch("clustersim.simulation.simulate.replay", replay_by_oracle),
        mock.patch("clustersim.simulation.proof.replay", replay_by_oracle),
    ):
        yield
