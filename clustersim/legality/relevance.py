"""Which rules a declared plan makes relevant: a verdict is legal only where each of them had something to look at.

Data: rule → whether it has a say, given the plan, the model and what was recorded. What is not declared may be
anything, so that a rule which depends on it is relevant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from clustersim.legality.rule import Level, LookedAt, Verdict
from clustersim.legality.stages import stages_of
from clustersim.model.architecture import ModelSpec, Moe
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What is said of a graph from outside: None where nothing is.

    Parameters
    ----------
    plan, model
    prefills, decodes : bool or None
        What its step has.
    replicas : int
        How many of them the graph shows.
    shown : tuple of int or None
        The stages that it shows; None: all.
    """

    plan: ParallelPlan | None
    model: ModelSpec | None
    prefills: bool | None
    decodes: bool | None
    replicas: int = 1
    shown: tuple[int, ...] | None = None


Relevant = Callable[[Declared], bool]


def _always(_: Declared) -> bool:
    return True


def _split(d: Declared) -> bool:
    return d.plan is None or d.plan.tp > 1 or d.plan.expert_tp > 1


def _by_heads(d: Declared) -> bool:
    return d.plan is None or d.plan.tp > 1


def _segments(d: Declared) -> bool:
    return d.plan is None or (d.plan.sp.degree > 1 and not d.plan.sp.whole)


def _segments_in_prefill(d: Declared) -> bool:
    return _segments(d) and d.prefills is not False


def _staged(d: Declared) -> bool:
    return d.plan is None or d.plan.pp > 1


def _meets(d: Declared) -> bool:
    """Two stages that follow each other are in the graph."""
    return _staged(d) and (d.shown is None or any(stage + 1 in d.shown for stage in d.shown))


def _experts(d: Declared) -> bool:
    return d.model is None or any(isinstance(layer.ffn, Moe) for layer in d.model.layers)


def _spread_experts(d: Declared) -> bool:
    return _experts(d) and (d.plan is None or d.plan.ep.degree > 1)


def _exchanged(d: Declared) -> bool:
    return _experts(d) and (d.plan is None or d.plan.ep.sends)


def _layers(d: Declared) -> bool:
    """One layer follows another on one rank."""
    if d.model is None or d.plan is None:
        return True
    stages = [stage for at, stage in enumerate(stages_of(d.model, d.plan)) if d.shown is None or at in d.shown]
    return any(len({layer for layer, part in stage if part in ("attention", "ffn")}) > 1 for stage in stages)


def _left_alone(d: Declared) -> bool:
    """SP ranks decode whole sequences, or idle: a decode step shows it, one with a prompt where some idle."""
    idle = d.plan is None or d.plan.sp.decode == "idle"
    return _segments(d) and (d.prefills is False or (_decodes(d) and idle))


def _decodes(d: Declared) -> bool:
    return d.decodes is not False


def _replicas(d: Declared) -> bool:
    return d.plan is None or (d.plan.dp > 1 and d.replicas > 1)


GRAPH: Final[Mapping[str, Relevant]] = {
    "PH-2": _decodes,
    "PH-5": _always,
    "KV-1": _always,
    "KV-2": _always,
    "KV-4": _always,
    "KV-5": _always,
    "TP-2": _split,
    "TP-3": _split,
    "TP-4": _by_heads,
    "TP-5": _split,
    "TP-7": _split,
    "TP-8": _always,
    "TP-9": _always,
    "SP-1": _segments_in_prefill,
    "SP-2": _segments_in_prefill,
    "SP-3": _left_alone,
    "SP-4": _segments_in_prefill,
    "SP-5": _segments_in_prefill,
    "SP-6": _segments_in_prefill,
    "SP-8": _segments_in_prefill,
    "PP-2": _staged,
    "PP-5": _meets,
    "PP-6": _layers,
    "EP-2": _experts,
    "EP-4": _experts,
    "EP-5": _experts,
    "EP-6": _experts,
    "EP-7": _spread_experts,
    "EP-8": _exchanged,
    "DP-3": _replicas,
    "RUN-1": _always,
}
"""Rule of level G → when it is relevant to a graph of one step. PH-1, PH-3 and PP-4 are about several steps."""

PLAN: Final[Mapping[str, Relevant]] = {
    **dict.fromkeys(("KV-4", "KV-6", "PP-1", "DP-1"), _always),
    "TP-1": _split,
    "TP-9": _by_heads,
    **dict.fromkeys(("SP-1", "SP-3", "SP-7", "SP-9"), _segments),
    "EP-1": _spread_experts,
    "EP-6": _spread_experts,
    "EP-8": _spread_experts,
}
"""Rule of level P → when it is relevant."""


def relevant_to(declared: Declared) -> Iterator[tuple[str, Level]]:
    """Yield the rules, with their levels, that a graph of one step must give something to look at."""
    yield from ((rule, "G") for rule, relevant in GRAPH.items() if relevant(declared))
    if declared.plan is not None and declared.model is not None:
        yield from ((rule, "P") for rule, relevant in PLAN.items() if relevant(declared))


def demanded(
    verdict: Verdict, relevant: Iterable[tuple[str, Level]], lacks: Callable[[LookedAt], Iterable[str]]
) -> Verdict:
    """Return a verdict that is legal only where all of these rules looked at something.

    Parameters
    ----------
    verdict : Verdict
    relevant : iterable of (rule, level)
    lacks : callable
        Rule that looked at nothing → in words, what would make it checkable.
    """
    wanted = set(relevant)
    rules = []
    for entry in verdict.rules:
        needed = (entry.id, entry.level) in wanted
        words = tuple(lacks(entry)) if needed and not entry.looked_at else entry.lacks
        rules.append(replace(entry, relevant=needed, lacks=words))
    return replace(verdict, rules=tuple(rules))
