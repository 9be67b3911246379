"""Where many runs are simulated: processes of this machine, Dask or Ray, each as an executor of ``concurrent.futures``.

``local`` is this machine, ``dask`` and ``ray`` start a cluster on it, and ``dask:ADDRESS`` and ``ray:ADDRESS`` use one
that is there. Only what is asked for is imported. Machines of a cluster need this version of clustersim; what a
scenario names as files (its trace aside, which travels) they must find under the same path.
"""

from __future__ import annotations

import importlib.util
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

from clustersim import __version__
from clustersim.errors import InputError, Problem, nearest
from clustersim.processes import forks, local_pool, usable_cores
from clustersim.values import dataclass

KINDS: Final = ("local", "dask", "ray")
ANSWER_S: Final = 5.0
"""Seconds in which an address has to answer (assumed: a round trip takes milliseconds)."""
START_S: Final = 60.0
"""Seconds in which a cluster has to make one call (assumed: Ray starts its first worker in some seconds)."""
_PLACE: Final = re.compile(r"(?:[a-z]+://)?(?P<host>[^\s:/\[\]]+|\[[^\s\[\]]+\]):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """What opens an executor, any number of times, and how many calls it works on at once.

    ``copies`` says whether its workers will have what this process has worked out before they are first needed;
    ``bundles``, whether short calls are better made some at a time.
    """

    workers: int
    pool: Callable[[], AbstractContextManager[Executor]]
    copies: bool = False
    bundles: bool = False


class Here(Executor):
    """Makes each call at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call, and return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def opened(text: str, workers: int | None) -> Iterator[Executors]:
    """Make ready what ``--executor`` names; a cluster is reached, or started, before anything is simulated.

    Parameters
    ----------
    text : str
        ``local``, ``dask``, ``ray``, ``dask:ADDRESS`` or ``ray:ADDRESS``.
    workers : int or None
        How many calls to work on at once; by default one per usable core of this machine, or of the cluster.

    Raises
    ------
    InputError
        When there is no such executor, its library is not installed, or its address does not answer.
    """
    kind, _, address = text.partition(":")
    if kind not in KINDS or (kind == "local" and address):
        raise refusal(f"no executor {text!r}; expected local, dask, ray, dask:ADDRESS or ray:ADDRESS{_hint(kind)}")
    if kind == "local":
        with ExitStack() as stack:
            yield _local(workers or usable_cores(), stack)
        return
    library = {"dask": "distributed", "ray": "ray"}[kind]
    try:
        found = importlib.util.find_spec(library)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise refusal(f"{library} is not installed; pip install 'clustersim[{kind}]'") from None
    if address and not (kind == "ray" and address == "auto"):
        _refuse_silent(kind, address)
    if kind == "dask":
        from clustersim.search.dask_cluster import cluster
    else:
        from clustersim.search.ray_cluster import cluster
    with cluster(address, workers or (None if address else usable_cores())) as (executor, count):
        if address:
            _refuse_strange(executor, text)

        @contextmanager
        def again() -> Iterator[Executor]:
            yield executor

        yield Executors(workers=count, pool=again, bundles=True)


def _local(workers: int, stack: ExitStack) -> Executors:
    """Return what opens this machine's pool, and a new one where a worker of the last one was killed."""
    pools: list[Executor] = []

    @contextmanager
    def pool() -> Iterator[Executor]:
        try:
            if pools:
                pools[-1].submit(version)
        except BrokenExecutor:
            pools.clear()
        if not pools:
            pools.append(Here() if workers == 1 else stack.enter_context(local_pool(workers)))
        yield pools[-1]

    return Executors(workers=workers, pool=pool, copies=workers > 1 and forks())


def _hint(kind: str) -> str:
    guess = nearest(kind, KINDS)
    return f"; did you mean {guess!r}?" if guess and guess != kind else ""


def refusal(message: str) -> InputError:
    """Return the error for an executor that can't be used."""
    return InputError(Problem(message=message, file="--executor"))


def _refuse_silent(kind: str, address: str) -> None:
    """Refuse an address that nobody answers at, before a library waits for it as long as it likes."""
    found = _PLACE.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        example = {"dask": "dask:tcp://10.0.0.1:8786", "ray": "ray:ray://10.0.0.1:10001"}[kind]
        raise refusal(f"cannot read the address {address!r}; expected host and port, such as {example}")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), ANSWER_S).close()
    except OSError as error:
        reason = "timed out" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise refusal(f"nothing answers at {address} ({reason})") from None


def _refuse_strange(executor: Executor, text: str) -> None:
    """Refuse a cluster whose workers don't answer, or are not of this version."""
    try:
        found = executor.submit(version).result(START_S)
    except TimeoutError:
        raise refusal(f"no worker of {text} made a call in {START_S:.0f} s; does the cluster have any?") from None
    except Exception as error:
        raise refusal(
            f"workers of {text} can't call clustersim ({type(error).__name__}: {error}); install it on each machine, "
            f"that of the scheduler too"
        ) from None
    if found != __version__:
        raise refusal(f"workers of {text} have clustersim {found}, and this is {__version__}; install the same")


def version() -> str:
    """Return the version of clustersim, of whoever is asked."""
    return __version__
