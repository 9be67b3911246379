"""Proves a plan by execution: the numbers of its step graphs are those of the unsharded model, or it says where not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from clustersim.cost.precision import Precision
from clustersim.graph.expand import step_blueprints
from clustersim.graph.stepgraph import StepGraph, expand
from clustersim.legality.rule import LookedAt, Verdict, Violation
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.cause import as_violation, out_of_shape
from clustersim.proof.comparison import Comparison, Expected, expected_of, same_cache, same_logits
from clustersim.proof.execution import Event, Execution, OutOfShapeError
from clustersim.proof.order import program_order, random_order
from clustersim.proof.place import Memory
from clustersim.proof.script import Script, program_of
from clustersim.proof.wiring import WiredGraph, wired
from clustersim.proof.witness import Witness
from clustersim.values import dataclass

LOOKED_AT: Final = {
    "PH-5": "pairs of a token and one that it attends to, over all heads' ranks",
    "KV-2": "cache entries written, to be read by attention",
    "TP-2": "collectives that put shards together",
    "TP-9": "vectors of logits",
    "SP-2": "K/V entries brought to another rank",
    "SP-8": "K/V entries moved to where decode reads them",
    "EP-2": "pairs of token and expert computed",
    "EP-3": "choices of an expert for a token",
}
"""The rules of level X, and what each looks at."""

RULES: Final = tuple(LOOKED_AT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proof:
    """What executing a plan showed.

    Parameters
    ----------
    verdict : Verdict
        Of level X.
    max_relative_error : float
        Of all logits, relative to the largest logit of each token; NaN where one is missing.
    tokens_equal : bool
        Whether every sampled token is that of the unsharded model.
    num_logits : int
        Vectors of logits that were compared.
    num_tokens : int
        Tokens sampled.
    orders : tuple of str
        The orders in which the nodes ran.
    nodes : int
        Nodes that ran in each of them.
    """

    verdict: Verdict
    max_relative_error: float
    tokens_equal: bool
    num_logits: int
    num_tokens: int
    orders: tuple[str, ...]
    nodes: int


def graphs_of(model: ModelSpec, plan: ParallelPlan, script: Script) -> dict[str, StepGraph]:
    """Return the step graphs of one replica for the kinds of steps, and of their halves, that a script has."""
    blueprints = step_blueprints(model, plan, Precision())
    return {name: expand(blueprints[name], plan) for name in dict.fromkeys(map(program_of, script.steps))}


def prove(
    model: ModelSpec,
    plan: ParallelPlan,
    script: Script,
    *,
    expected: Expected | None = None,
    graphs: Mapping[str, StepGraph] | None = None,
    orders: int = 1,
    recorded: Mapping[str, Sequence[Event]] | None = None,
    seed: int = 0,
) -> Proof:
    """Execute a script under a plan, in the order of the program and in others, and compare with the unsharded model.

    Parameters
    ----------
    model : ModelSpec
        A small one: everything is computed.
    plan : ParallelPlan
        Of which one replica is executed.
    script : Script
    expected : Expected, optional
        By default computed here, under ``seed``.
    graphs : mapping, optional
        Kind of step → step graph; by default those that the simulator expands.
    orders : int
        Random legal orders.
    recorded : mapping, optional
        Name → further orders.
    seed : int
        Of parameters and orders.
    """
    expected = expected_of(model, script, seed) if expected is None else expected
    drawn = graphs_of(model, plan, script) if graphs is None else graphs
    ready = {kind: wired(graph) for kind, graph in drawn.items()}
    program = program_order(script, ready)
    asked: dict[str, Sequence[Event]] = {"program order": program}
    asked |= {f"random order {number}": random_order(script, ready, seed + number) for number in range(orders)}
    asked |= recorded or {}
    counts, violations, error, equal, seen = Counter[str](), list[Violation](), 0.0, True, 0
    first: Memory | None = None
    for name, order in asked.items():
        try:
            memory = Execution(model, plan, expected.weights, script, ready).run(order)
        except OutOfShapeError as broken:
            violations.append(as_violation(out_of_shape(broken.at, broken.step), name))
            error, equal = math.nan, False
            break
        compared = Comparison(script, expected, memory)
        counts, seen = counts | memory.counts, max(seen, compared.vectors)
        error = float(np.maximum(error, compared.error))
        equal = equal and compared.tokens_equal
        first = first or memory
        if not compared.holds or not same_cache(memory, plan, script, expected):
            violations.append(_found(model, plan, script, expected, ready, name, order))
            break
        if not same_logits(first, memory):
            violations.append(_order_matters(name))
            break
    return Proof(
        verdict=Verdict(violations=tuple(violations), rules=looked_at(counts, plan, model, seen)),
        max_relative_error=error,
        tokens_equal=equal,
        num_logits=seen,
        num_tokens=sum(len(tokens) for tokens in expected.tokens),
        orders=tuple(asked),
        nodes=len(program),
    )


def unexecuted(violation: Violation, plan: ParallelPlan, model: ModelSpec) -> Proof:
    """Return what is shown of steps that can't be executed, since they are not those of their sequences."""
    verdict = Verdict(violations=(violation,), rules=looked_at(Counter(), plan, model, 0))
    return Proof(
        verdict=verdict, max_relative_error=math.nan, tokens_equal=False, num_logits=0, num_tokens=0, orders=(), nodes=0
    )


def _order_matters(name: str) -> Violation:
    return Violation(
        rule="TP-2", level="X", where=name, message="logits are not those of the program order, bit for bit",
        fix="put partial results together in an order of their own, such as that of the ranks",
    )  # fmt: skip


def _found(
    model: ModelSpec,
    plan: ParallelPlan,
    script: Script,
    expected: Expected,
    graphs: Mapping[str, WiredGraph],
    name: str,
    order: Sequence[Event],
) -> Violation:
    """Execute once more and compare every value: where does the first wrong one come from?"""
    witness = Witness(model, plan, expected.traces)
    Execution(model, plan, expected.weights, script, graphs, watch=witness).run(order)
    return witness.violation(name)


def looked_at(counts: Counter[str], plan: ParallelPlan, model: ModelSpec, vectors: int) -> tuple[LookedAt, ...]:
    """Return how much each rule looked at, of what was counted while a plan was executed."""
    experts = any(isinstance(layer.ffn, Moe) for layer in model.layers)
    found = {
        "PH-5": counts["pairs"],
        "KV-2": counts["written"],
        "TP-2": counts["joined"],
        "TP-9": vectors if plan.tp > 1 else 0,
        "SP-2": counts["exposed"],
        "SP-8": counts["moved"],
        "EP-2": counts["computed"] if experts else 0,
        "EP-3": counts["dispatched"] if experts else 0,
    }
    return tuple(LookedAt(id=rule, level="X", looked_at=found[rule]) for rule in RULES)
