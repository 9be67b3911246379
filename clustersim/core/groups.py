"""Replicas that take their steps together, since they share experts: each decides for itself, all decide at once.

The next step of a group begins when the one before it has ended everywhere, and ends for all at once. A replica that
has nothing to run brings a dummy batch of one token (vllm/v1/engine/core.py, ``DPEngineCoreProc.run_busy_loop``:
``execute_dummy_batch``, 2025), since the others ask for its experts. The first replica of a group stands for it: what
happens to any wakes that one, its flight says when a step ends, and ``pending`` how long each of a run takes.

A run goes on as long as all would decide the same again, those that have nothing to run until a request comes.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.custom import consult
from clustersim.core.group_prices import price_asked, price_group
from clustersim.core.hand_overs import await_layer, open_by_layer, reserve
from clustersim.core.scheduler import schedule
from clustersim.core.state import ASK_LAYERS, DECODE, MIXED, NEVER, PREFILL
from clustersim.core.steps import PIECE, arm, describe, horizon_of, run_by_events, soonest

DECIDED, DESCRIBED, PRICED = 1, 2, 3
"""How far the step of a replica has come that has not been launched."""


def choose(s: Any, h: Any, r: int) -> int:
    """Let a replica of a group decide what it brings to the next step; return 0, or what is to be asked for."""
    rep = s.replicas[r]
    if rep.arriving > 0:
        asked = reserve(s, h, r)
        if asked:
            return asked
    if rep.custom:
        asked = consult(s, r, 0)
        if asked:
            s.clock[0].asking = r
            return asked
    else:
        rep.again = 1
        while rep.again:
            rep.again = 0
            schedule(s, r, 0)
    rep.launched = DECIDED
    return 0


def describe_all(s: Any, r: int) -> None:
    """Note what is known of the step of a group that was decided."""
    clock, first, end = s.clock[0], r, r + s.replicas[r].group_size
    decodes = chunks = 0
    for one in range(first, end):
        decodes += s.replicas[one].decodes
        chunks += s.replicas[one].chunks
        describe(s, one, 0, 0)
        if s.replicas[one].by_layer:
            open_by_layer(s, one, 0, 0)
    kind = (MIXED if decodes > 0 else PREFILL) if chunks > 0 else DECODE
    by_events = s.replicas[first].by_events
    limit = clock.max_run if kind == DECODE and (by_events == 0 or s.replicas[first].calm) else 1
    for one in range(first, end):
        rep, flight = s.replicas[one], s.flights[one][0]
        flight.kind, flight.width, flight.timed = kind, 0, 1 - by_events
        if limit == 1:
            continue
        if rep.decodes > 0:
            limit = min(limit, horizon_of(s, one)) if rep.steady else 1
        elif rep.waiting + rep.running + rep.away > 0:
            limit = 1
    s.flights[first][0].limit = limit
    s.replicas[first].launched = DESCRIBED


def extend_all(s: Any, p: Any, r: int, least: int) -> int:
    """Price further steps of a run of a group: so many, and until somebody may come; return what to ask for, or 0."""
    clock, flight, end, until = s.clock[0], s.flights[r][0], r + s.replicas[r].group_size, NEVER
    one = r
    while one < end and until > clock.now:
        until = min(until, soonest(s, one))
        one += 1
    enough = flight.steps + least
    asks = s.replicas[r].by_events or p.groups[p.of_stage[r][0]].asks
    asked = price_asked(s, r, until, enough) if asks else price_group(s, p, r, until, enough)
    if asked:
        return asked
    for one in range(r, end):
        other = s.flights[one][0]
        other.steps, other.limit, other.end = flight.steps, flight.limit, flight.end
    return 0


def any_opens(s: Any, r: int) -> bool:
    """Whether a prompt leaves layer by layer that the step of a group computes to its end."""
    found = 0
    for one in range(r, r + s.replicas[r].group_size):
        found += s.flights[one][0].opens
    return found > 0


def await_layers(s: Any, h: Any, r: int) -> None:
    """Let all whose prompts leave so hear of the layers that their step passes."""
    for one in range(r, r + s.replicas[r].group_size):
        if s.flights[one][0].opens:
            await_layer(s, h, one, 0)


def decide_together(s: Any, p: Any, h: Any, r: int) -> int:
    """Launch the next step of a group whose first replica this is, if it can be; return 0, or what to ask for."""
    rep, flight, end = s.replicas[r], s.flights[r][0], r + s.replicas[r].group_size
    if rep.flying > 0:
        if flight.goes_on:
            asked = extend_all(s, p, r, (flight.steps >> PIECE) + 1)
            if asked:
                return asked
            flight.goes_on = 0
            arm(s, r)
        return 0
    if rep.launched < DESCRIBED:
        if s.free_at[r][0] > s.clock[0].now:
            return 0
        found = 0
        for one in range(r, end):
            if s.replicas[one].launched == 0:
                asked = choose(s, h, one)
                if asked:
                    return asked
            found += s.replicas[one].decodes + s.replicas[one].chunks
        if found == 0:
            for one in range(r, end):
                s.replicas[one].launched = 0
            return 0
        describe_all(s, r)
        flight.end = flight.start
    if rep.launched < PRICED:
        asked = run_by_events(s, r, 0) if rep.by_events > flight.timed else extend_all(s, p, r, 1)
        if asked:
            return asked
        s.clock[0].answered = 0
        rep.launched = PRICED
        if rep.by_layer and rep.by_events == 0 and any_opens(s, r):
            return ASK_LAYERS
    if rep.by_layer and rep.by_events == 0:
        await_layers(s, h, r)
    for one in range(r, end):
        s.replicas[one].launched = 0
        s.replicas[one].flying = 1
        s.flights[one][0].steps = flight.steps
    arm(s, r)
    return 0
