"""Swaps with one mistake in the record, or in the code that made it, and the rules that notice.

The record is a run of two stages of two ranks with a pool in which sequences are swapped; as it is, it is legal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

from clustersim.legality.audit import check_history
from clustersim.legality.history import FACTS, History
from clustersim.replay.events.swaps import Swaps
from clustersim.simulation.audit import audit_run, history_of_run
from clustersim.simulation.simulate import simulate
from tests.laws.random_scenarios import MIXTRAL, scenario_of
from tests.legality.timeline.asked import broken
from tests.legality.timeline.notation import declaring
from tests.legality.timeline.source_mutations import Change, changed
from tests.legality.timeline.test_replay_mutations import document

OUT, IN = FACTS.index("swapped_out"), FACTS.index("swapped_in")
TIGHT: dict[str, Any] = {
    "plan": {"tp": 2, "pp": 2},
    "serving": {"kv_blocks": 30, "preemption": "swap", "host_kv": "1 GiB", "admission": "first_chunk"},
    "workload": {"output_tokens": {"uniform": {"low": 20, "high": 40}}},
}


def run(**serving: Any) -> Any:
    changes = TIGHT | {"serving": TIGHT["serving"] | serving}
    return simulate(scenario_of(document(**changes)))


@cache
def recorded() -> History:
    return history_of_run(run())


def facts_without(history: History, kind: int) -> History:
    """Drop the first fact of a kind."""
    assert history.facts is not None
    keep = np.ones(len(history.facts["kind"]), bool)
    keep[np.flatnonzero(history.facts["kind"] == kind)[0]] = False
    return replace(history, facts={name: values[keep] for name, values in history.facts.items()})


def fact_with(history: History, kind: int, name: str, change: int) -> History:
    """Change a value of the first fact of a kind."""
    assert history.facts is not None
    values = history.facts[name].copy()
    values[np.flatnonzero(history.facts["kind"] == kind)[0]] += change
    return replace(history, facts={**history.facts, name: values})


def move_with(history: History, side: str, name: str, change: Callable[[Any], Any]) -> History:
    """Change a value of the first copy that has its host at a side."""
    assert history.moves is not None
    values = history.moves[name].copy()
    row = np.flatnonzero(history.moves[f"{side}_rank"] < 0)[0]
    values[row] = change(values[row])
    return replace(history, moves={**history.moves, name: values})


def moves_without(history: History, side: str, *, one: bool) -> History:
    """Drop the copies that have their host at a side, or the first of them."""
    assert history.moves is not None
    rows = np.flatnonzero(history.moves[f"{side}_rank"] < 0)
    keep = np.ones(len(history.moves["request"]), bool)
    keep[rows[:1] if one else rows] = False
    return replace(history, moves={name: values[keep] for name, values in history.moves.items()})


def twice(history: History) -> History:
    """Let a rank copy two sequences out at a time."""
    assert history.moves is not None
    return replace(
        history, moves={name: np.concatenate((values[:1], values)) for name, values in history.moves.items()}
    )


def tiny_host(history: History) -> History:
    return declaring(history, host_blocks=3)


LATE = 10**9
RECORDS: list[tuple[str, Callable[[History], History], set[str]]] = [
    ("it never left", lambda h: facts_without(h, OUT), {"RUN-4", "KV-7"}),
    ("it never got blocks to come back to", lambda h: facts_without(h, IN), {"RUN-4", "KV-7"}),
    ("it computes while it is away", lambda h: fact_with(h, IN, "time_ns", LATE), {"KV-7"}),
    ("it is said to have one entry more", lambda h: fact_with(h, OUT, "value", 1), {"KV-1"}),
    ("it is said to come back with one less", lambda h: fact_with(h, IN, "value", -1), {"KV-1"}),
    ("its blocks are not given back", lambda h: fact_with(h, OUT, "used", 2), {"KV-7"}),
    ("its last entry stays behind", lambda h: move_with(h, "from", "tokens", lambda n: n - 1), {"KV-1"}),
    ("its first entry is not copied", lambda h: move_with(h, "to", "first", lambda n: n + 1), {"KV-1"}),
    ("half of its bytes are copied", lambda h: move_with(h, "to", "bytes", lambda n: n // 2), {"RUN-2"}),
    ("it is copied in no time", lambda h: move_with(h, "to", "start_ns", lambda n: n + LATE), {"RUN-2"}),
    ("it computes before it is back", lambda h: move_with(h, "from", "end_ns", lambda n: n + LATE), {"KV-2"}),
    ("nothing comes back", lambda h: moves_without(h, "from", one=False), {"KV-2"}),
    ("a rank does not get its share back", lambda h: moves_without(h, "from", one=True), {"KV-2"}),
    ("nothing is copied out", lambda h: moves_without(h, "to", one=False), {"KV-7"}),
    ("two are copied at a time", twice, {"RUN-3"}),
    ("the host has no room for it", tiny_host, {"KV-6"}),
]


def test_record_of_swaps_is_legal_and_looked_at():
    verdict = check_history(recorded())
    assert verdict.violations == ()
    assert recorded().moves is not None
    assert len(recorded().moves["request"]) >= 8  # type: ignore[index]  # just asserted


@pytest.mark.parametrize(("mutate", "rules"), [one[1:] for one in RECORDS], ids=[one[0] for one in RECORDS])
def test_audit_catches_a_mistake_in_the_record(mutate, rules):
    assert rules <= broken(mutate(recorded()), rules)


BEGUN = "copy(s, r, one, seq.blocks, IN)\n"
GIVEN_BACK = "take_free(s, r, seq.owner, -blocks)"
TAKEN = "take_free(s, r, seq.owner, blocks)\n    own.coming += blocks"
ROOM = " and blocks <= s.owners[rep.first_owner + seq.owner].host"
EMPTIED = "seq.away = seq.blocks = seq.busy = seq.computed = seq.decodes = 0"
RESTED = "seq.computed *= seq.away == 2\n        seq.away = seq.blocks = seq.busy = seq.decodes = 0"
LOST = (
    f"{EMPTIED}\n        seq.copies = (seq.copies + 1) & VERSIONS\n        push(s, r, one)\n        if seq.leaving:\n"
    "            rep.leaving -= 1\n            seq.leaving = 0\n            take_out(s, r, one, 0)\n        else:"
)
SILENT = f"rested = seq.away == 2\n        {LOST[:-5]}elif not rested:"
FAILED_THEN = "(copies[:, 0] != outage.replica) | (decided >= outage.at_ns) | (ends <= outage.at_ns)"


def in_core(*changes: tuple[str, str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """Let texts of modules be others."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        for module, old, new in changes:
            changed(patch, Change(f"clustersim.{module}", old, new))

    return mutate


