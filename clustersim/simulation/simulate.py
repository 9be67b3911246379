"""One scenario, start to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import NS_PER_S, Int64Array, to_ns
from clustersim.cost.protocol import CostModel
from clustersim.cost.table import TableCost
from clustersim.errors import IllegalPlanError, InputError
from clustersim.memory import drop_cycles
from clustersim.replay.by_core import expected_s
from clustersim.replay.replay import Progress, ReplayInput, ReplayResult, replay
from clustersim.scenario.scenario import Scenario
from clustersim.serving.user_class import UserClass
from clustersim.simulation.causes.causes import Causes, causes_of
from clustersim.simulation.causes.columns import cause_columns, cause_shares
from clustersim.simulation.causes.conditions import conditions_of
from clustersim.simulation.causes.labels import by_column
from clustersim.simulation.first_tokens import delivery_of
from clustersim.simulation.legality import check_scenario_plan, violation_lines
from clustersim.simulation.prefixes import Figures, prefix_figures
from clustersim.simulation.priced import KeptPrices
from clustersim.simulation.replay_input import replay_input
from clustersim.simulation.requests import request_columns
from clustersim.simulation.step_rows import StepRows
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.tokens import Delivery, TokenTimes, token_times
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, kw_only=True, eq=False)
class RunResult:
    """What simulating a scenario brought.

    Parameters
    ----------
    scenario : Scenario
    requests : mapping of arrays
        What became of its requests, a row each; what did not happen may be masked.
    times : TokenTimes
        When its requests got their tokens.
    replayed : ReplayResult
    input : ReplayInput
        What the replay was a function of.
    simulate_s : float
        Wall seconds that the replay took.
    notes : tuple of str
        What a reader of the numbers must know of how they were made.
    """

    scenario: Scenario
    requests: Mapping[str, Any]
    times: TokenTimes
    replayed: ReplayResult
    input: ReplayInput
    simulate_s: float
    notes: tuple[str, ...] = ()

    @property
    def timeline(self) -> Timeline:
        """The folded timeline."""
        return self.replayed.timeline

    @cached_property
    def delivery(self) -> Delivery | None:
        """When tokens reached clients; None where they did as they were sampled."""
        return delivery_of(self.timeline, self.input.first_token, len(self.input.requests))

    @property
    def token_gaps(self) -> tuple[Int64Array, Int64Array]:
        """Times between consecutive tokens of a request, as (values, weights) in ns."""
        return self.times.gaps

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """The columns of requests, as figures are worked out from them: with NaN for what did not happen."""
        return _Columns(self.requests)

    @property
    def causes(self) -> Causes:
        """Where the time of each of its requests went, operators taken together; worked out anew each time."""
        conditions = conditions_of(self.scenario, self.input.requests, self.input)
        return causes_of(self.timeline, self.step_rows.rows, self.requests, conditions, by_column)

    @cached_property
    def _caused(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What there is of causes: their columns, and the shares that they have."""
        causes = self.causes
        shares = cause_shares(causes, self.requests)
        return cause_columns(causes, self.requests), shares

    @property
    def cause_shares(self) -> dict[str, Any]:
        """``causes`` of ``summary.json``: which shares of the latencies causes have."""
        return self._caused[1]

    @cached_property
    def table(self) -> dict[str, Any]:
        """The columns of ``requests.parquet``: those of requests, and what the time of each went to."""
        return {**self.requests, **self._caused[0]}

    @property
    def table_columns(self) -> Mapping[str, npt.NDArray[Any]]:
        """Those of the table, with NaN for what did not happen, as they are read again."""
        return _Columns(self.table)

    @cached_property
    def prefix_cache(self) -> Figures | None:
        """How much of the prompts was cached (``run.prefixes``); None where none are kept or could be shared."""
        serving = self.scenario.serving
        kept = serving.prefix_caching and self.input.requests.prefix_hashes is not None
        return prefix_figures(self.input.requests, self.columns, serving.kv_block_tokens) if kept else None

    @cached_property
    def step_rows(self) -> StepRows:
        """Its steps, as rows that are the same figures in both replays."""
        return StepRows(self.timeline, self.scenario.serving.kv_block_tokens)


