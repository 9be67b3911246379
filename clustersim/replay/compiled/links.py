"""Stages whose sends may meet collectives, as arrays of integers: what ``SharedPipe`` does, for a compiler.

Where each collective of a pass is in time is worked out of how often each class of operators comes before it, and of
what the classes take; a look for the one that a send meets is a binary search. Micro-batches go through all stages in
the order of launches, so how many have come, started and ended at each tells who waits where; the ring of
:mod:`clustersim.replay.compiled.stages` has what is known of each.

What flows share on links is rare and left to ``links.sharing_by_lanes``: flows that enter or leave are noted as
*moves*, and when a lane has handled what changes at an instant it stops with ``ASK_FLOWS`` to hear when they end.
"""

from __future__ import annotations

from typing import Final

from clustersim.replay.compiled import kernel as k

FIELDS: Final = (
    "came", "started", "ended", "phase", "start", "late", "at", "near", "sending", "enters", "sent", "transfer",
)  # fmt: skip
CAME, STARTED, ENDED, PHASE, START, LATE, AT, NEAR, SENDING, ENTERS, SENT, TRANSFER = range(len(FIELDS))
"""Of a stage, and of the boundary behind it from ``sending`` on; ``sent`` is when a send ends if it is alone."""
WHOLE, NEXT, ON = range(3)
IDLE, QUIET, READY, SHARING = range(4)
"""What changes next of a pass and of a send (``replay.lanes.pipelines.link_pipeline``); nothing is sent."""

FLIGHT: Final = ("end", "group", "chunks", "step", "previous", "width")
END, FLIGHT_GROUP, FLIGHT_CHUNKS, FLIGHT_STEP, FLIGHT_PREVIOUS, WIDTH = range(len(FLIGHT))
"""What is known of a micro-batch in flight besides its row: its step, and the step that used its slot before."""
LINKS: Final = (
    "pipe", "changes", "meets", "moves", "moved", "costs", "classes", "head", "passes", "sends", "flight", "free",
    "of_stage", "before", "collectives", "bounds", "stretches", "clock",
)  # fmt: skip
(PIPE, CHANGES, MEETS, MOVES, MOVED, COSTS, CLASSES, HEAD, PASSES, SENDS, FLIGHTS, FREE, OF_STAGE, BEFORE, COLLECTIVES,
 BOUNDS, STRETCHES, CLOCK) = range(len(LINKS))  # fmt: skip
"""What is known of one lane (``w`` below), and of all lanes from ``of_stage`` on."""
NS, USED = range(2)
"""Rows of ``classes``: what each class takes, and for how much of that it is on links."""
MOVE: Final = ("enters", "number", "here", "class", "since", "end")
STRETCH: Final = ("step", "stage", "instance", "lost", "replica")


@k.INLINED
def of_lane(shared, head, passes, sends, flight, free_at, of_stage, told, g, lane):
    """Return what is known of one lane."""
    pipe, changes, meets, moves, moved, costs, classes = shared
    before, collectives, bounds, stretches = told
    return (
        pipe[lane], changes[lane], meets[lane], moves[lane], moved[lane], costs[lane], classes[lane], head[lane],
        passes[lane], sends[lane], flight[lane], free_at[lane], of_stage, before, collectives, bounds, stretches, g,
    )  # fmt: skip


@k.INLINED
def _later(now, ns):
    """Return an instant so much later, or one that is too late to be told."""
    return now + ns if ns < k.NEVER - 1 - now else k.NEVER - 1


@k.INLINED
def _table(w, here):
    """Return the table of prices of a micro-batch."""
    kind = w[HEAD][here, k.ROW_KIND]
    return 2 if kind == k.STEP_DECODE else 1 if kind == k.STEP_MIXED else 0


@k.INLINED
def _leaves(p, ns, before, cls):
    """Return when a collective ends, if nothing stretches the pass until then."""
    found = p[START] + p[LATE] + ns[cls]
    for other in range(len(ns)):
        found += before[other] * ns[other]
    return found


@k.INLINED
def _present(w, stage):
    """Return the micro-batch whose pass a stage runs, and the number of its collectives."""
    here = (w[PIPE][stage, STARTED] - 1) % len(w[FLIGHTS])
    return here, w[BOUNDS][stage, _table(w, here), 0]


