"""One worker: an interpreter of its own that replays some replicas of a run, and the thread that listens to it.

It is handed a pickled :class:`ReplayInput` and never imports the program's main module, so this is safe in a program
with threads, and a script needs no guard. It ends when its input is closed, so that nothing outlives this process,
and it has a session of its own: Ctrl-C reaches this process only, which ends all.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Any, Final

from clustersim.replay.input import ReplayInput
from clustersim.replay.lanes.build import LaneBuilder
from clustersim.replay.lanes.part import Part
from clustersim.replay.lanes.run import LaneReplay
from clustersim.replay.prepared import Prepared
from clustersim.timeline.tables import Tables

_SERVE: Final = "import sys; sys.path[:] = {path!r}; from clustersim.replay.processes.worker import serve; serve()"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """What a worker hands back."""

    part: Part
    tables: Tables


class Worker:
    """A process and what it says.

    Parameters
    ----------
    job : bytes or None
        See :func:`job_of`; without, it has failed from the start.
    replicas : range
        Its part.

    Attributes
    ----------
    now, ended : int
        How far it is: simulated time, and requests accounted for.
    found : Found or None
        What it brought; None while it works, and for good when it failed.
    """

    def __init__(self, job: bytes | None, replicas: range) -> None:
        self.replicas = replicas
        self.now = self.ended = 0
        self.found: Found | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._listener = threading.Thread(target=self._listen, args=(job,), daemon=True)
        with suppress(OSError, ValueError, TypeError, RuntimeError):  # no interpreter, no processes, no threads
            if job is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _SERVE.format(path=sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._listener.start()

    @property
    def is_busy(self) -> bool:
        """Whether it may still say something."""
        return self._listener.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it has said everything, or until time is up."""
        self._listener.join(seconds)

    def _listen(self, job: bytes) -> None:
        assert self._process is not None
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        with suppress(Exception):  # whatever it is, its part is done without it
            into.write(job)
            pickle.dump(self.replicas, into)
            into.flush()
            while self.found is None:
                said = pickle.load(out)
                if isinstance(said, Found):
                    self.found = said
                else:
                    self.now, self.ended = said

    def end(self) -> None:
        """End the process, whatever it does."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        if self._listener.ident is not None:
            self._listener.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what it was not there to read
                    pipe.close()


def job_of(inputs: ReplayInput) -> bytes | None:
    """Return what a worker needs; None where something of it cannot be pickled, such as a cost model of a session."""
    plain = replace(inputs.requests, prefix_hashes=None, hash_block_tokens=None)
    try:
        return pickle.dumps(replace(inputs, requests=plain), pickle.HIGHEST_PROTOCOL)
    except (pickle.PickleError, TypeError, AttributeError):
        return None


def serve() -> None:
    """Be a worker: take a job from standard input, tell how far it is, and what it brought, on standard output."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what anybody prints is no answer
    source = sys.stdin.buffer
    inputs: ReplayInput = pickle.load(source)
    replicas: range = pickle.load(source)
    threading.Thread(target=_end_with, args=(source,), daemon=True).start()

    def tell(now: int, ended: int, total: int) -> None:
        del total
        _say(out, (now, ended))

    prepared = Prepared(inputs)
    part = LaneReplay(LaneBuilder(prepared), tell, replicas).part()
    plan = inputs.plan
    tables = prepared.recorder.tables(sp=plan.sp.degree, tp=plan.tp, stages=plan.pp)
    _say(out, Found(part=part, tables=replace(tables, templates=())))


def _say(out: IO[bytes], what: Any) -> None:
    pickle.dump(what, out, pickle.HIGHEST_PROTOCOL)
    out.flush()


def _end_with(source: IO[bytes]) -> None:
    """End this process when the one that started it is gone."""
    source.read()
    os._exit(1)
