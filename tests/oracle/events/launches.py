"""What is called before a step starts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sequences

from clustersim.replay.events.wiring import OnLayer
from tests.oracle.serving.sequence import Sequence

OnLaunch = Callable[[int, Sequences[tuple[Sequence, int]]], OnLayer | None]
"""Called with (replica, prompt chunks) before their step starts; returns what to call as it passes layers."""