@k.INLINED
def _collective(w, stage, here, at):
    """Return when a collective of a pass ends, if nothing stretches it; what it takes; how long it uses links."""
    table, found = _table(w, here), w[CLASSES][here, w[OF_STAGE][stage]]
    cls = w[COLLECTIVES][stage, table, at, 0]
    leaves = _leaves(w[PIPE][stage], found[NS], w[BEFORE][stage, table, at], cls)
    return leaves, found[NS, cls], found[USED, cls]


@k.INLINED
def _after(w, stage, instant):
    """Return the first collective, of those to come, that ends after an instant."""
    here, high = _present(w, stage)
    low = w[PIPE][stage, AT]
    while low < high:
        middle = (low + high) // 2
        if _collective(w, stage, here, middle)[0] > instant:
            high = middle
        else:
            low = middle + 1
    return low


@k.INLINED
def _meets(w, stage, enters, leaves, lost):
    """Return from when something on the links in [enters, leaves) meets a collective, or ``leaves``."""
    here, count = _present(w, stage)
    for at in range(_after(w, stage, enters - lost), count):
        ends, took, used = _collective(w, stage, here, at)
        if ends + lost - took >= leaves:
            break
        if used > 0:
            return min(leaves, max(enters, ends + lost - used))
    return leaves


@k.INLINED
def _note(w, enters, number, here, cls, since, end):
    """Note a flow that gets on its links, or leaves them."""
    move = w[MOVES][w[MOVED][0]]
    w[MOVED][0] += 1
    move[0], move[1], move[2], move[3], move[4], move[5] = enters, number, here, cls, since, end


@k.INLINED
def _enter(w, stage, here, since, end):
    """Put the collective that is next on its links."""
    p = w[PIPE][stage]
    cls = w[COLLECTIVES][stage, _table(w, here), p[AT], 0]
    _note(w, 1, stage, here, cls, since, end)
    p[PHASE] = ON
    w[CHANGES][stage] = end


@k.INLINED
def _step(w, stage, now):
    """Let a pass go on from collective to collective, from now on."""
    p = w[PIPE][stage]
    here, count = _present(w, stage)
    p[AT] = _after(w, stage, now)
    if p[AT] == count:
        return
    leaves, _, used = _collective(w, stage, here, p[AT])
    if used > 0 and leaves - used <= now:
        _enter(w, stage, here, leaves - used, leaves)
    else:
        p[PHASE] = NEXT
        w[CHANGES][stage] = leaves - used


@k.INLINED
def _ends(w, stage):
    """Return when a pass ends, if nothing stretches it any more."""
    p = w[PIPE][stage]
    here, _ = _present(w, stage)
    return _later(p[START] + p[LATE], w[COSTS][here, w[OF_STAGE][stage], 0])


@k.INLINED
def start(w, stage, now):
    """Start the next pass on a stage that is free."""
    p = w[PIPE][stage]
    here = p[STARTED] % len(w[FLIGHTS])
    p[STARTED] += 1
    w[PASSES][here, stage, 0] = now
    w[PASSES][here, stage, 1] = w[COSTS][here, w[OF_STAGE][stage], 1]
    if stage == 0:
        w[FREE][0] = k.NEVER
    go_on_with(w, stage, now, now)


@k.INLINED
def go_on_with(w, stage, start, now):
    """Take note of a pass that is under way since ``start``, and whether what is sent meets it."""
    p, changes, last = w[PIPE][stage], w[CHANGES], len(w[PIPE]) - 1
    p[PHASE], p[START], p[LATE], p[AT] = WHOLE, start, 0, 0
    changes[stage] = _ends(w, stage)
    if p[NEAR] > 0:
        _step(w, stage, now)
        return
    for boundary in range(last):
        q = w[PIPE][boundary]
        if q[SENDING] == QUIET and w[MEETS][boundary, stage] and q[TRANSFER] > 0 and q[SENT] > now:
            at = last + 1 + boundary
            changes[at] = _meets(w, stage, max(q[ENTERS], now), changes[at], 0)


