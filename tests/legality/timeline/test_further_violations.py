"""Violations that no mutation of a replay makes: what a record says of victims, of sends and of where operators end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.graph.template import PassTemplate
from clustersim.legality.audit import check_history
from clustersim.legality.history import History
from clustersim.serving.decision import Decision
from clustersim.serving.static import StaticScheduler
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.adversary import run_of
from tests.legality.timeline.test_replay_mutations import document


def told(history: History) -> list[tuple[str, str]]:
    return [(one.rule, one.message) for one in check_history(history).violations]


def test_a_member_of_a_static_batch_does_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(document(serving={"scheduler": "static", "max_batch_requests": 3}), replay="full")
    assert audit_run(simulate(scenario)).violations == ()
    own = StaticScheduler._decide

    def wrong(self: StaticScheduler, now: int) -> Decision:
        idle = [one for one in self.running if not one.in_flight and one.generated]
        if len(idle) > 1 and not idle[-1].preemptions:
            self._preempt(now, idle[-1])
            self.owners[idle[-1].request] = idle[-1].owner
            self.evicted.clear()
        return own(self, now)

    monkeypatch.setattr(StaticScheduler, "_decide", wrong)
    found = told(history_of_run(simulate(scenario)))
    assert any("and a static batch has set its blocks aside" in words for rule, words in found if rule == "RUN-5"), (
        found
    )


def test_nobody_is_swapped_where_preemption_is_by_recomputation() -> None:
    history = history_of_run(run_of("swap"))
    (pool,) = history.pools
    assert pool.policy is not None
    declared = replace(pool, policy=replace(pool.policy, swaps=False))
    found = told(replace(history, pools=(declared,)))
    assert any("and is to be computed anew where it is preempted" in words for rule, words in found if rule == "RUN-5")


Edit = Callable[[PassTemplate], PassTemplate]


def other_class(template: PassTemplate) -> PassTemplate:
    """Let the last rank send at the cost of another operator."""
    first = int(np.flatnonzero([op != "send" for _, op, _ in template.symbols])[0])
    cls = int(np.flatnonzero(np.array(template.class_symbol) == first)[0])
    return replace(template, send_classes=(*template.send_classes[:-1], cls))


SENDS: dict[str, Edit] = {
    "ranks send its output, and in the step graph": lambda one: replace(one, send_classes=one.send_classes[:-1]),
    "sends leaves behind operator": lambda one: replace(one, exits=tuple(at - 1 for at in one.exits)),
    "its output is sent at the cost of another operator": other_class,
}


@pytest.mark.parametrize("words", SENDS)
def test_ranks_send_as_the_step_graph_has_it(words: str) -> None:
    history = history_of_run(run_of("TP × PP, mixed steps"))
    assert history.folded is not None
    used = set(np.unique(history.folded.passes["template"]).tolist())
    templates: list[Any] = list(history.folded.templates)
    at = next(number for number in used if len(templates[number].send_classes))
    templates[at] = SENDS[words](templates[at])
    found = told(replace(history, folded=replace(history.folded, templates=tuple(templates))))
    assert any(words in message for rule, message in found if rule == "RUN-2"), found
