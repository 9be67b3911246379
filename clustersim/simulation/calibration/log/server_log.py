"""One run of a server: the requests that it was sent, and how long they took."""

from __future__ import annotations

from collections.abc import Mapping

from clustersim.clock import FloatArray
from clustersim.values import dataclass
from clustersim.workload.requests import Requests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerLog:
    """One run of a server.

    Parameters
    ----------
    name : str
        Of its file.
    requests : Requests
        What it was sent.
    ttft_ms, tpot_ms : FloatArray or None, shape (n,)
        By request, in order of arrival, NaN where there is none; None where the log has only figures of all.
    figures : mapping
        Milliseconds by ``ttft mean`` and the like, where there are no lists.
    admitted_s, ended_s, queued_s : FloatArray or None, shape (n,)
        Instants of one clock at which the engine had a request, took it up, and was done with it.
    has_front_end : bool
        Whether times are those of clients, outside the server.
    notes : tuple of str
        What a reader must know of how it was read.
    digest : str
        Of the text: two logs with one are the same.
    """

    name: str
    requests: Requests
    ttft_ms: FloatArray | None = None
    tpot_ms: FloatArray | None = None
    figures: Mapping[str, float]
    queued_s: FloatArray | None = None
    admitted_s: FloatArray | None = None
    ended_s: FloatArray | None = None
    has_front_end: bool = False
    notes: tuple[str, ...] = ()
    digest: str = ""