@k.INLINED
def _lose(w, stage, at, here, lost):
    """Account for what a collective that ended took longer."""
    if lost != 0:
        w[PIPE][stage, LATE] += lost
        g = w[CLOCK]
        told = w[STRETCHES][g[k.STRETCH_AT]]
        told[0], told[1], told[3] = w[FLIGHTS][here, FLIGHT_STEP], stage, lost
        told[2] = w[COLLECTIVES][stage, _table(w, here), at, 1]
        told[4] = w[HEAD][here, k.ROW_REPLICA]
        g[k.STRETCH_AT] += 1


@k.INLINED
def _change_pass(w, stage, now):
    """Let a collective enter its links, or leave them."""
    p = w[PIPE][stage]
    here, _ = _present(w, stage)
    leaves, _, used = _collective(w, stage, here, p[AT])
    if p[PHASE] == NEXT and used > 0:
        _enter(w, stage, here, now, _later(now, used))
        return
    if used > 0:
        _note(w, 0, stage, here, 0, now, now)
        _lose(w, stage, p[AT], here, now - leaves)
    p[PHASE] = WHOLE
    w[CHANGES][stage] = _ends(w, stage)
    if p[NEAR] > 0:
        p[AT] += 1
        _step(w, stage, now)


@k.INLINED
def _end(w, stage, now):
    """End a pass: its output is sent or has landed, and the stage takes the next one."""
    p, last = w[PIPE][stage], len(w[PIPE]) - 1
    here = p[ENDED] % len(w[FLIGHTS])
    p[ENDED] += 1
    w[CHANGES][stage] = k.NEVER
    if stage == 0:
        w[FREE][0] = now
    if stage == last:
        w[FLIGHTS][here, END] = now
    elif p[SENDING] == IDLE:
        _send(w, stage, now)
    if p[CAME] > p[STARTED]:
        start(w, stage, now)


@k.INLINED
def _are_near(w):
    """Whether flows are on links, or left them now."""
    near = w[MOVED][0] > 0
    for stage in range(len(w[PIPE])):
        near = near or w[PIPE][stage, NEAR] > 0
    return near


@k.INLINED
def _send(w, boundary, now):
    """Begin to send what waits longest."""
    q, kind = w[PIPE][boundary], w[OF_STAGE][boundary]
    here = w[PIPE][boundary + 1, CAME] % len(w[FLIGHTS])
    q[TRANSFER] = w[CLASSES][here, kind, USED, w[BOUNDS][boundary, _table(w, here), 1]]
    q[SENT] = _later(now, w[COSTS][here, kind, 2])
    q[ENTERS] = q[SENT] - q[TRANSFER]
    w[SENDS][here, boundary, 0] = now
    if q[TRANSFER] > 0 and _are_near(w):
        q[SENDING] = READY
        w[CHANGES][len(w[PIPE]) + boundary] = q[ENTERS]
    else:
        _foresee(w, boundary, now)


@k.INLINED
def _foresee(w, boundary, now):
    """Take a send for one that meets nothing until it meets a collective, if it does."""
    q, changes = w[PIPE][boundary], w[CHANGES]
    meeting, enters = q[SENT], max(q[ENTERS], now)
    for stage in range(len(w[PIPE])):
        p = w[PIPE][stage]
        if q[TRANSFER] == 0 or not w[MEETS][boundary, stage] or p[STARTED] == p[ENDED]:
            continue
        lost = 0
        if p[PHASE] == ON:
            if changes[stage] > enters:
                meeting = enters
                break
            here, _ = _present(w, stage)
            lost = changes[stage] - _collective(w, stage, here, p[AT])[0]
        meeting = _meets(w, stage, enters, meeting, lost)
    q[SENDING] = QUIET
    changes[len(w[PIPE]) + boundary] = meeting


@k.INLINED
def _change_send(w, boundary, now):
    """Let a send enter its links, meet something, or end."""
    q = w[PIPE][boundary]
    if q[SENDING] == SHARING:
        _part(w, boundary, now)
        _sent(w, boundary, now)
    elif q[SENDING] == READY:
        if _are_near(w):
            _share(w, boundary, now)
        else:
            _foresee(w, boundary, now)
    elif now == q[SENT]:
        _sent(w, boundary, now)
    else:
        _meet(w, now)


