"""Where steps run as two halves: both replays agree, all is legal, and halves are a partition of their step."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.plan.halves import cut_of
from clustersim.plan.parallel import ExpertPlan
from clustersim.serving.decision import Decision
from clustersim.serving.halves import halves_of
from clustersim.serving.sequence import Sequence
from clustersim.simulation.audit import audit_run
from clustersim.simulation.simulate import RunResult, simulate
from tests.effort import examples
from tests.laws.random_scenarios import DEEPSEEK, GPT_OSS, MIXTRAL, scenario_of

TWO_BATCH = ExpertPlan(degree=2, overlap="two_batch")


@pytest.mark.parametrize(
    ("tokens", "cut"),
    [([1, 1], 1), ([1, 1, 1], 1), ([1] * 8, 4), ([5, 1], 1), ([1, 6, 7], 2), ([1, 1, 1, 9], 3), ([9, 1, 1, 1], 1)],
)
def test_a_step_is_cut_where_both_halves_have_as_equal_tokens_as_possible(tokens: list[int], cut: int) -> None:
    assert cut_of(tokens) == cut


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    counts = draw(st.lists(st.integers(1, 40), max_size=6))
    sequences = [Sequence(request=at, prompt_tokens=64, output_tokens=4) for at in range(12)]
    decodes = draw(st.integers(0, 6))
    chunks = tuple(zip(sequences[decodes:], counts, strict=False))
    return Decision(decodes=tuple(sequences[:decodes]), prefills=chunks)


@examples(100)
@given(decisions())
def test_halves_are_a_partition_in_order(decision: Decision) -> None:
    found = halves_of(decision, TWO_BATCH)
    if len(decision.decodes) + len(decision.prefills) < 2:
        assert found is None
        return
    assert found is not None
    first, second = found
    assert first.decodes + second.decodes == decision.decodes
    assert first.prefills + second.prefills == decision.prefills
    assert first.decodes or first.prefills
    assert second.decodes or second.prefills
    assert not (first.prefills and second.decodes)


def test_steps_with_too_few_tokens_or_without_overlap_are_not_split() -> None:
    some = tuple(Sequence(request=at, prompt_tokens=64, output_tokens=4) for at in range(4))
    decodes, prompts = Decision(decodes=some, prefills=()), Decision(decodes=(), prefills=tuple((s, 8) for s in some))
    plan = ExpertPlan(degree=2, overlap="two_batch", overlap_decode_tokens=5, overlap_prefill_tokens=32)
    assert halves_of(decodes, plan) is None
    assert halves_of(prompts, plan) is not None
    assert halves_of(prompts, ExpertPlan(degree=2)) is None


LOCAL: Final = {"tp": 4, "ep": {"degree": 4}}
SHARED: Final = {"dp": 2, "tp": 4, "ep": {"degree": 2}}
UNEVEN: Final = {"tp": 2, "ep": {"degree": 2, "routing": {"zipf": 1.0}, "redundant": 2}}
WIDE: Final = {"dp": 4, "ep": {"degree": 4, "scope": "global"}}
WIDE_UNEVEN: Final = {"dp": 2, "tp": 2, "ep": {"degree": 2, "scope": "global", "routing": {"zipf": 1.0}}}


def _document(seed: int, model: dict[str, Any], plan: dict[str, Any], fabric: str) -> dict[str, Any]:
    layers = {"num_hidden_layers": 4 if "layer_types" in model else 3}
    return {
        "name": "halves", "seed": seed, "plan": {**plan, "ep": {**plan["ep"], "overlap": "two_batch"}},
        "topology": {"name": fabric, "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": model | layers},
        "serving": {
            "scheduler": "chunked_prefill" if seed % 2 else "continuous", "max_batch_requests": 6,
            "max_batch_tokens": 48, "kv_block_tokens": 4, "kv_blocks": 60, "engine": "vllm-0.19",
        },
        "workload": {
            "arrivals": {"process": "poisson", "rate": "2000/s"}, "prompt_tokens": {"uniform": {"low": 1, "high": 64}},
            "output_tokens": {"uniform": {"low": 1, "high": 20}}, "requests": 9,
        },
        "run": {},
    }  # fmt: skip


def _splits(result: RunResult) -> bool:
    used = np.unique(result.timeline.passes["template"]).tolist()
    return any(len(result.timeline.templates[number].node_half) for number in used)


@pytest.mark.parametrize(
    ("seed", "model", "plan"),
    [(1, MIXTRAL, LOCAL), (2, GPT_OSS, SHARED), (3, DEEPSEEK, UNEVEN), (4, DEEPSEEK, WIDE), (5, GPT_OSS, WIDE_UNEVEN)],
    ids=("local", "shared", "uneven", "wide", "wide-uneven"),
)
def test_both_replays_of_two_batches_agree_and_are_legal(
    seed: int, model: dict[str, Any], plan: dict[str, Any]
) -> None:
    document = _document(seed, model, plan, "l40s-node" if seed == 1 else "dgx-h100")
    folded, full = (simulate(scenario_of(document, replay=mode)) for mode in ("folded", "full"))
    assert folded.timeline.digest == full.timeline.digest
    assert _splits(folded)
    assert not folded.replayed.obstacle
    assert audit_run(folded).verdict != "illegal"
    assert (folded.requests["outcome"] == "finished").all()
