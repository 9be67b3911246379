"""What the core knows of K/V between two pools: between which ranks it moves, what that takes, and over which links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from clustersim.clock import Int64Array, to_ns_array
from clustersim.compiled import Storage, field_of, set_field
from clustersim.core.flows import Path, Place
from clustersim.core.hand_overs import MOVE_OF_KV, HandOverLists, HandOvers, KvRoute, KvShard
from clustersim.core.kv_moves import NONE, Move, Receiver, Sender, Streams
from clustersim.core.passes import Network
from clustersim.replay.links.paths import Places, make_flows, place_on_links, places_of
from clustersim.replay.prepared import Prepared, PreparedPool
from clustersim.timeline.tables import ALL_LAYERS, MOVE_COLUMNS

FEW: int = 1 << 6
"""Requests for whose moves there is room at first."""


class KvRoutes:
    """All ways between replicas of two pools.

    Parameters
    ----------
    prepared : Prepared
    storage : Storage
    """

    def __init__(self, prepared: Prepared, storage: Storage) -> None:
        inputs = prepared.input
        self.prepared, self.storage, self.shards = prepared, storage, inputs.shards
        self.prefill, self.decode = prepared.pools
        self.layers = 1 + max((layer for shard in self.shards for layer in shard.layers), default=-1)
        self.sources = list(dict.fromkeys(shard.source for shard in self.shards))
        self.targets = list(dict.fromkeys(shard.target for shard in self.shards))
        self.owners = self.prefill.input.owners, self.decode.input.owners
        self.from_ranks, self.devices = _ends(self.prefill, self.sources)
        self.to_ranks, self.to_devices = _ends(self.decode, self.targets)
        self.of_shards = np.array(
            [(self.sources.index(one.source), self.targets.index(one.target)) for one in self.shards], np.int64
        ).reshape(-1, 2)
        self.token_bytes = np.full((len(self.shards), self.layers + 1), np.nan)
        self.heads = np.full((len(self.shards), self.layers + 1, 2), -1, np.int64)
        for number, shard in enumerate(self.shards):
            self.token_bytes[number, 0] = shard.token_bytes
            self.heads[number, 0] = shard.head_range(ALL_LAYERS)
            for layer, size in zip(shard.layers, shard.layer_bytes, strict=True):
                self.token_bytes[number, 1 + layer] = size
                self.heads[number, 1 + layer] = shard.head_range(layer)
        self.by_layer = inputs.entry.serving.transfer == "layerwise"
        self.most = len(self.shards) + self.by_layer * sum(len(shard.layers) for shard in self.shards)

    @property
    def senders(self) -> int:
        """How many ranks send."""
        return len(self.from_ranks)

    def lists(
        self, n: Network, longest: int, layers: list[int], *, by_events: bool = False
    ) -> tuple[Network, HandOverLists]:
        """Return the network with paths of moves, and the lists of hand-overs.

        Parameters
        ----------
        n : Network
            What shares links besides.
        longest : int
            The most tokens of any sequence.
        layers : list of int
            In the order in which a step passes them; none where nobody waits for them.
        by_events : bool
            Whether moves run by events.
        """
        storage, shards, inputs = self.storage, len(self.shards), self.prepared.input
        moves = FEW * self.most
        found: dict[str, Any] = {
            "hand_overs": storage.records(HandOvers, 1), "layers": storage.column(np.array(layers, np.int64)),
            "layer_times": storage.table(len(self.prefill.replicas), self.prefill.input.plan.pp * len(layers)),
            "shards": storage.records(KvShard, shards), "streams": storage.records(Streams, 1),
            "senders": storage.records(Sender, self.senders), "moves": storage.records(Move, moves),
            "receivers": storage.records(Receiver, len(self.to_ranks)),
        }  # fmt: skip
        for name, side in (("source", 0), ("target", 1)):
            for number in range(shards):
                set_field(found["shards"], number, name, int(self.of_shards[number, side]))
        for name, fields in (("senders", ("first", "last", "behind")), ("receivers", ("first",))):
            for at in range(len(found[name])):
                for field in fields:
                    set_field(found[name], at, field, NONE)
        sizes, kinds = np.unique(self.token_bytes, return_inverse=True)
        values = {
            "prefill": len(self.prefill.replicas), "sources": len(self.sources) * self.owners[0],
            "targets": len(self.targets) * self.owners[1], "of_source": self.owners[0], "of_target": self.owners[1],
            "shards": shards, "layers": self.layers, "most": self.most, "sizes": len(sizes), "first_path": len(n.paths),
            "by_events": int(by_events),
        }  # fmt: skip
        for name, value in values.items():
            set_field(found["hand_overs"], 0, name, value)
        kinds = np.where(np.isnan(self.token_bytes).ravel(), -1, kinds.ravel())
        found["sizes"] = storage.column(kinds.astype(np.int64))
        ways, numbers, plans = self._ways()
        n, found["routes"] = self._paths(n, ways)
        tokens = np.arange(longest + 1, dtype=np.float64)
        rows = len(numbers) * len(sizes)
        found["moves_ns"], found["links_ns"] = (storage.table(rows, longest + 1) for _ in range(2))
        for kind, (number, plan) in enumerate(zip(numbers, plans, strict=True)):
            for size, each in enumerate(np.nan_to_num(sizes)):
                took = to_ns_array(inputs.comm.each_seconds(number, each * tokens))
                on_links = np.zeros_like(took)
                if plan is not None:
                    on_links = np.minimum(took, to_ns_array(each * tokens * plan.seconds_per_byte))
                at = kind * len(sizes) + size
                found["moves_ns"][at][:], found["links_ns"][at][:] = took.tolist(), on_links.tolist()
        add_moves(found["streams"], found["moves"], 0)
        return n, HandOverLists(moved=storage.log(0), **found)

    def _ways(self) -> tuple[list[tuple[int, int, Places]], list[int], list[Any]]:
        """Return who sends, the kind of costs and the places of each way; the number and the plan of each kind."""
        comm, alone = self.prepared.input.comm, self.prepared.contention.alone
        capacity = self.prepared.input.topology.link_capacity
        kinds: dict[int, int] = {}
        plans, known, ways = [], {}, []
        for source in range(len(self.prefill.replicas)):
            for target in range(len(self.decode.replicas)):
                for sender, receiver in self._pairs(source, target):
                    pair = self.devices[sender], self.to_devices[receiver]
                    if pair not in known:
                        number = comm.number("send", pair)
                        plan = next(iter(comm.plans("send", pair)), None)
                        if number not in kinds:
                            kinds[number] = len(kinds)
                            plans.append(plan)
                        places: Places = ((), ()) if plan is None or pair in alone else places_of([plan], capacity)
                        known[pair] = kinds[number], places
                    ways.append((sender, *known[pair]))
        return ways, list(kinds), plans

    def _pairs(self, source: int, target: int) -> Iterator[tuple[int, int]]:
        """Yield which rank sends to which, by their places in the lists, of each shard and owners at both ends."""
        of_source, of_target = self.owners
        for here, there in self.of_shards.tolist():
            for sender in range(of_source):
                for receiver in range(of_target):
                    yield (
                        (source * len(self.sources) + here) * of_source + sender,
                        (target * len(self.targets) + there) * of_target + receiver,
                    )

    def _paths(self, n: Network, ways: list[tuple[int, int, Places]]) -> tuple[Network, Any]:
        """Return the network with a path for each rank that sends, and the ways, of which it takes one at a time."""
        storage = self.storage
        first_path, first = len(n.paths), len(n.places)
        found = storage.records(KvRoute, len(ways))
        paths = longer(n.paths, storage.records(Path, self.senders))
        places = longer(n.places, storage.records(Place, sum(len(of) for _, _, (of, _) in ways)))
        for f in range(first_path, len(paths)):
            set_field(paths, f, "owner", MOVE_OF_KV)
        for at, (sender, kind, of) in enumerate(ways):
            end = place_on_links(places, first_path + sender, first, of)
            for name, value in (("kind", kind), ("first", first), ("end", end)):
                set_field(found, at, name, value)
            first = end
        links = n.links
        if first > 0 and not len(links):  # lists grow in place
            links = make_flows(storage, len(self.prepared.input.topology.link_capacity), []).links
        return n._replace(paths=paths, places=places, links=links), found

    def record(self, rows: Int64Array) -> None:
        """Record moves as the core has logged them."""
        request, sender, receiver, shard, layer, first, tokens, start, end = rows.T
        source = sender // (len(self.sources) * self.owners[0])
        target = len(self.prefill.replicas) + receiver // (len(self.targets) * self.owners[1])
        found = (
            request, source, self.from_ranks[sender], target, self.to_ranks[receiver], layer,
            *self.heads[shard, 1 + layer].T, first, tokens,
            np.rint(self.token_bytes[shard, 1 + layer] * tokens).astype(np.int64), start, end,
        )  # fmt: skip
        self.prepared.recorder.moves.extend_columns(**dict(zip(MOVE_COLUMNS, found, strict=True)))


def _ends(pool: PreparedPool, places: list[tuple[int, int]]) -> tuple[Int64Array, list[int]]:
    """Return the global rank and the device of each owner of some places (stage, TP rank) of each replica of a pool."""
    owners = pool.input.owners
    found = [one for replica in pool.replicas for place in places for one in pool.ranks_of(replica, *place)[:owners]]
    return np.array([rank for rank, _ in found], np.int64), [device for _, device in found]


def add_moves(streams: Any, moves: Any, before: int) -> None:
    """Let the moves from one on be spare."""
    spares = int(field_of(streams, 0, "spares"))
    spare = int(field_of(streams, 0, "spare")) if spares else NONE
    for m in range(len(moves) - 1, before - 1, -1):
        set_field(moves, m, "behind", spare)
        spare = m
    set_field(streams, 0, "spare", spare)
    set_field(streams, 0, "spares", spares + len(moves) - before)


def no_pools(storage: Storage) -> HandOverLists:
    """Return these lists where requests stay in one pool."""
    nothing = storage.column(np.zeros(0, np.int64))
    return HandOverLists(
        hand_overs=storage.records(HandOvers, 1),
        layers=nothing,
        layer_times=storage.table(0, 0),
        shards=storage.records(KvShard, 0),
        routes=storage.records(KvRoute, 0),
        sizes=nothing,
        moves_ns=storage.table(0, 0),
        links_ns=storage.table(0, 0),
        streams=storage.records(Streams, 1),
        senders=storage.records(Sender, 0),
        receivers=storage.records(Receiver, 0),
        moves=storage.records(Move, 0),
        moved=storage.log(0),
    )


def longer(before: Any, more: Any) -> Any:
    """Return a list with as much behind it."""
    if isinstance(before, np.ndarray):
        return np.concatenate([before, more])
    before.extend(more)
    return before
