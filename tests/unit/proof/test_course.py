"""Steps that a proof executes: each sequence from its first token on, all of it, once; else nothing is executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from clustersim.cli import main
from clustersim.errors import InputError
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.course import gone_astray
from clustersim.proof.script import Part, Script, chunked_script
from clustersim.simulation.proof import prove_scenario
from clustersim.timeline.record import Recorder
from tests.laws.random_scenarios import scenario_of
from tests.legality.timeline.test_replay_mutations import document
from tests.oracle.serving.scheduler import Scheduler

Steps = list[list[Part]]
POOLS = {"plan": {"prefill": {"dp": 1}, "decode": {"dp": 1}}, "serving": {"scheduler": "disaggregated"}}


def script(preempted: int | None = None, **plan: Any) -> Script:
    """Prompts of 9 and 6 tokens in steps of 8, three tokens each."""
    return chunked_script(
        (9, 6), output_tokens=3, budget=8, vocab=50, plan=ParallelPlan(**plan), preempted=preempted
    )  # fmt: skip


def broken_by(change: Callable[[Steps], object]) -> str | None:
    whole = script()
    steps = [list(parts) for parts in whole.steps]
    change(steps)
    found = gone_astray(replace(whole, steps=tuple(tuple(parts) for parts in steps)))
    return None if found is None else found.rule


def put(step: int, part: int, **changes: Any) -> Callable[[Steps], object]:
    def change(steps: Steps) -> None:
        steps[step][part] = replace(steps[step][part], **changes)

    return change


@pytest.mark.parametrize("plan", [{}, {"tp": 2}, {"pp": 2}])
@pytest.mark.parametrize("preempted", [None, 0, 1])
def test_course_of_a_program_is_right(plan: dict[str, Any], preempted: int | None) -> None:
    assert gone_astray(script(preempted, **plan)) is None


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("PH-1", lambda steps: steps.pop(1)),
        ("PH-2", lambda steps: steps[0].append(steps[0][0])),
        ("PH-2", put(-1, 0, count=2)),
        ("PH-4", lambda steps: steps.pop()),
        ("PH-4", lambda steps: steps.append([replace(one, start=one.start + 1) for one in steps[-1]])),
        ("PH-4", lambda steps: steps.insert(1, [])),
        ("KV-1", put(0, 0, start=1)),
        ("KV-1", put(0, 0, count=0)),
        ("KV-1", put(-1, 0, decodes=False, count=9)),
        ("PH-1", lambda steps: steps.reverse()),
        ("RUN-4", put(0, 0, sequence=2)),
        ("RUN-4", put(0, 0, sequence=-1)),
    ],
)
def test_course_that_is_wrong_breaks_its_rule(rule: str, change: Callable[[Steps], object]) -> None:
    assert broken_by(change) == rule


def decode_before_sampling(patch: pytest.MonkeyPatch) -> None:
    """A prompt counts as computed one chunk early."""
    complete = Scheduler.complete

    def hasty(self: Scheduler, now: int, decision: Any) -> Any:
        for sequence, count in decision.prefills:
            if sequence.generated == 0 and 0 < sequence.to_compute - count < 16:
                sequence.computed = sequence.prompt_tokens - count
        return complete(self, now, decision)

    patch.setattr(Scheduler, "complete", hasty)


def one_token_short(patch: pytest.MonkeyPatch) -> None:
    """A sequence that decodes is done one token early."""
    complete = Scheduler.complete

    def short(self: Scheduler, now: int, decision: Any) -> Any:
        for sequence in decision.decodes:
            sequence.output_tokens -= sequence.generated == 2
        return complete(self, now, decision)

    patch.setattr(Scheduler, "complete", short)


def chunks(change: Callable[..., list[tuple[int, int, int, int]]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Record (step, request, start, count) of chunks as ``change`` says."""

    def patched(patch: pytest.MonkeyPatch) -> None:
        plain = Recorder.chunk

        def chunk(self: Recorder, replica: int, *told: int, sampled: bool) -> None:
            for one in change(*told):
                plain(self, replica, *one, sampled=sampled)

        patch.setattr(Recorder, "chunk", chunk)

    return patched


@pytest.mark.usefixtures("oracle")
@pytest.mark.parametrize("changes", [{}, POOLS], ids=["one pool", "two pools"])
@pytest.mark.parametrize(
    ("rule", "mutation"),
    [
        ("PH-1", decode_before_sampling),
        ("PH-4", one_token_short),
        ("PH-1", chunks(lambda step, request, start, count: [(step, request, start, count - (count > 1))])),
        ("PH-2", chunks(lambda *told: [told, told])),
        ("PH-4", chunks(lambda step, request, *rest: [(step, request, *rest)] if request else [])),
        ("RUN-4", chunks(lambda step, request, *rest: [(step, request + 9, *rest)])),
        (None, chunks(lambda step, request, *rest: [(step + 99, request, *rest)])),
    ],
)
def test_steps_that_were_recorded_wrongly_are_not_executed(
    rule: str | None, mutation: Callable[[pytest.MonkeyPatch], None], changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    scenario = scenario_of(document(**changes), replay="full")
    mutation(monkeypatch)
    if rule is None:
        with pytest.raises(InputError, match=r"chunks\.parquet: step"):
            prove_scenario(scenario)
        return
    found = prove_scenario(scenario)
    assert [one.rule for one in found.verdict.violations] == [rule]
    assert found.proof is not None
    assert found.proof.orders == ()


@pytest.mark.usefixtures("oracle")
def test_prove_says_that_nothing_was_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks(lambda *told: [told, told])(monkeypatch)
    result = CliRunner().invoke(main, ["prove", "quickstart", "--set", "run.replay=full"])
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0].startswith("illegal: the steps of a small run of quickstart can't be executed")
    assert lines[1].endswith(
        "is in the step twice; let a sequence be in a step once, and decode one token of it [PH-2]"
    )
    assert "orders  none" in lines
