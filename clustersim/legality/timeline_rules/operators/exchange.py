"""EP-8: all ranks that experts are spread over take a dispatch together, and its combine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.exchange import FIX, lacking, words
from clustersim.legality.finding import NOTHING, Finding, Rows, judged
from clustersim.legality.history import STREAMS
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.sheet import Sheet, of_structure

COMM: Final = STREAMS.index("comm")


@of_structure
def by_all_ranks(sheet: Sheet) -> Finding:
    """EP-8: tokens can reach every expert, and come back: whoever takes an exchange meets all that share its experts.

    Of replicas that share experts each may number its steps by itself.
    """
    declared = sheet.declared
    groups = _groups(sheet)
    rows = np.flatnonzero(groups >= 0)
    wide = declared.dp > 1 and (declared.ep_scope == "global" or declared.ep > declared.stage_ranks)
    unsaid = declared.dp > 1 and declared.ep_scope is None and not wide
    if not len(rows) or not declared.mesh or not sheet.numbered or unsaid:
        return NOTHING
    size = declared.stage_ranks * (declared.dp if wide else 1)
    ranks = sheet.global_ranks[rows]
    met = Groups(groups[rows])
    members = Groups(groups[rows] * (int(ranks.max()) + 1) + ranks)
    sizes = np.bincount(met.find(members.keys // (int(ranks.max()) + 1)), minlength=len(met))
    part = np.where(sizes != size)[0]
    if not len(part):
        return Finding(looked_at=len(met))
    mine = np.flatnonzero(np.isin(met.find(groups[rows]), part))
    place = sheet.stage[rows] if wide else sheet.replica[rows] * declared.pp + sheet.stage[rows]
    columns = (place, sheet.step[rows], sheet.pass_of[rows] % 2, sheet.layer[rows], sheet.symbol[rows])
    which = np.unique(np.stack([column[mine] for column in columns]), axis=1, return_inverse=True)[1].ravel()
    told: dict[int, str] = {}
    for cell in range(int(which.max()) + 1):
        told |= dict(_apart(sheet, groups, rows[mine[which == cell]], size))
    bad = np.array(sorted(told), np.int64)
    return judged(len(met), np.ones(len(bad), bool), Rows(sheet, bad), lambda at: told[int(bad[at])], FIX)


def _groups(sheet: Sheet) -> Int64Array:
    """Return the group of each span that exchanges, one of its own for a rank that communicates alone; −1 of others."""
    exchanges = sheet.named("dispatch", "combine")
    if not (sheet.group >= 0).any():  # nobody says who meets
        return np.full(len(sheet), -1, np.int64)
    alone = exchanges & (sheet.group < 0) & (sheet.stream == COMM)
    found = np.where(exchanges, sheet.group, -1)
    found[alone] = int(sheet.group.max()) + 1 + np.arange(int(alone.sum()))
    return found


def _apart(sheet: Sheet, of: Int64Array, rows: Int64Array, size: int) -> Iterator[tuple[int, str]]:
    """Yield a span of each part of one exchange whose ranks do not meet all others, with what is wrong."""
    groups: dict[int, list[int]] = {}
    for row in rows[np.argsort(sheet.start[rows], kind="stable")].tolist():
        groups.setdefault(int(of[row]), []).append(row)
    members = {one: tuple(sorted(set(sheet.global_ranks[own].tolist()))) for one, own in groups.items()}
    rounds: list[list[tuple[int, ...]]] = []
    ended: dict[int, tuple[int, int]] = {}
    """Rank → the round that it was in last, and when that ended."""
    for one, own in groups.items():
        begin = int(sheet.start[own].max())
        depth = max([at + (end <= begin) for at, end in (ended.get(rank, (-1, begin)) for rank in members[one])])
        rounds += [[] for _ in range(depth + 1 - len(rounds))]
        rounds[depth].append(members[one])
        ended |= dict.fromkeys(members[one], (depth, int(sheet.end[own].max())))
    group = _sharing(sheet, int(rows[0]), size)
    lacks = lacking(group, rounds)
    for one, own in groups.items():
        odd = next((rank for rank in members[one] if rank in lacks), None)
        if odd is not None:
            yield own[0], words(members[one], odd, lacks[odd], group)


def _sharing(sheet: Sheet, row: int, size: int) -> list[int]:
    """Return the ranks that share the experts of a stage with that of a span."""
    declared = sheet.declared
    first = sheet.global_rank(row) - int(sheet.rank[row])
    if size == declared.stage_ranks:
        return list(range(first, first + size))
    start = declared.first_rank + int(sheet.stage[row]) * declared.stage_ranks
    apart = declared.pp * declared.stage_ranks
    return [start + replica * apart + rank for replica in range(declared.dp) for rank in range(declared.stage_ranks)]
