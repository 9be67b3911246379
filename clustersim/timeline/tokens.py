"""When each request got its tokens, from prompt chunks and episodes: instants, counts, and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.column import Column, shelved
from clustersim.copies import in_turn
from clustersim.memory import let_go
from clustersim.timeline.parts import of_range, ranges_of
from clustersim.timeline.passes import within
from clustersim.timeline.rows_of import in_order
from clustersim.timeline.steps import Steps, steps_of
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

BoolArray = npt.NDArray[np.bool_]

NEVER: Final = -1
NOBODY: Final = np.iinfo(np.int64).max
"""From when tokens reach a client that gets none."""
KEPT_STEPS: Final = 1 << 17
"""Steps of tables whose events are kept: some MB."""
POOLED_STEPS: Final = 1 << 19
"""Steps whose gaps are pooled at a time: most are equal to some others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTimes:
    """Per request, int64 arrays of shape (requests,); −1 where there is no token.

    ``gaps`` are the times between consecutive tokens of a request, pooled, as (values, weights) in ns.
    """

    first_ns: Int64Array
    last_ns: Int64Array
    count: Int64Array
    gaps: tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """When sampled tokens reach clients, where that is not at once.

    Parameters
    ----------
    since_ns : int64 array of shape (requests,)
        What is sampled before reaches the client of a request at this instant; ``NOBODY``: none of its tokens do.
    discarded : int
        0, or 1: nobody gets the first one, which a prompt chunk sampled.
    """

    since_ns: Int64Array
    discarded: int = 0


class TokenEvents:
    """Events that gave tokens: a sampled chunk gave one, an episode one in every step of its slot.

    ``ends`` are the ends of the steps with decodes, slot by slot in order; ``rank`` says which of these each of all
    ``steps`` is (of one without decodes it says nothing); an episode is ``first`` … ``last`` of these. Every event has
    a request, the instants of its first and its last token and how many there were, and all are in order of (request,
    instant). ``only`` says by request whose events these are; without it, all. With a ``delivery`` they are those
    of clients.
    """

    def __init__(self, tables: Tables, only: BoolArray | None = None, delivery: Delivery | None = None) -> None:
        chunks, decodes = tables.chunks, tables.decodes
        if only is not None:
            chunks, decodes = (
                {name: values[only[table["request"]]] for name, values in table.items()} for table in (chunks, decodes)
            )
        steps = steps_of(tables)
        self.rank, self.ends = rank, _ = _by_slot(steps)
        first = rank[steps.at(decodes["replica"], decodes["first_step"])].astype(np.int64)
        last = rank[steps.at(decodes["replica"], decodes["last_step"])].astype(np.int64)
        sampled = np.flatnonzero(chunks["sampled"])
        once = steps.end_ns[steps.at(chunks["replica"][sampled], chunks["step"][sampled])]
        request = np.concatenate((chunks["request"][sampled], decodes["request"]))
        begin = np.concatenate((once, self.ends[first]))
        sequence = in_order(request, begin)
        self.request, self.begin = request[sequence], begin[sequence]
        self.end = np.concatenate((once, self.ends[last]))[sequence]
        self.first = np.concatenate((np.full(len(once), NEVER), first))[sequence]
        self.last = np.concatenate((np.full(len(once), NEVER), last))[sequence]
        self.count = self.last - self.first + 1
        if delivery is not None:
            self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        """Keep the tokens that clients get, from when on these have them."""
        since = delivery.since_ns[self.request]
        kept = since < NOBODY
        if delivery.discarded:
            opens = np.append(True, self.request[1:] != self.request[:-1])[: len(kept)]
            kept &= ~(opens & (self.first < 0))
        self.begin, self.end = np.maximum(self.begin, since), np.maximum(self.end, since)
        for name in ("request", "begin", "end", "first", "last", "count"):
            setattr(self, name, getattr(self, name)[kept])


def token_events(tables: Tables) -> TokenEvents:
    """Return the events of all requests; those of small tables are kept, and nobody may change them."""
    return _kept(tables) if int(tables.steps["count"].sum()) <= KEPT_STEPS else TokenEvents(tables)


@lru_cache(maxsize=1)
def _kept(tables: Tables) -> TokenEvents:
    return TokenEvents(tables)


def _by_slot(steps: Steps) -> tuple[Any, Int64Array]:
    """Order steps with decodes by replica, slot and step: return which one each step is, and the ends of all."""
    carried = steps.slot >= 0
    if steps.slot.max(initial=0) == 0:
        return np.cumsum(carried, dtype=np.int32) - 1, steps.end_ns[carried]
    positions = np.flatnonzero(carried)
    replica = np.searchsorted(steps.base, positions, side="right") - 1
    order = positions[in_order(replica, steps.slot[positions])]
    rank = np.zeros(len(carried), np.int32)
    rank[order] = np.arange(len(order))
    return rank, steps.end_ns[order]


