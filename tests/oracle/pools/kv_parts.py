"""The parts in which the K/V of a request moves: by shard as a whole, or layer by layer, between which ranks."""

from __future__ import annotations

from collections.abc import Iterator

from clustersim.plan.reshard import Shard
from clustersim.replay.prepared import Prepared
from clustersim.timeline.tables import ALL_LAYERS
from tests.oracle.pools.kv_moves import Move
from tests.oracle.pools.kv_transfers import KvTransfer

End = tuple[int, int, int]
"""Replica, global rank and device."""


class KvParts:
    """Those of all requests.

    Parameters
    ----------
    prepared : Prepared
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.shards = prepared.input.shards
        self.heads: dict[tuple[tuple[int, int], tuple[int, int], int], tuple[int, int]] = {}
        """Ends of a shard and layer → :meth:`Shard.head_range`."""
        self.ends: dict[tuple[int, int, int, int], End] = {}

    def count(self, transfer: KvTransfer) -> int:
        """Return how many moves there are of a request."""
        by_layer = transfer.start < transfer.sequence.computed
        layers = sum(len(shard.layers) for shard in self.shards) if by_layer else 0
        return (len(self.shards) if transfer.start > 0 else 0) + layers

    def before(self, transfer: KvTransfer) -> Iterator[Move]:
        """Yield the moves of what earlier chunks computed."""
        for shard in self.shards if transfer.start > 0 else ():
            yield self._move(transfer, shard, ALL_LAYERS, 0, transfer.start, shard.token_bytes)

    def of_layer(self, transfer: KvTransfer, layer: int) -> Iterator[Move]:
        """Yield the moves of what the last chunk adds to a layer."""
        tokens = transfer.sequence.computed - transfer.start
        for shard in self.shards:
            if layer in shard.layers:
                each = shard.layer_bytes[shard.layers.index(layer)]
                yield self._move(transfer, shard, layer, transfer.start, tokens, each)

    def _move(
        self, transfer: KvTransfer, shard: Shard, layer: int, first: int, tokens: int, token_bytes: float
    ) -> Move:
        key = shard.source, shard.target, layer
        if key not in self.heads:
            self.heads[key] = shard.head_range(layer)
        head, heads = self.heads[key]
        source, target = self.ends_of(transfer, shard)
        return Move(
            request=transfer.sequence.request, layer=layer, head=head, heads=heads, first=first, tokens=tokens,
            source=source, target=target, payload_bytes=token_bytes * tokens,
        )  # fmt: skip

    def ends_of(self, transfer: KvTransfer, shard: Shard) -> tuple[End, End]:
        """Return both ends of a shard of a transfer."""
        return (
            self._end(transfer.source, *shard.source, transfer.left.owner),
            self._end(transfer.target, *shard.target, transfer.sequence.owner),
        )

    def _end(self, replica: int, stage: int, t: int, owner: int) -> End:
        """Return replica, global rank and device of a TP rank of the SP coordinate that keeps a sequence."""
        key = replica, stage, t, owner
        if key not in self.ends:
            rank, device = self.prepared.pool_of(replica).ranks_of(replica, stage, t)[owner]
            self.ends[key] = replica, rank, device
        return self.ends[key]
