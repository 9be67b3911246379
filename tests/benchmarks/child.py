"""One replay, interpreted, in a process of its own, and what it took: ``python -m tests.benchmarks.child '{…}'``."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clustersim.replay.replay import replay
from clustersim.scenario.load import load
from clustersim.simulation.replay_input import replay_input
from tests.core_storage import core

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What one replay took.

    Parameters
    ----------
    requests, tokens, steps : int
    wall_s, cpu_s : float
        Of the replay, without reading the scenario and its requests.
    memory_bytes : int
        The most that the process held, over what it held when the scenario was read.
    simulated_s : float
    busy : float
        Mean of the sequences that ran, over steps.
    most_waiting : int
    how : str
        Why it went by events; empty where it did not.
    """

    requests: int
    tokens: int
    steps: int
    wall_s: float
    cpu_s: float
    memory_bytes: int
    simulated_s: float
    busy: float
    most_waiting: int
    how: str

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests, {self.tokens:,} output tokens, {self.steps:,} steps in {self.wall_s:.2f} s "
            f"({self.cpu_s:.2f} s of CPU), {self.memory_bytes / 1e6:,.0f} MB; "
            f"{self.requests / self.cpu_s:,.0f} requests and {self.tokens / self.cpu_s:,.0f} tokens per CPU second; "
            f"{self.simulated_s:,.0f} s simulated, {self.busy:.0f} running, at most {self.most_waiting:,} waiting"
            + (f"; {self.how}" if self.how else "")
        )


def in_child(name: str, *overrides: str) -> Took:
    """Replay a shipped scenario in a new process."""
    order = json.dumps({"name": name, "overrides": overrides})
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.child", order], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Took(**json.loads(done.stdout))


def peak_bytes() -> int:
    """Return the most memory that this process has held.

    ``ru_maxrss`` of a process that another one started may be that of its parent, so Linux is asked elsewhere.
    """
    if STATUS.exists():
        (line,) = [line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measured(order: Mapping[str, Any]) -> dict[str, Any]:
    """Replay in this process."""
    scenario = load(order["name"], order["overrides"], allow_code=True)  # a scheduler of this repository
    before = peak_bytes()
    given = replay_input(scenario, scenario.requests())
    wall, cpu = time.perf_counter(), time.process_time()
    with core("interpreted"):
        result = replay(given)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = peak_bytes()
    steps = result.timeline.steps
    return {
        "requests": len(given.requests),
        "tokens": int(given.requests.output_tokens.sum()),
        "steps": result.timeline.num_steps,
        "wall_s": wall,
        "cpu_s": cpu,
        "memory_bytes": peak - before,
        "simulated_s": result.timeline.end_ns / 1e9,
        "busy": float((steps["running"] * steps["count"]).sum() / max(1, steps["count"].sum())),
        "most_waiting": int(steps["waiting"].max(initial=0)),
        "how": result.obstacle,
    }


if __name__ == "__main__":
    print(json.dumps(measured(json.loads(sys.argv[1]))))
