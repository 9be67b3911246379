"""Events of the core: instants, and kind, number and version in one word of 64 bits."""

from __future__ import annotations

from clustersim.core import state
from clustersim.core.events import KIND_BITS, NUMBERS, VERSION_BITS, VERSIONS


def test_the_last_kind_of_event_fits_into_a_word():
    last = state.CANCELLATION << KIND_BITS | NUMBERS << VERSION_BITS | VERSIONS
    assert 0 < last < state.NEVER
    assert last >> KIND_BITS == state.CANCELLATION