def token_times(
    tables: Tables, num_requests: int, only: BoolArray | None = None, delivery: Delivery | None = None
) -> TokenTimes:
    """Compute token times of every request.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    num_requests : int
    only : bool array of shape (requests,), optional
        Which requests count; the others are as if they had no tokens. Without it, all do.
    delivery : Delivery, optional
        When tokens reach clients; without it, as they are sampled.
    """
    many, of, taken = len(ranges_of(tables)), Column("int32"), [Column("int64") for _ in range(3)]
    pools: list[tuple[Int64Array, Int64Array]] = []
    with in_turn(lambda number: _times_of(of_range(tables, number), only, delivery), many) as ranges:
        for requests, *columns, pool in ranges:
            of.append(requests.astype(np.int32, copy=False))
            for column, values in zip(taken, columns, strict=True):
                column.append(values)
            pools.append(pool)
            if sum(len(values) for values, _ in pools[1:]) > len(pools[0][0]):  # as many as before are new, and equal
                pools = [_all_pooled(pools)]
            if many > 1:
                let_go()
    times, rows = dict[str, Int64Array](), of.whole()
    for name, missing in (("first_ns", NEVER), ("last_ns", NEVER), ("count", 0)):
        found = np.full(num_requests, missing, np.int64)
        found[rows] = taken.pop(0).whole()
        times |= shelved({name: found})
    return TokenTimes(**times, gaps=_all_pooled(pools))


def _times_of(
    tables: Tables, only: BoolArray | None, delivery: Delivery | None
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array, tuple[Int64Array, Int64Array]]:
    """Return requests of a range of replicas, when they got their first and last tokens, how many, and the gaps."""
    plain = only is None and delivery is None
    events = token_events(tables) if plain else TokenEvents(tables, only, delivery)
    follows = events.request[1:] == events.request[:-1]
    opens = np.flatnonzero(np.concatenate(([True], ~follows))) if len(events.request) else np.empty(0, np.int64)
    last = np.append(opens[1:], len(events.request))[: len(opens)] - 1
    count = np.add.reduceat(events.count, opens) if len(opens) else opens
    between = (events.begin[1:] - events.end[:-1])[follows]
    pool = _all_pooled([*_gaps_inside(events), _pooled(between, np.ones(len(between), np.int64))])
    return events.request[opens], events.begin[opens], events.end[last], count, pool


def _gaps_inside(events: TokenEvents) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield pools of the gaps between steps of a slot, each as often as episodes go on from one to the next."""
    inside = events.first >= 0  # change: of the number of these episodes
    change = np.bincount(events.first[inside], minlength=len(events.ends)).astype(np.int32)
    change -= np.bincount(events.last[inside], minlength=len(events.ends)).astype(np.int32)
    going = 0
    for first in range(0, len(change) - 1, POOLED_STEPS):
        gaps = np.diff(events.ends[first : first + POOLED_STEPS + 1])
        weights = going + np.cumsum(change[first : first + len(gaps)], dtype=np.int64)
        going = int(weights[-1])
        some = np.flatnonzero(weights)
        yield _pooled(gaps[some], weights[some])


def _all_pooled(pools: list[tuple[Int64Array, Int64Array]]) -> tuple[Int64Array, Int64Array]:
    """Return several pools as one: a stable sort merges what ascends already, five times as fast."""
    if len(pools) == 1:
        return pools[0]
    values, weights = (np.concatenate(columns) for columns in zip(*pools, strict=True))
    return _pooled(values, weights, "stable")


def _pooled(
    values: Int64Array, weights: Int64Array, kind: Literal["stable"] | None = None
) -> tuple[Int64Array, Int64Array]:
    """Return distinct values, ascending, and the sum of the weights of each."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(values, kind=kind)
    values, weights = values[order], weights[order]
    firsts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    return values[firsts], np.add.reduceat(weights, firsts, dtype=np.int64)


def tokens_by_bucket(
    tables: Tables, only: BoolArray, start_ns: int, bucket_ns: int, delivery: Delivery | None = None
) -> Int64Array:
    """Count tokens by the span of time in which clients got them, of ``bucket_ns`` each from ``start_ns`` on.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    only : bool array of shape (requests,)
        Whose tokens are counted; none may be before ``start_ns``.
    start_ns, bucket_ns : int
    delivery : Delivery, optional

    Returns
    -------
    int64 array
        Up to the last span with a token.
    """
    events = TokenEvents(tables, only, delivery)
    inside = events.first >= 0
    change = np.zeros(len(events.ends) + 1, np.int64)  # of the number of episodes that go on
    np.add.at(change, events.first[inside], 1)
    np.add.at(change, events.last[inside] + 1, -1)
    instants = np.concatenate((events.ends, events.begin[~inside]))
    made = np.concatenate((np.cumsum(change)[:-1], np.ones(len(instants) - len(events.ends), np.int64)))
    some = np.flatnonzero(made)
    bucket = (instants[some] - start_ns) // bucket_ns
    counts = np.zeros(int(bucket.max(initial=-1)) + 1, np.int64)
    np.add.at(counts, bucket, made[some])
    return counts


class TokenInstants:
    """All instants at which requests got a token, looked up request by request.

    Parameters
    ----------
    tables : Tables
        Of a timeline.
    delivery : Delivery, optional
    """

    def __init__(self, tables: Tables, delivery: Delivery | None = None) -> None:
        self._events = TokenEvents(tables, delivery=delivery)

    def of(self, requests: Sequence[int]) -> list[Int64Array]:
        """Return the instants of each of the given requests, in the order given; each array ascends."""
        events = self._events
        wanted = np.array(requests, np.int64)
        low, high = (np.searchsorted(events.request, wanted, side=side) for side in ("left", "right"))
        found = []
        for start, stop in zip(low.tolist(), high.tolist(), strict=True):
            counts = events.count[start:stop]
            steps = np.repeat(events.first[start:stop], counts) + within(counts)
            once = steps < 0
            instants = np.repeat(events.begin[start:stop], counts)
            instants[~once] = events.ends[steps[~once]]
            found.append(instants)
        return found
