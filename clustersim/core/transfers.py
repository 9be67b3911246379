"""Transfers on links as events of the core: they begin, end when ``core.flows`` says so, or are cancelled.

Each is on a path that carries one at a time; whose it is stands there (``path.owner``, ``path.number``). An event that
no longer counts is known by ``path.version``.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.events import VERSIONS, expect
from clustersim.core.flows import enter, leave, share
from clustersim.core.state import GROW, NEVER, TOO_LATE, TRANSFER


def transfer(s: Any, n: Any, f: int, wait: int, ns: int) -> None:
    """Let a transfer begin on a path that is free: after a time without links; alone it takes so long on them."""
    now = s.clock[0].now
    n.paths[f].left = ns
    expect_transfer(s, n, f, now + wait if wait < NEVER - now else NEVER)


def expect_transfer(s: Any, n: Any, f: int, time: int) -> None:
    """Let the transfer on a path go on then, and not at any other time that was said before."""
    path = n.paths[f]
    path.version += 1
    expect(s, time, TRANSFER, f, path.version & VERSIONS)


def begin_transfer(s: Any, n: Any, f: int, since: int, ns: int) -> None:
    """Let a transfer be on its links; it may have been so since an earlier instant, alone."""
    enter(n, f, since, ns)
    expect_transfer(s, n, f, n.paths[f].due)


def cancel(n: Any, f: int) -> None:
    """Stop the transfer on a path, or that waits to begin there, if there is any."""
    n.paths[f].version += 1
    if n.paths[f].is_on:
        leave(n, f)


def share_links(s: Any, n: Any) -> int:
    """Share links again once all has happened at an instant; return 0, or what is needed before."""
    clock, traffic = s.clock[0], n.traffic[0]
    if clock.events + traffic.present > clock.event_room:
        return GROW
    share(n, clock.now)
    for at in range(traffic.changed):
        f = n.paths[at].changed
        if n.paths[f].due == NEVER:
            return TOO_LATE
        expect(s, n.paths[f].due, TRANSFER, f, n.paths[f].version & VERSIONS)
    return 0
