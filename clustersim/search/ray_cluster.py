"""Ray as an executor: a cluster that is there, or workers on this machine. Nothing is reported to anybody."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Final

import ray

from clustersim.search.executors import refusal

_TRIES: Final = 3
_ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do by default, and warns of until then
}


class _RayExecutor(Executor):
    """Makes each call a task of Ray; one whose worker dies is made again."""

    def __init__(self) -> None:
        self._call = ray.remote(max_retries=_TRIES, num_cpus=1)(_call)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._call.remote(fn, args, kwargs).future()
        return future


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


@contextmanager
def cluster(address: str, workers: int | None) -> Iterator[tuple[Executor, int]]:
    """Reach a cluster, or start one with so many workers; yield an executor and its workers.

    Raises
    ------
    InputError
        When no cluster of Ray is there.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(**options, logging_level=logging.CRITICAL, log_to_driver=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise refusal(f"no cluster of Ray at {address or 'this machine'} ({str(error).splitlines()[0]})") from None
    try:
        yield _RayExecutor(), workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()
