"""The step of a lane that meets K/V on its way on a link: from collective to collective, until it ends.

Before and after it a lane takes its steps as if there were no links: what may be on its links is K/V that is handed
over, always a flow in the network, and a collective that meets none takes what it costs. So nothing is asked of the
network before K/V gets on one of the links. Then the step that is under way goes on as a
:class:`~clustersim.replay.events.chain.ChainPass` from where it is; steps that begin while K/V is still there do so
from their start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clustersim.collective.communications import CommTable
from clustersim.graph.blueprint import STEP_KINDS
from clustersim.graph.prices.pricer import payload_bytes
from clustersim.graph.prices.steps import StepPrices
from clustersim.replay.events.chain import ChainPass, ChainShape, Communicate, chain_shape
from clustersim.replay.instant import now_ns
from clustersim.replay.lanes.layers import Layers
from clustersim.replay.lanes.stretched_lane import PresentStep, StretchedLane
from clustersim.replay.links.sharing_by_events import Network
from clustersim.replay.links.uses import payload_features

if TYPE_CHECKING:
    from simpy import Environment


class LinkWatch:
    """What is on the links of one lane, and the step of it that meets it.

    Parameters
    ----------
    env, network, comm : Environment, Network, CommTable
    replica : int
    lane : StretchedLane
    prices : StepPrices
        Of its only stage.
    devices : tuple of int
        Of its ranks.
    links : tuple of int
        Where K/V may appear.
    """

    def __init__(
        self,
        env: Environment,
        network: Network,
        comm: CommTable,
        replica: int,
        lane: StretchedLane,
        prices: StepPrices,
        devices: tuple[int, ...],
        links: tuple[int, ...],
    ) -> None:
        self.env = env
        self.network = network
        self.comm = comm
        self.replica = replica
        self.lane = lane
        self.prices = prices
        self.devices = devices
        self.shapes: dict[str, ChainShape] = {}
        self.chain: ChainPass | None = None
        self.dead = False
        self.on_change: Callable[[], None] = _nobody
        self.layers: Layers | None = None
        """Those of its step that somebody waits for."""
        self.foreign = network.watch(links, self)
        """Flows on the links, by link."""

    def listen(self, on_change: Callable[[], None]) -> None:
        """Let ``on_change`` be called when the end of the lane is another one."""
        self.on_change = on_change

    def disturb(self) -> None:
        """Take note of K/V that gets on a link now."""
        self.foreign += 1
        if self.chain is not None:
            self.chain.disturb()
        else:
            self.meet()

    def calm(self) -> None:
        """Take note of K/V that has left a link."""
        self.foreign -= 1
        if self.chain is not None:
            self.chain.calm()

    def meet(self) -> None:
        """Let the step that is under way go on as events, where something is on the links."""
        if not self.foreign or self.chain is not None:
            return
        now = now_ns(self.env)
        step = self.lane.take_apart(now)
        if step is not None:
            self.chain = self._pass_of(step)
            self.chain.go_on(step.start_ns, self.foreign)
        self.on_change()

    def _pass_of(self, step: PresentStep) -> ChainPass:
        kind = STEP_KINDS[step.kind]
        if kind not in self.shapes:
            self.shapes[kind] = chain_shape(self.prices.programs[kind])
        row, columns = self.prices.rows[kind][step.number]
        by_class = row.copy()
        by_class[list(columns)] = step.varying
        shape = self.shapes[kind]
        marks = [] if self.layers is None else self.layers.take()
        communicate = self._communicate(step, kind)
        return ChainPass(self.env, self.network, shape, by_class, (), communicate, self._ended, marks)

    def _communicate(self, step: PresentStep, kind: str) -> Communicate:
        program, features = self.prices.programs[kind], payload_features(self.prices.pricer, step.counts)

        def communicate(
            segment: int, cls: int, members: tuple[int, ...], ns: int, done: Callable[[Any], None], started: int
        ) -> None:
            payload = payload_bytes(program, features, cls)
            devices = tuple([self.devices[member] for member in members])
            plan = self.comm.chosen(program.classes[cls].node.communication, devices, payload)
            self.network.begin(plan, payload, ns, done, segment, started, owner=self)

        return communicate

    def _ended(self) -> None:
        chain, self.chain = self.chain, None
        assert chain is not None
        self.lane.come_back(now_ns(self.env), chain.lost())
        self.on_change()


def _nobody() -> None:
    return None
