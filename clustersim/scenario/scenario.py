"""The scenario: everything that one simulation needs, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from clustersim.cluster.fault import Fault
from clustersim.cluster.topology import Topology
from clustersim.cost.engine import Engine, FirstToken
from clustersim.cost.precision import Precision
from clustersim.errors import InputError, Problem
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.scenario.document import Document, shown
from clustersim.scenario.expect import Expectation
from clustersim.scenario.resolve import NamedFile, replaced
from clustersim.serving.config import ServingConfig
from clustersim.serving.user_class import UserClass
from clustersim.values import dataclass
from clustersim.workload.draws import DrawnWorkload, generate
from clustersim.workload.requests import Requests
from clustersim.workload.traces.plain_csv import NamedColumns
from clustersim.workload.traces.trace import Turns, read_trace

INSTEAD: Final = "clustersim check says what can be written instead"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWorkload:
    """A recorded trace and the part of it that is played; see :func:`clustersim.workload.read_trace`."""

    path: Path
    format: str | None = None
    columns: NamedColumns | None = None
    block_tokens: int | None = None
    benchmark: int | None = None
    requests: int | None = None
    window_ns: tuple[int, int] | None = None
    rate_scale: float = 1.0
    repeat: bool | int = False
    turns: Turns = "as_recorded"

    @property
    def once(self) -> TraceWorkload:
        """All its requests, each of them once: of a trace whose first requests are repeated these."""
        is_all = isinstance(self.repeat, bool)
        return replace(self, requests=None if is_all else self.repeat, repeat=False if is_all else self.repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How a scenario is replayed, and when it stops (None: when the last request has ended)."""

    replay: Literal["folded", "full"] = "folded"
    horizon_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas with a plan and serving decisions of their own.

    Parameters
    ----------
    name : str
        ``prefill`` or ``decode``; empty where all replicas are one pool.
    plan : ParallelPlan
    serving : ServingConfig
    is_placed : bool
        Whether the user said on which devices the ranks are; else they are packed.
    """

    name: str
    plan: ParallelPlan
    serving: ServingConfig
    is_placed: bool = False

    @property
    def place(self) -> str:
        """Where the plan is written: ``plan``, or such as ``plan.decode``."""
        return f"plan.{self.name}" if self.name else "plan"


def _degrees(plan: ParallelPlan) -> str:
    """Write the degrees of a plan that are above 1."""
    degrees = {"DP": plan.dp, "PP": plan.pp, "SP": plan.sp.degree, "TP": plan.tp, "EP": plan.ep.degree}
    return " × ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "one device"


def seen_by(topology: Topology, plan: ParallelPlan) -> Topology:
    """Return a topology as the ranks of a plan see it: ``device`` is of the kind of theirs."""
    return topology.seen_from(0 if plan.placement is None else plan.placement[0])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scenario:
    """One deployment, its requests, and what is expected of it.

    Parameters
    ----------
    pools : tuple of Pool
        All replicas; or the prefill and the decode pool, where requests go from one to the other.
    targets : Mapping of str to str
        Latency (``ttft``, ``tpot``, ``itl``, ``e2e``) → its target as written, such as ``50 ms``.
    expect : tuple of Expectation
        What must hold for the summary.
    faults : tuple of Fault
        What fails when.
    cost_table : Path or None
        Measured operator durations.
    collectives : Mapping of str to str
        Kind of collective → name of the algorithm that is to be used; the others are chosen by cost.
    digest : str
        Hash of the resolved document and of the content of the files it names.
    document : Mapping
        The resolved document: plain data without names to look up (topology, model and engine are written
        out, paths are absolute), which loads again as the same scenario.
    left_out : tuple of str
        What of the deployment is not simulated, in words.
    files : Mapping of str to NamedFile
        What each text of the resolved document stands for that names a file.
    origin : Document
        What the user wrote, with positions, for messages.
    """

    name: str
    seed: int
    topology: Topology
    model: ModelSpec
    precision: Precision
    pools: tuple[Pool, ...]
    engine: Engine
    workload: TraceWorkload | DrawnWorkload
    run: RunConfig
    targets: Mapping[str, str]
    expect: tuple[Expectation, ...]
    cost_table: Path | None
    collectives: Mapping[str, str]
    digest: str
    document: Mapping[str, Any]
    origin: Document = field(compare=False)
    faults: tuple[Fault, ...] = ()
    left_out: tuple[str, ...] = ()
    files: Mapping[str, NamedFile] = field(default_factory=dict)

    def __repr__(self) -> str:
        plans = "; ".join(f"{pool.name} {_degrees(pool.plan)}".lstrip() for pool in self.pools)
        requests = "drawn" if isinstance(self.workload, DrawnWorkload) else f"from {self.workload.path.name}"
        many = "" if self.workload.requests is None else f"{self.workload.requests:,} "
        return (
            f"<Scenario {self.name}: {self.model.name} on {self.topology.name}, {plans}; {many}requests {requests}; "
            f"digest {self.digest[:12]}>"
        )

    @property
    def plan(self) -> ParallelPlan:
        """The plan of all replicas, or of the first pool."""
        return self.pools[0].plan

    @property
    def serving(self) -> ServingConfig:
        """The serving decisions of all replicas, or of the first pool."""
        return self.pools[0].serving

    @property
    def hands_over(self) -> bool:
        """Whether requests go on in a second pool."""
        return len(self.pools) > 1

    def not_simulated(self, longest_tokens: int) -> tuple[str, ...]:
        """Return what is left out of it and of its model, where the longest request has so many tokens, in words."""
        windows = [layer.attention.sliding_window for layer in self.model.layers]
        shorter = sorted({window for window in windows if window is not None and window < longest_tokens})
        kept: tuple[str, ...] = ()
        if shorter:
            many = sum(window in shorter for window in windows)
            kept = (
                f"K/V is not freed behind the windows of {many} of {len(windows)} layers ({shorter[0]:,} tokens): an "
                "engine that frees it has room for more requests",
            )
        return (*self.left_out, *(f"{self.model.name} is {note}" for note in self.model.notes), *kept)

    @property
    def first_token(self) -> FirstToken:
        """Where the client's first token comes from; the prefill pool, where there is one pool."""
        return self.engine.first_token if self.hands_over else "prefill"

    @property
    def decodes_only(self) -> bool:
        """Whether this is the decode pool of two, by itself."""
        return self.pools[0].name == "decode"

    @property
    def portable(self) -> dict[str, Any]:
        """The resolved document, the same on every machine: it names files as a run directory has them."""
        named: dict[str, Any] = replaced(self.document, {text: file.portable for text, file in self.files.items()})
        return named

    def each_pool(self) -> tuple[Scenario, ...]:
        """Return a scenario per pool, with its plan and serving decisions: itself, where there is one."""
        if not self.hands_over:
            return (self,)
        return tuple(replace(self, topology=seen_by(self.topology, pool.plan), pools=(pool,)) for pool in self.pools)

    def with_entry(self, **changes: Any) -> Scenario:
        """Return the scenario with another plan, or other serving decisions, of its replicas or its first pool."""
        return replace(self, pools=(replace(self.pools[0], **changes), *self.pools[1:]))

    def refuse_split_lockstep(self, done: str) -> None:
        """Refuse replicas that share experts where each has several stages or splits prompts.

        Raises
        ------
        InputError
            At the scope of the experts of each such plan, with what cannot be done (``done``) to it.
        """
        problems = [
            self.problem(
                f"{pool.place}.ep.scope",
                f"experts over the ranks of all replicas can be {done} at pp 1 and sp 1, found pp {pool.plan.pp} and "
                f"sp {pool.plan.sp.degree}; {INSTEAD}",
            )
            for pool in self.pools
            if pool.plan.is_lockstep and (pool.plan.pp > 1 or pool.plan.sp.degree > 1)
        ]
        if problems:
            raise InputError(problems)

    def refuse_code(self) -> None:
        """Refuse to go on where Python of the scenario would have to run, and nobody agreed to that.

        Raises
        ------
        InputError
            At each place, with what would run and how it is allowed.
        """
        problems = []
        for key in ("scheduler", "router"):
            named = getattr(self.serving, key)
            if isinstance(named, UserClass) and not named.allowed:
                problems.append(self.problem(f"serving.{key}", named.refusal))
        if problems:
            raise InputError(problems)

    def problem(self, path: str, message: str) -> Problem:
        """Return a problem of the value at a dotted path such as ``plan.tp``, placed where it is written."""
        return self.origin.placed([Problem(path=path, message=message)])[0]

    @property
    def num_requests(self) -> int | None:
        """How many requests are asked for; None: all that a trace has."""
        return self.workload.requests

    def with_few_requests(self, most: int) -> Scenario:
        """Return the scenario with so many drawn requests at most, or a trace not repeated that has more."""
        workload = self.workload
        if isinstance(workload, DrawnWorkload):
            return replace(self, workload=replace(workload, requests=min(workload.requests, most)))
        if workload.repeat and (workload.requests or 0) > most:
            return replace(self, workload=workload.once)
        return self

    def requests(self) -> Requests:
        """Read the trace, or draw the requests.

        Raises
        ------
        InputError
            With the broken lines of the trace, or what of the workload asks for the impossible.
        """
        try:
            if isinstance(self.workload, DrawnWorkload):
                return generate(self.workload, np.random.SeedSequence(self.seed))
            trace = self.workload
            return read_trace(
                trace.path,
                format=trace.format,
                columns=trace.columns,
                block_tokens=trace.block_tokens,
                benchmark=trace.benchmark,
                requests=trace.requests,
                window_ns=trace.window_ns,
                rate_scale=trace.rate_scale,
                repeat=trace.repeat,
                turns=trace.turns,
            )
        except InputError as error:
            prefix = ("workload",) if isinstance(self.workload, DrawnWorkload) else ("workload", "trace")
            problems = [replace(problem, file=problem.file and shown(Path(problem.file))) for problem in error.problems]
            raise InputError(self.origin.placed(problems, prefix)) from None
