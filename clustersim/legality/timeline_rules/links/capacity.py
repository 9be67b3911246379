"""RUN-3: no link carries more than it can.

What was on a link when is not recorded, but when communications ran, and what each brings to the links of its route
follows from what was declared (``traffic``). There must be a way to have carried that, by what the link could carry
(``crowds``); which of several it was, and so whether each had its fair share, is not looked at. A communication
that has a weak link to itself may go on as was settled when its pass began, so that such a link is taken to carry what
it could at best then or since.

Where the flows on links are in the record, as in tables from elsewhere, their rates are added up instead.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array
from clustersim.legality.declared.slowness import windows
from clustersim.legality.declared.transfers import Carriage
from clustersim.legality.declared.users import Place
from clustersim.legality.finding import NOTHING, Finding, Rows, judged, lacking, merged
from clustersim.legality.prices.contents import Contents
from clustersim.legality.timeline_rules.links.crowds import Crowds, crowds_of
from clustersim.legality.timeline_rules.links.traffic import Collectives, Flows, Traffic, collective_places
from clustersim.legality.timeline_rules.transfers.carried import moves_in, outputs_in
from clustersim.legality.timeline_rules.views.grouping import Groups
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.passes import Passes
from clustersim.timeline.tables import Table, Tables

SHARE: Final = "share the link"
ROUNDED_NS: Final = 1.0
"""How much each may have ended, or entered, too early: instants are whole nanoseconds."""
ROUNDED: Final = 1e-9


def traffic_in(reading: Reading, parts: list[Reading]) -> tuple[Traffic | None, Finding]:
    """Return what was on links on which two may be at a time, and what of it the record does not tell.

    Parameters
    ----------
    reading : Reading
    parts : list of Reading
        Pool by pool.
    """
    history = reading.history
    tables, carriage = history.folded, history.declared.carriage
    if tables is None:
        return None, NOTHING
    if carriage is None:
        return None, lacking("the load of links (no routes were declared)")
    if not carriage.users.contended:
        return None, NOTHING
    traffic, runs, pieces = Traffic(carriage), reading.runs, reading.pieces
    for some in (*moves_in(history), *(one for part in parts for one in outputs_in(part))):
        traffic.add_transfers(some)
    lacks, passes, stretched = NOTHING, Passes(tables), _stretched(tables)
    places = [[(place, traffic.met(place)) for place in collective_places(traffic, part.declared)] for part in parts]
    for part, found in zip(parts, places, strict=True):  # when something is there is told before they are added
        declared = part.declared
        mine = [(place, times) for place, times in found if times is None or len(times[0]) or place in stretched]
        if not mine:
            continue
        if runs is None or pieces is None or history.chunks is None or declared.deployment is None:
            lacks = lacking("the load of links (what collectives carry was not recorded)")
            continue
        contents = Contents(declared.deployment, runs, pieces, history.chunks, reading.owners)
        collectives = Collectives(traffic, tables, passes, contents, declared)
        for place, times in mine:
            collectives.add(place, times)
    if traffic.untold:
        lacks = lacking(f"the load of links by {', '.join(sorted(traffic.untold))} (what these carry is not recorded)")
    return traffic, lacks


def _stretched(tables: Tables) -> set[Place]:
    """Return the stages of which some pass has other times than its durations say."""
    rows = np.flatnonzero(tables.passes["irregular"] >= 0)
    return set(zip(*(tables.passes[name][rows].tolist() for name in ("replica", "stage")), strict=True))


def within_capacity(traffic: Traffic | None, carriage: Carriage | None) -> Finding:
    """RUN-3: communications that were on a link together bring no more to it than it carries in that time.

    Links are judged one by one; of those that are loaded alike, one.
    """
    if traffic is None or carriage is None:
        return NOTHING
    topology, flows, ways = carriage.setting.topology, traffic.flows(), traffic.ways
    links = sorted({link for way in ways for link in way})
    if not links:
        return NOTHING
    weak = tuple(windows(carriage.setting))
    table = np.zeros((len(ways), len(links)))
    for number, way in enumerate(ways):
        table[number, np.searchsorted(links, list(way))] = list(way.values())
    capacities = np.stack([topology.link_capacity, *(left for _, _, left in weak)])[:, links]
    _, alike = np.unique(np.concatenate((table, capacities)), axis=1, return_index=True)
    findings = []
    for at in alike.tolist():
        mine = np.flatnonzero(table[:, at][flows.way] > 0.0)
        met = _of_several(flows, mine)
        if not len(met):
            findings.append(Finding(looked_at=len(mine)))
            continue
        crowds = _crowds(flows, met)
        taken = flows.carried[met] * table[flows.way[met], at]
        carries = np.full(len(met), capacities[0, at])
        if weak:
            carries = _at_best(flows, met, carries, [(since, until, left[links[at]]) for since, until, left in weak])
        carries = np.maximum.reduceat(carries, crowds.first)
        findings.append(_fits(len(mine), crowds, taken, carries, " → ".join(topology.link_ends[links[at]])))
    return merged(*findings)


def _crowds(flows: Flows, some: Int64Array) -> Crowds:
    end = flows.end[some]
    return crowds_of(np.minimum(flows.enter[some] - ROUNDED_NS, end), end, flows.alone[some])


def _of_several(flows: Flows, mine: Int64Array) -> Int64Array:
    """Return which of some communications are under way together with another one of these."""
    if len(mine) < 2:
        return mine[:0]
    size = _crowds(flows, mine).size
    found: Int64Array = mine[np.repeat(size > 1, size)]
    return found


def _at_best(flows: Flows, some: Int64Array, carries: FloatArray, weak: list[tuple[int, int, float]]) -> FloatArray:
    """Return what a link carries at best while the bytes of each are there: as it is then, or as was settled for it."""
    settled, enter, end = flows.settled[some], flows.enter[some], flows.end[some]
    covered, best = np.zeros(len(some)), np.zeros(len(some))
    told = np.zeros(len(some), bool)
    for since, until, left in weak:
        within = np.maximum(np.minimum(end, until) - np.maximum(enter, since), 0.0)
        slowed = (settled >= since) & (settled < until)
        covered += within
        told |= slowed
        best = np.where((within > 0.0) | slowed, np.maximum(best, left), best)
    found: FloatArray = np.where(told & (covered >= end - enter), best, carries)
    return found


def _fits(looked_at: int, crowds: Crowds, taken: FloatArray, carries: FloatArray, link: str) -> Finding:
    """Judge one link: bytes of its capacity that each communication takes, and bytes per second that crowds may."""
    need = taken / carries[crowds.of] * NS_PER_S
    since, until, lacks = crowds.lacks(np.maximum(need * (1.0 - ROUNDED) - ROUNDED_NS, 0.0))

    time = until - since
    return judged(
        looked_at, lacks > ROUNDED_NS + 8 * np.spacing(until), "link {link}",
        "would have to carry for {needs:,.0f} ns between {since:,.0f} and {until:,.0f} ns what {there:,} "
        "communications brought then at least, and has {time:,.0f} ns",
        SHARE, link=link, needs=time + lacks, since=since, until=until, time=time,
        there=lambda i: int(((crowds.of == i) & (crowds.enter < until[i]) & (crowds.end > since[i])).sum()),
    )  # fmt: skip


def of_flows(flows: Table | None) -> Finding:
    """RUN-3: the rates of the flows on a link, where these are in the record, add up to no more than its capacity."""
    if flows is None:
        return lacking("the load of links (no flows were recorded)")
    link, start, end = (flows[name].astype(np.int64) for name in ("link", "start_ns", "end_ns"))
    rate, capacity = (np.asarray(flows[name], np.float64) for name in ("rate", "capacity"))
    links = np.concatenate((link, link))
    time = np.concatenate((start, end))
    change = np.concatenate((rate, -rate))
    order = np.lexsort((change > 0, time, links))
    by_link = Groups(links[order])
    broken = np.zeros(len(by_link), bool)
    most, limit = np.zeros(len(by_link)), np.zeros(len(by_link))
    since, until = np.zeros(len(by_link), np.int64), np.zeros(len(by_link), np.int64)
    for number, low in enumerate(by_link.firsts.tolist()):
        rows = order[low : low + int(by_link.counts[number])]
        load = np.cumsum(change[rows])
        limit[number] = capacity[rows[0] % len(link)]
        broken[number] = load.max() > limit[number] * (1 + ROUNDED)
        peak = int(np.argmax(load))
        most[number], since[number] = load[peak], time[rows[peak]]
        until[number] = time[rows[min(peak + 1, len(rows) - 1)]]
    return judged(
        len(by_link), broken, "link {by_link.keys}",
        "carries {most:,.10g} bytes/s from {since:,} to {until:,} ns; its capacity is {limit:,.10g}", SHARE,
        by_link=Rows(by_link), most=most, since=since, until=until, limit=limit,
    )  # fmt: skip
