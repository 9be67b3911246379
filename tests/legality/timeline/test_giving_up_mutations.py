"""Clients that give up at another instant than was declared, or not at all, are noticed (RUN-4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.clock import Int64Array
from clustersim.replay.core_replicas import CoreReplicas
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.adversary import document_of
from tests.legality.timeline.test_hand_over_mutations import GIVEN_UP

Change = Callable[[Int64Array], Int64Array]
SMALL = document_of("cancellation")
GIVEN = {"one pool": SMALL, "two pools": GIVEN_UP}


def later(by: int) -> Change:
    return lambda after: np.where(after >= 0, after + by, -1)


MISTAKES: dict[str, Change] = {
    "never": lambda after: np.full_like(after, -1),
    "one never": lambda after: np.where(np.arange(len(after)) == np.flatnonzero(after >= 0)[0], -1, after),
    "late": later(9_999_999),
    "half as late": lambda after: np.where(after >= 0, after // 2, -1),
    "another one": lambda after: np.roll(after, 1),
    "somebody undeclared": lambda after: np.where(after >= 0, after, 100_000),
}


def patient(patch: pytest.MonkeyPatch, change: Change) -> None:
    own = CoreReplicas.__init__

    def wrong(self: CoreReplicas, *given: Any, **more: Any) -> None:
        own(self, *given, **more)
        requests = self.inputs.requests
        assert requests.cancel_after_ns is not None
        others = replace(requests, cancel_after_ns=change(requests.cancel_after_ns))
        self.inputs = replace(self.inputs, requests=others)

    patch.setattr(CoreReplicas, "__init__", wrong)


@pytest.mark.parametrize(
    ("given", "name"),
    [(given, name) for given in GIVEN for name in MISTAKES if (given, name) != ("two pools", "somebody undeclared")],
)
def test_clients_that_give_up_otherwise_are_noticed(given: str, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patient(patch, MISTAKES[name])
        found = audit_run(simulate(scenario_of(GIVEN[given])))
    assert "RUN-4" in {violation.rule for violation in found.violations}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("replay", ["folded", "full"])
def test_clients_that_give_up_as_declared_are_legal(given: str, replay: str) -> None:
    assert audit_run(simulate(scenario_of(GIVEN[given], replay=replay))).violations == ()


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_who_finishes_when_its_client_gives_up_has_its_answer(by: int) -> None:
    """A client that gives up an instant before, when, or after its request finishes; it has its answer then."""
    alone = document_of("cancellation")
    alone["workload"] = alone["workload"] | {"requests": 1, "cancel_after": "1 s"}
    base = simulate(scenario_of(alone))
    waits = int(base.requests["finished_ns"][0] - base.requests["arrived_ns"][0])
    cuts: tuple[dict[str, str], ...] = ({}, {"horizon": f"{waits + by} ns"})
    for horizon in cuts:
        alone["workload"] = alone["workload"] | {"cancel_after": f"{waits + by} ns"}
        assert audit_run(simulate(scenario_of(alone, **horizon))).violations == ()
