"""What drives lanes whose sends may meet collectives: stages and boundaries, flows, and where passes lost time.

See :mod:`clustersim.replay.compiled.links`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clustersim.clock import Int64Array
from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled.link_prices import LinkPrices
from clustersim.replay.compiled.staged_lanes import StagedLanes
from clustersim.replay.lanes.intake import Intake
from clustersim.replay.lanes.pipelines.shared_lane import SharedLane
from clustersim.replay.links.sharing_by_lanes import Use


class LinkLanes(StagedLanes):
    """Lanes with stages that share links."""

    lanes: Sequence[SharedLane]
    prices: LinkPrices

    def __init__(
        self, intake: Intake, lanes: Sequence[SharedLane], prices: LinkPrices, first: int, stride: int
    ) -> None:
        super().__init__(intake, lanes, prices, first, stride)
        count, stages, kinds = len(lanes), self.stages, len(prices.kinds)
        pipe = np.zeros((count, stages, len(ln.FIELDS)), np.int64)
        meets = np.zeros((count, stages - 1, stages), np.int64)
        for number, lane in enumerate(lanes):
            for boundary, met in enumerate(lane.pipe.meets):
                meets[number, boundary, list(met)] = 1
        self.shared = (
            pipe, np.full((count, 2 * stages - 1), k.NEVER, np.int64), meets,
            np.zeros((count, 8 * stages, len(ln.MOVE)), np.int64), np.zeros((count, 1), np.int64),
            np.zeros((count, stages, kinds, 3), np.int64),
            np.zeros((count, stages, kinds, *prices.classes[1].shape[2:]), np.int64),
        )  # fmt: skip
        self._make_room(int(self.limits[k.ROOM_STRETCHES]))
        self.classes = prices.classes

    def _make_room(self, rows: int) -> None:
        """Make room for so many places where passes lost time, and one more for each stage."""
        self.limits[k.ROOM_STRETCHES] = rows
        self.stretches = np.zeros((rows + self.stages, len(ln.STRETCH)), np.int64)
        self.told = (*self.prices.told, self.stretches)

    def _answer(self, status: int) -> None:
        if status == k.ASK_FLOWS:
            self._share(int(self.clock[k.LANE]), int(self.clock[k.NOW]))
        else:
            super()._answer(status)

    def _share(self, number: int, now: int) -> None:
        """Put flows on links and take them off, and say when those end whose links are shared out anew."""
        changes, moves, moved = (self.shared[at][number] for at in (ln.CHANGES, ln.MOVES, ln.MOVED))
        flows = self.lanes[number].pipe.flows
        for enters, flow, here, cls, since, end in moves[: moved[0]].tolist():
            if enters:
                flows.enter(flow, self._use(number, flow, here, cls), since, end)
            else:
                flows.leave(flow)
        moved[0] = 0
        for flow in flows.solve(now):
            changes[flow.number] = flow.end

    def _use(self, number: int, flow: int, here: int, cls: int) -> Use:
        """Return what a collective or a send of a micro-batch puts on links."""
        stage = flow - self.stages if flow >= self.stages else flow
        row = self.in_flight[0][number, here].tolist()
        new, decodes = row[k.ROW_NEW], row[k.ROW_DECODES]
        counts = new + decodes, row[k.ROW_REQUESTS], new, decodes
        took = int(self.shared[ln.CLASSES][number, here, self.prices.of_stage[stage], ln.NS, cls])
        use: Use | None = self.lanes[number].pipe.shared[stage].uses[row[k.ROW_KIND]].of(cls, counts, took)
        assert use is not None
        return use

    def _hand_on(self, now: int, *, stops: bool = False) -> int:
        """Say where passes lost time whose steps are handed on now, and hand them on."""
        filled = int(self.clock[k.STRETCH_AT])
        rows, found = self._rows(), self.stretches[:filled].copy()
        ended = [len(rows[0])]
        if not self.alone:
            ended = [int((rows[k.ROW_REPLICA] == number).sum()) for number in range(len(self.lanes))]
        landed = np.array([lane.log.flushed for lane in self.lanes]) + ended
        goes = found[:, 0] < landed[found[:, 4]]
        self._tell(found[goes])
        left = found[~goes]
        if 2 * len(left) > self.limits[k.ROOM_STRETCHES]:  # those in flight leave no room for others
            self._make_room(4 * len(left))
        self.stretches[: len(left)] = left
        self.clock[k.STRETCH_AT] = len(left)
        return super()._hand_on(now, stops=stops)

    def _tell(self, stretches: Int64Array) -> None:
        order = np.lexsort((stretches[:, 1], stretches[:, 0], stretches[:, 4]))
        stretches = stretches[order]
        cuts = np.flatnonzero(np.diff(stretches[:, [4, 0, 1]], axis=0).any(axis=1)) + 1
        for of_pass in np.split(stretches, cuts) if len(stretches) else ():
            step, stage, _, _, number = of_pass[0].tolist()
            log = self.lanes[number].log
            log.stretch(stage, of_pass[:, 2:4].ravel().tolist(), step - log.flushed)
