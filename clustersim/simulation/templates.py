"""Whether the operators that a run recorded are those that its scenario's plan expands to, rank by rank.

The step graphs of the plan are checked by themselves (level G); here what was recorded is compared with them, so that
a record cannot tell of collectives, operators, ranks or an order that the plan doesn't have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from clustersim.graph.template import PassTemplate
from clustersim.legality.rule import Violation
from clustersim.replay.input import ReplayInput
from clustersim.replay.prepared import Prepared

FIX = "let every rank run the operators that the plan expands to, in that order and over those groups"


def other_operators(inputs: ReplayInput, templates: Sequence[PassTemplate]) -> Iterator[Violation]:
    """Yield a violation of rule TP-5 per stage and kind of step whose recorded operators are not those of the plan.

    Parameters
    ----------
    inputs : ReplayInput
        What the replay was a function of.
    templates : sequence of PassTemplate
        As recorded.
    """
    expanded = Prepared(inputs).recorder.templates
    for found, wanted in zip_longest(templates, expanded):
        if found is None or wanted is None or found.fingerprint != wanted.fingerprint:
            shown = wanted if found is None else found
            assert shown is not None
            where = f"templates.json, {shown.kind} steps of stage {shown.stage}"
            yield Violation(rule="TP-5", level="T", where=where, message=_difference(found, wanted), fix=FIX)


def _difference(found: PassTemplate | None, wanted: PassTemplate | None) -> str:
    """Say in words where two templates part."""
    if found is None:
        return "its operators are not recorded"
    if wanted is None:
        return "the plan has no such steps"
    for one, other in zip_longest(_nodes(found), _nodes(wanted)):
        if one != other:
            return f"it records {one or 'nothing more'}, where the plan expands to {other or 'nothing more'}"
    return "its operators are those of the plan, but not what they wait for, cost or stream on"


def _nodes(template: PassTemplate) -> Iterator[str]:
    """Yield each operator in order: what it is, in which layer, on which ranks of the stage."""
    for symbol, layer, ranks in zip(
        template.node_symbol.tolist(), template.node_layer.tolist(), template.members, strict=True
    ):
        name, op, _ = template.symbols[symbol]
        inside = f" of layer {layer}" if layer >= 0 else ""
        members = ", ".join(map(str, ranks))
        yield f"{name} ({op}){inside} on {'rank' if len(ranks) == 1 else 'ranks'} {members}"
