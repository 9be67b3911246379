"""Violations that no mutation of a replay makes: what a record says of victims, of sends and of where operators end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.graph.template import PassTemplate
from clustersim.legality.audit import check_history
from clustersim.legality.history import HANDED_OVER, PREEMPTED, History
from clustersim.legality.timeline_rules.operators.programs import as_graphs
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import simulate
from clustersim.timeline.tables import HOST
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.adversary import run_of
from tests.legality.timeline.test_owner_pools import APART
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.serving.decision import Decision
from tests.oracle.serving.static import StaticScheduler


def told(history: History) -> list[tuple[str, str]]:
    return [(one.rule, one.message) for one in check_history(history).violations]


@pytest.mark.usefixtures("oracle")
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


@pytest.mark.parametrize("more", [
    {"serving": {"preemption": "swap", "host_kv": "8 GiB"}},
    {"plan": {"tp": 2, "dp": 2}, "faults": [{"device": 0, "at": "1 ms", "until": "9 ms"}]},
], ids=["swaps", "a replica fails"])  # fmt: skip
def test_nobody_is_turned_away_where_fewer_are_there_than_may_wait(more: dict[str, Any]) -> None:
    limited = more | {"serving": {"queue_limit": 1, "max_batch_requests": 1, **more.get("serving", {})}}
    history = history_of_run(simulate(scenario_of(document(**limited))))
    assert check_history(history).violations == ()
    (pool,) = history.pools
    assert pool.policy is not None
    for limit in (8, None):
        declared = replace(pool, policy=replace(pool.policy, queue_limit=limit))
        found = told(replace(history, pools=(declared,)))
        assert any("is turned away at" in words for rule, words in found if rule == "RUN-5"), found


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


def of_moves(history: History, **columns: Any) -> History:
    """Return a history with other columns of moves."""
    assert history.moves is not None
    assert history.folded is not None
    moves = {**history.moves, **columns}
    return replace(history, moves=moves, folded=replace(history.folded, moves=moves))


def kept_rows(history: History, keep: Any) -> History:
    assert history.moves is not None
    return of_moves(history, **{name: column[keep] for name, column in history.moves.items()})


def test_a_copy_to_host_memory_stays_on_its_replica() -> None:
    history = history_of_run(run_of("swap"))
    assert history.moves is not None
    other = history.moves["from_replica"].copy()
    other[np.flatnonzero(history.moves["to_rank"] == HOST)[0]] += 1
    assert ("KV-1", "is copied from or to another replica") in told(of_moves(history, from_replica=other))


def test_entries_leave_for_the_host_from_every_rank_and_come_back_to_it() -> None:
    history = history_of_run(run_of("swap"))
    moves = history.moves
    assert moves is not None
    first = int(np.flatnonzero(moves["to_rank"] == HOST)[0])
    of_rank = (moves["from_rank"] == moves["from_rank"][first]) | (moves["to_rank"] == moves["from_rank"][first])
    found = told(kept_rows(history, ~((moves["request"] == moves["request"][first]) & of_rank)))
    assert [rule for rule, words in found if "but its entries come back to 3 ranks of 4" in words] == ["KV-2"]


def test_a_request_is_handed_over_once() -> None:
    history = history_of_run(run_of("two pools"))
    facts = history.facts
    assert facts is not None
    row = int(np.flatnonzero(facts["kind"] == HANDED_OVER)[0])
    twice = np.insert(np.arange(len(facts["kind"])), row, row)
    found = told(replace(history, facts={name: column[twice] for name, column in facts.items()}))
    assert ("DP-2", "changes replicas twice") in found


def test_entries_of_a_sequence_leave_one_of_the_ranks_that_keep_whole_ones() -> None:
    history = history_of_run(simulate(scenario_of(document(**APART))))
    assert told(history) == []
    moves = history.moves
    assert moves is not None
    other = moves["to_rank"].copy()
    of_first = np.flatnonzero(moves["request"] == moves["request"][0])
    other[of_first[0]] += 1 if other[of_first[0]] % 2 == 0 else -1
    found = told(of_moves(history, to_rank=other))
    assert any(rule == "DP-2" and "reach SP ranks 0 to 1 of one replica" in words for rule, words in found), found


def test_nobody_arrives_in_a_loop_before_one_has_ended() -> None:
    loop = {"workload": {"arrivals": {"process": "closed_loop", "concurrency": 4}}, "run": {"horizon": "1 ms"}}
    history = history_of_run(simulate(scenario_of(document(**loop))))
    assert told(history) == []
    assert [(rule, "no request has ended" in words) for rule, words in told(replace(history, concurrency=3))] == [
        ("RUN-5", True)
    ]


def test_a_step_of_which_no_tokens_are_told_carries_somebody() -> None:
    history = history_of_run(run_of("dense TP"))
    decodes, chunks = (
        {name: column[:0] for name, column in (table or {}).items()} for table in (history.decodes, history.chunks)
    )
    steps = {name: column for name, column in (history.steps or {}).items() if not name.endswith("_tokens")}
    found = told(replace(history, folded=None, decodes=decodes, chunks=chunks, steps=steps))
    assert any("step, and carries no sequence" in words for _, words in found), found


def shortened(template: PassTemplate) -> PassTemplate:
    return replace(template, instance_stream=template.instance_stream[:-1])


def test_each_operator_of_a_template_has_a_stream() -> None:
    history = history_of_run(run_of("dense TP"))
    assert history.folded is not None
    templates = (shortened(history.folded.templates[0]), *history.folded.templates[1:])
    found = told(replace(history, folded=replace(history.folded, templates=templates)))
    assert any("values; expected" in words for _, words in found), found


def of_shape(template: PassTemplate) -> PassTemplate:
    """Let the last operator cost what the first one does."""
    classes = template.instance_class.copy()
    classes[-1] = classes[0]
    return replace(template, instance_class=classes)


def of_one(template: PassTemplate) -> PassTemplate:
    """Let the first norm be executed with the cache that is written behind it: what needs either needs both."""
    names = [template.symbols[symbol][0] for symbol in template.node_symbol.tolist()]
    one, other = (int(template.node_instance[names.index(name)]) for name in ("attention_norm", "kv_write"))
    after = [tuple(sorted({one if need == other else need for need in needs})) for needs in template.after]
    after[one] = tuple(sorted({*after[one], *after[other]}))
    after[other] = ()
    instance = np.where(template.node_instance == other, one, template.node_instance)
    return replace(template, node_instance=instance, after=tuple(after))


PROGRAMS: dict[str, Edit] = {
    "is of no kind of step, stage and number of ranks": lambda one: replace(one, ranks=one.ranks + 1),
    "operators, and the step graph has": lambda one: replace(one, members=one.members[:-1]),
    "the output of another stage": lambda one: replace(one, receives=not one.receives),
    "stands for several operators of the step graph": of_one,
    "is told on SP ranks [0, 1], and is on [0]": lambda one: replace(one, instance_s=((0, 1), *one.instance_s[1:])),
    "costs what operators of another shape do": of_shape,
    "ends with operator 0 on SP rank 0, and the last one": lambda one: replace(one, exits=(0,)),
}


@pytest.mark.parametrize("words", PROGRAMS)
def test_passes_run_the_operators_of_the_step_graph(words: str) -> None:
    """Other rules have words for most of these as well, and are asked first."""
    history = history_of_run(run_of("dense TP"))
    assert history.folded is not None
    assert as_graphs(Reading(history)).faults == ()
    templates = tuple(PROGRAMS[words](one) for one in history.folded.templates)
    found = as_graphs(Reading(replace(history, folded=replace(history.folded, templates=templates))))
    assert any(words in fault.message for fault in found.faults), found


def test_a_sequence_gives_way_when_a_replica_of_several_stages_decides() -> None:
    history = history_of_run(run_of("preemption"))
    facts = history.facts
    assert facts is not None
    early = facts["time_ns"] - (facts["kind"] == PREEMPTED)
    found = told(replace(history, facts={**facts, "time_ns": early}))
    assert any("when nothing begins or ends there" in words for rule, words in found if rule == "RUN-5"), found


def test_where_requests_go_by_who_waits_is_said_to_be_open_while_some_are_swapped() -> None:
    away = {"kv_blocks": 30, "preemption": "swap", "host_kv": "1 GiB", "router": "fewest_waiting"}
    workload = {"requests": 12, "output_tokens": {"uniform": {"low": 20, "high": 30}}}
    swaps = {"plan": {"dp": 2}, "serving": away, "workload": workload | {"arrivals": {"process": "all_at_once"}}}
    for faults in ([], [{"device": 0, "at": "8 ms", "until": "9 ms"}]):
        history = history_of_run(simulate(scenario_of(document(**swaps, faults=faults))))
        verdict = check_history(history)
        assert verdict.violations == ()
        lacks = [text for rule in verdict.rules if rule.id == "RUN-5" for text in rule.lacks]
        assert "where requests go by fewest_waiting (some are swapped)" in lacks
