"""Which K/V blocks admit a request that waits: those of its whole prompt, or of its first chunk."""

from __future__ import annotations

import pytest

from clustersim.errors import InputError
from clustersim.scenario import load, load_engine
from clustersim.scenario.build.engines import standing_for
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate

CROWD = (
    "plan={}", "model=llama-3.1-8b", "expect={}", "targets={}", "topology=dgx-h100", "serving.engine=ideal",
    "serving.kv_block_tokens=16", "serving.kv_blocks=150", "serving.max_batch_tokens=256",
    "workload={arrivals: all_at_once, prompt_tokens: 1600, output_tokens: 64, requests: 2}",
)  # fmt: skip
"""A prompt takes 100 blocks of 150, and a step computes 16 of them."""


def ran(*changes: str) -> RunResult:
    """Run two prompts of which one fits beside a half of the other: legal, and alike in both replays."""
    found = [simulate(load("quickstart", (*CROWD, *changes, f"run.replay={way}"))) for way in ("folded", "full")]
    assert found[0].timeline.digest == found[1].timeline.digest
    assert audit_run(found[0]).violations == ()
    return found[0]


def test_a_request_waits_until_its_whole_prompt_fits() -> None:
    result = ran()
    first, second = result.columns["finished_ns"][0], result.columns["admitted_ns"][1]
    assert second == first
    assert result.columns["preemptions"].sum() == 0


def test_a_first_chunk_admits_and_a_prompt_that_lacks_more_begins_again() -> None:
    """Its 48 blocks are there when the first prompt is computed; with 100 it would be done, so it begins again."""
    result = ran("serving.admission=first_chunk")
    columns = result.columns
    assert columns["admitted_ns"][1] < columns["finished_ns"][0]
    assert columns["preemptions"][0] == 0
    assert columns["preemptions"][1] >= 2
    assert (columns["finished_ns"][0] > ran().columns["finished_ns"][0]).all()


def test_only_the_last_of_several_gives_up_and_a_single_one_never() -> None:
    alone = ran("serving.admission=first_chunk", "workload.requests=1", "serving.kv_blocks=104")
    assert alone.columns["preemptions"].tolist() == [0]


@pytest.mark.parametrize(
    ("engine", "admission"),
    [
        ("vllm-0.6", "whole_prompt"),
        ("vllm-0.9", "first_chunk"),
        ("vllm-0.12", "first_chunk"),
        ("vllm-0.16", "first_chunk"),
        ("vllm-0.19", "whole_prompt"),
        ("sglang-0.5", "whole_prompt"),
        ("trtllm-1.0", "whole_prompt"),
    ],
)
def test_engines_admit_as_they_do(engine: str, admission: str) -> None:
    told = tuple(one for one in CROWD if not one.startswith("serving."))
    assert load("quickstart", (*told, f"serving.engine={engine}")).serving.admission == admission
    assert load_engine(standing_for(engine)[0]).name == standing_for(engine)[0]


@pytest.mark.parametrize("other", ["serving.preemption=swap", "serving.preemption=never", "serving.scheduler=static"])
def test_an_engine_leaves_it_where_there_are_no_chunks_or_nobody_begins_again(other: str) -> None:
    told = tuple(one for one in CROWD if not one.startswith("serving."))
    scenario = load("quickstart", (*told, "serving.engine=vllm-0.9", other))
    assert scenario.document["serving"]["admission"] == "whole_prompt"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("serving.preemption=never", "for all that it may come to need"),
        ("serving.scheduler=static", "has blocks for whole requests"),
    ],
)
def test_a_first_chunk_is_refused_where_it_can_do_nothing(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load("quickstart", (*CROWD, "serving.admission=first_chunk", change))
