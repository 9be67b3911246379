"""What compiled hand-overs are told of moves of K/V, and what is recorded of those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import Int64Array, to_ns_array
from clustersim.replay.compiled.pools import transfers as tr
from clustersim.replay.compiled.pools.prices import LinkPlans
from clustersim.replay.lanes.pipelines.link_stage import SharedStage
from clustersim.replay.prepared import Prepared
from clustersim.timeline.tables import ALL_LAYERS

LONGEST_S: Final = 9.2e9
"""About what int64 nanoseconds hold; what takes longer ends later than the kernel can tell, which says so."""


class PoolMoves:
    """Every move that a run can have: between which ranks, and of which part of the K/V of a token.

    Parameters
    ----------
    prepared : Prepared
    watched : mapping
        Replica → the links on which K/V may meet its collectives.
    plans : LinkPlans
    stage : SharedStage
        Of a replica that requests arrive at.

    Attributes
    ----------
    parts : list of (shard, layer)
        Whole shards, then single layers in the order in which steps pass them.
    senders, receivers : int
        Ranks that K/V leaves, and that it reaches.
    ends : int64 array of shape (pairs, 4)
        Replica and rank at both ends of each pair of ranks.
    sizes : float64 array of shape (parts,)
        Bytes of a token.
    """

    def __init__(
        self, prepared: Prepared, watched: Mapping[int, frozenset[int]], plans: LinkPlans, stage: SharedStage
    ) -> None:
        self.recorder, self.shards = prepared.recorder, prepared.input.shards
        order = [layer for _, layer in stage.uses[0].program.template.passes_layers]
        shards = range(len(self.shards))
        self.parts = [(shard, ALL_LAYERS) for shard in shards]
        self.parts += [(shard, layer) for layer in order for shard in shards if layer in self.shards[shard].layers]
        self.sizes = np.array([self._size(*part) for part in self.parts])
        source, target = prepared.pools
        each = [(one, sender, receiver) for one in shards for sender in source.replicas for receiver in target.replicas]
        ends, devices = [], []
        for shard, sender, receiver in each:
            (rank, device), *_ = source.ranks_of(sender, *self.shards[shard].source)
            (to_rank, to_device), *_ = target.ranks_of(receiver, *self.shards[shard].target)
            ends.append((sender, rank, receiver, to_rank))
            devices.append((device, to_device))
        self.ends = np.array(ends, np.int64)
        pair_of = np.arange(len(ends)).reshape(len(shards), len(source.replicas), len(target.replicas))
        shard_of = np.array([shard for shard, _ in self.parts], np.int64)
        pairs, alone, may_meet = self._pairs(prepared, devices, watched, plans)
        layer_parts = np.zeros((len(order), 1 + len(shards)), np.int64)
        for at, (_, layer) in enumerate(self.parts[len(shards) :], len(shards)):
            row = layer_parts[order.index(layer)]
            row[0] += 1
            row[row[0]] = at
        self.arrays = pairs, pair_of, shard_of, layer_parts, alone, may_meet, self.sizes, *self._prices(prepared)
        """What the kernel reads, in its order."""

    def _size(self, shard: int, layer: int) -> float:
        one = self.shards[shard]
        return one.token_bytes if layer == ALL_LAYERS else one.layer_bytes[one.layers.index(layer)]

    def _pairs(
        self,
        prepared: Prepared,
        devices: list[tuple[int, int]],
        watched: Mapping[int, frozenset[int]],
        plans: LinkPlans,
    ) -> tuple[Any, ...]:
        """Return ``transfers.PAIRS``; which meet nothing; and which lanes each may meet."""
        comm, kinds = prepared.input.comm, dict[int, int]()
        alone = np.array([pair in prepared.contention.alone for pair in devices])
        may_meet = np.zeros((len(devices), len(prepared.schedulers)), np.bool_)
        found = np.zeros((len(devices), len(tr.PAIRS)), np.int64)
        ranks = [np.unique(column, return_inverse=True) for column in (self.ends[:, 1], self.ends[:, 3])]
        self.senders, self.receivers = (len(distinct) for distinct, _ in ranks)
        found[:, tr.SENDER_OF], found[:, tr.RECEIVER_OF] = (places for _, places in ranks)
        for at, pair in enumerate(devices):
            found[at, tr.KIND_OF] = kinds.setdefault(comm.number("send", pair), len(kinds))
            if not alone[at]:
                (plan,) = comm.plans("send", pair)
                found[at, tr.PLAN_OF] = plans.number(plan)
                may_meet[at, prepared.meeting(watched, pair)] = True
        self.kinds = [(number, comm.plans("send", devices[[*found[:, tr.KIND_OF]].index(kind)])[0])
                      for number, kind in kinds.items()]  # fmt: skip
        return found, alone, may_meet

    def _prices(self, prepared: Prepared) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the row of each part and kind of pair; by row and tokens what moves take, and how long they use links.

        What a move takes depends on the kind of pair and its bytes alone.
        """
        comm, most = prepared.input.comm, int(prepared.input.requests.prompt_tokens.max(initial=0))
        sizes, of_part = np.unique(self.sizes, return_inverse=True)
        durations = np.zeros((len(self.kinds) * len(sizes), 1 + most), np.int64)
        on_links = np.zeros_like(durations)
        for kind, (number, plan) in enumerate(self.kinds):
            for at, size in enumerate(sizes.tolist(), kind * len(sizes)):
                payload = size * np.arange(1, 1 + most)
                durations[at, 1:] = _in_ns(comm.each_seconds(number, payload))
                on_links[at, 1:] = np.minimum(durations[at, 1:], _in_ns(payload * plan.seconds_per_byte))
        return of_part[:, None] + len(sizes) * np.arange(len(self.kinds)), durations, on_links

    def hands(self, entry: int, by_layer: bool, balanced: bool) -> Int64Array:
        """Return ``transfers.HANDS`` where nothing is on its way."""
        shards = len(self.shards)
        values = {
            "entry": entry, "shards": shards, "layers": len(self.parts) - shards, "by_layer": by_layer,
            "balanced": balanced, "parts": len(self.parts), "spare": -1,
        }  # fmt: skip
        return np.array([values.get(name, 0) for name in tr.HANDS], np.int64)

    def record(self, moved: Int64Array) -> None:
        """Hand the recorder moves that have ended (``transfers.MOVED``)."""
        request, part, pair, first, tokens, start, end = moved.T
        told = np.array([(layer, *self.shards[shard].head_range(layer)) for shard, layer in self.parts])
        carried = np.rint(self.sizes[part] * tokens).astype(np.int64)
        rows = [request, *self.ends[pair].T, *told[part].T, first, tokens, carried, start, end]
        self.recorder.moves.extend(np.stack(rows, axis=1))


def _in_ns(seconds: Any) -> Int64Array:
    return to_ns_array(np.minimum(seconds, LONGEST_S))
