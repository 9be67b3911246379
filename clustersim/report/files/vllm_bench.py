"""A run in the shape that vLLM's serving benchmark writes, so that scripts which plot that can plot this.

Keys, their order and the definitions are those of ``vllm bench serve --save-result --percentile-metrics
ttft,tpot,itl,e2el --metric-percentiles 50,90,95,99`` [1]_: times in seconds per request and in milliseconds in the
statistics, numpy's linear percentiles and population standard deviation, only completed requests in statistics. A
clock of the simulation starts at 0, when the benchmark starts to send; clients are at the replicas: what the
engine's front end takes (the summary has it in TTFT) is not in here.

Not there: what a simulation has no notion of (generated texts are empty, ``rtfx`` is 0, there is no tokenizer), and
when the file was made, which would make two runs of one scenario differ: ``date`` is that of instant 0.

.. [1] vLLM, ``vllm/benchmarks/serve.py`` (commit 009e6d4), ``calculate_metrics`` and ``main_async``. Releases count
   ``max_concurrent_requests`` by whole seconds, that commit exactly; ``latencies`` and ``queue_times`` are newer
   than 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_MS, NS_PER_S, FloatArray, Int64Array
from clustersim.files import written_whole
from clustersim.report.files.json_object import write_object
from clustersim.report.metrics.latencies import PERCENTILES, is_finished, targets_ns, weighted_percentile
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.tokens import TokenInstants, token_times, tokens_by_bucket
from clustersim.workload.arrivals import ClosedLoop, Constant, Gamma, Poisson
from clustersim.workload.draws import DrawnWorkload

DATE_OF_ZERO: Final = "19700101-000000"
BACKEND: Final = "clustersim"
GOODPUT: Final = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""A scenario's target → vLLM's name for it; it has none for the gaps between tokens."""
BATCH: Final = 4096
"""Requests whose tokens are looked up at a time."""


def write_vllm_bench(path: Path, result: RunResult, *, detailed: bool = False) -> None:
    """Write a run as vLLM's benchmark would have: one JSON object on one line, whole or not at all.

    Parameters
    ----------
    path : Path
    result : RunResult
    detailed : bool
        With the lists by request that ``--save-detailed`` keeps: lengths, instants, gaps between tokens.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    with written_whole(path) as beside, beside.open("w", encoding="utf-8") as file:
        write_object(file, {**setup(result), **_Bench(result).figures(detailed=detailed)})
        file.write("\n")


def setup(result: RunResult) -> dict[str, Any]:
    """Return what vLLM's file says before the results: what was asked of which model, and at which rate."""
    scenario = result.scenario
    rate, burstiness, concurrency = traffic(scenario, result.requests["arrived_ns"])
    return {
        "date": DATE_OF_ZERO,
        "endpoint_type": BACKEND,
        "backend": BACKEND,
        "label": scenario.name,
        "model_id": scenario.model.name,
        "tokenizer_id": None,
        "num_prompts": len(result.requests["request"]),
        "scenario_digest": scenario.digest,  # as --metadata scenario_digest=… has it
        "request_rate": rate,
        "burstiness": burstiness,
        "max_concurrency": concurrency,
    }


def traffic(scenario: Scenario, arrived_ns: Int64Array) -> tuple[float | str, float | str | None, int | None]:
    """Return vLLM's request rate (1/s, or ``inf`` when all were sent at once), burstiness and concurrency.

    A trace has the mean rate of what was played of it, and no burstiness.
    """
    if isinstance(scenario.workload, DrawnWorkload):
        match scenario.workload.arrivals:
            case Poisson(rate_per_s=rate):
                return rate, 1.0, None
            case Gamma(rate_per_s=rate, cv=cv):
                return rate, 1 / cv**2, None
            case Constant(rate_per_s=rate):
                return rate, "inf", None
            case ClosedLoop(concurrency=concurrency):
                return "inf", 1.0, concurrency
            case _:
                return "inf", 1.0, None
    last = int(arrived_ns.max(initial=0))
    return (len(arrived_ns) * NS_PER_S / last if last else "inf"), None, None


