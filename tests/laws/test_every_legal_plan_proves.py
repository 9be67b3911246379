"""The law of level X: executed as a dataflow program, any plan that ``check`` calls legal gives one device's logits.

``pytest tests/laws/test_every_legal_plan_proves.py -n 2 --long`` hunts with twenty times as many plans.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustersim.proof import prove
from clustersim.proof.order import orders_from_spans
from clustersim.proof.proof import graphs_of
from clustersim.proof.wiring import wired
from clustersim.scenario.load import load
from clustersim.simulation.proof import recorded, small_run
from tests.effort import examples
from tests.laws.proof_cases import case

EXAMPLES: Final = {"t": 10, "p": 6, "s": 12, "te": 10, "se": 8, "ts": 10, "tsp": 12, "tse": 8, "tsep": 20}
"""Primitives that a plan may use (tensor, sequence, expert, pipeline) → how many plans."""


@pytest.mark.parametrize("primitives", EXAMPLES)
def test_every_legal_plan_gives_the_logits_and_tokens_of_one_device(primitives: str) -> None:
    @examples(EXAMPLES[primitives], sieved=True)
    @given(seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        name, model, plan, script = case(seed, primitives)
        orders = seed % 2  # in the order of the program, and every other plan in a random one as well
        proof = prove(model, plan, script, orders=orders, seed=seed % 1000)
        said = [violation.as_json() for violation in proof.verdict.violations]
        assert (proof.verdict.verdict, said) == ("legal", []), (name, plan, script)
        assert proof.max_relative_error <= 1e-9
        assert proof.tokens_equal

    holds()


SCENARIO: Final = """\
name: small
topology: {name: dgx-h100, nodes: 16}
model: llama-3.1-8b
serving: {engine: ideal}
workload: {arrivals: {process: constant, rate: 4/s}, prompt_tokens: 9, output_tokens: 2, requests: 1}
"""


@pytest.mark.parametrize("replay", ["full", "folded"])
def test_every_legal_plan_proves_in_the_order_that_a_timeline_recorded(replay: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    scenario = load(str(tmp_path / "s.yaml"), (f"run.replay={replay}",))

    @examples(3)
    @given(seed=st.integers(0, 2**32 - 1))
    def holds(seed: int) -> None:
        _, model, plan, _ = case(seed, "tsep")
        model = replace(model, learned_positions=model.learned_positions and 64)
        script, starts = recorded(small_run(scenario, model, plan), plan, model.vocab, seed % 100)
        graphs = graphs_of(model, plan, script)
        ready = {kind: wired(graph) for kind, graph in graphs.items()}
        order = orders_from_spans(script, ready, starts)
        proof = prove(model, plan, script, graphs=graphs, orders=0, recorded={"recorded order": order})
        said = [violation.as_json() for violation in proof.verdict.violations]
        assert (proof.verdict.verdict, said) == ("legal", []), (model, plan)

    holds()
