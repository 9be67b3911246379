"""Flows on links as arrays: what ``links.sharing_by_lanes`` and ``links.fair_rates`` do, for a compiler.

Every sum is taken in their order, so that rates are theirs to the last bit. Flows of one component are ordered by the
links of their plans; two with the same links are never on them at once (moves from two ranks to two others share none,
and the collectives of a lane come one after the other).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.replay.compiled import kernel as k

FLOW: Final = ("touched", "plan", "transfer", "since", "end")
TOUCHED, PLAN, TRANSFER, SINCE, END = range(len(FLOW))
SHARES: Final = ("remaining", "rate", "payload")
REMAINING, RATE, PAYLOAD = range(len(SHARES))
"""Of a flow, as in ``sharing_by_lanes.Flow``: whole numbers, and numbers with a fraction."""
PLANS: Final = ("lengths", "links", "loads", "order", "meets", "capacity")
LENGTHS, LINKS, LOADS, ORDER, MEETS, CAPACITY = range(len(PLANS))
"""Of plans: links of each, which, and the bytes that a byte puts on each; their order; which share a link."""
LISTED, MEMBERS, STARTS, PLACES, BY_LINK = range(5)
"""Work space: the flows that are on links (how many first); those of a component; where the links of each of these
begin; which of the links in use each is; where a link is among those in use, −1 where it is not."""
SIZES, TOTALS, UNUSED, COUNTS, TAKEN = range(5)
SLOWEST, OPEN = range(2)
TIE: Final = 1e-12
"""``links.fair_rates``' difference below which two offers are the same."""


@k.INNER
def enter(flows, shares, work, plans, number, plan, payload, transfer, since, end):
    """Put a flow on its links, where it has been alone since ``since`` and would stay until ``end``."""
    listed, touched = work[LISTED], 0
    for at in range(1, listed[0] + 1):
        if plans[MEETS][plan, flows[listed[at], PLAN]]:
            touched = 1
    listed[0] += 1
    listed[listed[0]] = number
    flow, share = flows[number], shares[number]
    flow[TOUCHED], flow[PLAN], flow[TRANSFER], flow[SINCE], flow[END] = touched, plan, transfer, since, end
    share[REMAINING], share[RATE], share[PAYLOAD] = 1.0, 0.0, payload


@k.INNER
def leave(flows, work, plans, number):
    """Take a flow off its links."""
    listed, at = work[LISTED], 1
    while listed[at] != number:
        at += 1
    listed[at] = listed[listed[0]]
    listed[0] -= 1
    for place in range(1, listed[0] + 1):
        if plans[MEETS][flows[number, PLAN], flows[listed[place], PLAN]]:
            flows[listed[place], TOUCHED] = 1


@k.INNER
def _component(flows, work, plans, first):
    """Find what is connected with a flow, in the order in which rates are made; return how many that is."""
    listed, members = work[LISTED], work[MEMBERS]
    members[0] = first
    flows[first, TOUCHED] = -1
    count, reached = 1, 0
    while reached < count:
        plan = flows[members[reached], PLAN]
        for at in range(1, listed[0] + 1):
            other = listed[at]
            if flows[other, TOUCHED] >= 0 and plans[MEETS][plan, flows[other, PLAN]]:
                flows[other, TOUCHED] = -1
                members[count] = other
                count += 1
        reached += 1
    for at in range(1, count):
        mine, place = members[at], at
        while place > 0 and plans[ORDER][flows[members[place - 1], PLAN]] > plans[ORDER][flows[mine, PLAN]]:
            members[place] = members[place - 1]
            place -= 1
        members[place] = mine
    for at in range(count):
        flows[members[at], TOUCHED] = 0
    return count


@k.INNER
def _lay_out(flows, shares, work, room, plans, count):
    """Lay the links of a component side by side; return how many are in use."""
    starts, places, by_link, used, at = work[STARTS], work[PLACES], work[BY_LINK], 0, 0
    for member in range(count):
        number = work[MEMBERS][member]
        plan = flows[number, PLAN]
        starts[member] = at
        for place in range(plans[LENGTHS][plan]):
            link = plans[LINKS][plan, place]
            if by_link[link] < 0:
                by_link[link] = used
                room[TOTALS, used] = plans[CAPACITY][link]
                used += 1
            places[at] = by_link[link]
            room[SIZES, at] = plans[LOADS][plan, place] * shares[number, PAYLOAD]
            at += 1
    starts[count] = at
    for member in range(count):
        plan = flows[work[MEMBERS][member], PLAN]
        for place in range(plans[LENGTHS][plan]):
            by_link[plans[LINKS][plan, place]] = -1
    return used


