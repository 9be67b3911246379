"""What each algorithm of a collective sends to whom, and which sends wait for each other: bytes per payload byte."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from clustersim.cluster.topology import Topology

Pairs = Iterable[tuple[int, int]]


@dataclass(slots=True, kw_only=True)
class Sent:
    """What is sent: bytes by (source, target), on links of a switch that reduces, steps in a row, peers, own bytes."""

    bytes: dict[tuple[int, int], float] = field(default_factory=dict)
    steps: list[tuple[int, list[tuple[int, int]]]] = field(default_factory=list)
    at_switch: list[tuple[int, float]] = field(default_factory=list)
    peers: int = 0
    own: float = 0.0

    def send(self, pairs: Pairs, share: float) -> None:
        """Let each pair send so many bytes more."""
        for pair in pairs:
            self.bytes[pair] = self.bytes.get(pair, 0.0) + share

    def add(self, other: Sent, share: float = 1.0) -> None:
        """Let a part be sent as another algorithm does, beside all else; its steps are not counted."""
        for pair, much in other.bytes.items():
            self.send([pair], much * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """Devices of a collective: as ranked, and by scale-up domain, each sorted."""

    topology: Topology
    given: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]

    @property
    def all(self) -> tuple[int, ...]:
        """All members, domain by domain."""
        return tuple(one for domain in self.domains for one in domain)

    @property
    def even(self) -> bool:
        """Whether all domains have as many members."""
        return len(set(map(len, self.domains))) == 1

    @property
    def rails(self) -> list[tuple[int, ...]]:
        """The i-th members of all domains."""
        return list(zip(*self.domains, strict=True))

    def linked(self, source: int, target: int) -> bool:
        """Whether one link leads from one device to another."""
        return len(self.topology.route(source, target)) == 1

    def of(self, devices: Sequence[int]) -> Members:
        """Return some devices as a group of their own."""
        return members_of(self.topology, tuple(devices))


def members_of(topology: Topology, devices: tuple[int, ...]) -> Members:
    """Return a group, cut into scale-up domains."""
    by_domain: dict[int, list[int]] = {}
    for device in sorted(devices):
        by_domain.setdefault(int(topology.node_of[device]), []).append(device)
    domains = tuple(tuple(by_domain[node]) for node in sorted(by_domain))
    return Members(topology=topology, given=devices, domains=domains)


def closed(order: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pairs of neighbours of a ring."""
    return [(order[i - 1], order[i]) for i in (*range(1, len(order)), 0)]


