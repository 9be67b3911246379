"""What a step that lacks would last: of each step that was recorded it is what that one took."""

from __future__ import annotations

import numpy as np
import pytest

from clustersim.legality.prices.absent_step import lasts
from clustersim.legality.prices.prices import Prices
from clustersim.simulation.audit import history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import EXPERTS, RING, document

PLANS = {
    "alone": document(plan={"tp": 1}),
    "on an engine": document(serving={"engine": "vllm-0.9"}),
    "of experts": document(model=EXPERTS, plan={"tp": 2, "ep": 2}),
    "on a ring": document(plan=RING),
}


@pytest.mark.parametrize("name", PLANS)
def test_an_absent_step_lasts_as_long_as_the_same_one_that_was_recorded(name: str) -> None:
    history = history_of_run(simulate(scenario_of(PLANS[name], replay="full")))
    (declared,), steps, chunks, decodes = history.pools, history.steps, history.chunks, history.decodes
    assert declared.deployment is not None
    prices, computed = Prices(declared.deployment, 0), dict[int, int]()
    kinds = set()
    for row in np.argsort(steps["step"]).tolist():
        step = steps["step"][row]
        rows = np.flatnonzero(chunks["step"] == step)
        new = [(int(chunks["start"][at]), int(chunks["count"][at]), int(chunks["request"][at])) for at in rows]
        some = (decodes["first_step"] <= step) & (step <= decodes["last_step"])
        ones = decodes["request"][some].tolist()
        took = int(steps["end_ns"][row] - steps["start_ns"][row])
        found = lasts(prices, history.folded.templates, [one[:2] for one in new], [(computed[one], -1) for one in ones])
        assert found is not None
        assert took <= found <= 1.0001 * took + 1
        computed |= {who: start + count for start, count, who in new} | {one: computed[one] + 1 for one in ones}
        kinds.add((bool(new), bool(ones)))
    assert kinds == {(True, False), (False, True), (True, True)}
