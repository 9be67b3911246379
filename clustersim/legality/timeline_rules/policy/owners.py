"""RUN-5: where SP ranks keep whole sequences each, one goes to the rank with most free blocks, the first of equals.

Not looked at where something fails, or sequences are swapped: then pieces don't tell who holds how much. Not compared:
the rank that has most of a prompt cached, where prompts share blocks (what was forgotten is not recorded), and batches
of ``static``, which are made up before their members are admitted.
"""

from __future__ import annotations

import numpy as np

from clustersim.legality.finding import Finding, Rows, judged, lacking, merged
from clustersim.legality.history import Declared
from clustersim.legality.timeline_rules.policy.declared import Policies, keeps_whole, rank_use
from clustersim.legality.timeline_rules.transfers.owners import owner_at
from clustersim.legality.timeline_rules.views.rank_use import TAKEN_UP, TOLD
from clustersim.legality.timeline_rules.views.reading import Reading


def as_kept(reading: Reading, policies: Policies) -> Finding:
    """Judge which SP rank keeps each sequence."""
    return merged(*(_of_pool(reading, one) for one in policies.pools if keeps_whole(one)))


def _of_pool(reading: Reading, declared: Declared) -> Finding:
    use, folded, facts = rank_use(reading, declared), reading.history.folded, reading.history.facts
    if use is None or folded is None or facts is None or (declared.policy and declared.policy.scheduler == "static"):
        return lacking("which SP rank keeps a sequence (how many blocks each had free does not follow)")
    seen = use.opens >= 0
    if declared.pp == 1:  # no step that the record lacks is under way
        seen |= use.aside
    rows = use.admitted[seen]
    replica, time, request = (facts[name][rows].astype(np.int64) for name in ("replica", "time_ns", "request"))
    free = use.free(replica, time, np.where(use.aside[seen], TOLD, TAKEN_UP), rows)
    owner, due = owner_at(folded.owners, replica, request, time), free.argmax(axis=1)
    return judged(
        len(rows), owner != due, "replica {fact.replica}, request {fact.request}",
        "SP rank {owner} keeps it from {fact.time_ns:,} ns on, with {mine:,} blocks free, and rank {due} has {most:,}",
        "keep a sequence on the SP rank with most free blocks, the first of equals", fact=Rows(facts, rows),
        owner=owner, due=due, mine=np.take_along_axis(free, owner[:, None], axis=1)[:, 0], most=free.max(axis=1),
    )  # fmt: skip
