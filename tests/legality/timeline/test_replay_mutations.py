"""Replay code with one mistake in it, and the rule that notices: the audit shares no code with what made the record.

Each mutation is a few lines that somebody could have written. It runs on a scenario in which it shows; without it
the same scenario is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from clustersim.clock import Int64Array
from clustersim.legality.audit import TIMELINE_RULES
from clustersim.replay.events import wiring
from clustersim.replay.events.pass_program import EventProgram, expanded_program
from clustersim.replay.events.pipeline import Pipeline
from clustersim.replay.events.stage_sends import StageSends
from clustersim.replay.links.sharing_by_events import Network
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.record import Recorder
from tests.effort import is_whole
from tests.laws.random_scenarios import LLAMA, MIXTRAL, scenario_of
from tests.legality.timeline.asked import broken, replay_by_events
from tests.legality.timeline.golden import compare_lines, holds
from tests.oracle.events.run import EventReplay
from tests.oracle.serving.blocks import BlockPool
from tests.oracle.serving.scheduler import Scheduler
from tests.oracle.serving.sequence import Sequence

pytestmark = pytest.mark.usefixtures("oracle")

Patch = pytest.MonkeyPatch
MATRIX: Final = Path(__file__).with_name("replay_mutations.txt")


def document(**changes: Any) -> dict[str, Any]:
    """Eight requests on a small model; ``changes`` are sections or whole values."""
    whole: dict[str, Any] = {
        "name": "mutated",
        "seed": 3,
        "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 4}},
        "plan": {"tp": 2},
        "serving": {
            "scheduler": "chunked_prefill", "max_batch_requests": 8, "max_batch_tokens": 32, "kv_block_tokens": 4,
            "kv_blocks": 200, "engine": "ideal",
        },
        "workload": {
            "arrivals": {"process": "constant", "rate": "2000/s"},
            "prompt_tokens": {"uniform": {"low": 20, "high": 60}},
            "output_tokens": {"uniform": {"low": 8, "high": 12}},
            "requests": 8,
        },
        "run": {"horizon": None},
    }  # fmt: skip
    for name, value in changes.items():
        whole[name] = whole[name] | value if isinstance(value, dict) and name not in ("plan", "model") else value
    return whole


PIPE = {"tp": 1, "pp": 2}
RING = {"tp": 1, "sp": {"degree": 2, "scheme": "ring", "partition": "zigzag", "decode": "idle"}}
EXPERTS = {"name": "tiny", "source": "a test", "config": MIXTRAL | {"num_hidden_layers": 2}}


def shortened_collectives(patch: Patch) -> None:
    """A collective is released before it has run for its cost."""
    begin = Network.begin

    def early(self: Network, plan: Any, payload: float, ns: int, *rest: Any, **more: Any) -> None:
        begin(self, plan, payload, ns // 2, *rest, **more)

    patch.setattr(Network, "begin", early)


def without(which: Callable[[Any, int, int], bool]) -> Callable[[Patch], None]:
    """Forget what an operator waits for, where ``which(program, source, target)``."""

    def mutate(patch: Patch) -> None:
        def forgetful(program: Any) -> EventProgram:
            whole = expanded_program(program)
            symbols = program.template.symbols
            names = [symbols[symbol][0] for symbol in program.template.node_symbol.tolist()]
            successors = [
                tuple(t for t in targets if not which(names, source, t))
                for source, targets in enumerate(whole.successors)
            ]
            indegree = [0] * len(whole.indegree)
            for targets in successors:
                for target in targets:
                    indegree[target] += 1
            return EventProgram(
                indegree=indegree, successors=successors, cls=whole.cls, members=whole.members, exits=whole.exits,
                node_of=whole.node_of,
            )  # fmt: skip

        patch.setattr(wiring, "expanded_program", forgetful)

    return mutate


def named(names: list[str], at: int, *prefixes: str) -> bool:
    return names[at].startswith(prefixes)


def skipped_block(patch: Patch) -> None:
    """A sequence takes a block too few at each border."""
    patch.setattr(BlockPool, "needed", lambda self, tokens: -(-max(1, tokens - 1) // self.block_tokens))


def unreturned_block(patch: Patch) -> None:
    """One block of each sequence stays behind."""

    def release(self: Scheduler, sequence: Sequence) -> None:
        self.pool.give(sequence.owner, max(0, sequence.blocks - 1))
        sequence.blocks = 0

    patch.setattr(Scheduler, "_release", release)


def twice_returned_block(patch: Patch) -> None:
    """One block of each sequence comes back twice."""

    def release(self: Scheduler, sequence: Sequence) -> None:
        self.pool.free[sequence.owner] += sequence.blocks + 1
        sequence.blocks = 0

    patch.setattr(Scheduler, "_release", release)


def overdrawn_pool(patch: Patch) -> None:
    """The pool lends what it does not have."""

    def take(self: Scheduler, sequence: Sequence, tokens: int) -> bool:
        missing = max(0, self.pool.needed(tokens) - sequence.blocks)
        self.pool.free[sequence.owner] -= missing
        sequence.blocks += missing
        return True

    patch.setattr(Scheduler, "_take", take)
    patch.setattr(Scheduler, "refusal", lambda self, sequence: None)


def reused_slot(patch: Patch) -> None:
    """A sequence that is in flight is put into the next micro-batch as well."""
    choose = Scheduler._decodes

    def decodes(self: Scheduler, now: int, budget: int) -> list[Sequence]:
        for sequence in self.running:
            sequence.in_flight = sequence.in_flight and not sequence.decodes
        return choose(self, now, budget)

    patch.setattr(Scheduler, "_decodes", decodes)


def lost_end(patch: Patch) -> None:
    """Nobody is told that request 3 has finished."""
    note = Scheduler._note

    def forgetful(self: Scheduler, now: int, kind: int, sequence: Sequence, tokens: int) -> None:
        if sequence.request != 3 or kind != 4:
            note(self, now, kind, sequence, tokens)

    patch.setattr(Scheduler, "_note", forgetful)


def lost_arrival(patch: Patch) -> None:
    """Request 3 is dropped on its way in."""
    arrive = EventReplay._arrive

    def forgetful(self: EventReplay, request: int) -> None:
        if request == 3:
            self._end(1)
        else:
            arrive(self, request)

    patch.setattr(EventReplay, "_arrive", forgetful)


def two_tokens(patch: Patch) -> None:
    """A decode step counts for two."""
    complete = Scheduler.complete

    def generous(self: Scheduler, now: int, decision: Any) -> Any:
        for sequence in decision.decodes:
            if sequence.generated + 2 <= sequence.output_tokens:
                sequence.generated += 1
                sequence.computed += 1
        return complete(self, now, decision)

    patch.setattr(Scheduler, "complete", generous)


def half_a_prompt(patch: Patch) -> None:
    """The last chunk of a prompt is left out."""
    complete = Scheduler.complete

    def hasty(self: Scheduler, now: int, decision: Any) -> Any:
        for sequence, count in decision.prefills:
            if sequence.generated == 0 and 0 < sequence.to_compute - count < 16:
                sequence.prompt_tokens = sequence.computed + count
        return complete(self, now, decision)

    patch.setattr(Scheduler, "complete", hasty)


def shifted_chunk(patch: Patch) -> None:
    """A chunk is written one entry too far."""
    chunk = Recorder.chunk

    def shifted(
        self: Recorder, replica: int, step: int, request: int, start: int, count: int, *, sampled: bool
    ) -> None:
        chunk(self, replica, step, request, start + (start > 0), count, sampled=sampled)

    patch.setattr(Recorder, "chunk", shifted)


def migrated(patch: Patch) -> None:
    """Requests are told to be on replica 0, wherever they are."""
    arrival = Recorder.arrival
    patch.setattr(
        Recorder,
        "arrival",
        lambda self, time, kind, request, replica, value: arrival(self, time, kind, request, 0, value),
    )


def unlimited_budget(patch: Patch) -> None:
    """Prompts take no notice of the token budget."""
    prefills = Scheduler._prefills
    patch.setattr(
        Scheduler,
        "_prefills",
        lambda self, now, budget, decodes, *, whole: prefills(self, now, 99, decodes, whole=whole),
    )


def unordered_stages(patch: Patch) -> None:
    """A stage starts when the last of its inputs leaves, not when it arrives."""
    begin, receive = StageSends.begin, Pipeline._receive

    def hasty(self: StageSends, stage: int, rank: int) -> None:
        begin(self, stage, rank)
        if rank == 0:
            receive(self.owner, stage + 1, self.queues[stage][rank][0])  # type: ignore[arg-type]

    patch.setattr(StageSends, "begin", hasty)
    patch.setattr(Pipeline, "_receive", lambda self, stage, micro: None)


def crowded_stage(patch: Patch) -> None:
    """A stage takes a micro-batch while it runs another one."""
    patch.setattr(Pipeline, "_receive", lambda self, stage, micro: self._start(stage, micro))


def overlapping_decodes(patch: Patch) -> None:
    """Nobody looks at decode_overlap."""
    original = Scheduler.__init__

    def careless(self: Scheduler, *arguments: Any, **more: Any) -> None:
        original(self, *arguments, **more | {"decode_overlap": True})

    patch.setattr(Scheduler, "__init__", careless)


def early_sends(patch: Patch) -> None:
    """A send starts before the output is there."""

    def recorded(self: Recorder, replica: int, stage: int, step: int, starts: Int64Array, *more: Int64Array) -> None:
        original(self, replica, stage, step, starts - 1, *more)

    original = Recorder.transfer
    patch.setattr(Recorder, "transfer", recorded)


FULL: dict[str, Any] = {"replay": "full"}
FOLDED: dict[str, Any] = {"replay": "folded"}
EVENTS: dict[str, Any] = FULL if is_whole() else FOLDED | {"by": "events"}
"""For what is decided by the plain scheduler alone: operator by operator with ``--long=1``, else pass by pass."""
LONG: dict[str, Any] = {"workload": {"output_tokens": {"fixed": 90}}, "run": {"horizon": "5 ms"}}
TIGHT = {"serving": {"kv_blocks": 24}}
NO_OVERLAP = {"tp": 1, "pp": 2, "decode_overlap": "none"}

MUTATIONS: list[tuple[str, Callable[[Patch], None], dict[str, Any], dict[str, Any], set[str]]] = [
    ("a collective is released early", shortened_collectives, {}, FULL, {"RUN-2"}),
    (
        "a collective starts before its last rank has arrived",
        without(lambda names, a, b: named(names, b, "o_proj_all_reduce") and named(names, a, "o_proj")),
        {}, FULL, {"TP-6"},
    ),
    (
        "what needs a collective starts before it is complete",
        without(lambda names, a, b: named(names, a, "o_proj_all_reduce")),
        {}, FULL, {"TP-6"},
    ),
    (
        "attention reads before the cache is written",
        without(lambda names, a, b: named(names, a, "kv_write") and named(names, b, "attention")),
        {}, FULL, {"KV-2"},
    ),
    (
        "attention does not wait for the segment",
        without(lambda names, a, b: named(names, a, "kv_ring") and named(names, b, "attention")),
        {"plan": RING}, FULL, {"SP-5"},
    ),
    (
        "experts do not wait for their tokens",
        without(lambda names, a, b: named(names, a, "dispatch") and named(names, b, "expert_")),
        {"plan": {"tp": 2, "ep": 2}, "model": EXPERTS}, FULL, {"EP-4"},
    ),
    (
        "layers do not wait for each other",
        without(lambda names, a, b: named(names, a, "ffn_add") and named(names, b, "attention_norm")),
        {"plan": {"tp": 1}}, FULL, {"PP-6"},
    ),
    (
        "the head does not wait for the layers",
        without(lambda names, a, b: named(names, a, "ffn_add") and named(names, b, "final_norm")),
        {"plan": {"tp": 1}}, FULL, {"RUN-2"},
    ),
    ("a block is skipped", skipped_block, {}, FULL, {"KV-7"}),
    ("a block does not come back", unreturned_block, {}, FULL, {"KV-7"}),
    ("a block comes back twice", twice_returned_block, {}, FULL, {"KV-7"}),
    ("the pool lends what it does not have", overdrawn_pool, TIGHT, FULL, {"KV-6"}),
    ("a decode slot is used twice", reused_slot, {"plan": PIPE} | LONG, FULL, {"PH-3"}),
    ("the end of a request is lost", lost_end, {}, FULL, {"RUN-4"}),
    ("a request is lost when it arrives", lost_arrival, {}, FULL, {"RUN-4"}),
    ("a decode step gives two tokens", two_tokens, {}, FULL, {"PH-4"}),
    ("the last chunk of a prompt is left out", half_a_prompt, {}, FULL, {"PH-1"}),
    ("a chunk is written one entry too far", shifted_chunk, {}, FULL, {"KV-1"}),
    ("requests are not where they were routed", migrated, {"plan": {"dp": 2}}, FULL, {"DP-2"}),
    ("the token budget is ignored", unlimited_budget, {}, FULL, {"KV-6"}),
    ("a stage starts with half of its input", unordered_stages, {"plan": {"tp": 2, "pp": 2}}, FULL, {"PP-2"}),
    ("a stage takes two micro-batches", crowded_stage, {"plan": PIPE}, FULL, {"RUN-3"}),
    ("decode_overlap: none is ignored", overlapping_decodes, {"plan": NO_OVERLAP}, FULL, {"PP-3"}),
    ("a send starts before the output is there", early_sends, {"plan": PIPE}, FULL, {"RUN-2"}),
]  # fmt: skip


@contextmanager
def patched(mutation: Callable[[Patch], None]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mutation(patch)
        yield


@pytest.mark.parametrize(("name", "mutation", "changes", "run", "rules"), MUTATIONS, ids=[one[0] for one in MUTATIONS])
def test_audit_catches_mutated_replay_code(
    name: str,
    mutation: Callable[[Patch], None],
    changes: dict[str, Any],
    run: dict[str, Any],
    rules: set[str],
    request: pytest.FixtureRequest,
) -> None:
    if is_whole():
        holds(request, MATRIX, line_of((name, mutation, changes, run)))
    assert rules <= set(broken_by(mutation, changes, run, tuple(rules)))
    assert broken_by(nothing, changes, run) == []


def broken_by(
    mutation: Callable[[Patch], None], changes: dict[str, Any], run: dict[str, Any], rules: Collection[str] = ()
) -> list[str]:
    """Return the rules that a mutated replay breaks, each once; of the same that was asked before, from memory.

    Where ``rules`` are named, a plain pytest asks for these alone.
    """
    key = mutation, repr((changes, run, rules))
    if key not in _BROKEN:
        _BROKEN[key] = sorted(broken(replayed(mutation, changes, **run), rules), key=TIMELINE_RULES.index)
    return _BROKEN[key]


def replayed(mutation: Callable[[Patch], None], changes: dict[str, Any], replay: str, by: str = "") -> RunResult:
    """Simulate with a mutation; ``by`` events where the core may not decide."""
    scenario = scenario_of(document(**changes), replay=replay)
    with patched(mutation), pytest.MonkeyPatch.context() as patch:
        if by == "events":
            replay_by_events(patch)
        return simulate(scenario)


def nothing(patch: Patch) -> None:
    """Mutate nothing."""


_BROKEN: Final[dict[tuple[Callable[[Patch], None], str], list[str]]] = {}


def test_matrix_of_mutations_and_rules_is_as_it_was(request: pytest.FixtureRequest) -> None:
    compare_lines(request, MATRIX, {name: (name, *more) for name, *more, _ in MUTATIONS}, line_of)


def line_of(one: tuple[Any, ...]) -> str:
    """Return what the matrix says of a mutation."""
    name, mutation, changes, run = one
    return f"{name:52}  {' '.join(broken_by(mutation, changes, run))}"