class _Columns(Mapping[str, npt.NDArray[Any]]):
    """Columns with NaN for what did not happen; none of these is kept, as all of a large run are 0.2 GB."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        values = self._columns[name]
        lacks = isinstance(values, np.ma.MaskedArray) and values.mask is not np.ma.nomask
        found: npt.NDArray[Any] = np.where(values.mask, np.nan, values.data) if lacks else np.asarray(values)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def simulate(
    scenario: Scenario,
    progress: Progress | None = None,
    processes: int | None = 1,
    requests: Requests | None = None,
    executor: Executor | None = None,
    kept: KeptPrices | None = None,
    by_events: Callable[[str], None] | None = None,
) -> RunResult:
    """Simulate a scenario.

    Parameters
    ----------
    scenario : Scenario
    progress : callable, optional
        Called with (now in ns, requests accounted for, requests).
    processes : int or None
        How many processes may replay replicas that nothing connects; None for as many as there are cores to use and
        work to do. The result does not depend on it.
    requests : Requests, optional
        Those of the scenario, where they are at hand.
    executor : Executor, optional
        Where these processes are, but for this one; by default they are started on this machine.
    kept : KeptPrices, optional
        Prices of earlier runs, for those that are priced alike, and of this one for later ones. The result does not
        depend on it.
    by_events : callable, optional
        Called before the replay with why it goes by events, where it does (:func:`clustersim.replay.replay.replay`).

    Raises
    ------
    InputError
        When code of the scenario may not run, or the trace is broken, the model does not fit into the devices, or a
        group can't run the algorithm that is named for its collective.
    IllegalPlanError
        When the plan breaks rules so that nothing can be made of it; whoever wants any illegal plan refused checks it
        first (:func:`clustersim.simulation.legality.check_scenario`).
    StallError
        When the simulation cannot go on.
    """
    scenario.refuse_code()
    requests = scenario.requests() if requests is None else requests
    try:
        behind_s = 0.0 if kept is None else kept.behind_s
        inputs = replace(replay_input(scenario, requests, kept), behind_s=behind_s)
        started = time.perf_counter()
        replayed = replay(inputs, progress, processes, executor, by_events)
    except (ArithmeticError, LookupError, ValueError):  # an illegal plan may have no shape at all
        verdict = check_scenario_plan(scenario)
        if not verdict.violations:
            raise
        lines = "\n".join(violation_lines(scenario, verdict))
        raise IllegalPlanError(f"{scenario.name} is illegal, so it was not simulated:\n{lines}") from None
    except InputError as error:  # what only prices can tell, such as a group for which an algorithm is not made
        raise InputError(
            scenario.problem(found.path, found.message) if found.path and found.line is None else found
            for found in error.problems
        ) from None
    took = time.perf_counter() - started
    drop_cycles(len(requests))
    if kept is not None:
        kept.behind_s += expected_s(requests, staged=any(pool.plan.pp > 1 for pool in inputs.pools))
    times = _times_of(replayed, inputs)
    return RunResult(
        scenario=scenario,
        requests=request_columns(requests, inputs, replayed, times, to_ns(scenario.engine.front_end_s)),
        times=times,
        replayed=replayed,
        input=inputs,
        simulate_s=took,
        notes=(
            *_too_long(requests, scenario),
            *_shared_prefixes(requests, scenario),
            *_priorities(requests, scenario),
            *_late_faults(scenario, replayed.timeline),
            *(
                note
                for cost in dict.fromkeys(pool.pricer.cost for pool in inputs.pools)
                for note in _outside_table(cost)
            ),
        ),
    )


def without_faults(result: RunResult) -> RunResult:
    """Return the same requests simulated without any fault, of the same prices."""
    inputs = replace(result.input, faults=(), mode="folded")
    return _replayed(result, replace(result.scenario, faults=()), inputs)


def with_blocks(result: RunResult, blocks: Sequence[int]) -> RunResult:
    """Return the same requests simulated with other numbers of K/V blocks, of the same prices.

    Parameters
    ----------
    result : RunResult
    blocks : sequence of int
        Of each owner of K/V, pool by pool; device memory is not asked.
    """
    pools = tuple(replace(one, kv_blocks=some) for one, some in zip(result.input.pools, blocks, strict=True))
    return _replayed(result, result.scenario, replace(result.input, pools=pools, mode="folded"))


def with_entry(result: RunResult, scenario: Scenario) -> RunResult:
    """Return the same requests simulated with other serving decisions of the first pool, as a scenario has them.

    Parameters
    ----------
    result : RunResult
    scenario : Scenario
        That of the run but for these decisions.
    """
    return _replayed(result, scenario, replace(replay_input(scenario, result.input.requests), mode="folded"))


def _replayed(result: RunResult, scenario: Scenario, inputs: ReplayInput) -> RunResult:
    started = time.perf_counter()
    replayed = replay(inputs)
    times, front_end_ns = _times_of(replayed, inputs), to_ns(result.scenario.engine.front_end_s)
    return RunResult(
        scenario=scenario,
        requests=request_columns(inputs.requests, inputs, replayed, times, front_end_ns),
        times=times,
        replayed=replayed,
        input=inputs,
        simulate_s=time.perf_counter() - started,
    )


def _times_of(replayed: ReplayResult, inputs: ReplayInput) -> TokenTimes:
    """Return when clients got their tokens."""
    count, timeline = len(inputs.requests), replayed.timeline
    return token_times(timeline, count, delivery=delivery_of(timeline, inputs.first_token, count))


def _too_long(requests: Requests, scenario: Scenario) -> tuple[str, ...]:
    """Say how many requests are longer than the model's context window, and served because the scenario says so."""
    limit, window = scenario.model.max_positions, scenario.serving.context_window
    tokens = requests.prompt_tokens + requests.output_tokens
    served = tokens <= (window or tokens)
    count = 0 if limit is None else int((served & (tokens > limit)).sum())
    if not count:
        return ()
    are = "request is" if count == 1 else "requests are"
    said = "unlimited" if window is None else f"{window:,}"
    told = f"{count:,} {are} longer than the model's context window of {limit:,} tokens, and served all the same"
    return (f"{told}: serving.context_window is {said}.",)