@k.INNER
def _offer(work, room, each, count, used):
    """Work out what links offer (``fair_rates._fill``): how slow each open flow is, and which links are full."""
    starts, places = work[STARTS], work[PLACES]
    for link in range(used):
        room[COUNTS, link] = 0.0
    for member in range(count):
        if each[OPEN, member] > 0.0:
            for at in range(starts[member], starts[member + 1]):
                room[COUNTS, places[at]] += 1.0
    for member in range(count):
        each[SLOWEST, member] = 0.0
        if each[OPEN, member] > 0.0:
            for at in range(starts[member], starts[member + 1]):
                share = room[UNUSED, places[at]] / room[COUNTS, places[at]]
                each[SLOWEST, member] = max(each[SLOWEST, member], room[SIZES, at] / share)
    for link in range(used):  # full, until an open flow gets less elsewhere
        room[TAKEN, link] = 1.0 if room[COUNTS, link] > 0.0 else 0.0
    full = False
    for member in range(count):
        if each[OPEN, member] > 0.0:
            for at in range(starts[member], starts[member + 1]):
                share = room[UNUSED, places[at]] / room[COUNTS, places[at]]
                if room[SIZES, at] / share < each[SLOWEST, member] * (1.0 - TIE):
                    room[TAKEN, places[at]] = 0.0
    for link in range(used):
        full = full or room[TAKEN, link] > 0.0
    return full


@k.INNER
def _headroom(work, room, each, count, used):
    """Return by how much the link has more than what is taken that has the least; it is full then."""
    starts, places = work[STARTS], work[PLACES]
    for link in range(used):
        room[TAKEN, link] = 0.0
    for member in range(count):
        if each[OPEN, member] > 0.0:
            for at in range(starts[member], starts[member + 1]):
                room[TAKEN, places[at]] += room[SIZES, at] / each[SLOWEST, member]
    least = np.inf
    for link in range(used):
        if room[COUNTS, link] > 0.0:
            taken = room[TAKEN, link] if room[TAKEN, link] > 0.0 else 1.0
            room[TAKEN, link] = room[UNUSED, link] / taken
            least = min(least, room[TAKEN, link])
        else:
            room[TAKEN, link] = np.inf
    for link in range(used):
        room[TAKEN, link] = 1.0 if room[TAKEN, link] <= least * (1.0 + TIE) else 0.0
    return least


@k.INNER
def _fill(flows, shares, work, room, each, plans, count):
    """Give each flow of a component its rate (``fair_rates._fill``)."""
    used, starts, places = _lay_out(flows, shares, work, room, plans, count), work[STARTS], work[PLACES]
    left = count
    for link in range(used):
        room[UNUSED, link] = room[TOTALS, link]
    for member in range(count):
        each[OPEN, member] = 1.0
    while True:
        headroom = 1.0
        if not _offer(work, room, each, count, used):
            headroom = _headroom(work, room, each, count, used)
        for member in range(count):
            closes = False
            for at in range(starts[member], starts[member + 1]):
                closes = closes or (each[OPEN, member] > 0.0 and room[TAKEN, places[at]] > 0.0)
            if closes:
                shares[work[MEMBERS][member], RATE] = headroom / each[SLOWEST, member]
                each[OPEN, member] = 0.0
                left -= 1
        if left == 0:
            return
        for link in range(used):
            room[TAKEN, link] = 0.0
        for member in range(count):
            if each[OPEN, member] == 0.0:
                for at in range(starts[member], starts[member + 1]):
                    room[TAKEN, places[at]] += room[SIZES, at] * shares[work[MEMBERS][member], RATE]
        for link in range(used):
            room[UNUSED, link] = max(room[TOTALS, link] - room[TAKEN, link], 0.0)


@k.INNER
def solve(flows, shares, work, room, each, plans, changes, now):
    """Share out the links of what was touched, and note when these flows end."""
    listed, members = work[LISTED], work[MEMBERS]
    for place in range(1, listed[0] + 1):
        if flows[listed[place], TOUCHED] <= 0:
            continue
        count = _component(flows, work, plans, listed[place])
        for at in range(count):
            flow, share = flows[members[at]], shares[members[at]]
            passed = now - flow[SINCE]
            rate = share[RATE]
            carried = passed / flow[TRANSFER] if rate == 0.0 else rate * (passed / 1_000_000_000)
            share[REMAINING] = max(0.0, share[REMAINING] - carried)
            share[RATE] = 0.0
        if count > 1:
            _fill(flows, shares, work, room, each, plans, count)
        for at in range(count):
            flow, share = flows[members[at]], shares[members[at]]
            remaining, rate = share[REMAINING], share[RATE]
            ns = flow[TRANSFER] * remaining if rate == 0.0 else remaining / rate * 1_000_000_000
            flow[SINCE] = now
            flow[END] = now + np.int64(np.rint(ns)) if ns < k.NEVER - 1 - now else k.NEVER - 1
            changes[members[at]] = flow[END]
