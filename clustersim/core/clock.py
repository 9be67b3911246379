"""The one clock: what happens at an instant, in its order, and which instant comes next.

Steps end, requests arrive, deadlines pass, schedulers decide. What happens in one phase at several replicas commutes.
The clock stops where it needs something, and goes on from there when it is called again.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.events import VERSIONS, drop_first, expect, first_kind, first_number, first_version
from clustersim.core.groups import decide_together
from clustersim.core.hand_overs import NOBODY, go_on_hand_over
from clustersim.core.outages import begin_and_end_outages
from clustersim.core.pools import cancel_transfer, is_hopeless, settle_hand_overs
from clustersim.core.queue import displace, push, remove
from clustersim.core.record import is_full, note, note_reason
from clustersim.core.routing import lacks_room, route, show_replicas
from clustersim.core.stages import go_on_stage, go_on_transfer
from clustersim.core.state import (
    ALL_FAILED,
    ARRIVALS,
    ASK_EVENTS,
    ASK_PAIRS,
    CANCELLATION,
    COPY_END,
    DECISIONS,
    DEPARTURES,
    DONE,
    ENDS,
    EVENTS,
    FAULT,
    FULL,
    GROW,
    HAND_OVERS,
    LAYER,
    NEVER,
    NO_DECODERS,
    NOT_POOLED,
    OUTAGES,
    QUEUE_FULL,
    REJECTED,
    STOPPING,
    TIMEOUT,
    TRANSFER,
    TURN_OVER,
    WAITED,
    WAITS,
)
from clustersim.core.steps import (
    cut,
    decide,
    decide_anew,
    end_turn,
    free_sequence,
    is_run,
    land_all,
    rank_in_queue,
    stop,
    take_out,
    taken_by_run,
    touch,
    weigh,
)
from clustersim.core.swapping import end_copy
from clustersim.core.transfers import share_links


def end_steps(s: Any, p: Any, n: Any, h: Any) -> int:
    """Let end what ends now: steps, copies, and what shares links; return 0, or why not all has."""
    clock = s.clock[0]
    while clock.events > 0 and s.times[0] == clock.now and first_kind(s) <= LAYER:
        if is_full(s):
            return FULL
        if first_kind(s) == COPY_END:
            end_first_copy(s)
            continue
        if first_kind(s) == EVENTS:
            drop_first(s)
            return ASK_EVENTS
        if first_kind(s) > COPY_END:
            if clock.events + clock.margin + 3 > clock.event_room:
                return GROW
            if not go_on_hand_over(s, p, n, h):
                go_on(s, p, n)
            continue
        r, version = first_number(s), first_version(s)
        drop_first(s)
        rep = s.replicas[r]
        if version != rep.version:
            continue
        if rep.flying > 0:
            flight = s.flights[r][rep.oldest]
            if flight.end == clock.now:
                if flight.steps < flight.limit:
                    flight.goes_on = 1
                else:
                    land_all(s, r)
        touch(s, r)
    return 0


def go_on(s: Any, p: Any, n: Any) -> None:
    """Let the transfer or pass go on whose event comes first."""
    kind, number, version = first_kind(s), first_number(s), first_version(s)
    drop_first(s)
    if kind == TRANSFER:
        if version == n.paths[number].version & VERSIONS:
            go_on_transfer(s, p, n, number)
        return
    stages = len(n.stages[0])
    r, i = number // stages, number % stages
    if version == n.stages[r][i].version:
        go_on_stage(s, p, n, r, i)


def end_first_copy(s: Any) -> None:
    """Let the copy end that comes first; who was given up meanwhile leaves with it."""
    one, version = s.sequence_of[first_number(s)], first_version(s)
    drop_first(s)
    if one < 0 or s.sequences[one].copies != version:
        return
    seq, r = s.sequences[one], s.sequences[one].replica
    end_copy(s, r, one)
    if seq.leaving:
        seq.leaving = 0
        s.replicas[r].leaving -= 1
        take_out(s, r, one, 0)
    touch(s, r)


def arrive(s: Any, p: Any) -> int:
    """Let requests arrive that are due now; return 0, or why not all have.

    Turns of sessions that had to wait for the one before them come behind all others.
    """
    clock, pool = s.clock[0], s.pools[0]
    while True:
        request, is_turn = clock.next, 0
        if request < clock.total and (clock.freed > 0 if clock.closed else s.arrived[request] == clock.now):
            if len(s.follows) > 0 and s.follows[request] >= 0 and s.turns[s.follows[request]] != TURN_OVER:
                s.turns[s.follows[request]] = request
                clock.held += 1
                clock.next += 1
                continue
        elif clock.due > 0:
            request, is_turn = s.due_turns[clock.due - 1], 1
        else:
            return 0
        if is_full(s):
            return FULL
        if clock.spares < 2:
            return GROW
        if pool.choices == pool.drawn and pool.living > 0:
            clock.asking = 0
            return ASK_PAIRS
        r = route(s, p, 0, request, s.prompts[request]) if pool.living > 0 else 0
        if r < 0:
            return show_replicas(s, p, request, s.prompts[request])
        if lacks_room(clock, s.replicas[r]):
            return GROW
        if is_turn:
            clock.round = (clock.round if clock.round > 0 else clock.due) - 1
            clock.due -= 1
        else:
            clock.next += 1
        clock.chosen = -1
        s.order_of_arrival[clock.turn] = request
        clock.turn += 1
        pool.choices += pool.living > 0
        clock.freed -= 1
        s.came[request], s.routed[request] = clock.now, r
        if s.refused[request] == 1:
            reject(s, request)
        elif s.outputs[request] > 1 and is_hopeless(s):
            s.refused[request] = 1
            note_reason(s, request, NO_DECODERS, 0)
            reject(s, request)
        elif s.refused[request]:
            reject(s, request)
        elif pool.gone == pool.size:
            s.refused[request] = 1
            note_reason(s, request, ALL_FAILED, 0)
            reject(s, request)
        elif 0 <= s.replicas[r].queue_limit <= s.replicas[r].waiting + s.replicas[r].away:
            s.refused[request] = 1
            note_reason(s, request, QUEUE_FULL, r)
            reject(s, request)
        else:
            join_queue(s, p, r, request)


def reject(s: Any, request: int) -> None:
    """Let a request end that has just come."""
    clock = s.clock[0]
    clock.ended += 1
    clock.freed += 1
    if len(s.follows) > 0:
        end_turn(s, request)


def join_queue(s: Any, p: Any, r: int, request: int) -> None:
    """Let a request wait at a replica; a run of steps ends with the one that is under way where it is the first."""
    clock = s.clock[0]
    clock.spares -= 1
    one = s.spare[clock.spares]
    seq = s.sequences[one]
    seq.request, seq.prompt, seq.output, seq.replica = request, s.prompts[request], s.outputs[request], r
    seq.arrived = clock.now
    seq.computed = seq.generated = seq.blocks = seq.busy = seq.admitted = seq.leaving = seq.displaced = 0
    seq.decodes = seq.away = seq.preemptions = seq.copies = seq.owner = 0
    seq.first_step = seq.last_step = -1
    rank_in_queue(s, one)
    seq.partner, seq.hands_over, seq.is_on_way = NOBODY, 0, 0
    if clock.pools > 1:
        clock.spares -= 1
        seq.partner = s.spare[clock.spares]
        s.sequences[seq.partner].partner = one
        s.sequences[seq.partner].is_on_way = 0
        if seq.output > 1:
            seq.output = seq.hands_over = 1
    if s.pools[0].living == 0:
        displace(clock, seq, WAITS)
    else:
        s.replicas[r].standing = 0
        push(s, r, one)
        weigh(s, r, seq.prompt + seq.output)
        if is_run(s, r) and (s.queues[r][0] == one or s.replicas[r].custom):  # those before it are kept out as ever
            cut(s, p, r)
        touch(s, r)
    if len(s.sequence_of) > 0:
        s.sequence_of[request] = one
        if clock.timeout >= 0:
            expect(s, later(clock.now, clock.timeout), TIMEOUT, request, 0)
        if clock.cancels and s.cancel_after[request] >= 0:
            expect(s, later(clock.now, s.cancel_after[request]), CANCELLATION, request, 0)


def later(now: int, delay: int) -> int:
    """Return an instant so much later; ``NEVER`` where 64 bits do not hold it."""
    return now + delay if delay < NEVER - now else NEVER


def depart(s: Any, p: Any, kind: int, one: int) -> None:
    """Let a deadline pass of a request that has not ended, after the step that ends now."""
    seq, r = s.sequences[one], s.sequences[one].replica
    request = seq.request
    if kind == TIMEOUT and seq.admitted:
        return
    if seq.is_on_way:
        cancel_transfer(s, p, one)
        return
    if seq.displaced == 0:
        decide_anew(s, p, r)
    if s.sequence_of[request] != one:  # it ended with the step that ends now
        return
    if kind == TIMEOUT:
        if seq.displaced == 0:
            remove(s, r, one)
        note(s, r, REJECTED, request, seq.prompt, NOT_POOLED)
        note_reason(s, request, WAITED, s.clock[0].now - seq.arrived)
        free_sequence(s, r, one)
    elif seq.busy:
        if seq.leaving == 0:
            seq.leaving = 1
            s.replicas[r].leaving += 1
    else:
        take_out(s, r, one, taken_by_run(s, p, r))


def pass_departures(s: Any, p: Any, n: Any, h: Any) -> int:
    """Let happen what departs now, failures first; return 0, or why not all has."""
    clock = s.clock[0]
    if (clock.events > 0 and s.times[0] == clock.now and first_kind(s) == FAULT) or clock.displaced_at < NEVER:
        return begin_and_end_outages(s, p, n, h) or OUTAGES
    while clock.events > 0 and s.times[0] == clock.now and first_kind(s) > LAYER:
        if is_full(s):
            return FULL
        if clock.events + 3 > clock.event_room:
            return GROW
        kind, one = first_kind(s), s.sequence_of[first_number(s)]
        drop_first(s)
        if one >= 0:
            depart(s, p, kind, one)
    return 0


def decide_all(s: Any, p: Any, n: Any, h: Any) -> int:
    """Let all replicas decide that something has happened to; return 0, or what is needed."""
    clock = s.clock[0]
    while clock.touched_at < clock.touched:
        r = s.touched[clock.touched_at]
        if is_full(s):
            return FULL
        if clock.events + 3 + clock.margin > clock.event_room:
            return GROW
        clock.asking = r
        asked = decide_together(s, p, h, r) if s.replicas[r].by_group else decide(s, p, n, h, r)
        if asked:
            return asked
        if s.replicas[r].again:
            s.replicas[r].again = 0
            continue
        s.replicas[r].is_touched = 0
        clock.touched_at += 1
    clock.touched = clock.touched_at = 0
    clock.asked = clock.now
    return 0


def next_instant(s: Any) -> int:
    """Return when something happens next."""
    clock = s.clock[0]
    found = s.times[0] if clock.events > 0 else NEVER
    if clock.closed == 0 and clock.next < clock.total:
        found = min(found, s.arrived[clock.next])
    return found


def advance(s: Any, p: Any, n: Any, h: Any) -> int:
    """Go on from instant to instant until there is nothing more to do, or something is needed; return why.

    Parameters
    ----------
    s : State
    p : Prices
    n : Network
    """
    clock, times = s.clock[0], s.times
    while True:
        if clock.phase == ENDS:
            asked = end_steps(s, p, n, h)
            if asked:
                return asked
            clock.phase = HAND_OVERS
        if clock.phase == HAND_OVERS:
            if clock.unsettled:
                asked = settle_hand_overs(s, p, n, h)
                if asked:
                    return asked
                if clock.events > 0 and times[0] == clock.now and first_kind(s) <= LAYER:  # of what took no time
                    clock.phase = ENDS
                    continue
            clock.phase = ARRIVALS
        if clock.phase == ARRIVALS:
            coming = clock.next < clock.total and s.arrived[clock.next] == clock.now
            asked = arrive(s, p) if coming or clock.closed or clock.due > 0 else 0
            if asked:
                return asked
            clock.phase = DEPARTURES
        if clock.phase == DEPARTURES:
            departs = (clock.events > 0 and times[0] == clock.now) or clock.displaced_at < NEVER
            asked = pass_departures(s, p, n, h) if departs else 0
            if asked:
                return asked
            if clock.unsettled:
                clock.phase = HAND_OVERS
                continue
            if clock.due > 0 or (clock.closed and clock.freed > 0 and clock.next < clock.total):
                clock.phase = ARRIVALS  # of those who are let in by that
                continue
            clock.phase = DECISIONS
        if clock.phase == DECISIONS:
            asked = decide_all(s, p, n, h)
            if asked == 0 and clock.unsettled:
                clock.phase = HAND_OVERS
                continue
            if asked == 0 and n.traffic[0].touched > 0:
                asked = share_links(s, n)
            if asked:
                return asked
            now = next_instant(s)
            if now <= clock.horizon and now != NEVER:
                clock.now = now
                clock.phase = ENDS
                continue
            clock.phase = STOPPING
        while clock.touched_at < clock.replicas:
            if is_full(s):
                return FULL
            stop(s, p, clock.touched_at)
            clock.touched_at += 1
        return DONE
