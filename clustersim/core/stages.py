"""Ends of passes, collectives and sends that may share links, and what begins with them."""

from __future__ import annotations

from typing import Any

from clustersim.core.flows import leave
from clustersim.core.passes import (
    COLLECTIVE,
    NEXT,
    await_layer_end,
    begin_pass,
    begin_send,
    ends_at,
    get_on,
    go_on_pass,
    table_of,
    tell,
)
from clustersim.core.record import note_stretch
from clustersim.core.steps import land, touch
from clustersim.core.transfers import begin_transfer


def go_on_transfer(s: Any, p: Any, n: Any, f: int) -> None:
    """Let the transfer on a path get on its links, or end."""
    path = n.paths[f]
    if path.owner == COLLECTIVE:
        leave(n, f)
        end_collective(s, p, n, path.number)
    elif path.is_on or path.first == path.end:
        if path.is_on:
            leave(n, f)
            tell(s, p, n, f, -1)
        end_send(s, p, n, path.number)
    else:
        each = len(n.senders[0])
        begin_transfer(s, n, f, n.senders[path.number // each][path.number % each].enters, path.left)
        tell(s, p, n, f, 1)


def end_collective(s: Any, p: Any, n: Any, number: int) -> None:
    """Let a pass go on behind a collective, and note what that lost."""
    stages = len(n.stages[0])
    r, i = number // stages, number % stages
    stage = n.stages[r][i]
    flight = s.flights[r][(stage.begun - 1) % s.replicas[r].stages]
    table = table_of(flight, p.of_stage[r][i])
    lost = s.clock[0].now - ends_at(n, r, i, table, stage.at)
    if lost != 0:
        stage.late += lost
        instance = n.collectives[table][stage.at * (n.chains[table].classes + 2) + 1]
        note_stretch(s, n, r, flight.step, i, instance, lost)
    stage.at += 1
    go_on_pass(s, p, n, r, i)


def go_on_stage(s: Any, p: Any, n: Any, r: int, i: int) -> None:
    """Let the collective of a pass get on its links, or the pass end: its output is sent, or it has left the last
    stage; the stage takes the next one."""
    stage, ranks, last = n.stages[r][i], s.clock[0].senders, s.replicas[r].stages - 1
    if stage.phase == NEXT:
        get_on(s, n, r, i, s.clock[0].now)
        await_layer_end(s, p, n, r, i)
        return
    stage.busy = 0
    stage.ended += 1
    if i < last:
        for rank in range(ranks):
            if n.senders[r][i * ranks + rank].busy == 0:
                begin_send(s, p, n, r, i, rank)
    else:
        land(s, r)
        touch(s, r)
    if i == 0:
        s.free_at[r][0] = 0
        touch(s, r)
    elif stage.begun < stage.arrived:
        begin_pass(s, p, n, r, i)


def end_send(s: Any, p: Any, n: Any, number: int) -> None:
    """Begin with what waits behind a send, and with the next pass if all ranks have sent theirs."""
    ranks = s.clock[0].senders
    each = len(n.senders[0])
    r, i, rank = number // each, number % each // ranks, number % ranks
    rep, sender, after = s.replicas[r], n.senders[r][number % each], n.stages[r][i + 1]
    s.sends[r][((sender.begun - 1) % rep.stages * (rep.stages - 1) + i) * 2 * ranks + ranks + rank] = s.clock[0].now
    sender.busy = sender.quiet = 0
    sender.sent += 1
    if sender.begun < n.stages[r][i].ended:
        begin_send(s, p, n, r, i, rank)
    arrived = sender.sent
    for other in range(ranks):
        arrived = min(arrived, n.senders[r][i * ranks + other].sent)
    after.arrived = arrived
    if after.busy == 0 and after.begun < arrived:
        begin_pass(s, p, n, r, i + 1)