too_early = in_core(("core.swapping", BEGUN, f"{BEGUN[:-1]}; end_copy(s, r, one); seq.copies += 1\n"))
"""A sequence goes on as soon as its copy back has begun."""
kept_block = in_core(("core.swapping", GIVEN_BACK, "take_free(s, r, seq.owner, (rep.step < 40) - blocks)"))
"""A device block of what is swapped at first stays behind."""
endless_host = in_core(("core.scheduler", ROOM, ""))
"""The host lends what it does not have."""
uncopied = in_core(("core.swapping", TAKEN, "own.coming += 0"), ("core.swapping", GIVEN_BACK, "own.coming += blocks"))
"""A victim's blocks are given back before its copy has ended."""


@pytest.mark.parametrize(
    ("mutate", "host_kv", "rule"),
    [(too_early, "1 GiB", "KV-2"), (kept_block, "1 GiB", "KV-7"), (uncopied, "1 GiB", "KV-7")],
)
def test_audit_catches_mutated_code_of_swaps(mutate, host_kv, rule):
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        result = run(host_kv=host_kv)
    assert rule in broken(result, (rule,))
    assert audit_run(run(host_kv=host_kv)).violations == ()


def test_audit_catches_a_host_that_lends_what_it_does_not_have():
    small = "60 kB"  # a few blocks
    with pytest.MonkeyPatch.context() as patch:
        endless_host(patch)
        result = run(host_kv=small)
    assert "KV-6" in broken(result, ("KV-6",))
    assert audit_run(run(host_kv=small)).violations == ()


