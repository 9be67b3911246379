"""A case beside the plain one, alternately in a process of their own: ``python -m tests.benchmarks.paired '{…}'``."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from clustersim.cli.memory import keep_memory
from clustersim.replay.replay import ReplayInput, ReplayResult, replay
from clustersim.scenario.load import load
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.replay_input import replay_input
from tests.core_storage import Storage, core

PAIRS: Final = 3
PLAIN_REQUESTS: Final = 3_000
PLAIN: Final = (
    "tp-on-one-node",
    f"workload={{trace: {{path: traces/azure-conv-sample.csv, repeat: true, requests: {PLAIN_REQUESTS}}}}}",
    "expect={}",
)
"""Llama-3.1-70B on TP 8 of one node, the Azure conversation sample again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What a case took beside the plain one.

    Parameters
    ----------
    share : float
        Requests per CPU second over those of the plain case, interpreted: the median of pairs.
    requests : int
    cpu_s, plain_cpu_s : float
        Of the case, and of so many requests of the plain case.
    steps : int
    obstacle : str
        Why it was replayed by events; empty where it was not.
    """

    share: float
    requests: int
    cpu_s: float
    plain_cpu_s: float
    steps: int
    obstacle: str

    def __str__(self) -> str:
        plain = self.requests / self.plain_cpu_s
        told = (
            f"{self.requests / self.cpu_s:,.0f} requests and {self.steps / self.cpu_s:,.0f} steps per CPU s, "
            f"plain {plain:,.0f} requests"
        )
        by_events = f"; by events: {self.obstacle}" if self.obstacle else ""
        return told + by_events


def beside_plain(mode: Storage, name: str, *overrides: str) -> Pair:
    """Replay a shipped scenario and the plain case in a new process."""
    order = json.dumps({"mode": mode, "name": name, "overrides": overrides})
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.paired", order],
        capture_output=True, text=True, check=False, env={**os.environ, "NUMBA_DISABLE_JIT": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Pair(**json.loads(done.stdout))


def given(kept: KeptPrices, name: str, *overrides: str) -> ReplayInput:
    """What the replay of a case is a function of; prices are those that are kept."""
    scenario = load(name, overrides, allow_code=True)  # a scheduler of this repository
    return replay_input(scenario, scenario.requests(), kept)


def timed(start: ReplayInput, storage: Storage) -> tuple[float, ReplayResult]:
    """Return the CPU seconds of a replay, and its result."""
    gc.collect()
    with core(storage):
        began = time.process_time()
        result = replay(start)
    return time.process_time() - began, result


def measured(mode: Storage, name: str, *overrides: str) -> dict[str, Any]:
    """Replay both alternately in this process; first once each, so that prices are known.

    Requests that are drawn are others each time, so that nothing is known but what all have in common.
    """
    kept, plain = KeptPrices(), given(KeptPrices(), *PLAIN)
    first, *cases = [given(kept, name, *overrides, f"seed={seed}") for seed in range(PAIRS + 1)]
    _, result = timed(first, mode)
    steps, obstacle = result.timeline.num_steps, result.obstacle
    del result  # whose memory those that are timed take
    timed(plain, "interpreted")
    each = [(timed(plain, "interpreted")[0], timed(case, mode)[0]) for case in cases]
    count = len(first.requests)
    took, beside = median(mine for _, mine in each), median(other for other, _ in each)
    return {
        "share": median(count / mine / (PLAIN_REQUESTS / other) for other, mine in each),
        "requests": count,
        "cpu_s": took,
        "plain_cpu_s": beside * count / PLAIN_REQUESTS,
        "steps": steps,
        "obstacle": obstacle,
    }


if __name__ == "__main__":
    keep_memory()  # as a command does
    given_order = json.loads(sys.argv[1])
    print(json.dumps(measured(given_order["mode"], given_order["name"], *given_order["overrides"])))
