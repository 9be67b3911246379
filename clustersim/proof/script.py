"""What the steps of a proof carry: several sequences of different lengths, prompts in chunks mixed with decodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

import numpy as np

from clustersim.graph.blueprint import StepKind
from clustersim.plan.halves import cut_of
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one step computes of one sequence: tokens [start, start + count); SP rank ``owner`` decodes it.

    Where the step runs as two halves that overlap, it is in ``half`` 1 or 2.
    """

    sequence: int
    start: int
    count: int
    decodes: bool = False
    owner: int = 0
    half: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Sequences and the steps that compute them.

    Parameters
    ----------
    prompts : tuple of tuple of int
        Token ids of each sequence's prompt.
    output_tokens : int
        Tokens to generate per sequence.
    steps : tuple of tuple of Part
        What each step carries. A sequence is in a step at most once.
    """

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int
    steps: tuple[tuple[Part, ...], ...] = field(repr=False)

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence that are computed; the last generated one is not."""
        return max(len(prompt) for prompt in self.prompts) + self.output_tokens - 1

    @property
    def prefill_steps(self) -> int:
        """Steps that carry tokens of prompts."""
        return sum(any(not part.decodes for part in step) for step in self.steps)

    def needs(self, step: int) -> tuple[int, ...]:
        """Return the earlier steps that must be over before ``step``: those of its sequences (rule PH-3)."""
        mine = {part.sequence for part in self.steps[step]}
        return tuple(earlier for earlier in range(step) if any(part.sequence in mine for part in self.steps[earlier]))


def kind_of(parts: Sequence[Part]) -> StepKind:
    """Return the kind of a step."""
    if all(part.decodes for part in parts):
        return "decode"
    return "mixed" if any(part.decodes for part in parts) else "prefill"


def program_of(parts: Sequence[Part]) -> str:
    """Return the name of the graph that runs a step: its kind, or those of its halves (``decode+decode``)."""
    halves = ([part for part in parts if part.half == half] for half in (1, 2))
    return "+".join(kind_of(half) for half in halves if half) or kind_of(parts)


def in_halves(parts: Sequence[Part], plan: ParallelPlan) -> tuple[Part, ...]:
    """Return a step with its sequences in two halves, where the plan has them and every replica can split its part."""
    if not plan.is_two_batch:
        return tuple(parts)
    owners = range(plan.sp.degree if plan.sp.whole else 1)
    mine = [[part for part in parts if part.owner == owner or not plan.sp.whole] for owner in owners]
    if any(len(own) < 2 for own in mine):
        return tuple(parts)
    cuts = [cut_of([part.count for part in own]) for own in mine]
    first = {part.sequence for own, cut in zip(mine, cuts, strict=True) for part in own[:cut]}
    return tuple(replace(part, half=1 if part.sequence in first else 2) for part in parts)


def owner_of(sequence: int, plan: ParallelPlan) -> int:
    """Return the SP rank that decodes a sequence: the first one, or in turn where decode is spread."""
    return sequence % plan.sp.degree if plan.sp.decode == "dp" else 0


def random_prompts(lengths: Sequence[int], vocab: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """Draw the token ids of prompts."""
    draw = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    return tuple(tuple(draw.integers(0, vocab, length).tolist()) for length in lengths)


def chunked_script(
    lengths: Sequence[int],
    *,
    output_tokens: int,
    budget: int,
    vocab: int,
    plan: ParallelPlan,
    seed: int = 0,
    preempted: int | None = None,
) -> Script:
    """Return the steps of chunked prefill: decodes first, then prompts in order, up to ``budget`` tokens a step.

    With several stages the sequences form as many micro-batches in turn, so that steps may overlap.

    Parameters
    ----------
    lengths : sequence of int
        Prompt tokens of each sequence.
    output_tokens : int
        Tokens to generate per sequence, at least 1.
    budget : int
        Most tokens of a step.
    vocab : int
    plan : ParallelPlan
    seed : int
        Of the prompts.
    preempted : int or None
        A sequence that loses its cache after its first decode step, and computes all its tokens anew, as a prompt.
    """
    prompts = random_prompts(lengths, vocab, seed)
    groups = min(plan.pp, len(lengths))
    lanes = [
        _lane(range(group, len(lengths), groups), lengths, output_tokens, budget, plan, preempted)
        for group in range(groups)
    ]
    steps = [lane[turn] for turn in range(max(map(len, lanes))) for lane in lanes if turn < len(lane)]
    return Script(prompts=prompts, output_tokens=output_tokens, steps=tuple(steps))


def _lane(
    members: range, lengths: Sequence[int], output_tokens: int, budget: int, plan: ParallelPlan, preempted: int | None
) -> list[tuple[Part, ...]]:
    """Return the steps of the sequences of one micro-batch."""
    computed = dict.fromkeys(members, 0)
    known = {sequence: lengths[sequence] for sequence in members}  # tokens that prefill computes
    end = {sequence: lengths[sequence] + output_tokens - 1 for sequence in members}
    steps = []
    while any(computed[sequence] < end[sequence] for sequence in members):
        left, parts = budget, []
        waiting = [sequence for sequence in members if computed[sequence] < end[sequence]]
        for sequence in sorted(waiting, key=lambda one: computed[one] < known[one]):
            decodes = computed[sequence] >= known[sequence]
            count = min(left, 1 if decodes else known[sequence] - computed[sequence])
            if count:
                parts.append(
                    Part(
                        sequence=sequence, start=computed[sequence], count=count, decodes=decodes,
                        owner=owner_of(sequence, plan),
                    )
                )  # fmt: skip
                computed[sequence] += count
                left -= count
            if sequence == preempted and computed[sequence] == lengths[sequence] + 1 < end[sequence]:
                known[sequence], computed[sequence] = computed[sequence] + 1, 0
                preempted = None
        steps.append(in_halves(parts, plan))
    return steps
