"""Dask (``dask.distributed``) as an executor: a cluster that is there, or workers on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from typing import Final

import dask
from distributed import Client, LocalCluster

from clustersim.search.executors import ANSWER_S, refusal

_SETTINGS: Final = {
    "distributed.admin.large-graph-warning-threshold": "1 TB",  # a run's requests travel with it
    "distributed.comm.timeouts.connect": f"{ANSWER_S:.0f}s",
    "distributed.diagnostics.nvml": False,
}


@contextmanager
def cluster(address: str, workers: int | None) -> Iterator[tuple[Executor, int]]:
    """Reach the scheduler at an address, or start one with so many workers; yield an executor and its workers.

    Workers that die are replaced, and their calls made again, by Dask.

    Raises
    ------
    InputError
        When what answers at the address is no scheduler.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with dask.config.set(_SETTINGS), ExitStack() as stack:
        if address:
            try:
                client = stack.enter_context(Client(address, timeout=ANSWER_S, set_as_default=False))
            except (OSError, ValueError, TimeoutError) as error:
                raise refusal(f"what answers at {address} is no Dask scheduler ({error})") from None
            count = workers or max(1, sum(client.nthreads().values()))
        else:
            count = workers or 1
            try:
                started = LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    dashboard_address=None,
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
            except (OSError, RuntimeError) as error:
                raise refusal(f"Dask could not start {count} workers here ({error})") from None
            client = stack.enter_context(Client(stack.enter_context(started), set_as_default=False))
        yield client.get_executor(pure=False), count
