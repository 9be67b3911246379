"""A long history range by range of its replicas, each a history of its own: of these, and of the requests there.

Where no request is at two replicas and nothing that one does bears on another, most rules say of all replicas what they
say of each; only these are asked range by range, so that what they hold is that of a range. Requests are numbered anew
in each, in their order. Whatever is found in a range is looked for again in the whole, which tells its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from clustersim.legality.finding import Finding
from clustersim.legality.history import History
from clustersim.timeline.parts import by_ranges, of_replicas, ranges_of, with_own_requests

Ask = Callable[..., Finding]
"""Asks a rule, the first argument, about the others; or knows the answer, which all ranges gave together."""


def asked_now(check: Callable[..., Finding], *about: Any) -> Finding:
    """Ask a rule."""
    return check(*about)


def is_divisible(history: History) -> bool:
    """Return whether rules of replicas may be asked range by range, as far as what was declared tells."""
    tables, requests, declared = history.folded, history.requests, history.declared
    whole = (history.spans, history.routes, history.held, history.flows, history.other)
    if tables is None or requests is None or len(history.pools) > 1 or any(one is not None for one in whole):
        return False
    alone = declared.pp == 1 and declared.sp == 1 and tables.lockstep == 1 and declared.horizon_ns is None
    quiet = not (declared.down or declared.slow or declared.weak_groups or len(tables.moves["request"]))
    apart = declared.carriage is None or not declared.carriage.users.contended
    known = "arrives_ns" in requests and "listed" not in requests
    recorded = all(one is mine for one, mine in (
        (history.steps, tables.steps), (history.chunks, tables.chunks), (history.decodes, tables.decodes),
        (history.facts, tables.facts),
    ))  # fmt: skip
    return alone and quiet and apart and known and recorded and not _prompts_share(history)


def _prompts_share(history: History) -> bool:
    prefixes = history.prefixes or ()
    return bool(prefixes) and (len(prefixes[0]) > 0 or any(one is not prefixes[0] for one in prefixes))


def in_ranges(history: History) -> list[Callable[[], History]]:
    """Return what makes the history of each range; nothing where there is one, or requests are in none of them."""
    tables, requests = history.folded, history.requests
    assert tables is not None
    assert requests is not None
    divided = ranges_of(tables)
    told = by_ranges(tables, requests) if len(divided) > 1 else None
    if told is None:
        return []

    def of(some: range, of_range: dict[str, Any]) -> History:
        mine, part = with_own_requests(of_replicas(tables, some))
        return replace(
            history,
            folded=part,
            steps=part.steps,
            chunks=part.chunks,
            decodes=part.decodes,
            facts=part.facts,
            requests=of_range,
            prefixes=None if history.prefixes is None else history.prefixes[: len(mine)],
        )

    return [partial(of, *each) for each in zip(divided, told, strict=True)]