def _shared_prefixes(requests: Requests, scenario: Scenario) -> tuple[str, ...]:
    """Say that prompts are shorter than what they share, or that what they share is computed in full all the same."""
    drawn = getattr(scenario.workload, "shared_prefixes", None)
    if drawn is not None and drawn.tokens > (longest := int(requests.prompt_tokens.max(initial=0))):
        told = f"workload.shared_prefixes has {drawn.tokens:,} tokens, and no prompt more than {longest:,}"
        return (f"{told}: all prompts of a group are alike.",)
    if scenario.serving.prefix_caching or requests.prefix_hashes is None:
        return ()
    blocks = np.concatenate([np.empty(0, np.int64), *requests.prefix_hashes])
    repeated = len(blocks) - len(np.unique(blocks))
    if not repeated:
        return ()
    share, off = repeated / len(blocks), "serving.prefix_caching is off"
    if scenario.serving.preemption == "swap":
        off = "serving.preemption: swap leaves no serving.prefix_caching"
    return (f"{share:.0%} of the prompts' blocks came before in this workload; {off}, so all are computed.",)


def _priorities(requests: Requests, scenario: Scenario) -> tuple[str, ...]:
    """Say that an order of priorities is that of arrival, since all have the same, or that no order asks for them."""
    values, serving = requests.priorities, [pool.serving for pool in scenario.each_pool()]
    differ = values is not None and bool((values != values[:1]).any())
    if any(one.order.by == "priority" for one in serving):
        if differ:
            return ()
        told = "all requests have the same (workload.priority): they go by arrival."
        return (f"serving.order goes by priority, and {told}",)
    if not differ or any(isinstance(of, UserClass) for one in serving for of in (one.scheduler, one.router)):
        return ()
    return ("requests have priorities (workload.priority), and no serving.order goes by them: all are served alike.",)


def _late_faults(scenario: Scenario, timeline: Timeline) -> tuple[str, ...]:
    """Say which faults come only when all is served."""
    end_ns = timeline.end_ns if scenario.faults else 0
    late = [fault for fault in scenario.faults if fault.at_ns > end_ns]
    return tuple(
        f"{fault.name} is not affected: the run ends at {end_ns / NS_PER_S:g} s, before {fault.at_ns / NS_PER_S:g} s "
        f"(faults)."
        for fault in late
    )


def _outside_table(cost: CostModel) -> tuple[str, ...]:
    """Say where durations were asked for that a measured table does not cover; how many depends on the replay."""
    if not isinstance(cost, TableCost):
        return ()
    return tuple(
        f"prices of {op} lay outside the measured table; the roofline, scaled at its edge, stood in."
        for op, count in cost.outside.items()
        if count
    )
