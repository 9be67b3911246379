"""Replicas that fail and come back: who is moved, who waits for one that lives, and who is lost.

A replica that fails loses its K/V and its steps in flight: they are as if they had never begun. What it served goes
through the router again, in order of requests, and keeps the tokens that it has generated (or is lost, where the fault
says so). It is *displaced* until then: where no replica lives it waits, and where none comes back it is lost.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.events import VERSIONS, drop_first, first_kind, first_number
from clustersim.core.passes import abandon
from clustersim.core.pool_outages import break_off, return_to_prefill, rouse
from clustersim.core.prefix_cache import empty
from clustersim.core.progress import blocks_of, lend, most_blocks, take_free
from clustersim.core.queue import displace, push
from clustersim.core.record import close_episode, is_full, log_run, note, note_reason
from clustersim.core.routing import lacks_room, route, show_replicas
from clustersim.core.scheduler import preempt
from clustersim.core.state import (
    ASK_PAIRS,
    AT_ONCE,
    FAULT,
    FULL,
    GROW,
    LEAST_OUTSTANDING,
    LOST,
    LOST_IN_FAILURE,
    LOST_WAITING,
    NEVER,
    POWER_OF_TWO,
    PREEMPTED,
    TOO_LONG,
    WAITS,
)
from clustersim.core.steps import (
    advance_decodes,
    arm,
    cut,
    decide_anew,
    free_sequence,
    is_run,
    rank_in_queue,
    settle,
    step_ns,
    take_out,
    touch,
    weigh,
)
from clustersim.core.swapping import LEAVING


def forget_flights(s: Any, p: Any, n: Any, r: int) -> None:
    """Account for the steps of a run that have ended, and forget what is under way but for the blocks that it took."""
    rep, ended = s.replicas[r], 0
    if rep.stages == 1 and rep.meets == 0 and rep.flying > 0:
        flight, first = s.flights[r][0], rep.group_first
        ended = flight.steps - 1
        if ended > 0:
            log_run(s, r, 0, ended, flight.end - step_ns(p, s.flights[first][0], s.pending[first], ended))
            advance_decodes(s, r, 0, flight, ended)
            for place in range(flight.decodes):
                seq = s.sequences[s.members[r][place]]
                lend(s, r, s.members[r][place], blocks_of(rep, seq.computed + 1) - seq.blocks)
    while rep.flying > 0:
        rep.flying -= 1
        k = rep.oldest + rep.flying
        flight = s.flights[r][k - rep.stages if k >= rep.stages else k]
        rep.step = flight.step + ended
        flight.version = -1  # it passes no layer any more
        if flight.slot >= 0:
            s.slots[r][flight.slot] = flight.previous
    if rep.meets:
        abandon(s, p, n, r)
    rep.decodes_in_flight = 0
    for stage in range(rep.stages):
        s.free_at[r][stage] = 0
    for place in range(len(s.sent_at[r])):
        s.sent_at[r][place] = 0


def lose_copies(s: Any, r: int) -> None:
    """Lose what is in host memory, and on its way: it is recomputed."""
    rep, swapped, away = s.replicas[r], s.replicas[r].swapped, s.replicas[r].away
    rep.swapped = rep.away = rep.copies = 0
    for owner in range(rep.owners):
        own = s.owners[rep.first_owner + owner]
        own.coming = own.short = 0
        own.host = rep.host_blocks
    for place in range(away):
        one = s.swapped[r][place] if place < swapped else s.swapped[r][len(s.swapped[r]) - 1 - place + swapped]
        seq = s.sequences[one]
        take_free(s, r, seq.owner, -(blocks_of(rep, seq.computed) if seq.away == LEAVING else seq.blocks))
        seq.away = seq.blocks = seq.busy = seq.computed = seq.decodes = 0
        seq.copies = (seq.copies + 1) & VERSIONS
        push(s, r, one)
        if seq.leaving:
            rep.leaving -= 1
            seq.leaving = 0
            take_out(s, r, one, 0)
        else:
            note(s, r, PREEMPTED, seq.request, seq.generated, rep.blocks - rep.free)
    for place in range(len(s.copies_end[r])):
        s.copies_end[r][place] = 0


def fail(s: Any, p: Any, n: Any, h: Any, number: int) -> None:
    """Let a replica fail, after the step that ends now."""
    outage = s.outages[number]
    r, why = outage.replica, AT_ONCE if outage.loses else WAITS
    rep, order = s.replicas[r], s.order[r]
    if is_run(s, r):
        cut(s, p, r)
        if rep.flying == 0:
            touch(s, r)
    rep.outage = number
    if s.clock[0].pools > 1:
        break_off(s, p, n, h, r, why)
    forget_flights(s, p, n, r)
    for owner in range(rep.owners):  # so that nobody is copied
        s.owners[rep.first_owner + owner].host = 0
    while rep.running > 0:
        one = order[0]
        seq = s.sequences[one]
        seq.busy = 0
        if seq.leaving:
            rep.leaving -= 1
            seq.leaving = 0
            take_out(s, r, one, 0)
        else:
            preempt(s, r, one)
    lose_copies(s, r)
    for place in range(rep.waiting):
        one = s.queues[r][place]
        if rep.pool > 0:
            one = return_to_prefill(s, r, one)
        displace(s.clock[0], s.sequences[one], why)
    rep.waiting = 0
    if rep.caching:
        empty(s, r)
    arm(s, r)
    s.pools[rep.pool].gone += outage.until < 0


def place_displaced(s: Any, p: Any) -> int:
    """Send all that are displaced to replicas that live, or let them wait or end; return 0, or what is needed.

    Whoever was accepted once can run on any replica, since all of a pool are alike. No fact says when it is sent to
    another one, so that a run of steps ends there.
    """
    clock, pool = s.clock[0], s.pools[0]
    while clock.displaced_at <= clock.displaced_to:
        one = s.sequence_of[clock.displaced_at]
        if one >= 0 and s.sequences[one].displaced > 0:
            if is_full(s):
                return FULL
            seq, r = s.sequences[one], s.sequences[one].replica
            close_episode(s, r, one)
            if seq.displaced == AT_ONCE or pool.gone == pool.size:
                note(s, r, LOST, seq.request, seq.generated, 0)
                why = LOST_IN_FAILURE if seq.displaced == AT_ONCE else LOST_WAITING
                note_reason(s, seq.request, why, s.replicas[r].outage)
                free_sequence(s, r, one)
            elif most_blocks(s.replicas[0], seq) > s.replicas[0].blocks // s.replicas[0].owners:
                note(s, r, LOST, seq.request, seq.generated, 0)
                note_reason(s, seq.request, TOO_LONG, seq.output)
                free_sequence(s, r, one)
            elif pool.living > 0:
                if pool.choices == pool.drawn:
                    clock.asking = 0
                    return ASK_PAIRS
                r = route(s, p, 0, seq.request, seq.prompt + seq.generated)
                if r < 0:
                    return show_replicas(s, p, seq.request, seq.prompt + seq.generated)
                if lacks_room(clock, s.replicas[r]):
                    return GROW
                pool.choices += 1
                clock.chosen = -1
                s.retried[seq.request] = r
                seq.replica, seq.displaced, seq.last_step = r, 0, -1
                rank_in_queue(s, one)
                s.replicas[r].standing = 0
                push(s, r, one)
                weigh(s, r, seq.prompt + seq.output)
                decide_anew(s, p, r)
            else:
                again = s.retried[seq.request]
                seq.replica = again if again >= 0 else s.routed[seq.request]
        clock.displaced_at += 1
    clock.displaced_at = NEVER
    if pool.living > 0:
        clock.displaced_from, clock.displaced_to = NEVER, -1
    return 0


def begin_and_end_outages(s: Any, p: Any, n: Any, h: Any) -> int:
    """Let replicas fail or come back that do so now; return 0, or what is needed before all has happened."""
    clock = s.clock[0]
    while clock.events > 0 and s.times[0] == clock.now and first_kind(s) == FAULT:
        if is_full(s):
            return FULL
        if clock.events + 3 + clock.margin > clock.event_room:
            return GROW
        number = first_number(s)
        drop_first(s)
        r = s.outages[number].replica
        rep, pool = s.replicas[r], s.pools[s.replicas[r].pool]
        rep.is_down = s.outages[number].until != clock.now
        if rep.is_down:
            fail(s, p, n, h, number)
        rep.outstanding = NEVER if rep.is_down else 0  # so that nobody goes there
        if pool.router == LEAST_OUTSTANDING:
            settle(s, r)
        pool.living, clock.displaced_at = 0, clock.displaced_from
        for other in range(pool.first, pool.first + pool.size):
            if s.replicas[other].is_down == 0:
                s.living[pool.first + pool.living] = other
                pool.living += 1
        if pool.router == POWER_OF_TWO:
            pool.drawn = pool.choices
        if clock.pools > 1:
            rouse(s)
    return place_displaced(s, p)
