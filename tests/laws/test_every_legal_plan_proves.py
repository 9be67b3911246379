"""The law of level X: executed as a dataflow program, any plan that ``check`` calls legal gives one device's logits.

``CLUSTERSIM_PROOFS=20 pytest tests/laws/test_every_legal_plan_proves.py -n 2`` hunts with twenty times as many plans.
"""

from __future__ import annotations

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clustersim.proof import prove
from tests.laws.proof_cases import case

TIMES: Final = int(os.environ.get("CLUSTERSIM_PROOFS", "1"))

EXAMPLES: Final = {"t": 40, "p": 20, "s": 50, "te": 40, "se": 30, "ts": 40, "tsp": 40, "tse": 30, "tsep": 60}
"""Primitives that a plan may use (tensor, sequence, expert, pipeline) → how many plans."""


@pytest.mark.parametrize("primitives", EXAMPLES)
def test_every_legal_plan_gives_the_logits_and_tokens_of_one_device(primitives: str) -> None:
    @settings(
        max_examples=EXAMPLES[primitives] * TIMES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
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