survives = in_core(("core.outages", LOST, SILENT.replace(EMPTIED, RESTED)))
"""What is in host memory outlives the processes that it belongs to."""
goes_on = in_core(("replay.core_replicas", FAILED_THEN, "copies[:, 0] >= 0"))
"""Copies of a replica that has failed go on."""


def at_full_speed(patch: pytest.MonkeyPatch) -> None:
    """A copy over a weak link takes no longer than over one as it should be."""
    patch.setattr(Swaps, "_plan", lambda self, stage, rank, out: self.plans[stage, rank, out])


keeps_its_rest = in_core(("core.outages", LOST, SILENT))
"""Who was in host memory is sent elsewhere without being told of as preempted."""

AT_REST = "[{device: 0, at: 8 ms, until: 9 ms}]"
UNDER_WAY = "[{device: 0, at: 5195 us, until: 9 ms}]"
WEAK = "[{link: [n0.g0, n0.host0], at: 5 ms, until: 6 ms, factor: 0.05}]"


@pytest.mark.parametrize(
    ("mutate", "faults", "rules"),
    [
        (survives, AT_REST, {"KV-7", "RUN-4"}),
        (keeps_its_rest, AT_REST, {"RUN-4"}),
        (goes_on, UNDER_WAY, {"RUN-3"}),
        (at_full_speed, WEAK, {"RUN-2"}),
    ],
)
def test_audit_catches_mutated_code_of_swaps_beside_faults(mutate, faults, rules):
    def failing() -> Any:
        return simulate(scenario_of(document(**TIGHT, faults=yaml.safe_load(faults)), replay="folded"))

    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        result = failing()
    assert rules <= broken(result, rules)
    assert audit_run(failing()).violations == ()


LEFT_A_STAGE = "[{device: 0, at: 59993136 ns, until: 60993136 ns}]"
"""The step whose first stage's end lets a sequence be copied out is cut off, and so not recorded."""


def test_copies_out_begin_with_the_end_of_a_stage_also_where_its_step_is_cut_off_by_a_failure():
    result = simulate(scenario_of(document(**TIGHT, faults=yaml.safe_load(LEFT_A_STAGE))))
    assert audit_run(result).violations == ()
    history = history_of_run(result)
    assert history.moves is not None
    first = (history.moves["to_rank"] < 0) & (history.moves["start_ns"] == history.moves["start_ns"].min())
    assert first.any()
    late = {**history.moves, "start_ns": history.moves["start_ns"] + first}  # one ns later on all ranks
    assert "RUN-5" in broken(replace(history, moves=late), {"RUN-5"})


SHARED = {
    "model": {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}},
    "plan": {"tp": 2, "dp": 2, "ep": {"degree": 4, "scope": "global"}},
}


def test_replicas_that_share_experts_swap_beside_their_steps():
    folded, full = (simulate(scenario_of(document(**TIGHT | SHARED), replay=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert audit_run(folded).violations == audit_run(full).violations == ()
    moves = folded.timeline.moves
    assert {(int(a), int(b)) for a, b in zip(moves["from_replica"], moves["from_rank"], strict=True) if b >= 0} == {
        (0, 0), (0, 1), (1, 2), (1, 3),
    }  # fmt: skip


@pytest.mark.parametrize(("mutate", "rule"), [(kept_block, "KV-7"), (uncopied, "KV-7")])
def test_audit_catches_mutated_code_of_swaps_of_replicas_that_share_experts(mutate, rule):
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        result = simulate(scenario_of(document(**TIGHT | SHARED)))
    assert rule in broken(result, (rule,))
