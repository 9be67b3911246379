"""Proves two plans beside each other: prompts computed under one, their K/V resharded, decoded under the other.

The K/V moves as a run recorded it, transfer by transfer: the layers, heads and tokens that each names, between the
ranks that it names (``proof.brought``). A decode rank begins with an empty cache and what is brought to it; the host
brings the tokens that were sampled. Logits and tokens must be those of the unsharded model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from clustersim.legality.rule import Verdict, Violation
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.proof.brought import Brought, planned, resharded, twice
from clustersim.proof.cause import as_violation, out_of_shape
from clustersim.proof.comparison import Comparison, Expected, expected_of, same_cache, same_logits
from clustersim.proof.execution import Event, Execution, OutOfShapeError, Watch
from clustersim.proof.order import program_order, random_order
from clustersim.proof.place import Memory
from clustersim.proof.proof import Proof, graphs_of, looked_at
from clustersim.proof.script import Part, Script, chunked_script, owner_of
from clustersim.proof.wiring import wired
from clustersim.proof.witness import Witness
from clustersim.values import dataclass

Run = Callable[[int, Sequence[Event], Memory | None, Watch | None], Memory]
"""(half, order, what the half before left, who watches) → what the execution of a half leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halves:
    """The steps of prefill and those of decode, of the same sequences."""

    prefill: Script
    decode: Script

    @property
    def whole(self) -> Script:
        """All steps, in order."""
        return replace(self.prefill, steps=self.prefill.steps + self.decode.steps)


def halves(
    model: ModelSpec, plans: tuple[ParallelPlan, ParallelPlan], lengths: Sequence[int], *, output_tokens: int,
    budget: int, seed: int,
) -> Halves:  # fmt: skip
    """Return prompts in chunks, to their first token, and then decode steps in as many micro-batches as stages."""
    source, target = plans
    made = chunked_script(lengths, output_tokens=1, budget=budget, vocab=model.vocab, plan=source, seed=seed)
    prefill = replace(made, output_tokens=output_tokens)
    groups = min(target.pp, len(lengths))
    steps = tuple(
        tuple(
            Part(sequence=one, start=lengths[one] + token, count=1, decodes=True, owner=owner_of(one, target))
            for one in range(group, len(lengths), groups)
        )
        for token in range(output_tokens - 1)
        for group in range(groups)
    )
    return Halves(prefill=prefill, decode=replace(prefill, steps=steps))


def prove_hand_over(
    model: ModelSpec,
    plans: tuple[ParallelPlan, ParallelPlan],
    steps: Halves,
    *,
    orders: int = 1,
    recorded: Mapping[str, tuple[Sequence[Event], Sequence[Event]]] | None = None,
    brought: Sequence[Brought] | None = None,
    seed: int = 0,
) -> Proof:
    """Execute prompts under the first plan and decodes under the second, and compare with the unsharded model.

    Parameters
    ----------
    model : ModelSpec
        A small one.
    plans : (ParallelPlan, ParallelPlan)
        Of the prefill and of the decode pool; one replica of each is executed.
    steps : Halves
    orders : int
        Random legal orders, beside that of the program.
    recorded : mapping, optional
        Name → further orders, of the prompts and of the decodes.
    brought : sequence of Brought, optional
        What moves between them; where it is not recorded, what the simulator would send.
    seed : int
        Of parameters and orders.
    """
    expected = expected_of(model, steps.whole, seed)
    scripts = steps.prefill, steps.decode
    moved = planned(model, plans, steps.prefill) if brought is None else brought
    ready = [
        {kind: wired(graph) for kind, graph in graphs_of(model, plan, script).items()}
        for plan, script in zip(plans, scripts, strict=True)
    ]
    asked: dict[str, Sequence[Sequence[Event]]] = {
        "program order": [program_order(*one) for one in zip(scripts, ready, strict=True)]
    }
    for number in range(orders):
        asked[f"random order {number}"] = [
            random_order(script, graphs, seed + number) for script, graphs in zip(scripts, ready, strict=True)
        ]
    asked |= recorded or {}

    def run(half: int, order: Sequence[Event], before: Memory | None, watch: Watch | None) -> Memory:
        execution = Execution(model, plans[half], expected.weights, scripts[half], ready[half], watch=watch)
        if before is not None:
            execution.memory.caches |= resharded(moved, before.caches, model, scripts[0])
            execution.memory.sampled |= before.sampled
        return execution.run(order)

    violations: list[Violation] = []
    counts = Counter[str]()
    error, equal, vectors, first = 0.0, True, 0, Memory(prompts=steps.prefill.prompts)
    for name, (prefill, decode) in asked.items():
        try:
            computed = run(0, prefill, None, None)
            decoded = run(1, decode, computed, None)
        except OutOfShapeError as broken:
            violations.append(as_violation(out_of_shape(broken.at, broken.step), name))
            error, equal = math.nan, False
            break
        both = _together(computed, decoded)
        counts |= both.counts
        compared = Comparison(steps.whole, expected, both)
        vectors = max(vectors, compared.vectors)
        error = float(np.maximum(error, compared.error))
        equal = equal and compared.tokens_equal
        if not compared.holds or not same_cache(decoded, plans[1], steps.decode, expected):
            violations.append(_found(model, plans, expected, run, name, (prefill, decode)))
            break
        if first.logits and not same_logits(first, both):
            message = "logits are not those of the program order, bit for bit"
            fix = "put partial results together in an order of their own, such as that of the ranks"
            violations.append(Violation(rule="TP-2", level="X", where=name, message=message, fix=fix))
            break
        first = first if first.logits else both
    again = twice(moved)
    if not violations and again is not None:
        violations.append(_brought_twice(again))
    rules = looked_at(counts, max(plans, key=lambda plan: plan.tp), model, vectors)
    return Proof(
        verdict=Verdict(violations=tuple(violations), rules=rules),
        max_relative_error=error,
        tokens_equal=equal,
        num_logits=vectors,
        num_tokens=sum(len(tokens) for tokens in expected.tokens),
        orders=tuple(asked),
        nodes=sum(map(len, asked["program order"])),
    )


def _together(computed: Memory, decoded: Memory) -> Memory:
    return Memory(
        prompts=computed.prompts,
        sampled=computed.sampled | decoded.sampled,
        logits=computed.logits | decoded.logits,
        counts=computed.counts + decoded.counts,
    )


def _brought_twice(one: Brought) -> Violation:
    return Violation(
        rule="KV-2", level="X", where=f"sequence {one.sequence}, rank {one.source} to {one.target}",
        message=f"of tokens {one.first} to {one.past - 1} in layer {one.layer} some are brought there again",
        fix="move each entry once",
    )  # fmt: skip


def _found(
    model: ModelSpec, plans: tuple[ParallelPlan, ParallelPlan], expected: Expected, run: Run, name: str,
    orders: tuple[Sequence[Event], Sequence[Event]],
) -> Violation:  # fmt: skip
    """Execute once more and compare every value: where does the first wrong one come from, and in which pool?"""
    watching = Witness(model, plans[0], expected.traces)
    before = run(0, orders[0], None, watching)
    if watching.cause is not None:
        return watching.violation(f"prefill, {name}")
    watching = Witness(model, plans[1], expected.traces)
    run(1, orders[1], before, watching)
    if watching.cause is not None:
        return watching.violation(f"decode, {name}")
    return Violation(
        rule="KV-2", level="X", where=f"decode, {name}",
        message="the caches of the decode ranks are not those that one device has",
        fix="bring each decode rank the heads and layers that it is to hold",
    )  # fmt: skip
