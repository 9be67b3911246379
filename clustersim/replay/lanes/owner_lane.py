"""A lane of one stage in which each SP rank decodes sequences of its own, and the slowest one holds the step."""

from __future__ import annotations

from clustersim.graph.prices.decodes import DecodePrice
from clustersim.graph.prices.steps import SplitPrices
from clustersim.replay.lanes.decode_jump_lane import DecodeJumpLane
from clustersim.serving.grouped.decode_group import DecodeGroup
from clustersim.serving.grouped.owner_group import OwnerGroup


class OwnerLane(DecodeJumpLane):
    """One replica, and the step or decode run that it is in; parameters are those of other lanes.

    Attributes
    ----------
    ended : list of int
        When each step of the run ends.
    """

    ended: list[int]

    def _price_of(self, group: DecodeGroup) -> DecodePrice:
        """Return the price of a run of steps of a group."""
        (prices,) = self.prices.stages
        assert isinstance(prices, SplitPrices)
        assert isinstance(group, OwnerGroup)
        return prices.decodes[group.counts]

    def _extend(self, price: DecodePrice, group: DecodeGroup, least: int) -> None:
        """Price so many steps at least, and until one ends at :attr:`until` or later."""
        assert isinstance(group, OwnerGroup)
        assert isinstance(self.ns, list)
        each = zip(price.ns, price.ranks, price.windows, strict=True)
        classes = [(ns, *group.keys(rank, window)) for ns, rank, window in each]
        if not self.steps:
            self.ended = []
        enough, end, until, ended, varying = self.steps + least, self.end, self.until, self.ended, self.ns
        for step in range(self.steps, self.limit):
            took = [ns(keys + step * growth) for ns, keys, growth in classes]
            varying += took
            longest = 0
            for length, own in price.paths:
                for at, times in own:
                    length += times * took[at]
                if length > longest:  # noqa: PLR1730  # max() takes twice as long
                    longest = length
            end += longest
            ended.append(end)
            if end >= until and step + 1 >= enough:
                break
        self.steps, self.end = step + 1, end

    def _ends(self) -> list[int]:
        """Return when each step of the run ends."""
        if self.price is None:
            return [self.end]
        return self.ended[: self.steps]

    def _log(self, steps: int, end: int) -> None:
        if steps < 2:
            super()._log(steps, end)
            return
        assert self.price is not None
        starts = [self.row[0], *self.ended[: steps - 1]]
        self.log.run(self.row, self.number, steps, end, self.ns[: steps * len(self.price.ns)], starts)