class _Bench:
    """The requests of a run as arrays in seconds; ``done`` are those that completed."""

    def __init__(self, result: RunResult) -> None:
        columns = result.columns
        self.result = result
        self.request: Int64Array = np.asarray(columns["request"], np.int64)
        self.done = is_finished(columns)
        self.prompt_tokens: Int64Array = np.asarray(columns["prompt_tokens"], np.int64)
        self.output_tokens = np.where(self.done, np.asarray(columns["generated_tokens"], np.int64), 0)
        self.arrived_ns: Int64Array = np.asarray(columns["arrived_ns"], np.int64)
        self.finished_ns = np.asarray(columns["finished_ns"], np.float64)
        self.ttft = np.nan_to_num((np.asarray(columns["first_token_ns"], np.float64) - self.arrived_ns) / NS_PER_S)
        self.latency = np.nan_to_num((self.finished_ns - self.arrived_ns) / NS_PER_S)
        self.errors = [
            "" if outcome == "finished" else reason or outcome
            for outcome, reason in zip(columns["outcome"], columns["reason"], strict=True)
        ]

    def figures(self, *, detailed: bool) -> dict[str, Any]:
        """Return vLLM's result: figures, lists by request, statistics of latencies."""
        done, duration = self.done, self.duration_s()
        total_input, total_output = int(self.prompt_tokens[done].sum()), int(self.output_tokens.sum())

        def per_second(count: int) -> float:
            return count / duration if duration else 0.0

        good = self.good()
        figures = {
            "duration": duration,
            "completed": int(done.sum()),
            "failed": int((~done).sum()),
            "total_input_tokens": total_input,
            "total_output_tokens": total_output,
            "request_throughput": per_second(int(done.sum())),
            "request_goodput": None if good is None else per_second(good),
            "output_throughput": per_second(total_output),
            "total_token_throughput": per_second(total_input + total_output),
        }
        peaks = {
            "max_output_tokens_per_s": self.most_tokens_per_second(),
            "max_concurrent_requests": self.most_at_once(),
            "rtfx": 0.0,
        }
        return {**figures, **self.lists(detailed=detailed), **peaks, **self.statistics()}

    def duration_s(self) -> float:
        """Return the time until the last request had ended, s; those that never did wait for the horizon."""
        last = max(int(self.arrived_ns.max(initial=0)), int(np.nan_to_num(self.finished_ns).max(initial=0)))
        horizon = self.result.scenario.run.horizon_ns
        if horizon is not None and "unfinished" in self.result.requests["outcome"]:
            last = max(last, horizon)
        return last / NS_PER_S

    def tpot(self) -> FloatArray:
        """Return the time per output token after the first, s; 0 for a request of one token."""
        gaps = np.maximum(self.output_tokens - 1, 0)
        per_token: FloatArray = np.zeros(len(gaps))
        np.divide(self.latency - self.ttft, gaps, out=per_token, where=gaps > 0)
        return per_token

    def good(self) -> int | None:
        """Return how many completed requests met every target that vLLM knows; None without one."""
        limits = {name: ns / NS_PER_MS for name, ns in targets_ns(self.result.scenario.targets).items()}
        asked = {GOODPUT[name]: ms / 1000 for name, ms in limits.items() if name in GOODPUT}
        if not asked:
            return None
        of = {"ttft": self.ttft, "tpot": self.tpot(), "e2el": self.latency}
        good = self.done.copy()
        for name, most in asked.items():
            good &= of[name] <= most
        return int(good.sum())

    def lists(self, *, detailed: bool) -> dict[str, Any]:
        """Return one value per request, failed ones included, in order of arrival."""
        start_times = self.arrived_ns / NS_PER_S
        workload = self.result.scenario.workload
        closed = isinstance(workload, DrawnWorkload) and isinstance(workload.arrivals, ClosedLoop)
        always = {
            "latencies": self.latency,
            "queue_times": start_times if closed else np.zeros(len(start_times)),  # all are ready at 0
        }
        if not detailed:
            return always
        return {
            "input_lens": self.prompt_tokens,
            "output_lens": self.output_tokens,
            "ttfts": self.ttft,
            "itls": self.gaps(),
            "latencies": always["latencies"],
            "start_times": start_times,
            "queue_times": always["queue_times"],
            "generated_texts": [""] * len(self.request),
            "errors": self.errors,
        }

    def gaps(self) -> Iterator[list[float]]:
        """Yield the times between the tokens of each request, s."""
        instants = TokenInstants(self.result.timeline, self.result.delivery)
        for first in range(0, len(self.request), BATCH):
            for found in instants.of(self.request[first : first + BATCH].tolist()):
                yield (np.diff(found) / NS_PER_S).tolist()

    def only_done(self) -> npt.NDArray[np.bool_]:
        """Return by number of request whether it completed."""
        only = np.zeros(int(self.request.max(initial=-1)) + 1, bool)
        only[self.request] = self.done
        return only

    def most_tokens_per_second(self) -> float:
        """Return the most tokens that completed requests got in a second, counted from the first of them on."""
        if not self.done.any():
            return 0.0
        start = int(self.arrived_ns[self.done].min())
        result = self.result
        tokens = tokens_by_bucket(result.timeline, self.only_done(), start, NS_PER_S, result.delivery)
        return float(tokens.max(initial=0))

    def most_at_once(self) -> int:
        """Return the most completed requests that were in flight at one instant; one that ends makes room first."""
        starts, ends = np.sort(self.arrived_ns[self.done]), np.sort(self.finished_ns[self.done])
        ended = np.searchsorted(ends, starts, side="right")
        return int((np.arange(1, len(starts) + 1) - ended).max(initial=0))

    def statistics(self) -> dict[str, float]:
        """Return mean, median, standard deviation and percentiles of each latency of completed requests, ms."""
        done = self.done
        several = done & (self.output_tokens > 1)
        only, result = self.only_done(), self.result
        itl_ns, weights = token_times(result.timeline, len(only), only, result.delivery).gaps
        values = {"ttft": self.ttft[done], "tpot": self.tpot()[several], "e2el": self.latency[done]}
        found = {name: _statistics(found, np.ones(len(found), np.int64)) for name, found in values.items()}
        found["itl"] = _statistics(itl_ns / NS_PER_S, weights)
        return {
            f"{statistic}_{name}_ms": value * 1000
            for name in ("ttft", "tpot", "itl", "e2el")
            for statistic, value in found[name].items()
        }


def _statistics(values: FloatArray, weights: Int64Array) -> dict[str, float]:
    """Return statistics of values that occur so often each; zeros where there are none, as vLLM has it."""
    if not weights.sum():
        values, weights = np.zeros(1), np.ones(1, np.int64)
    mean = float(np.average(values, weights=weights))
    median, *percentiles = weighted_percentile(values, weights, (50, *PERCENTILES)).tolist()
    deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
    named = {f"p{percent}": value for percent, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": mean, "median": median, "std": deviation, **named}