@k.INLINED
def _meet(w, now):
    """Make every send that is on its links a flow; others will enter theirs as flows."""
    stages = len(w[PIPE])
    for boundary in range(stages - 1):
        q = w[PIPE][boundary]
        if q[SENDING] != QUIET or q[TRANSFER] == 0 or q[SENT] <= now:
            continue
        if q[ENTERS] <= now:
            _share(w, boundary, now)
        else:
            q[SENDING] = READY
            w[CHANGES][stages + boundary] = q[ENTERS]


@k.INLINED
def _share(w, boundary, now):
    """Make a send a flow, and let the passes that it may meet go on in steps."""
    q, stages = w[PIPE][boundary], len(w[PIPE])
    here = w[PIPE][boundary + 1, CAME] % len(w[FLIGHTS])
    q[SENDING] = SHARING
    w[CHANGES][stages + boundary] = q[SENT]
    _note(w, 1, stages + boundary, here, w[BOUNDS][boundary, _table(w, here), 1], q[ENTERS], q[SENT])
    for stage in range(stages):
        if w[MEETS][boundary, stage]:
            p = w[PIPE][stage]
            p[NEAR] += 1
            if p[STARTED] > p[ENDED] and p[PHASE] == WHOLE:
                _step(w, stage, now)


@k.INLINED
def _part(w, boundary, now):
    """Take a send off its links; passes that no send may meet any more go on as a whole."""
    stages = len(w[PIPE])
    _note(w, 0, stages + boundary, 0, 0, now, now)
    for stage in range(stages):
        if w[MEETS][boundary, stage]:
            p = w[PIPE][stage]
            p[NEAR] -= 1
            if p[STARTED] > p[ENDED] and p[NEAR] == 0 and p[PHASE] == NEXT:
                p[PHASE] = WHOLE
                w[CHANGES][stage] = _ends(w, stage)


@k.INLINED
def _sent(w, boundary, now):
    """Hand on what has been sent, and begin with what waits."""
    q, p = w[PIPE][boundary], w[PIPE][boundary + 1]
    w[SENDS][p[CAME] % len(w[FLIGHTS]), boundary, 1] = now
    p[CAME] += 1
    q[SENDING] = IDLE
    w[CHANGES][len(w[PIPE]) + boundary] = k.NEVER
    if q[ENDED] > p[CAME]:
        _send(w, boundary, now)
    if p[STARTED] == p[ENDED]:
        start(w, boundary + 1, now)


@k.INLINED
def change(w, now):
    """Handle what changes now; more may change now."""
    stages, changes = len(w[PIPE]), w[CHANGES]
    for place in range(len(changes)):
        if changes[place] != now:
            continue
        if place >= stages:
            _change_send(w, place - stages, now)
        elif w[PIPE][place, PHASE] == WHOLE:
            _end(w, place, now)
        else:
            _change_pass(w, place, now)


@k.INLINED
def next_change(w):
    """Return when something changes next."""
    found = k.NEVER
    for at in w[CHANGES]:
        found = min(found, at)
    return found


@k.INLINED
def launch(w, s, parts, classes, cores, cost, pending, now):
    """Note what the micro-batch that was launched costs by class of operator, and start its first pass."""
    part_classes, decode_classes, columns = classes
    here, counts = w[PIPE][0, CAME] % len(w[FLIGHTS]), k._counts(s)
    table = _table(w, here)
    for kind in range(len(cost)):
        into = w[CLASSES][here, kind]
        k._copy(w[COSTS][here, kind], 0, cost[kind], 3)
        for row in range(2):
            if table == 2:
                k._copy(into[row], 0, decode_classes[kind, s[k.DECODES], row], into.shape[1])
                continue
            for cls in range(into.shape[1]):
                into[row, cls] = 0
            for part in range(parts[kind, table, 0]):
                place = parts[kind, table, 1 + part]
                found = part_classes[kind, table, part, counts[place] if place >= 0 else 0, row]
                for cls in range(into.shape[1]):
                    into[row, cls] += found[cls]
        for core in range(cores[kind, table]):
            into[NS, columns[kind, table, core]] = pending[kind, core]
    w[PIPE][0, CAME] += 1
    start(w, 0, now)
