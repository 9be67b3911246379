"""A run of this program as a history, and its audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clustersim.clock import to_ns
from clustersim.column import parts
from clustersim.legality.audit import check_history
from clustersim.legality.history import History, Outcome
from clustersim.legality.rule import Verdict, Violation, together
from clustersim.legality.timeline_rules.operators.tensor import outcome_of
from clustersim.legality.timeline_rules.requests.spent import SPENT
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.memory import give_back
from clustersim.simulation.agreement import of_a_run, with_agreements
from clustersim.simulation.declared import discarded_tokens, history_of
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.recorded import request_columns

if TYPE_CHECKING:  # what is judged, and nothing that makes it
    from clustersim.simulation.simulate import RunResult


def history_of_run(result: RunResult) -> History:
    """Return what a run recorded, as a history."""
    found = history_of(result.scenario, result.timeline, result.replayed.reasons)
    return with_spent(found, result.table)


def with_spent(history: History, table: Mapping[str, Any]) -> History:
    """Return a history together with what a table of requests says that their time was spent on."""
    assert history.requests is not None
    count, spent, request = len(history.requests["prompt_tokens"]), {}, table["request"]
    in_order = len(request) == count and all(
        (request[some] == np.arange(some.start, some.stop)).all() for some in parts(count, 8)
    )
    for name in SPENT:
        values = table[name]
        lacks = values.mask if isinstance(values, np.ma.MaskedArray) else np.isnan(values)
        if in_order and not lacks.any():
            spent[name] = np.asarray(values).astype(np.int64, copy=False)
            continue
        spent[name] = np.full(count, -1, np.int64)
        told = (request >= 0) & (request < count) & ~lacks  # who else is named is told by what is compared
        spent[name][request[told]] = np.asarray(values)[told]
    return replace(history, requests={**history.requests, **spent})


def audit_run(result: RunResult) -> Verdict:
    """Check what a run recorded against every rule of level T, and what it says of its requests against its record."""
    give_back(len(result.times.count))
    history = history_of_run(result)
    verdict = check_history(history)
    assert history.requests is not None
    front_end_ns = to_ns(result.scenario.engine.front_end_s)
    made = history.requests["output_tokens"]
    told = {**history.requests, "output_tokens": made - (made > 0) * discarded_tokens(result.scenario)}
    follows = request_columns(result.timeline, told, result.times, front_end_ns)
    return with_agreements(verdict, of_a_run(result.columns, follows, result.timeline))


def check_run(result: RunResult) -> Verdict:
    """Check a run by every rule that can be asked: of its plan (P), its step graphs (G) and what it recorded (T)."""
    return together((check_scenario(result.scenario), audit_run(result)))


def violation_line(violation: Violation) -> str:
    """Return a violation as a line of text."""
    return f"{violation.rule}: {violation.where}: {violation.message}; {violation.fix}"


def outcome(history: History) -> Outcome | None:
    """Return what the requests of a history came to, to compare another plan with; None where that is not recorded."""
    found = outcome_of(Reading(history))
    return None if found is None else Outcome(declared=history.declared, tokens=found[0], entries=found[1])


def against(history: History, other: History) -> History:
    """Return a history together with what another run of the same requests came to."""
    return replace(history, other=outcome(other))


__all__ = ["against", "audit_run", "check_run", "history_of", "history_of_run", "outcome", "violation_line"]
