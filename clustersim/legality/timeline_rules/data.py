"""DP-2, DP-3, DP-4: a sequence stays on its replica, and replicas do not talk."""

from __future__ import annotations

import numpy as np

from clustersim.legality.timeline_rules.finding import NOTHING, Finding, judged, merged
from clustersim.legality.timeline_rules.grouping import Groups
from clustersim.legality.timeline_rules.hand_over import whole_cache
from clustersim.legality.timeline_rules.reading import Reading
from clustersim.legality.timeline_rules.sheet import Sheet
from clustersim.legality.timeline_rules.tensor import EXPERTS, same_as


def stays(reading: Reading) -> Finding:
    """DP-2: all that a request does, and all that is decided for it, is on one replica, or on two after a hand-over."""
    pieces, facts = reading.pieces, reading.history.facts
    findings = [whole_cache(reading.hand_overs, pieces)]
    fix = "keep a sequence on its replica, or declare a hand-over of its whole cache"
    if pieces is not None:
        findings.append(
            judged(
                len(pieces.opens),
                reading.moved & ~reading.declared,
                lambda i: f"request {pieces.request[i]}, step {pieces.first_step[i]}",
                lambda i: f"goes on at replica {pieces.replica[i]}, after replica {pieces.replica[i - 1]}",
                fix,
            )
        )
    if facts is not None:
        rows = np.setdiff1d(np.arange(len(facts["request"])), reading.hand_overs.reserved)
        at = reading.hand_overs.of(facts["request"].astype(np.int64)[rows])
        replica = facts["replica"].astype(np.int64)[rows]
        if len(reading.hand_overs):  # what is decided on the replica that receives counts as decided where it arrived
            came = (at >= 0) & (replica == reading.hand_overs.target[at])
            came &= facts["time_ns"][rows] >= reading.hand_overs.came_ns[at]
            replica = np.where(came, reading.hand_overs.source[at], replica)
        requests = Groups(facts["request"].astype(np.int64)[rows])
        lowest, highest = requests.least(replica), requests.most(replica)
        findings.append(
            judged(
                len(requests),
                lowest != highest,
                lambda i: f"request {requests.keys[i]}",
                lambda i: f"has facts on replica {lowest[i]} and on replica {highest[i]}",
                fix,
            )
        )
        if pieces is not None:
            first = pieces.opens
            at = requests.find(pieces.request[first])
            known = np.flatnonzero(at >= 0)
            told = lowest[at[known]] if len(requests) else known
            one = told == (highest[at[known]] if len(requests) else known)
            runs_on = pieces.replica[first[known]]
            findings.append(
                judged(
                    len(known),
                    one & (told != runs_on) & reading.plain[first[known]],
                    lambda i: f"request {pieces.request[first[known[i]]]}",
                    lambda i: f"was routed to replica {told[i]}, but runs on replica {runs_on[i]}",
                    fix,
                )
            )
    return merged(*findings)


def apart(sheet: Sheet) -> Finding:
    """DP-3: nothing joins replicas, but dispatch and combine of experts that all replicas share."""
    if not sheet.given.mesh:
        return NOTHING
    fix = "keep communication inside a replica (of experts, or declare ep_scope: global)"
    experts = sheet.named(*EXPERTS)
    told = sheet.given.ep_scope is not None
    rows = np.flatnonzero((sheet.group >= 0) & (told | ~experts))
    groups = Groups(sheet.group[rows])
    low, high = groups.least(sheet.replica[rows]), groups.most(sheet.replica[rows])
    allowed = experts[rows[groups.some]] & (sheet.given.ep_scope == "global")
    joined = judged(
        len(groups),
        (low != high) & ~allowed,
        lambda i: sheet.where(int(rows[groups.some[i]])),
        lambda i: f"joins replicas {low[i]} and {high[i]}",
        fix,
    )
    sources, targets = sheet.sources, sheet.targets
    if not told or sheet.given.ep_scope == "global":
        inside = ~experts[sources] & ~experts[targets]
        sources, targets = sources[inside], targets[inside]
    replica = sheet.replica
    needed = judged(
        len(sources),
        replica[sources] != replica[targets],
        lambda i: sheet.where(int(targets[i])),
        lambda i: f"needs {sheet.name(int(sources[i]))} of replica {replica[sources[i]]}",
        fix,
    )
    return merged(joined, needed)


def neutral(reading: Reading) -> Finding:
    """DP-4: under another number of replicas the same requests got the same tokens and the same cache."""
    return same_as(reading.history.other, reading.given, reading, "dp")
