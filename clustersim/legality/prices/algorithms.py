"""What each algorithm of a collective sends to whom, and which sends wait for each other."""

from __future__ import annotations

import math
from itertools import pairwise

from clustersim.legality.prices.sent import Members, Sent, closed, everybody


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
