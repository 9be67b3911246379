"""The links of a run as they travel in a page: which there are, what is put on them by whom, and their load over time.

Of a whole run a browser does not add up millions of collectives: it gets the payloads of each way that bytes take, in
equal parts of the run, as far as the passes of the timeline tell them; bytes count evenly over the passes in a row that
carry the same. Moves of K/V entries, of which the page has all, it adds itself; and where operators are drawn it takes
the payload of their step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.replay.input import ReplayInput
from clustersim.report.folded.carried import PoolLoad, Ways
from clustersim.report.folded.carried_parts import Segments, pass_segments, payload_parts
from clustersim.report.folded.carried_transfers import move_ways, send_segments
from clustersim.report.folded.packed import packed
from clustersim.report.folded.passes import FoldedPasses
from clustersim.report.folded.windows import overlapping
from clustersim.timeline.parts import as_a_run
from clustersim.timeline.rows_of import RowsOf
from clustersim.timeline.timeline import Timeline

PARTS: Final = 4096
"""Parts of a run in which the payload of each way is told, at most."""
_MOST: Final = 1_000_000
"""Numbers of all ways together, about."""
LEVELS: Final = 4095
"""To so many of the most of a part payloads are rounded."""
_DRAWN: Final = 64
"""Devices of a topology of which all links are told; of a larger one those that were used."""


def link_part(
    timeline: Timeline, inputs: ReplayInput, passes: FoldedPasses, windows: Int64Array | None = None
) -> dict[str, Any] | None:
    """Return what a page holds of links; None where it is not recorded what some pool's collectives carried.

    Parameters
    ----------
    timeline : Timeline
    inputs : ReplayInput
        What its replay was a function of.
    passes : FoldedPasses
        All of its passes.
    windows : int64 array of shape (windows, 2), optional
        Start and end in ns of what a page that can't hold all tells of: the payloads of other steps are left out.
    """
    ways, topology = Ways(), inputs.topology
    loads = [PoolLoad(pool, as_a_run(timeline, number), inputs.comm, ways) for number, pool in enumerate(inputs.pools)]
    if not all(load.known for load in loads):
        return None
    moved, sent = move_ways(timeline, inputs, ways), send_segments(timeline, inputs, ways)
    sizes: list[Segments] = []
    for load, pool in zip(loads, timeline.layout.pools, strict=True):
        sizes += pass_segments(load, timeline, passes, pool.first_replica)
    parts = max(1, min(PARTS, _MOST // max(1, len(ways.loads))))
    sizes += [(some[:, 0], some[:, 1], some[:, 2], some[:, 3]) for some, _ in sent]
    carried = payload_parts(sizes, len(ways.loads), parts, timeline.end_ns)
    del sizes
    links = _links(topology, ways)
    weak = {link: fault.name.removeprefix("link ") for fault in inputs.faults for link in fault.links}
    units = np.maximum(carried.max(axis=1, initial=0.0), 1e-9) / LEVELS
    rows = [
        _row_columns(load, pool.first_replica, _steps_in(passes, windows, pool.first_replica))
        for load, pool in zip(loads, timeline.layout.pools, strict=True)
    ]
    return {
        "links": links,
        "lanes": _lanes(links, weak),
        "kinds": _kinds(topology, links),
        "faults": [
            [list(fault.links), fault.at_ns, fault.until_ns, fault.share, fault.name]
            for fault in inputs.faults
            if fault.links
        ],
        "failing": [
            [[topology.devices[device] for device in fault.devices], fault.at_ns, fault.until_ns, _fault_words(fault)]
            for fault in inputs.faults
            if fault.devices
        ],
        "ways": [[links.tolist(), np.round(some, 9).tolist()] for links, some in ways.loads],
        "exchanges": _exchanges(loads, timeline, passes),
        "moves": moved,
        "parts": parts,
        "units": units.tolist(),
        "sections": {
            "payloads": packed(
                {f"{name} {number}": column for number, one in enumerate(rows) for name, column in one.items()}
            ),
            "carried": packed({"carried": np.rint(carried / units[:, None]).astype(np.int64).T}),
            "sent": packed(_sent_columns(sent)),
        },
    }  # fmt: skip


def _sent_columns(sent: Sequence[tuple[FloatArray, Mapping[str, Any]]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.concatenate([np.empty(0, np.int64), *(one[name] for _, one in sent)]) for name in ("way", "bytes")}


def _steps_in(passes: FoldedPasses, windows: Int64Array | None, first_replica: int) -> dict[int, Int64Array] | None:
    """Return the steps of each replica of a pool that runs in some windows have: [first, after the last]; None: all."""
    if windows is None:
        return None
    inside, found = np.flatnonzero(overlapping(passes.bounds[0], passes.bounds[1], windows)), {}
    for replica, places in RowsOf(passes.runs["replica"][inside] - first_replica):
        mine = inside[places]
        first = passes.runs["step"][mine]
        found[replica] = np.stack([first, first + passes.runs["steps"][mine]], axis=1)
    return found


def _row_columns(
    load: PoolLoad, first_replica: int, steps: Mapping[int, Int64Array] | None
) -> dict[str, npt.NDArray[Any]]:
    """Return payloads as columns: replica, first step, and each amount; of some steps alone where these are given."""
    parts = [np.empty((0, 2), np.int64)]
    values = []
    for replica, (first, some) in load.rows.items():
        chosen = np.arange(len(first))
        if steps is not None:
            after = np.append(first[1:], np.iinfo(np.int64).max)
            chosen = np.flatnonzero(overlapping(first, after, steps.get(replica, np.empty((0, 2), np.int64))))
        parts.append(np.stack([np.full(len(chosen), replica + first_replica), first[chosen]], axis=1))
        values.append(some[chosen])
    replicas, firsts = np.concatenate(parts).T
    columns = {"replica": replicas, "step": firsts}
    for amount in range(values[0].shape[1] if values else 0):
        columns[f"amount {amount}"] = np.concatenate([some[:, amount] for some in values]).astype(np.int64)
    return columns


def _exchanges(loads: Sequence[PoolLoad], timeline: Timeline, passes: FoldedPasses) -> list[list[Any]]:
    """Return [replica, program, [class, local ranks, payload's column, share, from how many bytes on which way] …]."""
    runs, found = passes.runs, []
    pairs = np.bincount(runs["replica"].astype(np.int64) * len(passes.programs) + runs["program"])
    for pair in np.flatnonzero(pairs).tolist():
        replica, place = divmod(pair, len(passes.programs))
        number = int(timeline.layout.of_replica(np.array([replica]))[0])
        mine = replica - timeline.layout.pools[number].first_replica
        some = (
            loads[number].exchanges(mine, timeline.templates[passes.programs[place]])
            if mine in loads[number].rows
            else []
        )
        told = [[one.cls, list(one.members), one.amount, one.share, one.breaks] for one in some if one.breaks]
        found.append([replica, place, number, told])
    return found


def _links(topology: Topology, ways: Ways) -> list[list[Any]]:
    """Return [number, tail, head, tier, bytes of capacity per second, whether anything may use it]."""
    used = {link for links, _ in ways.loads for link in links.tolist()}
    told = range(len(topology.link_ends)) if len(topology.devices) <= _DRAWN else sorted(used)
    return [
        [link, *topology.link_ends[link], topology.link_tier[link], float(topology.link_capacity[link]), link in used]
        for link in told
    ]


def _fault_words(fault: Fault) -> str:
    return f"{fault.name} " + ("down" if fault.slowdown is None else f"{fault.slowdown:g} × slower")


def node_of(vertex: str) -> str:
    """Return the node that a vertex is inside of, as its name says; nothing where it is inside none."""
    return vertex.split(".", maxsplit=1)[0] if "." in vertex else ""


def _lanes(links: Sequence[Sequence[Any]], weak: Mapping[int, str]) -> list[list[Any]]:
    """Return [name, links, bytes of capacity per second together]: links that are used, node by node, others last.

    Links that faults weaken have lanes of their own, since they would not stand out among those of their tier; ``weak``
    has their names.
    """
    found: dict[str, list[Any]] = {}
    nodes = dict.fromkeys(node for _, *ends, _, _, _ in links for node in map(node_of, ends) if node)
    order = {node: number for number, node in enumerate([*nodes, ""])}
    links = sorted(links, key=lambda link: order[node_of(link[1]) or node_of(link[2])])
    for number, tail, head, tier, capacity, used in links:
        if used:
            name = weak.get(number) or f"{node_of(tail) or node_of(head)} {tier}".strip()
            lane = found.setdefault(name, [name, [], 0.0])
            lane[1].append(number)
            lane[2] += capacity
    return list(found.values())


def _kinds(topology: Topology, links: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Return the kinds of the ends of links, devices first."""
    ends = {end for _, tail, head, *_ in links for end in (tail, head)}
    return {name: kind for name, kind in zip(topology.vertices, topology.vertex_kinds, strict=True) if name in ends}
