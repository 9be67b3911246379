"""What stands for the ranks that send nothing: no time and no bytes, and any single change of it is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clustersim.errors import InputError
from clustersim.simulation.simulate import simulate
from clustersim.timeline.soundness import refuse_unsound
from clustersim.timeline.timeline import Timeline
from tests.laws.random_scenarios import LLAMA, scenario_of


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    document = {
        "name": "idle", "seed": 1, "topology": {"name": "dgx-h100", "nodes": 1},
        "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
        "plan": {"pp": 2, "sp": {"degree": 2, "scheme": "all_gather", "partition": "zigzag", "decode": "idle"}},
        "serving": {
            "scheduler": "continuous", "max_batch_requests": 3, "max_batch_tokens": 256, "kv_block_tokens": 4,
            "kv_blocks": 50, "router": "round_robin", "engine": "ideal",
        },
        "workload": {"arrivals": {"process": "all_at_once"}, "prompt_tokens": 1, "output_tokens": 3, "requests": 2},
        "run": {}, "faults": [],
    }  # fmt: skip
    return simulate(scenario_of(document)).timeline


@pytest.mark.parametrize("column", ["transfer_times", "transfer_bytes"])
@pytest.mark.parametrize("value", [1, 10**6])
def test_any_change_of_what_is_not_sent_is_found(timeline: Timeline, column: str, value: int) -> None:
    refuse_unsound(timeline, Path())
    times = timeline.transfer_times.reshape(-1, 2, 2)
    idle = times[:, 1] == 0
    places = np.flatnonzero(np.stack((idle, idle), axis=1) if column == "transfer_times" else idle)
    assert len(places) >= 4
    for place in places.tolist():
        changed = getattr(timeline, column).copy()
        changed[place] = value
        with pytest.raises(InputError, match=r"transfer_times: .* expected no time and no bytes of what is not sent"):
            refuse_unsound(replace(timeline, **{column: changed}), Path())


def test_a_send_that_carries_nothing_takes_its_time(timeline: Timeline) -> None:
    sent = timeline.transfer_times.reshape(-1, 2, 2)[:, 1] > 0
    assert (timeline.transfer_bytes.reshape(-1, 2)[sent] == 0).any()  # a rank with no token of the prompt
