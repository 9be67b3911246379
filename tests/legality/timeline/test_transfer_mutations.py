"""Transfers that carry or take something else than plan, model and route say, and the rule that notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from clustersim.collective.algorithms import plan_collective
from clustersim.legality.audit import check_history
from clustersim.legality.declared.transfers import Carriage
from clustersim.legality.declared.users import SEND
from clustersim.legality.history import History
from clustersim.replay.events import swaps
from clustersim.replay.events.stage_sends import StageSends
from clustersim.replay.links.sharing_by_events import Network
from clustersim.simulation import priced as made
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.declared import setting_of
from clustersim.simulation.simulate import simulate
from clustersim.timeline.stretch import Stretch
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.test_failing_pools_mutations import POOLS
from tests.legality.timeline.test_outage_mutations import HANDED, HOSTS
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.pools import kv_moves
from tests.oracle.pools.kv_parts import KvParts

Patch = pytest.MonkeyPatch
STAGES = document(plan={"tp": 2, "pp": 2})
RACKS = document(
    topology={"name": "dgx-h100", "nodes": 2},
    plan={"tp": 4, "pp": 2, "placement": [0, 1, 2, 3, 8, 9, 10, 11]},
)
SPLIT = document(
    plan={"pp": 2, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "idle"}},
)
SWAPS = HOSTS | {"faults": []}
LAYERS = POOLS | {"serving": POOLS["serving"] | {"transfer": "layerwise"}}
ALL = {
    "stages": STAGES,
    "alone": document(plan={"tp": 1, "pp": 2}),
    "racks": RACKS,
    "split": SPLIT,
    "pools": POOLS,
    "layers": LAYERS,
    "swaps": SWAPS,
    "weak": HANDED,
}


def half_as_much(patch: Patch) -> None:
    """A stage sends half of its output, and says so."""
    own = made.step_blueprints

    def halved(node: Any) -> Any:
        return replace(node, amount=tuple((name, value / 2) for name, value in node.amount))

    def wrong(*arguments: Any) -> Any:
        return {
            kind: blueprint.map_bodies(
                lambda body: replace(body, nodes=tuple(halved(n) if n.op == "send" else n for n in body.nodes))
            )
            for kind, blueprint in own(*arguments).items()
        }

    patch.setattr(made, "step_blueprints", wrong)


def faster(share: float, *, foreign: bool) -> Callable[[Patch], None]:
    """Transfers take a share of what they cost."""
    own = Network.begin

    def mistake(patch: Patch) -> None:
        def wrong(self: Network, plan: Any, payload: float, ns: int, *rest: Any, **more: Any) -> None:
            took = max(1, int(ns * share)) if more.get("foreign", False) == foreign else ns
            own(self, None if took != ns else plan, payload, took, *rest, **more)

        patch.setattr(Network, "begin", wrong)

    return mistake


def sends(share: float) -> Callable[[Patch], None]:
    """Outputs of stages take a share of what they cost."""
    own = StageSends.cost

    def wrong(self: StageSends, *arguments: Any) -> Any:
        plan, payload, took = own(self, *arguments)
        return plan, payload, int(took * share)

    return lambda patch: patch.setattr(StageSends, "cost", wrong)


def half_a_cache(patch: Patch) -> None:
    """Half of the bytes of each hand-over are sent."""
    own = KvParts._move
    patch.setattr(KvParts, "_move", lambda self, *told: own(self, *told[:-1], told[-1] / 2))


def in_no_time(module: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(module, "to_ns", lambda seconds: 1)


def too_long(module: Any) -> Callable[[Patch], None]:
    own = module.to_ns
    return lambda patch: patch.setattr(module, "to_ns", lambda seconds: 2 * own(seconds))


MISTAKES: list[tuple[Callable[[Patch], None], str, str]] = [
    (half_as_much, "stages", "PP-2"),
    (half_as_much, "split", "PP-2"),
    (sends(0.5), "stages", "RUN-2"),
    (sends(1.1), "alone", "RUN-2"),
    (sends(0.9), "racks", "RUN-2"),
    (sends(0.9), "split", "RUN-2"),
    (in_no_time(kv_moves), "pools", "RUN-2"),
    (in_no_time(kv_moves), "layers", "RUN-2"),
    (too_long(kv_moves), "weak", "RUN-2"),
    (faster(0.9, foreign=True), "pools", "RUN-2"),
    (faster(0.9, foreign=True), "layers", "RUN-2"),
    (half_a_cache, "pools", "DP-2"),
    (half_a_cache, "layers", "DP-2"),
    (in_no_time(swaps), "swaps", "RUN-2"),
    (too_long(swaps), "swaps", "RUN-2"),
    (faster(0.9, foreign=True), "swaps", "RUN-2"),
]


@pytest.mark.parametrize(("mistake", "name", "rule"), MISTAKES)
@pytest.mark.usefixtures("oracle")
def test_other_transfers_than_were_declared_are_noticed(mistake: Callable[[Patch], None], name: str, rule: str) -> None:
    scenario = scenario_of(ALL[name], replay="full")
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        result = simulate(scenario)
    assert rule in broken(result, (rule,))


@cache
def recorded(name: str) -> History:
    return history_of_run(simulate(scenario_of(ALL[name])))


@pytest.mark.parametrize("name", ALL)
def test_what_was_declared_is_legal(name: str) -> None:
    assert check_history(recorded(name)).violations == ()
    assert audit_run(simulate(scenario_of(ALL[name], replay="full"))).violations == ()


def of_sends(history: History, change: Callable[[Any, int], None]) -> History:
    """Change what the last send carries."""
    assert history.folded is not None
    sent = history.folded.transfer_bytes.copy()
    change(sent, history.declared.hidden_bytes or 0)
    return replace(history, folded=replace(history.folded, transfer_bytes=sent))


def of_moves(history: History, name: str, change: Callable[[int], int]) -> History:
    """Change a value of the last move."""
    assert history.moves is not None
    values = history.moves[name].copy()
    values[-1] = change(int(values[-1]))
    return replace(history, moves={**history.moves, name: values})


def add(by: int) -> Callable[[Any, int], None]:
    def change(sent: Any, hidden: int) -> None:
        sent[-1] += by * hidden

    return change


def exchange(sent: Any, hidden: int) -> None:
    """One TP rank sends what another one does not."""
    sent[-1] += hidden
    sent[-2] -= hidden


EDITS: list[tuple[str, str, Callable[[History], History], set[str]]] = [
    ("a send carries a token less", "stages", lambda h: of_sends(h, add(-1)), {"PP-2"}),
    ("a send carries a token more", "stages", lambda h: of_sends(h, add(1)), {"PP-2"}),
    ("a TP rank sends another one's part", "stages", lambda h: of_sends(h, exchange), {"PP-2"}),
    ("a hand-over takes a nanosecond", "pools", lambda h: of_moves(h, "start_ns", lambda ns: ns + 10_000), {"RUN-2"}),
    ("a swap carries a byte more", "swaps", lambda h: of_moves(h, "bytes", lambda some: some + 1), {"RUN-2"}),
    ("a swap is faster than its link", "swaps", lambda h: of_moves(h, "start_ns", lambda ns: ns + 100), {"RUN-2"}),
    ("a swap is slower than its link", "swaps", lambda h: of_moves(h, "start_ns", lambda ns: ns - 100), {"RUN-2"}),
]


@pytest.mark.parametrize(("name", "change", "rules"), [one[1:] for one in EDITS], ids=[one[0] for one in EDITS])
def test_a_changed_transfer_is_found(name: str, change: Callable[[History], History], rules: set[str]) -> None:
    assert rules <= broken(change(recorded(name)), rules)


@pytest.mark.parametrize("name", ["stages", "racks", "pools"])
def test_what_a_transfer_takes_is_what_the_cost_model_says(name: str) -> None:
    """Two derivations, one from routes and constants, the other by the algorithms of collectives, agree."""
    scenario = scenario_of(ALL[name])
    carriage = Carriage(setting_of(scenario))
    ranks = range(carriage.ranks)
    pairs = [(one, other) for one in ranks for other in ranks if one != other]
    ways, carried = carriage.ways(SEND, pairs), np.geomspace(1, 1e10, 40).astype(np.int64)
    for at, pair in enumerate(pairs):
        (plan,) = plan_collective(scenario.topology, "send", (carriage.device(pair[0]), carriage.device(pair[1])))
        found = ways.ns(np.full(len(carried), at), carried)
        np.testing.assert_allclose(found, plan.seconds(carried) * 1e9, rtol=1e-12)


def test_what_is_alone_on_its_links_loses_nothing_there() -> None:
    """A pass that shares no link is recorded to have lost 500 ns at its first collective."""
    history = history_of_run(simulate(scenario_of(document(), replay="full")))
    tables = history.folded
    assert tables is not None
    row = int(np.flatnonzero(tables.passes["steps"] == 1)[0])
    template = tables.templates[int(tables.passes["template"][row])]
    joins = next(node for node, members in enumerate(template.members) if len(members) > 1)
    stretch = Stretch.of([int(template.node_instance[joins]), 500])
    irregular = tables.passes["irregular"].copy()
    irregular[row] = len(tables.irregular)
    passes = {**tables.passes, "irregular": irregular}
    folded = replace(tables, passes=passes, irregular=(*tables.irregular, stretch))
    found = check_history(replace(history, folded=folded)).violations
    assert any(one.rule == "RUN-2" and "nothing else can be on its links" in one.message for one in found)
