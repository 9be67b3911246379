"""What a rate comes to on a plan, worked out by whoever is asked; plain data in and out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.errors import ClustersimError
from clustersim.report.metrics.latencies import share_within, summarise, targets_ns, ttft_ns, within_targets
from clustersim.scenario.scenario import RunConfig, Scenario
from clustersim.search.load import Load
from clustersim.search.plans.bounds.demand import may_miss
from clustersim.search.plans.costs import expected_s, work_s
from clustersim.search.plans.grid import rate_of, requests_at, requests_until
from clustersim.search.point import Row, of_machine, words_of
from clustersim.search.queue import queue_numbers
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.values import dataclass
from clustersim.workload.requests import Requests

_PARTS: Final = (0.15, 0.4)
"""Of its arrivals, after which a run is looked at: whether it can still reach its share."""
_PRICES: Final = KeptPrices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan at a rate of the grid.

    Parameters
    ----------
    scenario : Scenario
        With as many replicas as serve every so many-th request.
    load, step, every
        See :func:`requests_at`.
    share : float
        Of all requests, that has to meet every target; 0: the run is not cut short.
    prompts_only : bool
        Whether requests end with their first token.
    audit : bool
        Whether plan (P) and step graphs (G) are checked first.
    hopeful : bool
        Whether it is expected to reach its share, and is not looked at before its end.
    """

    scenario: Scenario
    load: Load
    step: int
    every: int
    share: float = 0.0
    prompts_only: bool = False
    audit: bool = False
    hopeful: bool = False

    @property
    def told(self) -> str:
        """Everything that its row depends on, as a text."""
        scenario = self.scenario
        pools = [(one.plan, one.serving) for one in scenario.each_pool()]
        told = (scenario.digest, scenario.seed, pools, self.load, self.step, self.every, self.share)
        return repr((*told, "prompts") if self.prompts_only else told)

    @property
    def expected_s(self) -> float:
        """Seconds of CPU that it takes on a core of 2026, roughly: the same on any machine."""
        requests = self.load.count(rate_of(self.step)) / self.every
        return expected_s(self.scenario, requests, prompts_only=self.prompts_only)

    @property
    def requests(self) -> Requests:
        """Its requests."""
        found = requests_at(self.scenario, self.load, self.step, self.every)
        return replace(found, output_tokens=np.minimum(found.output_tokens, 1)) if self.prompts_only else found


def try_rate(trial: Trial) -> Row:
    """Simulate a plan at a rate, and return its row; one that can't reach its share any more is cut short."""
    scenario, took_s = trial.scenario, 0.0
    try:
        if trial.audit and (broken := broken_rules(scenario)):
            return {"failed": broken, "numbers": {}}
        requests = trial.requests
        free = may_miss(len(requests), trial.share)
        last_ns = int(requests.arrived_at_ns[-1])
        for until_ns in _looked_at(trial, len(requests), last_ns):
            cut = replace(scenario, run=RunConfig(replay=scenario.run.replay, horizon_ns=until_ns))
            result = simulate(cut, requests=requests_until(requests, until_ns), kept=_PRICES)
            missed, took_s = missed_by(result, until_ns), took_s + work_s(result)
            if missed > free:
                told = {"goodput.share": (len(requests) - missed) / len(requests), "cut_s": until_ns / NS_PER_S}
                told |= {"cut": until_ns / last_ns, "work_s": took_s}
                return {"failed": None, "numbers": told | _most(result)}
    except MemoryError:
        return of_machine("out of memory")
    except ClustersimError as error:
        return {"failed": words_of(error), "numbers": {}}
    row = numbers_at(scenario, requests)
    if row["failed"] is None:
        row["numbers"]["work_s"] += took_s
    return row


def _looked_at(trial: Trial, count: int, last_ns: int) -> list[int]:
    """Return the instants at which a run is looked at before its end."""
    if trial.hopeful or may_miss(count, trial.share) == count:
        return []
    return [int(last_ns * part) for part in _PARTS]


def numbers_at(scenario: Scenario, requests: Requests) -> Row:
    """Simulate a scenario with some requests, and return its row: the numbers that follow from requests."""
    try:
        result = simulate(scenario, requests=requests, kept=_PRICES)
        return {"failed": None, "numbers": _numbers(result) | {"work_s": work_s(result)}}
    except MemoryError:
        return of_machine("out of memory")
    except ClustersimError as error:
        return {"failed": words_of(error), "numbers": {}}


def broken_rules(scenario: Scenario) -> str:
    """Return what makes a plan illegal on levels P and G; empty where nothing does."""
    broken = check_scenario(scenario).violations
    return "illegal: " + "; ".join(f"{one.where}: {one.message} [{one.rule}]" for one in broken) if broken else ""


def missed_by(result: RunResult, now_ns: int) -> int:
    """Return how many requests have missed a target for certain at an instant, whatever comes."""
    columns, limits = result.columns, targets_ns(result.scenario.targets)
    asked, ended = columns["output_tokens"] > 0, columns["outcome"] != "unfinished"
    missed = ended & ~within_targets(columns, limits)
    first = ttft_ns(columns)
    waited = now_ns - columns["arrived_ns"] + columns["front_end_ns"]
    inf = math.inf
    missed |= np.where(np.isnan(first), waited, first) > limits.get("ttft", inf)
    missed |= ~ended & (waited > limits.get("e2e", inf))
    gaps = columns["output_tokens"] - 1.0
    took = now_ns - columns["first_token_ns"]
    if "tpot" in limits:
        missed |= ~ended & ~np.isnan(first) & (gaps > 0) & (took > gaps * limits["tpot"])
    return int((missed & asked).sum())


def _numbers(result: RunResult) -> dict[str, Any]:
    """Return the numbers of a run that a search looks at, by dotted key of the summary."""
    columns, limits = result.columns, targets_ns(result.scenario.targets)
    told = summarise(columns, result.token_gaps)
    found: dict[str, Any] = {"goodput.share": share_within(columns, limits) or 0.0}
    for key, value in told.items():
        inside = value if isinstance(value, Mapping) else {"": value}
        found |= {f"{key}.{name}".rstrip("."): one for name, one in inside.items() if one is not None}
    found |= {
        f"met.{name}": share_within(columns, {name: limit}) or 0.0 for name, limit in limits.items() if name != "itl"
    }
    found["met_of"] = int(np.count_nonzero(columns["output_tokens"]))
    return found | queue_numbers(columns, result.scenario) | _most(result)


def _most(result: RunResult) -> dict[str, int]:
    """Return the most sequences, tokens in a step, and blocks in use: limits above all of them never bound."""
    steps = result.timeline.steps
    return {
        "most.requests": int(steps["running"].max(initial=0)),
        "most.tokens": int((steps["prefill_tokens"] + steps["decode_tokens"]).max(initial=0)),
        "most.blocks": int(steps["kv_blocks_used"].max(initial=0)),
    }
