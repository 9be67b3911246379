"""RUN-5: what fails is left in the order in which sequences came to run there.

Not looked at where sequences are swapped, or may be when a failure cuts their copies off before any is recorded; on
prefill replicas, which also have what is computed and waits to leave; and where a step ends at the instant of the
failure, so that somebody may have given way before.
"""

from __future__ import annotations

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, merged
from clustersim.legality.history import ADMITTED, PREEMPTED, RECEIVED, SWAPPED_OUT
from clustersim.legality.timeline_rules.policy.declared import Policies
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.columns import is_any


def as_it_came(reading: Reading, policies: Policies) -> Finding:
    """Judge in which order sequences leave each replica that fails."""
    facts, runs, history = reading.history.facts, reading.runs, reading.history
    if facts is None or runs is None or history.folded is None or reading.facts_of(SWAPPED_OUT).size:
        return NOTHING
    here = is_any(facts["kind"], (ADMITTED, RECEIVED))
    here[reading.hand_overs.reserved] = False
    came = reading.residency.before(here)
    findings = []
    for failed, since, _ in reading.declared.down:
        pool = policies.pools[policies.pool_at[failed]]
        ends = (runs.replica == failed) & ((runs.recorded_end == since) | (runs.start == since))
        if ends.any() or pool.role == "prefill" or (pool.policy is not None and pool.policy.swaps):
            continue
        rows = reading.facts_of(PREEMPTED)
        rows = rows[(facts["replica"][rows] == failed) & (facts["time_ns"][rows] == since)]
        rows = rows[(came[rows] >= 0) & (facts["replica"][came[rows]] == failed)]
        findings.append(_in_turn(reading, rows, came[rows]))
    return merged(*findings)


def _in_turn(reading: Reading, rows: Int64Array, came: Int64Array) -> Finding:
    facts = reading.history.facts
    assert facts is not None
    since = facts["time_ns"][came].astype(np.int64)
    early = (since[1:] < since[:-1]) | ((since[1:] == since[:-1]) & (came[1:] < came[:-1]))
    return judged(
        len(rows), early, "replica {fact.replica}, request {fact.request}",
        "leaves at {fact.time_ns:,} ns what fails, behind request {before.request}, and came to run there before it",
        "let what fails be left in the order in which sequences came to run", fact=Rows(facts, rows[1:]),
        before=Rows(facts, rows),
    )  # fmt: skip
