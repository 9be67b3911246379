"""The law of prices of replicas in lockstep: they are, to the nanosecond, what the pricer says of the same batch."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.prices.lockstep_prices import Brought, LockstepPrices
from clustersim.graph.program import StageProgram
from clustersim.plan.mesh import Mesh
from clustersim.plan.segments import causal_pairs
from clustersim.replay.programs import compile_programs
from clustersim.scenario.load import load
from clustersim.simulation.replay_input import replay_input
from tests.effort import examples

REPLICAS = 4
Own = tuple[tuple[tuple[int, int], ...], int, int]
"""(tokens before, tokens) of chunks, sequences that decode, and the tokens that each of these sees."""
OWN = st.tuples(
    st.lists(st.tuples(st.just(0) | st.integers(1, 3000), st.integers(1, 1500)), max_size=2).map(tuple),
    st.integers(0, 90),
    st.integers(1, 5000),
)


@cache
def priced(model: str, engine: str) -> tuple[LockstepPrices, dict[str, StageProgram]]:
    """The prices of four replicas that share experts, and their programs."""
    plan = f"plan={{dp: {REPLICAS}, ep: {{degree: {REPLICAS}, scope: global}}}}"
    few = "model.config.num_hidden_layers=6"
    options = f"model={model}", few, "precision={}", plan, "topology.nodes=1", f"serving.engine={engine}", "expect={}"
    found = replay_input(scenario := load("deepseek-v3-wide-ep", options), scenario.requests())
    programs: dict[str, StageProgram] = compile_programs(
        Mesh(plan=found.entry.plan.lockstep), found.entry.blueprints, found.comm
    )[0, 0]
    return LockstepPrices(found.entry.pricer, programs), programs


def near(window: int | None, own: Own) -> tuple[int, int, int]:
    """What a replica attends to within a window: pairs, prefill keys and decode keys."""
    chunks, decodes, keys = own
    ends = [(start, start + count) for start, count in chunks]
    pairs = sum(causal_pairs(one, (0, one[1]), window) for one in ends)
    seen = sum(end if window is None else min(end, end - start + window - 1) for start, end in ends)
    return pairs, seen, decodes * (keys if window is None else min(keys, window))


def brought(windows: tuple[int | None, ...], own: Own) -> Brought:
    """What a replica brings."""
    chunks, decodes, _ = own
    new, context = sum(count for _, count in chunks), sum(start for start, _ in chunks)
    (pairs, seen, keys), *within = (near(window, own) for window in windows)
    counts = new + decodes, len(chunks) + decodes, new, decodes, context, context + new, seen, pairs, keys
    return Brought((*counts, *[count for one in within for count in one]), (decodes,) * len(windows))


def batch_of(windows: tuple[int | None, ...], each: list[Own], step: int = 0) -> StepBatch:
    """The same of all replicas for the pricer, so many steps later."""
    keys = {one: tuple(near(one, own)[2] + step * own[1] for own in each) for one in windows}
    return StepBatch(
        chunks=tuple(
            Chunk(request=0, start=start, count=count, owner=s) for s, own in enumerate(each) for start, count in own[0]
        ),
        decode_sequences=tuple(own[1] for own in each),
        decode_keys=keys[None],
        windowed_keys={window: sums for window, sums in keys.items() if window is not None},
    )


@pytest.mark.parametrize("model", ["deepseek-v3", "mixtral-8x7b", "gpt-oss-120b"])
@examples(8)
@given(
    st.sampled_from(("vllm-0.19", "sglang-0.5")),
    st.lists(st.lists(OWN, min_size=REPLICAS, max_size=REPLICAS), min_size=1, max_size=3),
    st.sampled_from((1, 3, 9)),
)
def test_steps_of_replicas_in_lockstep_cost_what_the_pricer_says(
    model: str, engine: str, drawn: list[list[Own]], count: int
) -> None:
    prices, programs = priced(model, engine)
    pricer, windows = prices.pricer, prices.windows
    assert prices.supported
    for each in drawn:
        batch = batch_of(windows, each)
        told = [brought(windows, own) for own in each]
        if batch.kind != "decode":
            row, (length,) = prices.prompts(batch.kind, told)
            expected = pricer.durations(programs[batch.kind], batch, pricer.features(batch))
            assert row.tolist() == expected.tolist()
            assert length == programs[batch.kind].template.pass_times(expected)[0]
        decoding: list[Own] = [((), max(1, decodes), keys) for _, decodes, keys in each]
        row, columns, varying, lengths = prices.decodes([brought(windows, own) for own in decoding], count)
        for step in range(count):
            later = batch_of(windows, decoding, step)
            expected = pricer.durations(programs["decode"], later, pricer.features(later))
            by_class = row.copy()
            by_class[list(columns)] = varying[step]
            assert by_class.tolist() == expected.tolist()
            assert lengths[step] == programs["decode"].template.pass_times(expected)[0]
