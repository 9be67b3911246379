"""EP-8: all ranks that experts are spread over take a dispatch together, and its combine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from clustersim.clock import Int64Array
from clustersim.legality.exchange import FIX, apart, sharing, words
from clustersim.legality.finding import NOTHING, Finding, Rows, judged
from clustersim.legality.history import STREAMS, Declared
from clustersim.legality.timeline_rules.operators.tensor import FIXED
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.pieces import BoolArray
from clustersim.legality.timeline_rules.views.sheet import Sheet, of_structure

COMM: Final = STREAMS.index("comm")
Members = Mapping[int, Sequence[int]]
"""Group → spans of it, by their starts."""


@of_structure
def by_all_ranks(sheet: Sheet) -> Finding:
    """EP-8: whoever takes an exchange meets all that share its experts, so that tokens reach each, and come back."""
    declared, way = sheet.declared, _way(sheet)
    groups = _groups(sheet, way >= 0)
    rows = np.flatnonzero(groups >= 0)
    if declared.ep == 1 or not len(rows) or not declared.mesh or not sheet.numbered:
        return NOTHING
    met = Groups(groups[rows])
    replicas = declared.dp if _is_wide(declared, met, sheet.replica[rows]) else 1
    scale = int(sheet.global_ranks.max()) + 1
    members = Groups(groups[rows] * scale + sheet.global_ranks[rows])
    sizes = np.bincount(met.find(members.keys // scale), minlength=len(met))
    parts = rows[(sizes != declared.stage_ranks * replicas)[met.find(groups[rows])]]
    told: dict[int, Callable[[], str]] = {}
    for exchange in _exchanges(sheet, groups, way, parts):
        told |= dict(_apart(sheet, exchange, replicas))
    bad = np.array(sorted(told), np.int64)
    return judged(len(met), np.ones(len(bad), bool), Rows(sheet, bad), lambda at: told[int(bad[at])](), FIX)


def _way(sheet: Sheet) -> Int64Array:
    """Return 0 for what dispatches, 1 for what combines, −1 for others, and for collectives behind these."""
    found = np.where(sheet.named("dispatch"), 0, np.where(sheet.named("combine"), 1, -1))
    behind = np.array([name.endswith(FIXED) for name, _, _ in sheet.symbols], bool)
    return np.where(behind[sheet.symbol], -1, found) if len(behind) else found


def _groups(sheet: Sheet, exchanges: BoolArray) -> Int64Array:
    """Return the group of each span that exchanges, one of its own for a rank that communicates alone; −1 of others."""
    found = np.where(exchanges, sheet.group, -1)
    if (found >= 0).any():  # otherwise nobody says who meets
        alone = exchanges & (sheet.group < 0) & (sheet.stream == COMM)
        found[alone] = int(sheet.group.max()) + 1 + np.arange(int(alone.sum()))
    return found


def _is_wide(declared: Declared, met: Groups, replica: Int64Array) -> bool:
    """Whether replicas share experts, by what is declared, or what some of them do where nothing is."""
    if declared.dp == 1 or declared.ep > declared.stage_ranks:
        return declared.dp > 1
    across = bool((met.least(replica) != met.most(replica)).any())
    return declared.ep_scope == "global" or (declared.ep_scope is None and across)


def _exchanges(sheet: Sheet, groups: Int64Array, way: Int64Array, rows: Int64Array) -> Iterator[Members]:
    """Yield the groups that are parts of one exchange: some rank takes them one way in one layer of one pass.

    Of replicas that share experts each may number its steps by itself.
    """
    spans: dict[int, list[int]] = {}
    root: dict[int, int] = {}
    first: dict[tuple[int, int], int] = {}
    for row in rows[np.argsort(sheet.start[rows], kind="stable")].tolist():
        group = int(groups[row])
        spans.setdefault(group, []).append(row)
        root.setdefault(group, group)
        one, other = (_top(root, at) for at in (group, first.setdefault((sheet.site[row], way[row]), group)))
        root[max(one, other)] = min(one, other)
    found: dict[int, dict[int, list[int]]] = {}
    for group, own in spans.items():
        found.setdefault(_top(root, group), {})[group] = own
    yield from found.values()


def _top(root: dict[int, int], at: int) -> int:
    while root[at] != at:
        root[at] = at = root[root[at]]
    return at


def _apart(sheet: Sheet, groups: Members, replicas: int) -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield a span of each part of one exchange whose ranks do not meet all others, with what is wrong."""
    declared = sheet.declared
    members = {one: sorted({*sheet.global_ranks[own].tolist()}) for one, own in groups.items()}
    rounds: list[list[Sequence[int]]] = []
    ended: dict[int, tuple[int, int]] = {}
    """Rank → the round that it was in last, and when that ended."""
    for one, own in groups.items():
        begin = int(sheet.start[own].max())
        depth = max([at + (end <= begin) for at, end in (ended.get(rank, (-1, begin)) for rank in members[one])])
        rounds += [[] for _ in range(depth + 1 - len(rounds))]
        rounds[depth].append(members[one])
        ended |= dict.fromkeys(members[one], (depth, int(sheet.end[own].max())))
    rank = next(iter(members.values()))[0] - declared.first_rank
    local = sharing(rank, stage_ranks=declared.stage_ranks, pp=declared.pp, replicas=replicas)
    group = [declared.first_rank + one for one in local]
    lone = apart(group, rounds)
    for one, own in groups.items():
        odd = next((rank for rank in members[one] if rank in lone), None)
        if odd is not None:
            yield own[0], partial(words, members[one], odd, lone[odd], group)
