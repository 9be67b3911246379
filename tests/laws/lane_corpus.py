"""Scenarios that each need something of the lanes: what hunts and mutations found, shrunk and named."""

from __future__ import annotations

from typing import Final

from tests.laws.lane_cases import Case

CORPUS: Final[dict[str, Case]] = {
    "the horizon cuts a step that was decided anew for want of a block, and that goes on with an episode": {
        "arrivals": ((6_610, 1, 18), (120_340, 17, 0)),
        "scheduler": "continuous",
        "max_batch_requests": 2,
        "max_batch_tokens": 4,
        "kv_block_tokens": 16,
        "kv_blocks": 3,
        "horizon_ns": 148_100,
    },
}
