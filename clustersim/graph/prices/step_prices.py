"""Prices of the steps of stages, made once for those that cost the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from clustersim.graph.prices.lockstep_prices import LockstepPrices
from clustersim.graph.prices.pricer import Pricer
from clustersim.graph.prices.split_steps import SplitPrices
from clustersim.graph.prices.steps import StepPrices
from clustersim.graph.program import StageProgram


def step_prices(pricer: Pricer, programs: Mapping[str, StageProgram]) -> StepPrices:
    """Return the prices of a stage's steps, the same object as long as the pricer lives for stages that cost the same.

    These are programs of replicas that are placed alike, and stages of as many equal layers. Where prompts are split
    over SP ranks they are :class:`~clustersim.graph.prices.split_steps.SplitPrices`.
    """
    key = "stage", *(program.key for program in programs.values())
    if key not in pricer.made:
        split = pricer.sp.degree > 1
        alike = "steps", *((kind, _told(program, split=split)) for kind, program in programs.items())
        if alike not in pricer.made:
            pricer.made[alike] = SplitPrices(pricer, programs) if split else StepPrices(pricer, programs)
        pricer.made[key] = pricer.made[alike]
    found: StepPrices = pricer.made[key]
    return found


def lockstep_prices(pricer: Pricer, programs: Mapping[str, StageProgram]) -> LockstepPrices:
    """Return the prices of steps that replicas take together, the same object as long as the pricer lives."""
    key = "lockstep", *(program.key for program in programs.values())
    if key not in pricer.made:
        pricer.made[key] = LockstepPrices(pricer, programs)
    found: LockstepPrices = pricer.made[key]
    return found


def _told(program: StageProgram, *, split: bool) -> Hashable:
    """Return all of a program that prices of its steps depend on."""
    template = program.template
    alone = program.classes, tuple(template.counts.tolist()), template.send_classes, template.is_chain, program.even
    if not split:
        return alone
    order = template.after, template.instance_s, template.exits, template.instance_class.tobytes()
    return *alone, *order, template.instance_stream.tobytes()


def rows_made(pricer: Pricer) -> int:
    """Return how many rows of durations a pricer holds."""
    found = {id(made): made for made in pricer.made.values() if isinstance(made, StepPrices)}.values()
    return sum(len(rows) for prices in found for rows in prices.rows.values())
