"""What the communications of a step put on links, remembered by what their payloads depend on."""

from __future__ import annotations

from typing import Final

from clustersim.clock import to_ns
from clustersim.collective.communications import CommTable
from clustersim.graph.batch import Features
from clustersim.graph.prices.counts import count_features
from clustersim.graph.prices.pricer import Pricer, payload_bytes
from clustersim.graph.program import StageProgram
from clustersim.replay.links.sharing_by_lanes import Use
from clustersim.replay.links.within_replica import PAYLOAD_COUNTS

MOST_USES: Final = 10_000
"""Communications that are remembered; they are cheap to make again."""

Counts = tuple[int, int, int, int]
"""Tokens, sequences with a token sampled or chunk, prefill tokens and decodes of a step: what payloads depend on."""


def payload_features(pricer: Pricer, counts: Counts) -> Features:
    """Return those features of a step that its payloads depend on."""
    features = count_features((*counts, 0, 0, 0), range(PAYLOAD_COUNTS))
    _, _, prefills, decodes = counts
    return features if prefills else pricer.padded(features, (decodes,))


class Uses:
    """What the communications of one program put on links.

    Parameters
    ----------
    program : StageProgram
    pricer : Pricer
    comm : CommTable
    devices : tuple of int
        Of the stage.
    after : tuple of int
        Of the next stage; empty on the last one.
    """

    def __init__(
        self,
        program: StageProgram,
        pricer: Pricer,
        comm: CommTable,
        devices: tuple[int, ...],
        after: tuple[int, ...],
    ) -> None:
        self.program = program
        self.pricer = pricer
        self.comm = comm
        self.devices = devices
        self.after = after
        self.known: dict[tuple[int, Counts], Use | None] = {}

    def of(self, cls: int, counts: Counts, duration_ns: int) -> Use | None:
        """Return what a class of communication puts on links; None when nothing, or for no time."""
        key = (cls, counts)
        if key not in self.known:
            if len(self.known) >= MOST_USES:
                self.known.clear()
            self.known[key] = self._made(cls, counts, duration_ns)
        return self.known[key]

    def _made(self, cls: int, counts: Counts, duration_ns: int) -> Use | None:
        payload = payload_bytes(self.program, payload_features(self.pricer, counts), cls)
        op = self.program.classes[cls].node.communication
        groups = zip(self.devices, self.after, strict=True) if op == "send" else (self.devices,)
        plans = [self.comm.chosen(op, tuple(group), payload) for group in groups]
        if plans[0] is None:
            return None
        transfer_ns = min(duration_ns, to_ns(payload * plans[0].seconds_per_byte))
        if transfer_ns == 0:
            return None
        loads = tuple([(plan.links, plan.load_per_byte * payload) for plan in plans if plan is not None])
        links = frozenset(link for of, _ in loads for link in of.tolist())
        return Use(transfer_ns=transfer_ns, links=links, loads=loads)
