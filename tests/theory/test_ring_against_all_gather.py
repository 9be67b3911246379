"""What the long-context scenarios teach: K/V that travels under attention costs less than K/V waited for."""

from __future__ import annotations

from clustersim.scenario.load import load
from clustersim.simulation.simulate import simulate


def test_a_ring_over_nodes_is_sooner_than_an_all_gather() -> None:
    ring, gather = (simulate(load(f"long-context-{scheme}")) for scheme in ("ring", "all-gather"))
    assert (ring.requests["first_token_ns"] < gather.requests["first_token_ns"]).all()
