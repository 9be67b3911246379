"""RUN-5: what is served when follows the policies that were declared, as far as the record tells.

The same scenario gives the same timeline: a record that could not have come from what it declares is another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from clustersim.legality.finding import NOTHING, Finding, merged
from clustersim.legality.timeline_rules.policy.cut_steps import as_far_as_it_goes
from clustersim.legality.timeline_rules.policy.decision import as_decided
from clustersim.legality.timeline_rules.policy.declared import Policies, policies_of
from clustersim.legality.timeline_rules.policy.departures import as_it_came
from clustersim.legality.timeline_rules.policy.kept_prefixes import as_cached
from clustersim.legality.timeline_rules.policy.overlap import as_many_as_stages
from clustersim.legality.timeline_rules.policy.owners import as_kept
from clustersim.legality.timeline_rules.policy.reservations import as_soon_as_room
from clustersim.legality.timeline_rules.policy.routed import as_routed
from clustersim.legality.timeline_rules.policy.scheduled import as_scheduled
from clustersim.legality.timeline_rules.policy.step_by_step import as_it_must
from clustersim.legality.timeline_rules.policy.swaps import as_soon_as_they_fit
from clustersim.legality.timeline_rules.policy.taken_up import in_order
from clustersim.legality.timeline_rules.policy.turns import first_come
from clustersim.legality.timeline_rules.policy.waits import as_long_as_declared
from clustersim.legality.timeline_rules.transfers.copies import as_soon_as_decided
from clustersim.legality.timeline_rules.transfers.starts import as_soon_as_asked
from clustersim.legality.timeline_rules.views.ranges import Ask, asked_now
from clustersim.legality.timeline_rules.views.reading import Reading

JUDGES: Final[tuple[Callable[[Reading, Policies], Finding], ...]] = (
    as_scheduled,
    in_order,
    as_long_as_declared,
    as_routed,
    as_cached,
    as_kept,
    as_many_as_stages,
    as_decided,
    as_soon_as_room,
    as_soon_as_they_fit,
    as_it_came,
    as_far_as_it_goes,
    first_come,
)


def in_replicas(reading: Reading) -> Iterator[tuple[Callable[..., Finding], Finding]]:
    """Yield each judge of what happens inside replicas, and what it finds in a range of these."""
    policies = policies_of(reading)
    if policies is None:
        return
    for judge in JUDGES:
        if judge is not as_routed:
            yield judge, judge(reading, policies)
            reading.forget()
    yield as_it_must, as_it_must(reading, [reading])


def over_replicas(reading: Reading) -> Iterator[tuple[Callable[..., Finding], Finding]]:
    """Yield the judge that looks at all replicas together, and what it finds."""
    policies = policies_of(reading)
    if policies is not None:
        yield as_routed, as_routed(reading, policies)
        reading.forget()


def as_declared(reading: Reading, parts: Iterable[Reading], ask: Ask = asked_now) -> Finding:
    """Judge who is served when by the policies that were declared.

    Parameters
    ----------
    reading : Reading
    parts : iterable of Reading
        What happened inside the replicas of each pool.
    ask : callable, optional
        Answers what was asked of each range of replicas (:mod:`clustersim.legality.timeline_rules.views.ranges`).
    """
    policies = policies_of(reading)
    if policies is None:
        return NOTHING
    found = []
    for judge in JUDGES:
        found.append(ask(judge, reading, policies))
        reading.forget()
    return merged(
        *found,
        as_soon_as_asked(reading),
        as_soon_as_decided(reading),
        ask(as_it_must, reading, parts),
    )
