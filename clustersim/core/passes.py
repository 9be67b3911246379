"""Passes whose collectives may meet other communications on a link, and sends that may.

A pass is a chain of operators, and ends when these add up to, as long as no transfer of others is on its links. While
one is, it goes on from collective to collective: each is a transfer that shares links, and may take longer. Both ways
take as long where nothing meets, so it does not matter when a pass changes from one to the other. ::

    whole:  |------------------------------------------------------------>|
                     somebody's transfer begins
                            v
                     |--collective--|work|--collective--|---------------->|   whole again, once it has left

A send that meets nothing is one event as well. Where it can only meet collectives of its own replica, alike on all
ranks, it gets on its links when one of those is about to be there with it; else at once.

Stages take micro-batches in the order in which they were launched, and so do the sends of each rank; so how many of
each have begun and ended says which are where. Who ends what: :mod:`clustersim.core.stages`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record
from clustersim.core.events import VERSIONS, expect
from clustersim.core.prices import OF_DECODE
from clustersim.core.record import note_stretch
from clustersim.core.state import ASK_USES, LAYER, NEVER, PASS, TOO_LATE
from clustersim.core.transfers import begin_transfer, cancel, transfer
from clustersim.cost.attention import UNKNOWN

WHOLE_PASS, NEXT, ON = range(3)
"""What happens next to a pass: it ends; a collective gets on its links; one that is there ends."""
ASKED: Final = 4
"""Stands in place of a count for classes that depend on others than those of tokens and sequences, or on several."""
NEVER_ENDED: Final = -1
"""A stage in the log of what was stretched: steps from that one on have never been."""
COLLECTIVE, SEND = 1, 2
"""Whose a path is; its number is that of the stage (replica × stages + stage) or of the sender."""


class Stage(Record):
    """A stage of a replica, and the pass that it is ``busy`` with, if any.

    ``foreign`` counts links that others use, or might any time; ``at`` is the collective that is next or on its links,
    ``path`` and ``ns`` what it puts there; ``late`` what the pass has lost. ``known`` says whether durations of its
    classes are in ``took``. Its paths begin with ``first_path``; on the first stage, ``answered`` says whether it has
    been told what classes of the step to be launched take that have to be asked for.
    """

    __slots__ = (
        "answered",
        "arrived",
        "at",
        "begun",
        "busy",
        "ended",
        "first_path",
        "foreign",
        "known",
        "late",
        "layer",
        "layer_version",
        "length",
        "ns",
        "path",
        "phase",
        "start",
        "version",
    )  # fmt: skip


class Sender(Record):
    """A rank that sends to the next stage: how many sends have ``begun`` and ended, and whether it is ``busy``.

    Its send ``enters`` the links of ``path`` for ``ns``. It is ``quiet`` as long as it need not, and waits on the path
    numbered ``idle``, which takes no links. ``alone`` says whether it may be quiet: it meets its own replica only.
    """

    __slots__ = ("alone", "begun", "busy", "enters", "first_path", "idle", "ns", "path", "quiet", "sent")


class Chain(Record):
    """Passes of one kind of stage and step: their collectives, classes of operators, and what they put on links.

    What is put there is told at [``first_slot``, ``end_slot``), of sends from ``send_slot`` on, rank by rank. ``asks``
    says whether some class has to be asked for at each step. It passes so many ``layers`` for which others wait.
    """

    __slots__ = ("asks", "classes", "count", "end_slot", "first_slot", "layers", "send_slot")


class Network(NamedTuple):
    """What shares links in a run; all lists are empty where nothing does."""

    traffic: Any
    """This and the following are ``core.flows.Flows``."""
    paths: Any
    links: Any
    places: Any
    stages: Any
    senders: Any
    """By boundary, then rank."""
    took: Any
    """Nanoseconds of each class of the pass on a stage: ``stage × classes + class``."""
    asked: Any
    """Those that had to be asked for, of each flight: ``(flight × stages + stage) × classes + class``."""
    chains: Any
    """By ``3 × kind + table``, as the following."""
    collectives: Any
    """Slot, instance, and how many instances of each class end with it, collective by collective."""
    layers: Any
    """How many collectives there are up to the end of a layer, and instances of each class, layer by layer."""
    uses: Any
    """By slot the count that it depends on; then, by that count, nanoseconds on links (−1: unknown) and path."""
    class_place: Any
    """The count that a class depends on, −1 for none; −2 − c for what attends as the c-th."""
    class_ns: Any
    """Nanoseconds of a class: ``class × width + count``."""
    stretches: Any
    """The log of what took longer than it costs (``state.STRETCH``)."""


def step_count(flight: Any, place: int) -> int:
    """Return one of the counts that describe a step, those of its tokens and sequences."""
    if place == 0:
        return flight.new + flight.decodes
    if place == 1:
        return flight.chunks + flight.decodes
    if place == 2:
        return flight.new
    return flight.decodes if place == 3 else 0


def table_of(flight: Any, kind: int) -> int:
    """Return which table the pass of a step has on a kind of stage."""
    return 3 * kind + (OF_DECODE if flight.chunks == 0 else 1 if flight.decodes > 0 else 0)


def launch(s: Any, p: Any, n: Any, r: int, k: int) -> int:
    """Let a micro-batch begin whose passes are priced; return 0, or what is to be asked for."""
    rep, flight, whole, clock = s.replicas[r], s.flights[r][k], p.whole[0], s.clock[0]
    for stage in range(rep.stages):
        kind = p.of_stage[r][stage]
        chain = n.chains[table_of(flight, kind)]
        for slot in range(chain.first_slot, chain.end_slot):
            uses = n.uses[slot]
            if uses[1 + 2 * step_count(flight, uses[0])] == UNKNOWN:
                return ASK_USES
        if (chain.asks and n.stages[r][0].answered == 0) or lacks_class(n, table_of(flight, kind), flight):
            return ASK_USES
        if p.cost[kind][0] >= (NEVER - clock.now) >> 1:
            return TOO_LATE
    pending, width = s.pending[r], 0
    out = k * (len(pending) // rep.stages)
    for stage in range(rep.stages):
        kind = p.of_stage[r][stage]
        for core in range(p.attending[table_of(flight, kind)]):
            pending[out + width] = p.varying[kind * whole.classes + core]
            width += 1
        at = 2 * (k * rep.stages + stage)
        s.passes[r][at], s.passes[r][at + 1] = p.cost[kind][0], p.cost[kind][1]  # when it begins is not known yet
    flight.end, flight.steps, flight.width, flight.row = NEVER, 1, width, p.cost[p.of_stage[r][0]][1]
    n.stages[r][0].arrived += 1
    n.stages[r][0].answered = 0
    begin_pass(s, p, n, r, 0)
    return 0


def begin_pass(s: Any, p: Any, n: Any, r: int, i: int) -> None:
    """Begin the pass of the next micro-batch on a stage."""
    rep, stage, now = s.replicas[r], n.stages[r][i], s.clock[0].now
    at = 2 * (stage.begun % rep.stages * rep.stages + i)
    stage.begun += 1
    stage.busy, stage.start, stage.length = 1, now, s.passes[r][at]
    stage.late = stage.at = stage.known = stage.layer = 0
    s.passes[r][at] = now
    if i == 0:
        s.free_at[r][0] = NEVER
    go_on_pass(s, p, n, r, i)
    for number in range(len(n.senders[r])):
        if n.senders[r][number].quiet and meets(s, p, n, r, i, number):
            show(s, n, r, number)


def go_on_pass(s: Any, p: Any, n: Any, r: int, i: int) -> None:
    """Let a pass go on as a whole, or from collective to collective where others are on its links."""
    if n.stages[r][i].foreign > 0:
        step(s, p, n, r, i)
    else:
        close(s, n, r, i)
        await_layer_end(s, p, n, r, i)


def close(s: Any, n: Any, r: int, i: int) -> None:
    """Let a pass go on to its end."""
    stage = n.stages[r][i]
    stage.phase = WHOLE_PASS
    expect_pass(s, n, r, i, stage.start + stage.length + stage.late)


def expect_pass(s: Any, n: Any, r: int, i: int, time: int) -> None:
    """Let a pass go on at an instant."""
    stage = n.stages[r][i]
    stage.version = (stage.version + 1) & VERSIONS
    expect(s, time, PASS, r * len(n.stages[0]) + i, stage.version)


def step(s: Any, p: Any, n: Any, r: int, i: int) -> None:
    """Let a pass go on from collective to collective, from the one that is under way."""
    rep, stage, now = s.replicas[r], n.stages[r][i], s.clock[0].now
    flight = s.flights[r][(stage.begun - 1) % rep.stages]
    table = table_of(flight, p.of_stage[r][i])
    chain, each = n.chains[table], n.collectives[table]
    for number in range(len(n.senders[r])):
        if n.senders[r][number].quiet and is_on_way(n, r, i, number):
            show(s, n, r, number)
    low = first_after(s, p, n, r, i, table, now)
    while low < chain.count:
        uses = n.uses[each[low * (chain.classes + 2)]]
        at = 1 + 2 * step_count(flight, uses[0])
        if uses[at] > 0:
            stage.at, stage.ns, stage.path = low, uses[at], stage.first_path + uses[at + 1]
            enters = ends_at(n, r, i, table, low) - stage.ns
            if enters <= now:
                get_on(s, n, r, i, enters)
            else:
                stage.phase = NEXT
                expect_pass(s, n, r, i, enters)
            await_layer_end(s, p, n, r, i)
            return
        low += 1
    close(s, n, r, i)
    await_layer_end(s, p, n, r, i)


def await_layer_end(s: Any, p: Any, n: Any, r: int, i: int) -> None:
    """Let something happen when a pass passes its next layer, if somebody waits for that.

    Nothing is known of layers behind a collective that is on its links.
    """
    stage = n.stages[r][i]
    flight = s.flights[r][(stage.begun - 1) % s.replicas[r].stages]
    if flight.opens:
        table = table_of(flight, p.of_stage[r][i])
        chain, each, took = n.chains[table], n.layers[table], n.took[r]
        stage.layer_version = (stage.layer_version + 1) & VERSIONS
        at, first = stage.layer * (chain.classes + 1), i * (len(took) // len(n.stages[r]))
        if stage.layer == chain.layers or (stage.phase == ON and each[at] > stage.at):
            return
        if stage.known == 0:
            look_up(s, p, n, r, i, table)
        time = stage.start + stage.late
        for cls in range(chain.classes):
            time += each[at + 1 + cls] * took[first + cls]
        expect(s, time, LAYER, r * len(n.stages[0]) + i, stage.layer_version)


def end_layer(s: Any, p: Any, n: Any, number: int, version: int) -> int:
    """Take note that a pass has passed a layer; return its flight, −1 where it has not."""
    stages = len(n.stages[0])
    r = number // stages
    i = number - r * stages
    stage = n.stages[r][i]
    if version != stage.layer_version:
        return -1
    stage.layer += 1
    await_layer_end(s, p, n, r, i)
    return (stage.begun - 1) % s.replicas[r].stages


def first_after(s: Any, p: Any, n: Any, r: int, i: int, table: int, instant: int) -> int:
    """Return the first collective of the pass on a stage, of those to come, that ends after an instant."""
    stage, high = n.stages[r][i], n.chains[table].count
    if stage.known == 0:
        look_up(s, p, n, r, i, table)
    low, guess = stage.at, 0
    if low == high or ends_at(n, r, i, table, low) > instant:
        return low
    if stage.length > 0:
        guess = min(max(instant - stage.start - stage.late, 0), stage.length) * high // stage.length
    if low < guess < high and ends_at(n, r, i, table, guess) > instant:
        high = guess
        guess -= 2
    if low < guess < high and ends_at(n, r, i, table, guess) <= instant:
        low = guess + 1
    while low < high:
        middle = (low + high) // 2
        if ends_at(n, r, i, table, middle) <= instant:
            low = middle + 1
        else:
            high = middle
    return low


def get_on(s: Any, n: Any, r: int, i: int, since: int) -> None:
    """Let the collective of a pass get on its links."""
    stage = n.stages[r][i]
    stage.phase = ON
    stage.version = (stage.version + 1) & VERSIONS
    n.paths[stage.path].number = r * len(n.stages[0]) + i
    begin_transfer(s, n, stage.path, since, stage.ns)


def lacks_class(n: Any, table: int, flight: Any) -> bool:
    """Whether it is unknown what one of the classes of a pass takes."""
    places, ns = n.class_place[table], n.class_ns[table]
    width = len(ns) // len(places)
    for cls in range(n.chains[table].classes):
        place = places[cls]
        if place >= -1 and place != ASKED and ns[cls * width + step_count(flight, place)] == UNKNOWN:
            return True
    return False


def look_up(s: Any, p: Any, n: Any, r: int, i: int, table: int) -> None:
    """Find out what each class of operators of a pass takes."""
    rep, stage = s.replicas[r], n.stages[r][i]
    k = (stage.begun - 1) % rep.stages
    flight, first = s.flights[r][k], k * (len(s.pending[r]) // rep.stages)
    for before in range(i):
        first += p.attending[table_of(flight, p.of_stage[r][before])]
    classes, places, ns = n.chains[table].classes, n.class_place[table], n.class_ns[table]
    width, into = len(ns) // len(places), i * (len(n.took[r]) // len(n.stages[r]))
    for cls in range(classes):
        if places[cls] < -1:
            n.took[r][into + cls] = s.pending[r][first - 2 - places[cls]]
        elif places[cls] == ASKED:
            n.took[r][into + cls] = n.asked[r][k * len(n.took[r]) + into + cls]
        else:
            n.took[r][into + cls] = ns[cls * width + step_count(flight, places[cls])]
    stage.known = 1


def ends_at(n: Any, r: int, i: int, table: int, number: int) -> int:
    """Return when a collective of the pass on a stage ends if it meets nothing any more."""
    stage, classes, each, took = n.stages[r][i], n.chains[table].classes, n.collectives[table], n.took[r]
    at, first = number * (classes + 2) + 2, i * (len(took) // len(n.stages[r]))
    found = stage.start + stage.late
    for cls in range(classes):
        found += each[at + cls] * took[first + cls]
    return found


def begin_send(s: Any, p: Any, n: Any, r: int, i: int, rank: int) -> None:
    """Begin the next send of a rank of a stage."""
    rep, ranks = s.replicas[r], s.clock[0].senders
    sender, kind, last = n.senders[r][i * ranks + rank], p.of_stage[r][i], rep.stages - 1
    k = sender.begun % rep.stages
    flight = s.flights[r][k]
    sender.begun += 1
    sender.busy = 1
    s.sends[r][(k * last + i) * 2 * ranks + rank] = s.clock[0].now
    if flight.chunks == 0:
        took = p.decode_send[kind][flight.decodes * ranks + rank]
    else:
        table = 2 * kind + (1 if flight.decodes > 0 else 0)
        took = p.send_ns[table][max(step_count(flight, p.send_place[table]), 0) * ranks + rank]
    uses = n.uses[n.chains[table_of(flight, kind)].send_slot + rank]
    at = 1 + 2 * step_count(flight, uses[0])
    sender.ns, sender.path = max(uses[at], 0), sender.first_path + uses[at + 1]
    sender.enters, sender.quiet = s.clock[0].now + took - sender.ns, 1
    transfer(s, n, sender.first_path + sender.idle, took, 0)
    shown = sender.alone == 0
    for other in range(rep.stages if sender.ns > 0 and not shown else 0):
        shown = shown or meets(s, p, n, r, other, i * ranks + rank)
    if shown:
        show(s, n, r, i * ranks + rank)


def is_on_way(n: Any, r: int, i: int, number: int) -> bool:
    """Whether the send of a rank may meet the collectives of a stage."""
    sender, stages = n.senders[r][number], len(n.stages[r])
    path = n.paths[sender.path]
    for place in range(path.first, path.end if sender.ns > 0 else path.first):
        if n.links[n.places[place].link].watcher == r * stages + i:
            return True
    return False


def meets(s: Any, p: Any, n: Any, r: int, i: int, number: int) -> bool:
    """Whether the send of a rank meets a collective of the pass on a stage, if nothing changes; or may meet one."""
    stage, sender = n.stages[r][i], n.senders[r][number]
    ends, enters = sender.enters + sender.ns, max(sender.enters, s.clock[0].now)
    if stage.busy == 0 or ends <= enters or not is_on_way(n, r, i, number):
        return False
    if stage.phase != WHOLE_PASS:
        return True
    flight = s.flights[r][(stage.begun - 1) % s.replicas[r].stages]
    table = table_of(flight, p.of_stage[r][i])
    chain, each = n.chains[table], n.collectives[table]
    at = first_after(s, p, n, r, i, table, enters)
    while at < chain.count:
        uses = n.uses[each[at * (chain.classes + 2)]]
        ns, end = uses[1 + 2 * step_count(flight, uses[0])], ends_at(n, r, i, table, at)
        if ns > 0 or end >= ends:
            return ns > 0 and end - ns < ends
        at += 1
    return False


def show(s: Any, n: Any, r: int, number: int) -> None:
    """Let a send be on its links, where it may have been since an earlier instant, or get on them when it is time."""
    sender, now = n.senders[r][number], s.clock[0].now
    if sender.ns > 0:
        sender.quiet = 0
        n.paths[sender.first_path + sender.idle].version += 1
        transfer(s, n, sender.path, max(sender.enters - now, 0), sender.ns)


def tell(s: Any, p: Any, n: Any, f: int, count: int) -> None:
    """Tell passes on whose links a send is that it has come, or gone."""
    path = n.paths[f]
    for place in range(path.first, path.end):
        watcher = n.links[n.places[place].link].watcher
        if watcher >= 0:
            stages = len(n.stages[0])
            r, i = watcher // stages, watcher % stages
            stage = n.stages[r][i]
            stage.foreign += count
            if count > 0 and stage.busy and stage.phase == WHOLE_PASS:
                step(s, p, n, r, i)


def abandon(s: Any, p: Any, n: Any, r: int) -> None:
    """Forget all passes and sends of a replica that fails."""
    for i in range(len(n.stages[r])):
        stage = n.stages[r][i]
        if stage.busy and stage.phase == ON:
            cancel(n, stage.path)
        stage.version = (stage.version + 1) & VERSIONS
        stage.layer_version = (stage.layer_version + 1) & VERSIONS
        stage.arrived = stage.begun = stage.ended = stage.busy = 0
    for number in range(len(n.senders[r])):
        sender = n.senders[r][number]
        if sender.busy:
            was_on = sender.quiet == 0 and n.paths[sender.path].is_on
            cancel(n, sender.first_path + sender.idle if sender.quiet else sender.path)
            if was_on:
                tell(s, p, n, sender.path, -1)
        sender.begun = sender.sent = sender.busy = sender.quiet = 0
    s.replicas[r].oldest = 0
    note_stretch(s, n, r, s.replicas[r].step, NEVER_ENDED, 0, 0)
