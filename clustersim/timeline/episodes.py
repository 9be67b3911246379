"""Episodes of decoding: which requests got a token in every step of a slot, from one step to another.

With pp stages up to pp micro-batches are in flight, each with decodes of its own that stay much the same from one of
its steps to its next. A *slot* is one of these lists, a replica has pp of them, and which slot a step's decodes belong
to is a function of the steps in order of completion alone: that in which the first request of the list has an open
episode, else the slot that was used longest ago (one never used first, the lowest number of several).

An episode ends with the last step of its slot that carried the request: when the next one does not, or another slot
does, when the request is computed anew after a preemption or was swapped out (even if its slot then carries it without
a step in between), when it finishes, or with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class Episodes:
    """The slots of one replica.

    Parameters
    ----------
    slots : int
    append : callable
        Takes an episode that ended: slot, request, first and last step.
    """

    def __init__(self, slots: int, append: Callable[[int, int, int, int], object]) -> None:
        self.append = append
        self.last: list[tuple[int, ...]] = [()] * slots
        self.last_step = [-1] * slots
        self.first_step: list[dict[int, int]] = [{} for _ in range(slots)]
        self.slot_of: dict[int, int] = {}

    def decoded(self, step: int, steps: int, requests: tuple[int, ...]) -> int:
        """Note that ``steps`` steps from ``step`` on gave each of ``requests`` a token; return their slot.

        Parameters
        ----------
        step, steps : int
        requests : tuple of int
            In the order of the batch; −1 is returned for none.
        """
        if not requests:
            return -1
        slot = self.slot_of.get(requests[0], -1)
        if slot < 0:
            slot = min(range(len(self.last)), key=self.last_step.__getitem__)
        if requests != self.last[slot]:
            self._change(slot, step, requests)
        self.last_step[slot] = step + steps - 1
        return slot

    def _change(self, slot: int, step: int, requests: tuple[int, ...]) -> None:
        here = self.first_step[slot]
        known = len(here)
        if requests[:known] != tuple(here):  # mostly some follow those that are carried already
            carried, known = frozenset(requests), 0
            for request in [] if carried >= here.keys() else [request for request in here if request not in carried]:
                self._close(request, slot)
        for request in requests[known:]:
            elsewhere = self.slot_of.get(request, -1)
            if elsewhere == slot:
                continue
            if elsewhere >= 0:
                self._close(request, elsewhere)
                self.last[elsewhere] = ()
            here[request] = step
            self.slot_of[request] = slot
        self.last[slot] = requests

    def _close(self, request: int, slot: int) -> None:
        first = self.first_step[slot].pop(request)
        del self.slot_of[request]
        self.append(slot, request, first, self.last_step[slot])

    def close(self, requests: Iterable[int] | None = None) -> None:
        """End the episodes of ``requests``, or all."""
        for request in tuple(self.slot_of) if requests is None else requests:
            slot = self.slot_of.get(request, -1)
            if slot >= 0:
                self._close(request, slot)
                self.last[slot] = ()
