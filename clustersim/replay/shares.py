"""Replicas that nothing connects, replayed in several processes; the result is that of one, bit for bit.

Where the router asks nobody, replicas share nothing: no link (``replay.links.contention``), no scheduler, no load to
compare. So replicas are shared out in ranges. This process takes the first, those of an executor of
``concurrent.futures`` the rest, and what they recorded is appended in order of replicas (``timeline.merge``). That is
also the order in which one process records them, and no number in a table tells which process it came from.

A share that the executor does not bring, since a process could not start, died or raised, costs time and nothing else:
this process replays it itself, and so meets the same error in the same place as if it had been alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Final

from clustersim.cost.table import TableCost
from clustersim.processes import local_pool, usable_cores
from clustersim.replay.by_core import ask_nobody, core_part, expected_s
from clustersim.replay.core_events import copies_run_by_events
from clustersim.replay.input import Progress, ReplayInput, ReplayResult
from clustersim.replay.part import Part, result_of
from clustersim.replay.prepared import Prepared
from clustersim.timeline.merge import absorb
from clustersim.timeline.tables import Tables
from clustersim.values import dataclass

WORTH_S: Final = 1.0
"""Seconds of expected work that a process is worth; starting one and taking in what it did costs some 0.5 s."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What another process hands back."""

    part: Part
    tables: Tables


def processes_for(prepared: Prepared, asked: int | None) -> tuple[int, str]:
    """Return how many processes replay a run, and why not more.

    Parameters
    ----------
    prepared : Prepared
        Of a run that the core can simulate.
    asked : int or None
        As many as this; by default one per usable core, and fewer where there is little to do.
    """
    inputs, contention, pool = prepared.input, prepared.contention, prepared.input.entry
    if len(inputs.pools) > 1:
        return 1, "requests go on in another pool"
    replicas = pool.plan.dp
    if replicas == 1:
        return 1, "there is one replica"
    if pool.plan.is_lockstep:
        return 1, "replicas that share experts take their steps together"
    if inputs.decides:
        return 1, f"{inputs.decides} decides, too, what replicas do"
    if contention.stages or contention.boundaries or copies_run_by_events(prepared):
        return 1, "communications can meet on a link"
    if prepared.outages:
        return 1, "what a replica served that fails goes to others"
    if inputs.requests.sessions is not None:
        return 1, "the end of a turn lets the next one of its session come, on any replica"
    if inputs.requests.concurrency is not None:
        return 1, "in a closed loop the end of one request starts another, on any replica"
    if not ask_nobody(inputs.requests, str(pool.serving.router), replicas):
        return 1, f"router {pool.serving.router} compares the loads of all replicas"
    if isinstance(pool.pricer.cost, TableCost) and pool.pricer.cost.outside:
        return 1, "prices outside of the measured table are counted in one place"
    if asked is not None:
        few = min(asked, replicas)
        return few, "there are no more replicas" if few < asked else "no more were asked for"
    cores = usable_cores()
    worth = int(expected_s(inputs.requests, staged=pool.plan.pp > 1) / WORTH_S)
    found = max(1, min(cores, replicas, worth))
    if found == cores:
        return found, "there are no more cores to use"
    return found, "there are no more replicas" if found == replicas else "there is too little to do"


def replay_by_core(
    prepared: Prepared, progress: Progress | None, processes: int | None, executor: Executor | None = None
) -> ReplayResult:
    """Let the core simulate a run that it can, in one process or several.

    Parameters
    ----------
    prepared : Prepared
    progress : callable or None
        Hears of this process while it works, and of others when they are done.
    processes : int or None
        See :func:`processes_for`.
    executor : Executor, optional
        Where the others are; by default they are started on this machine.

    Raises
    ------
    StallError
        When nothing can happen any more although requests are unfinished.
    """
    inputs = prepared.input
    count, undivided = processes_for(prepared, processes)
    bounds = [inputs.entry.plan.dp * number // count for number in range(count + 1)]
    first, *others = [range(begin, end) for begin, end in pairwise(bounds)]
    ended = now = failed = 0

    def tell(at: int, done: int, total: int) -> None:
        nonlocal now
        now = max(now, at)
        if progress is not None:
            progress(now, ended + done, total)

    with _submitted(inputs, others, executor) as futures:
        parts = [core_part(prepared, tell, first)]
        for replicas, future in zip(others, futures, strict=True):
            ended = sum(part.ended for part in parts)
            found = None if future is None or future.exception() is not None else future.result()
            if found is None:
                failed += 1
                parts.append(core_part(prepared, tell, replicas))
            else:
                parts.append(found.part)
                absorb(prepared.recorder, found.tables)
                tell(now, found.part.ended, len(inputs.requests))
    if failed:
        count, undivided = count - failed, f"{failed} more could not do their part, which was done here"
    return result_of(prepared, parts, count, undivided)


@contextmanager
def _submitted(
    inputs: ReplayInput, shares: Sequence[range], executor: Executor | None
) -> Iterator[list[Future[Share] | None]]:
    """Submit each share of replicas; None for one that nobody takes. What is not done when the block raises ends."""
    job = job_of(inputs) if shares else None
    with ExitStack() as stack:
        pool = executor
        if job is not None and pool is None:
            with suppress(OSError):  # none may be started, or no interpreter to keep count of what they share
                pool = stack.enter_context(local_pool(len(shares)))
        futures: list[Future[Share] | None] = []
        for replicas in shares:
            if job is None or pool is None:
                futures.append(None)
                continue
            try:
                futures.append(pool.submit(replay_share, job, replicas))
            except (OSError, RuntimeError, ValueError, TypeError):  # no interpreter, no processes, a pool that broke
                futures.append(None)
        yield futures


def job_of(inputs: ReplayInput) -> bytes | None:
    """Return what a share needs; None where something of it cannot be pickled, such as a cost model of a session."""
    plain = replace(inputs.requests, prefix_hashes=None, hash_block_tokens=None)
    try:
        return pickle.dumps(replace(inputs, requests=plain), pickle.HIGHEST_PROTOCOL)
    except (pickle.PickleError, TypeError, AttributeError):
        return None


def replay_share(job: bytes, replicas: range) -> Share:
    """Replay some replicas of a run; see :func:`job_of`."""
    inputs: ReplayInput = pickle.loads(job)
    prepared = Prepared(inputs)
    part = core_part(prepared, None, replicas)
    tables = prepared.recorder.tables(prepared.layout)
    return Share(part=part, tables=replace(tables, templates=()))
