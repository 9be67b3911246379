"""The nearest legal scenario of two pools: each pool's nearest legal plan, on the devices that the other one leaves.

The pools are searched one after the other, in both orders; what one of them has is a half of the devices, or all but
what the other one has as it is written, or all but one. Of what is legal for both, the fewest changes are taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from clustersim.errors import InputError
from clustersim.legality.deployment import Deployment
from clustersim.legality.nearest import Asked, nearest_legal
from clustersim.legality.repair import changed
from clustersim.legality.rule import Change, Violation
from clustersim.plan.parallel import ParallelPlan
from clustersim.run.legality import check_scenario, deployed, deployment_of
from clustersim.run.pools import in_pool, is_placed
from clustersim.scenario.document import parse_json
from clustersim.scenario.flow import flow
from clustersim.scenario.load import build_scenario
from clustersim.scenario.overrides import apply_overrides
from clustersim.scenario.scenario import Scenario
from clustersim.scenario.schema import SHORTHANDS


def nearest_pools(scenario: Scenario) -> tuple[Asked, ...] | None:
    """Search for the nearest legal scenario of two pools.

    Parameters
    ----------
    scenario : Scenario
        Of two pools.

    Returns
    -------
    tuple of Asked or None
        Changes, with paths of their pools; None where none was found.
    """
    search = _Search(scenario)
    offers = sorted(search.offers(), key=len)
    return next((offer for offer in dict.fromkeys(offers) if search.holds(offer)), None)


class _Search:
    """The searches of one scenario; each is made once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.each = scenario.each_pool()
        self.devices = len(scenario.topology.devices)
        self.of = lru_cache(maxsize=None)(self._of)

    def offers(self) -> Iterator[tuple[Asked, ...]]:
        """Yield changes that are legal for both pools, as far as each is looked at alone."""
        for first, second in ((0, 1), (1, 0)):
            left = self.devices - self.each[second].plan.world
            for room in dict.fromkeys((left, self.devices // 2, self.devices - 1)):
                found = self.of(first, room, ()) if room >= 1 else None
                if found is None:
                    continue
                shared = tuple((one.path, one.value) for one in found if one.path.startswith("precision."))
                rest = self.devices - self._plan(first, found).world
                other = self.of(second, rest, shared) if rest >= 1 else None
                if other is not None:
                    by_pool = {first: found, second: other}
                    yield tuple(
                        replace(one, path=in_pool(self.scenario.pools[number].name, one.path))
                        for number in (0, 1)
                        for one in by_pool[number]
                    )

    def holds(self, offer: tuple[Asked, ...]) -> bool:
        """Return whether nothing is wrong with the scenario once it is changed."""
        written = parse_json(json.dumps(self.scenario.document), "the nearest legal scenario")
        changes = [f"{one.path}={flow(one.value)}" for one in offer]
        try:
            return not check_scenario(build_scenario(apply_overrides(written, changes, SHORTHANDS))).violations
        except InputError:
            return False

    def _of(self, number: int, room: int, shared: Change) -> tuple[Asked, ...] | None:
        """Return the nearest changes that let a pool be legal on so many devices, or None."""
        one = self.each[number]
        deployment = replace(self._deployment(number, shared), num_devices=room)

        def verify(candidate: Deployment) -> Sequence[Violation]:
            return check_scenario(deployed(one, candidate)).violations

        return nearest_legal(deployment, verify).changes

    def _deployment(self, number: int, shared: Change) -> Deployment:
        """Return a pool as if it were alone: on the first devices, unless it says on which it is."""
        deployment = deployment_of(self.each[number])
        if not is_placed(self.scenario, number):
            deployment = replace(deployment, plan=replace(deployment.plan, placement=None))
        return changed(deployment, shared)

    def _plan(self, number: int, changes: tuple[Asked, ...]) -> ParallelPlan:
        wanted = tuple((one.path, one.value) for one in changes)
        return changed(self._deployment(number, ()), wanted).plan
