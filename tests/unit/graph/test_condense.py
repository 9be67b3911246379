"""The graph without what repeats, and steps joined into one graph."""

from __future__ import annotations

import numpy as np
import pytest
from graph_models import BF16, DENSE, MIXTURE, plan

from clustersim.graph.batch import Chunk, StepBatch
from clustersim.graph.blueprint import EDGE_KINDS
from clustersim.graph.condense import condensed, shortened, whole
from clustersim.graph.expand import blueprint_of
from clustersim.graph.stepgraph import expand
from clustersim.graph.steps import ChainedStep, StepChain, chain
from clustersim.model import ModelSpec
from clustersim.plan.parallel import Cut
from tests.acyclic import is_acyclic


def deep(layers: int) -> ModelSpec:
    return ModelSpec(name="deep", hidden=10, vocab=100, layers=DENSE.layers[:1] * layers)


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        ("", ""),
        ("aa", "aa"),
        ("aaaa", "aa"),
        ("abbbbc", "abbc"),
        ("ababababc", "ababc"),
        ("aabaabaab", "aabaab"),
        ("abcdefgh", "abcdefgh"),
    ],
)
def test_two_repetitions_of_a_pattern_remain(kinds: str, kept: str) -> None:
    assert "".join(kinds[at] for at in shortened(kinds)) == kept


def test_a_deployment_keeps_its_first_and_last_stage_and_two_between() -> None:
    kept = condensed(deep(24), plan(pp=8))
    assert kept.stages == (0, 1, 2, 7)
    assert kept.layers == (0, 1, 3, 4, 6, 7, 21, 22)
    assert kept.plan.stages == (Cut(layer=2), Cut(layer=4), Cut(layer=6))
    assert len(kept.model.layers) == 8


def test_stages_that_begin_inside_a_layer_are_kept() -> None:
    cuts = tuple(Cut(layer=layer, before="ffn") for layer in range(5))
    assert condensed(deep(6), plan(pp=6, stages=cuts)).stages == tuple(range(6))


def test_what_does_not_repeat_is_whole() -> None:
    assert condensed(MIXTURE, plan(pp=2)) == whole(MIXTURE, plan(pp=2))


def test_a_condensed_blueprint_shows_every_body() -> None:
    blueprint = blueprint_of(deep(24), plan(pp=8, tp=2), BF16, "mixed")
    kept = condensed(deep(24), plan(pp=8, tp=2))
    assert kept.shows_all(blueprint, 24)
    assert not kept.shows_all(blueprint, 25)
    graph = expand(kept.blueprint(blueprint), kept.plan)
    assert is_acyclic(graph)
    assert sorted(set(graph.layer.tolist())) == list(range(-1, 8))


def joined(*batches: StepBatch) -> StepChain:
    steps = [
        ChainedStep(graph=expand(blueprint_of(DENSE, plan(tp=2), BF16, batch.kind), plan(tp=2)), batch=batch)
        for batch in batches
    ]
    return chain(steps, plan(tp=2))


def names(found: StepChain) -> list[tuple[str, str, str]]:
    """Return (source, target, kind) of the links, each once, by name."""
    flat = [step.graph.symbols[symbol].name for step in found.steps for symbol in step.graph.symbol.tolist()]
    rows = zip(found.source.tolist(), found.target.tolist(), found.kind.tolist(), strict=True)
    return sorted({(flat[a], flat[b], EDGE_KINDS[kind]) for a, b, kind in rows})


PROMPT = StepBatch(chunks=(Chunk(request=0, start=0, count=4),))
NEXT = StepBatch(decode_sequences=(1,), decode_keys=(5,))


def test_decode_waits_for_the_boundary_of_prefill() -> None:
    assert names(joined(PROMPT, NEXT)) == [
        ("boundary", "kv_read", "boundary"),
        ("boundary", "schedule", "boundary"),
    ]


def test_decode_waits_for_the_token_and_the_entries_of_the_step_before_it() -> None:
    found = joined(NEXT, NEXT)
    assert names(found) == [("kv_write", "kv_read", "kv"), ("sample", "schedule", "data")]
    assert found.first == (0, len(found.steps[0].graph))
    assert np.all(found.source < found.first[1])
    assert np.all(found.target >= found.first[1])


def test_lanes_have_nothing_to_do_with_each_other() -> None:
    graph = expand(blueprint_of(DENSE, plan(), BF16, "decode"), plan())
    lanes = [ChainedStep(graph=graph, batch=NEXT, lane=lane) for lane in (0, 1)]
    assert len(chain(lanes, plan()).source) == 0
