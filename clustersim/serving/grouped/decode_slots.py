"""The slots in which decode groups are carried, and the episodes of decoding that come of it.

A replica has as many slots as stages, and a step that decodes uses one of them: the slot that its first sequence
used last, if no step used it since, else the one used longest ago. The rule, and what an *episode* is, are those of
:mod:`clustersim.timeline.episodes`. That looks at all requests of a step; here a step costs nothing for sequences
whose episode goes on. Their last step is their group's, so only *fresh* members keep one of their own.

What is not here: who decodes in a step (:mod:`clustersim.serving.grouped.ready_decodes`).
"""

from __future__ import annotations

from clustersim.serving.grouped.decode_group import DecodeGroup, by_place
from clustersim.serving.grouped.log import Log
from clustersim.serving.sequence import Sequence


class DecodeSlots:
    """The slots of one replica.

    Parameters
    ----------
    count : int
        How many: micro-batches that may be in flight.
    log : Log
        Takes the episodes that ended.

    Attributes
    ----------
    last_steps : list of int
        The last step of each slot, −1 before there is one.
    """

    def __init__(self, count: int, log: Log) -> None:
        self.log = log
        self.last_steps = [-1] * count

    def carry(self, group: DecodeGroup, step: int) -> tuple[int, int]:
        """Give a step that decodes its slot; open and close episodes.

        Parameters
        ----------
        group : DecodeGroup
            What the step carries.
        step : int

        Returns
        -------
        slot : int
        previous : int
            The step that used the slot before, −1 when none did.
        """
        last_steps, slot = self.last_steps, group.slot
        if group.fresh or slot < 0 or last_steps[slot] != group.last_step:
            slot = self._open(group, step)
        previous = last_steps[slot]
        group.slot = slot
        last_steps[slot] = group.last_step = step
        return slot, previous

    def repeat(self, group: DecodeGroup, last_step: int) -> None:
        """Note that all steps up to ``last_step`` carried a group, not only the one that :meth:`carry` was told of."""
        self.last_steps[group.slot] = group.last_step = last_step

    def _open(self, group: DecodeGroup, step: int) -> int:
        """Let episodes begin for those who have none in the slot of this step, and return the slot."""
        last_steps, fresh = self.last_steps, group.fresh
        slot = self._slot_of(group)
        if len(fresh) < group.count and (slot != group.slot or last_steps[slot] != group.last_step):
            carried = _others(group, fresh)
            for sequence in carried:
                sequence.last_step = group.last_step
            fresh = [*fresh, *carried]
        for sequence in fresh:
            if sequence.first_step >= 0 and (sequence.slot != slot or last_steps[slot] != sequence.last_step):
                self.close(sequence, sequence.last_step)
            if sequence.first_step < 0:
                sequence.first_step = step
                sequence.slot = slot
        group.fresh = []
        return slot

    def _slot_of(self, group: DecodeGroup) -> int:
        """Return the slot for a step that carries a group."""
        last_steps = self.last_steps
        if len(last_steps) == 1:
            return 0
        first = min([entry[2] for entry in group.finishes], key=by_place)
        last_step = first.last_step if first in group.fresh else group.last_step
        if first.first_step >= 0 and last_steps[first.slot] == last_step:
            return first.slot
        return last_steps.index(min(last_steps))

    def close(self, sequence: Sequence, last_step: int) -> None:
        """Log an episode of decoding, if one is open."""
        if 0 <= sequence.first_step <= last_step:
            self.log.decode(sequence.slot, sequence.request, sequence.first_step, last_step)
        sequence.first_step = -1

    def close_all(self, group: DecodeGroup, last_step: int) -> None:
        """Log the open episodes of a group that was carried by ``last_step`` last."""
        fresh = {id(sequence) for sequence in group.fresh}
        for _, _, sequence in sorted(group.finishes):
            self.close(sequence, sequence.last_step if id(sequence) in fresh else last_step)


def _others(group: DecodeGroup, some: list[Sequence]) -> list[Sequence]:
    """Return the members of a group but some."""
    known = {id(sequence) for sequence in some}
    return [entry[2] for entry in group.finishes if id(entry[2]) not in known]