def everybody(devices: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs."""
    return [(a, b) for a in devices for b in devices if a != b]


def ring(group: Members, laps: int) -> Sent:
    """Rings that share the payload: one per rail, per set of links, or one."""
    orders, count = _orders(group), len(group.all)
    sent = Sent(own=1.0 / count if laps == 1 else 0.0)
    for order in orders:
        sent.send(closed(order), laps * (count - 1) / (count * len(orders)))
    hops = closed(orders[0])
    node_of = group.topology.node_of
    near = [pair for pair in hops if node_of[pair[0]] == node_of[pair[1]]]
    hops.remove(near[0] if near else hops[0])
    sent.steps = [(laps, [pair]) for pair in hops]
    return sent


def _orders(group: Members) -> list[list[int]]:
    if len(group.domains) > 1:
        if not group.even:
            return [list(group.all)]
        orders: list[list[int]] = [[] for _ in group.domains[0]]
        for number, domain in enumerate(group.domains):
            for rail, order in enumerate(orders):
                turned = list(domain[rail:] + domain[:rail])
                order += turned if number % 2 == 0 else turned[::-1]
        return orders
    line, count = group.all, len(group.all)
    found = []
    for stride in range(1, count):
        if math.gcd(stride, count) == 1:
            strided = [line[i * stride % count] for i in range(count)]
            if sum(not group.linked(*pair) for pair in closed(strided)) <= 1:
                found.append(strided)
    return found or [list(line)]


def tree(group: Members) -> Sent:
    """Two binary trees over the domains, chains inside each, up and down, one pair of trees per rail."""
    sent, count = Sent(), len(group.domains)
    rails = min(map(len, group.domains)) if group.even else 1
    parents = _trees(count)
    for rail in range(rails):
        heads = [domain[rail] for domain in group.domains]
        for domain in group.domains:
            chain = list(pairwise(domain[rail:] + domain[:rail]))
            sent.send([*chain, *((b, a) for a, b in chain)], 1.0 / rails)
        for up in parents:
            edges = [(heads[child], heads[parent]) for child, parent in up.items()]
            sent.send([*edges, *((b, a) for a, b in edges)], 0.5 / rails)
    longest = max(group.domains, key=len)
    sent.steps = [(2, [(b, a)]) for a, b in pairwise(longest)]
    heads = [domain[0] for domain in group.domains]
    paths = [max((_path(up, child) for child in range(count)), key=len) for up in parents]
    sent.steps += [(2, [(heads[a], heads[b])]) for a, b in max(paths, key=len)]
    return sent


def _trees(count: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return child → parent of two trees in which every member but one or two is a leaf once."""
    first = {}
    for child in range(1, count):
        bit = child & -child
        right = (child ^ bit) | bit << 1
        first[child] = right if right < count else child ^ bit
    if count % 2:
        second = {(child + 1) % count: (up + 1) % count for child, up in first.items()}
    else:
        second = {count - 1 - child: count - 1 - up for child, up in first.items()}
    return first, second


def _path(up: dict[int, int], child: int) -> list[tuple[int, int]]:
    found = []
    while child in up:
        found.append((child, up[child]))
        child = up[child]
    return found


def halving(group: Members, laps: int) -> Sent:
    """Half of the payload to the neighbour, a quarter to the one two ranks away, and so on."""
    order, sent = group.all, Sent(own=1.0 / len(group.all) if laps == 1 else 0.0)
    distance = 1
    while distance < len(order):
        pairs = [(one, order[rank ^ distance]) for rank, one in enumerate(order)]
        sent.send(pairs, laps * 0.5 / distance)
        sent.steps.append((laps, pairs))
        distance *= 2
    return sent


def direct(group: Members, share: float) -> Sent:
    """All pairs at once."""
    pairs = everybody(group.all)
    sent = Sent(steps=[(1, pairs)], peers=len(group.all) - 1, own=share if share < 1.0 else 0.0)
    sent.send(pairs, share)
    return sent


def two_shot(group: Members) -> Sent:
    """A direct reduce-scatter, then a direct all-gather."""
    sent = direct(group, 2.0 / len(group.all))
    sent.steps, sent.own = sent.steps * 2, 0.0
    return sent


def pair_after_pair(group: Members) -> Sent:
    """In step k every rank sends to the one k places on."""
    order, count = group.all, len(group.all)
    sent = Sent(own=1.0 / count)
    for k in range(1, count):
        pairs = [(order[i], order[(i + k) % count]) for i in range(count)]
        sent.send(pairs, 1.0 / count)
        sent.steps.append((1, pairs))
    return sent


def two_level(group: Members, laps: int) -> Sent:
    """Rings inside the domains, and rings on the rails over what each member owns."""
    rails = [ring(group.of(rail), laps) for rail in group.rails]
    inside = [ring(group.of(domain), laps) for domain in group.domains]
    sent = Sent(steps=rails[0].steps + inside[0].steps, own=1.0 / len(group.all) if laps == 1 else 0.0)
    for one in rails:
        sent.add(one, 1.0 / len(rails))
    for one in inside:
        sent.add(one)
    return sent


def two_level_all_to_all(group: Members) -> Sent:
    """Over the own rail to the domain of the target, and inside it to the target."""
    domains, count = len(group.domains), len(group.all)
    rails = [direct(group.of(rail), 1.0 / domains) for rail in group.rails]
    inside = [direct(group.of(domain), domains / count) for domain in group.domains]
    sent = Sent(steps=rails[0].steps + inside[0].steps, peers=max(rails[0].peers, inside[0].peers), own=1.0 / count)
    for one in (*rails, *inside):
        sent.add(one)
    return sent


def in_switch(group: Members, up: float, down: float) -> Sent:
    """Every member writes ``up`` to the switch and reads ``down`` from it."""
    sent, order = Sent(), group.all
    for one in order:
        other = order[1] if one == order[0] else order[0]
        route, back = group.topology.route(one, other), group.topology.route(other, one)
        sent.at_switch += [(route[0], up), (back[-1], down)]
    sent.steps = [(2, [(order[0], order[1])])]
    return sent


def box(group: Members) -> tuple[int, ...] | None:
    """Return the lengths of the axes of the box of a torus that a group fills, fastest first; None: it does not."""
    order, count = group.all, len(group.all)
    twos = [(x, count // x) for x in range(2, count // 2 + 1) if count % x == 0]
    threes = [(x, y, rest // y) for x, rest in twos for y in range(2, rest // 2 + 1) if rest % y == 0]
    for shape in (*threes, *twos):
        strides = [math.prod(shape[:axis]) for axis in range(len(shape))]
        if all(
            group.linked(one, order[at + stride])
            for stride, length in zip(strides, shape, strict=True)
            for at, one in enumerate(order)
            if at // stride % length < length - 1
        ):
            return shape
    return None


def bucket(group: Members, laps: int) -> Sent:
    """Rings along one axis after the other; one part of the payload begins with each axis."""
    shape, order = box(group), group.all
    assert shape is not None
    sent = Sent(own=1.0 / len(order) if laps == 1 else 0.0)
    lines: list[list[Sent]] = []
    for axis, length in enumerate(shape):
        stride = math.prod(shape[:axis])
        firsts = [at for at in range(len(order)) if at // stride % length == 0]
        lines.append([ring(group.of([order[at + i * stride] for i in range(length)]), laps) for at in firsts])
        sent.steps += lines[-1][0].steps
    for begin in range(len(shape)):
        share = 1.0 / len(shape)
        for axis in [(begin + turn) % len(shape) for turn in range(len(shape))]:
            for line in lines[axis]:
                sent.add(line, share)
            share /= shape[axis]
    return sent


def to_first(group: Members) -> Sent:
    """Every rank sends its part to the first one."""
    root, *others = group.given
    pairs = [(one, root) for one in others]
    sent = Sent(steps=[(1, pairs)], peers=len(pairs))
    sent.send(pairs, 1.0 / len(group.given))
    return sent


def onwards(group: Members) -> Sent:
    """Every rank sends to the next one."""
    pairs = closed(group.given)
    sent = Sent(steps=[(1, pairs)])
    sent.send(pairs, 1.0)
    return sent


def _one_domain(group: Members) -> bool:
    return len(group.domains) == 1


def _tiers(group: Members) -> set[str]:
    first, topology = group.all[0], group.topology
    return {topology.link_tier[link] for one in group.all[1:] for link in topology.route(first, one)}


def _reads(group: Members) -> bool:
    """Custom all-reduces read each other's memory: inside one domain, and on PCIe only of two devices."""
    tiers = _tiers(group)
    return _one_domain(group) and "ici" not in tiers and (len(group.all) == 2 or "pcie" not in tiers)


def _has_rails(group: Members) -> bool:
    return group.even and len(group.domains) > 1 and len(group.domains[0]) > 1


def _has_switch(group: Members) -> bool:
    topology, first = group.topology, group.all[0]
    routes = [topology.route(first, one) for one in group.all[1:]]
    return (
        topology.in_switch_reduction and _one_domain(group) and all(len(route) == 2 for route in routes)
        and len({route[0] for route in routes}) == 1
    )  # fmt: skip


def _has_box(group: Members) -> bool:
    return _one_domain(group) and _tiers(group) == {"ici"} and box(group) is not None


def _always(group: Members) -> bool:
    return True


def _by_name(group: Members) -> bool:
    return False


Way = tuple[str, Callable[[Members], Sent], Callable[[Members], bool]]
"""Family of its constants; what is sent; whether it is chosen among where no algorithm is named."""


def _reducing(laps: int, up: Callable[[int], float], down: Callable[[int], float]) -> dict[str, Way]:
    return {
        "ring": ("ring", lambda group: ring(group, laps), _always),
        "in_switch": (
            "in_switch", lambda group: in_switch(group, up(len(group.all)), down(len(group.all))), _has_switch
        ),
        "hierarchical": ("ring", lambda group: two_level(group, laps), _has_rails),
        "torus": ("ring", lambda group: bucket(group, laps), _has_box),
        "halving_doubling": ("ring", lambda group: halving(group, laps), _by_name),
    }  # fmt: skip


def _whole(count: int) -> float:
    return 1.0


def _part(count: int) -> float:
    return 1.0 / count


def _more(count: int) -> float:
    return 1.0 + 1.0 / count


_SHARED: Final[Way] = ("direct", lambda group: direct(group, 1.0 / len(group.all)), _by_name)
WAYS: Final[dict[str, dict[str, Way]]] = {
    "all_reduce": {
        "one_shot": ("one_shot", lambda group: direct(group, 1.0), _reads),
        "two_shot": ("two_shot", two_shot, _reads),
        "tree": ("tree", tree, lambda group: not _one_domain(group)),
        **_reducing(2, _more, _more),
    },
    "all_gather": {**_reducing(1, _part, _whole), "direct": _SHARED},
    "reduce_scatter": {**_reducing(1, _whole, _part), "direct": _SHARED},
    "all_to_all": {
        "direct": ("direct", lambda group: direct(group, 1.0 / len(group.all)), _always),
        "hierarchical": ("direct", two_level_all_to_all, _has_rails),
        "pairwise": ("send", pair_after_pair, _by_name),
    },
    "gather": {"direct": ("direct", to_first, _always)},
    "ring_shift": {"direct": ("send", onwards, _always)},
}
"""Kind of collective → its algorithms."""
