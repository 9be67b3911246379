"""Regression goldens: the digests of shipped scenarios as they were, in any replay and on any machine.

They say that a timeline moved, not which one is right; a change that means to move one says so in the changelog as
``[TIMELINE]``. ``pytest tests/golden --update-golden`` rewrites ``digests.json``, and fails so that somebody looks.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clustersim import run
from clustersim.scenario.load import load
from tests.audit import simulated

STORED = Path(__file__).with_name("digests.json")
FIRST_STEPS = "run.horizon=300 ms"
FOUR_LAYERS = "model={name: deepseek-v3, config: {num_hidden_layers: 4}}"


def check(request: pytest.FixtureRequest, name: str, digest: str) -> None:
    """Compare with what is stored, or store it."""
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    if request.config.getoption("--update-golden"):
        stored[name] = digest
        STORED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        pytest.fail(f"{STORED.name}: {name} is now {digest}; look at what moved, and run again without the option")
    assert digest == stored[name], f"the timeline of {name!r} moved; if it was meant to, see --update-golden"


@pytest.mark.parametrize("replay", ["full", "folded"])
def test_the_first_steps_of_quickstart_are_as_they_were(request, replay):
    result = simulated(load("quickstart", (FIRST_STEPS, f"run.replay={replay}")))
    check(request, f"quickstart, {FIRST_STEPS}", result.timeline.digest)


@pytest.mark.parametrize(
    ("name", "override"),
    [
        ("quickstart", "workload.trace.requests=50"),
        ("mixtral-ep", "workload.requests=20"),
        ("long-context-ring", "workload.requests=4"),
        ("oversubscribed-fabric", "workload.requests=20"),
    ],
)
def test_shipped_scenarios_are_as_they_were(request, name, override):
    result = simulated(load(name, (override,)))
    check(request, f"{name}, {override}", result.timeline.digest)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("azure-hour-fleet", ("workload.requests=300",)),
        ("deepseek-v3-pools", (FOUR_LAYERS, "workload.requests=8")),
        ("deepseek-v3-two-batch", (FOUR_LAYERS, "workload.requests=256", "workload.output_tokens.fixed=8")),
        ("deepseek-v3-wide-ep", (FOUR_LAYERS, "workload.requests=64")),
    ],
)
def test_the_longest_that_ship_are_legal_and_as_they_were_when_they_are_shorter(request, name, overrides):
    """Whole they run with ``--long=1``, and where they are named (``LONGEST`` of ``tests/conftest.py``)."""
    result = run(name, [*overrides, "expect={legal: true}"])
    assert result.legal
    check(request, f"{name}, {', '.join(overrides)}", result.timeline.digest)
