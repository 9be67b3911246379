"""Where a collective is run: which links it loads, with how many bytes, and for how long when nothing shares them.

A pass starts it as one operator, when all that any of its ranks waits for has ended (``events.stage_pass``), and it
ends on all ranks at once, when the network says so. Links that a fault made weak carry less here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clustersim.clock import to_ns
from clustersim.collective.communications import CommTable
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.replay.events.wiring import MicroBatch, StageWiring
from clustersim.replay.links.sharing_by_events import Network, Owner


class Collectives:
    """Runs the collectives of one replica.

    Parameters
    ----------
    network, comm : Network, CommTable
    replica : int
    stages : list of StageWiring
    owner : Owner
        What fails when the replica does.
    """

    def __init__(
        self, network: Network, comm: CommTable, replica: int, stages: list[StageWiring], owner: Owner
    ) -> None:
        self.network = network
        self.comm = comm
        self.replica = replica
        self.stages = stages
        self.owner = owner

    def uses(self, stage: int, micro: MicroBatch) -> Callable[[int, tuple[int, ...], int], tuple[frozenset[int], int]]:
        """Return what says on which links a class of collectives of a pass is, and for how long."""
        wiring = self.stages[stage]
        program = wiring.programs[micro.program]

        def use(cls: int, members: tuple[int, ...], ns: int) -> tuple[frozenset[int], int]:
            payload = payload_bytes(program, micro.features, cls)
            devices = tuple(wiring.devices[m] for m in members)
            plan = self.comm.chosen(program.classes[cls].node.communication, devices, payload)
            if plan is None:
                return frozenset(), 0
            return frozenset(plan.links.tolist()), min(ns, to_ns(payload * plan.seconds_per_byte))

        return use

    def of(self, stage: int, micro: MicroBatch) -> Callable[..., None]:
        """Return what starts a collective of a pass, as :data:`clustersim.replay.events.stage_pass.Communicate`."""
        wiring = self.stages[stage]
        program = wiring.programs[micro.program]

        def communicate(
            operator: int, cls: int, members: tuple[int, ...], ns: int, done: Any, started: int | None = None
        ) -> None:
            if self.owner.dead:
                return
            payload = payload_bytes(program, micro.features, cls)
            devices = tuple(wiring.devices[m] for m in members)
            plan = self.comm.chosen(program.classes[cls].node.communication, devices, payload)
            if stage in micro.slowdowns:
                plan, ns = micro.slowdowns[stage].communication(plan, payload, ns)
            self.network.begin(plan, payload, ns, done, operator, started, owner=self.owner)

        return communicate
