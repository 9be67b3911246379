"""Rates of activities that share links: the arithmetic alone, asked by ``sharing_by_events`` and ``sharing_by_lanes``.

An activity (a flow, or a whole collective) progresses at one rate ``r`` (1/s, as a fraction of the activity),
and then uses ``r × load`` bytes/s of each of its links. Every link offers what it has left to its open
activities in equal shares of bytes/s; an activity takes the least of its offers, measured in rate. The link
whose offers are most nearly all taken (headroom ``θ = unused / taken``, never below 1) is full first: its
activities get ``θ`` times what they took and are closed, and the offers are made again with what is left.

For plain flows (equal load on each link) a link with θ = 1 always exists: the one with the least share. So it
is the max-min fairness of Bertsekas & Gallager, Data Networks, 1992, § 6.5.2. For unequal loads it is the
bottleneck fairness of parallel tasks (Bonald & Roberts, Multi-resource fairness, SIGMETRICS 2015; SimGrid's
parallel tasks). It does not model packets, windows or start-up: an activity has its fair rate at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import NS_PER_S, FloatArray, Int64Array, whole_ns
from clustersim.errors import BrokenLawError

Load = tuple[Int64Array, FloatArray]
"""Link ids (each at most once) and the bytes (> 0) that the whole activity puts on each of them."""

_TIE = 1e-12  # relative difference below which two offers are the same offer


def solo_rate(load: Load, capacity: FloatArray) -> float:
    """Return the rate (1/s) of an activity that has its links to itself; infinite without load."""
    links, size = load
    if not len(links):
        return float("inf")
    _check(size)
    return float(1.0 / (size / capacity[links]).max())


def fair_rates(loads: Sequence[Load], capacity: FloatArray) -> FloatArray:
    """Share the links fairly among activities that run at the same time.

    Parameters
    ----------
    loads : sequence of (links, bytes)
        Per activity the ids of its links and the bytes that the whole activity puts on each of them, all > 0.
    capacity : array of float, shape (links,)
        Bytes per second of each link, by link id.

    Returns
    -------
    array of float, shape (activities,)
        Progress in 1/s. An activity alone gets exactly ``1 / max(bytes / capacity)``, one without load gets
        infinity. A permutation of the activities permutes the result and changes no bit of it.
    """
    if len(loads) == 1:
        return np.array([solo_rate(loads[0], capacity)])
    rates = np.full(len(loads), np.inf)
    # Sums of floats depend on their order, so the activities get an order that depends on themselves alone.
    keys = [(links.tobytes(), size.tobytes()) for links, size in loads]
    loaded = sorted((a for a in range(len(loads)) if len(loads[a][0])), key=keys.__getitem__)
    if loaded:
        rates[loaded] = _fill([loads[a] for a in loaded], capacity)
    return rates


def left(remaining: float, rate: float, transfer_ns: int, passed_ns: int) -> float:
    """Return the share of a flow that remains after some time.

    Parameters
    ----------
    remaining : float
        Of its bytes, before.
    rate : float
        Its share of links, per second; 0 where it is alone, and takes ``transfer_ns`` for all of it.
    transfer_ns, passed_ns : int
    """
    carried = passed_ns / transfer_ns if rate == 0.0 else rate * (passed_ns / NS_PER_S)
    return max(0.0, remaining - carried)


def needed_ns(remaining: float, rate: float, transfer_ns: int) -> int:
    """Return how long the rest of a flow takes; the parameters are those of :func:`left`."""
    return whole_ns(transfer_ns * remaining if rate == 0.0 else remaining / rate * NS_PER_S)


def _fill(loads: Sequence[Load], capacity: FloatArray) -> FloatArray:
    """Progressive filling in rounds; every round closes the activities of at least one link."""
    links = np.concatenate([links for links, _ in loads])
    size = np.concatenate([size for _, size in loads])
    _check(size)
    lengths = np.fromiter((len(links) for links, _ in loads), np.int64, len(loads))
    first = lengths.cumsum() - lengths
    owner = np.repeat(np.arange(len(loads)), lengths)
    used, link = _compact(links)
    total = capacity[used]
    unused = total.copy()
    rates = np.zeros(len(loads))
    is_open = np.ones(len(links), bool)
    open_activities = np.ones(len(loads), bool)
    while True:
        count = np.bincount(link, is_open, len(used))
        share = np.where(count > 0.0, unused, 1.0) / np.maximum(count, 1.0)
        seconds = np.where(is_open, size / share[link], 0.0)  # for the whole activity, at this link's offer
        slowest = np.maximum.reduceat(seconds, first)
        offer = slowest[owner]
        lacks = np.bincount(link, is_open & (seconds < offer * (1.0 - _TIE)), len(used))
        full = (count > 0.0) & (lacks == 0.0)
        headroom = 1.0
        if not full.any():
            taken = np.bincount(link[is_open], (size / np.where(is_open, offer, 1.0))[is_open], len(used))
            theta = np.where(count > 0.0, unused / np.where(taken > 0.0, taken, 1.0), np.inf)
            headroom = float(theta.min())
            full = theta <= headroom * (1.0 + _TIE)
        closing = open_activities & np.logical_or.reduceat(full[link], first)
        assert closing.any()
        rates[closing] = headroom / slowest[closing]
        open_activities &= ~closing
        if not open_activities.any():
            return rates
        is_open = open_activities[owner]
        closed_use = np.where(is_open, 0.0, size * rates[owner])
        unused = np.maximum(total - np.bincount(link, closed_use, len(used)), 0.0)


def _check(size: FloatArray) -> None:
    if not size.min() > 0.0:  # also when it is no number
        raise BrokenLawError(f"an activity loads a link with {size.min()} bytes; it takes more than 0")


def _compact(links: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the sorted distinct links, and each entry's position among them."""
    order = links.argsort(kind="stable")
    ranked = links[order]
    is_new = np.empty(len(links), bool)
    is_new[0] = True
    np.not_equal(ranked[1:], ranked[:-1], out=is_new[1:])
    position = np.empty(len(links), np.int64)
    position[order] = is_new.cumsum() - 1
    return ranked[is_new], position
