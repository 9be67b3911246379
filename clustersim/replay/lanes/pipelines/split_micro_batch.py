"""A step whose prompts are split over SP ranks, on its way through stages that share links."""

from __future__ import annotations

from clustersim.graph.batch import StepBatch
from clustersim.graph.prices.steps import SplitPrice, SplitPrices
from clustersim.replay.lanes.stretched_pass import StretchedPass
from clustersim.serving.grouped.batch import Batch


class SplitMicro:
    """One step, from its launch until it has left the last stage.

    Parameters
    ----------
    batch : Batch
    row : tuple of int
        ``lane_log.STEP_ROW``.
    kind : int
        Position in ``STEP_KINDS``.
    carries : StepBatch
        What payloads depend on.
    priced : list of SplitPrice
        Stage by stage.
    ranks : int
        Of a stage.

    Attributes
    ----------
    starts, ends : list of list of int
        Per boundary, of the sends by rank; 0 of ranks that send nothing.
    unsent : list of int
        Per boundary how many have yet to end.
    came : int
        The last stage at which it has arrived.
    irregular : list of (stage, StretchedPass)
        Passes that took longer than they cost.
    told : dict
        What the payloads of its prompts depend on, by the prices of a stage.
    """

    __slots__ = (
        "batch", "came", "carries", "ends", "irregular", "kind", "passes", "priced", "row", "starts", "told", "unsent",
    )  # fmt: skip

    def __init__(
        self, batch: Batch, row: tuple[int, ...], kind: int, carries: StepBatch, priced: list[SplitPrice], ranks: int
    ) -> None:
        self.batch, self.row, self.kind, self.carries, self.priced = batch, row, kind, carries, priced
        self.passes: list[int] = []
        self.starts = [[0] * ranks for _ in priced[1:]]
        self.ends = [[0] * ranks for _ in priced[1:]]
        self.unsent = [len(one[3]) for one in priced[:-1]]
        self.came = 0
        self.irregular: list[tuple[int, StretchedPass]] = []
        self.told: dict[SplitPrices, list[int]] = {}
