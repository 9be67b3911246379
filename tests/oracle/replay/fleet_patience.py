"""Deadlines where requests may also wait at the front, no replica being alive, or be on their way between pools."""

from __future__ import annotations

from typing import Any

from tests.oracle.pools.hand_overs import HandOvers
from tests.oracle.replay.admission import Admission
from tests.oracle.replay.deadlines import Patience
from tests.oracle.serving.sequence import Sequence


class FleetPatience(Patience):
    """Deadlines of all requests of a fleet; other parameters are those of :class:`Patience`.

    Parameters
    ----------
    admission : Admission
    hand_overs : HandOvers
        Knows of requests that have left the replica where they arrived.
    """

    def __init__(self, admission: Admission, hand_overs: HandOvers, **given: Any) -> None:
        super().__init__(**given)
        self.admission = admission
        self.hand_overs = hand_overs

    def _withdraw(self, sequence: Sequence) -> None:
        if sequence.request in self.admission.waiting:
            del self.admission.waiting[sequence.request]
        else:
            super()._withdraw(sequence)

    def _cancel(self, now: int, sequence: Sequence) -> None:
        request = sequence.request
        if self.hand_overs.has(request):
            gone = self.hand_overs.cancel(request)
            if gone is not None:
                self.on_done(gone[0], (gone[1],))
        elif request in self.admission.waiting:
            replica = self.replica_of(request).index
            self.admission.cancel(now, replica, sequence)
            self.on_done(replica, (sequence,))
        else:
            super()._cancel(now, sequence)
