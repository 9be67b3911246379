"""A lower bound for replays of one replica: arrivals, batch changes and decode steps, and nothing else.

No K/V blocks, no prices but a line through two numbers, no record. A step still is a step, as it must be where its
length depends on the contexts of the batch.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from clustersim.workload.requests import Requests

STEP_NS: Final = 12_000_000
"""Assumed: about what a decode step of Llama-3.1-70B takes on TP 8 of H100s."""
KEY_NS: Final = 20
"""Assumed: about what a key of context adds to it."""
TOKEN_NS: Final = 40_000
"""Assumed: about what a prompt token adds to a step."""


def plain_loop(requests: Requests, most: int, budget: int) -> int:
    """Serve requests one step after the other, prompts cut into what ``budget`` leaves; return the number of steps."""
    times, prompts = requests.arrived_at_ns.tolist(), requests.prompt_tokens.tolist()
    outputs = requests.output_tokens.tolist()
    total = len(times)
    now = steps = arrived = begun = running = keys = clock = 0
    left = 0  # of the prompt that is being computed
    finishes: list[tuple[int, int]] = []
    while begun < total or running or left:
        while arrived < total and times[arrived] <= now:
            arrived += 1
        spare, computed = budget - running, 0
        while spare > 0 and (left or (begun < arrived and running < most)):
            if not left:
                left = prompts[begun]
                begun += 1
            part = min(left, spare)
            spare -= part
            computed += part
            left -= part
            if not left:
                heappush(finishes, (clock + outputs[begun - 1], prompts[begun - 1] + outputs[begun - 1]))
                running += 1
                keys += prompts[begun - 1]
        if not running and not computed:
            now = times[arrived]
            continue
        while True:
            steps += 1
            clock += 1
            now += STEP_NS + keys * KEY_NS + computed * TOKEN_NS
            keys += running
            if computed or finishes[0][0] <= clock or (begun == arrived and arrived < total and times[arrived] <= now):
                break
        while finishes and finishes[0][0] <= clock:
            keys -= heappop(finishes)[1]
            running -= 1
    return steps
