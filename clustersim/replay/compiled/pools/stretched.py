"""Steps of lanes that a hand-over touches, or that meet K/V on links, for a compiler.

What is decided is that of ``replay.lanes.stretched_lane`` and ``replay.pools.kv_traffic``. Here a *stage* of
``compiled.links`` is a lane, and what is sent at a *boundary* is the move from one rank.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled.pools import flows as fl
from clustersim.replay.compiled.pools import transfers as tr

POOL: Final = (
    "limits", "seconds", "weights", "keys", "values", "parts", "part_ns", "made", "decode_rows", "cores",
    "kinds", "terms", "prompts", "outputs", "part_classes", "decode_classes", "columns", "part_uses", "decode_uses",
)  # fmt: skip
(LIM, SECONDS, WEIGHTS, KEYS, VALUES, PARTS_OF, PART_NS, MADE, DECODE_ROWS, CORES, KINDS, TERMS, PROMPTS,
 OUTPUTS, PART_CLASSES, DECODE_CLASSES, COLUMNS, PART_USES, DECODE_USES) = range(len(POOL))  # fmt: skip
"""What is told of a pool."""


@k.INNER
def took(mine, pool, pending, step):
    """Return how long a step takes of what is under way."""
    width = pool[CORES][2]
    total = pool[DECODE_ROWS][mine[k.DECODES], 0]
    for core in range(width):
        total += pool[KINDS][2, core, 1] * pending[step * width + core]
    return total


@k.INNER
def present(mine, pool, head, pending, instant):
    """Return how many steps of what is under way end before an instant, and when the last of these did."""
    ended, end = 0, head[k.ROW_START]
    while ended < mine[k.STEPS] - 1:
        following = end + took(mine, pool, pending, ended)
        if following >= instant:
            break
        end = following
        ended += 1
    return ended, end


@k.INNER
def is_apart(w, lane):
    return w[ln.PIPE][lane, ln.STARTED] > w[ln.PIPE][lane, ln.ENDED]


@k.INNER
def touch(w, hands, mine, pool, phases, head, pending, ends, end_tree, now, lane):
    """End a run with the step that is under way (``reconsider``); return the blocks that it has taken by then."""
    if mine[k.GOES_ON]:
        mine[k.GOES_ON] = 0
        ends[lane] = now
        mine[k.LIMIT] = mine[k.STEPS]
        k._settle(end_tree, ends, lane)
        return k._entered(mine, phases, pool[LIM][k.SIZE], mine[k.STEPS])
    if mine[k.STEPS] < 2 or mine[k.CHUNKS] > 0:
        mine[k.LIMIT] = mine[k.STEPS]
        return 0
    ended, end = present(mine, pool, head, pending, now + hands[tr.ASKED])
    if not is_apart(w, lane):
        mine[k.STEPS] = ended + 1
        ends[lane] = end + took(mine, pool, pending, ended)
        k._settle(end_tree, ends, lane)
    mine[k.LIMIT] = mine[k.STEPS]
    return k._entered(mine, phases, pool[LIM][k.SIZE], ended + 1)


@k.INNER
def attend(w, hands, arriving, uses, mine, pool, head, pending, ends, end_tree, now, lane):
    """Let what is under way end with its present step, and links say when (``StretchedLane.take_apart``)."""
    if is_apart(w, lane):
        return
    if mine[k.GOES_ON]:
        mine[k.GOES_ON] = 0
        mine[k.LIMIT] = mine[k.STEPS]
        ends[lane] = now
        k._settle(end_tree, ends, lane)
    if ends[lane] == k.NEVER or ends[lane] <= now:
        return
    step, start, end = 0, head[k.ROW_START], ends[lane]
    prompts = mine[k.CHUNKS] > 0
    if not prompts:
        step, start = present(mine, pool, head, pending, now + 1)
        end = start + took(mine, pool, pending, step)
        if step > 0 and start == now and not hands[tr.ASKED]:
            mine[k.STEPS] = mine[k.LIMIT] = step
            ends[lane] = now
            k._settle(end_tree, ends, lane)
            return
    mine[k.STEPS] = mine[k.LIMIT] = step + 1
    ends[lane] = k.NEVER
    k._settle(end_tree, ends, lane)
    table = 2 if not prompts else 1 if mine[k.DECODES] > 0 else 0
    by_class(w, uses, mine, pool, pending, table, step, lane)
    p = w[ln.PIPE][lane]
    p[ln.STARTED], p[ln.ENDED] = lane + 1, lane
    w[ln.COSTS][lane, 0, 0] = end - start
    w[ln.FLIGHTS][lane, ln.FLIGHT_STEP] = mine[k.STEP] + step
    arriving[lane, tr.APART], arriving[lane, tr.TOLD] = start, w[ln.CLOCK][k.STRETCH_AT]
    ln.go_on_with(w, lane, start, now)


@k.INLINED
def by_class(w, uses, mine, pool, pending, table, step, lane):
    """Note what each class of operators takes in a step, and what it puts on links."""
    into, counts, width = w[ln.CLASSES][lane, 0], k._counts(mine), pool[CORES][table]
    all_classes = pool[DECODE_USES].shape[2]
    for cls in range(all_classes):
        for row in range(2):
            into[row, cls] = pool[DECODE_CLASSES][0, mine[k.DECODES], row, cls] if table == 2 else 0
            uses[lane, row, cls] = pool[DECODE_USES][mine[k.DECODES], row, cls] if table == 2 else 0.0
    for part in range(pool[PARTS_OF][table, 0] if table < 2 else 0):
        place = pool[PARTS_OF][table, 1 + part]
        at = counts[place] if place >= 0 else 0
        for row in range(2):
            for cls in range(all_classes):
                into[row, cls] += pool[PART_CLASSES][0, table, part, at, row, cls]
                uses[lane, row, cls] += pool[PART_USES][table, part, at, row, cls]
    for core in range(width):
        into[ln.NS, pool[COLUMNS][0, table, core]] = pending[step * width + core]


@k.INNER
def share_out(w, uses, plan_of, moves, pairs, sizes, queues, lanes, flows, now):
    """Put flows on links that were noted, take others off, and share out what they touch."""
    numbers, shares, work, room, each, plans = flows
    notes, count, stages = w[ln.MOVES], w[ln.MOVED][0], len(w[ln.PIPE])
    for at in range(count):
        enters, number, _, cls, since, end = notes[at]
        if not enters:
            fl.leave(numbers, work, plans, number)
        elif number < lanes:
            plan = plan_of[number, ln._table(w, number), cls, np.int64(uses[number, 0, cls])]
            payload = uses[number, 1, cls]
            transfer = w[ln.CLASSES][number, 0, ln.USED, cls]
            fl.enter(numbers, shares, work, plans, number, plan, payload, transfer, since, end)
        else:
            move = moves[queues[number - stages, tr.QUEUE_FIRST]]
            payload = sizes[move[tr.PART]] * move[tr.TOKENS]
            plan, transfer = pairs[move[tr.PAIR], tr.PLAN_OF], w[ln.PIPE][number - stages, ln.TRANSFER]
            fl.enter(numbers, shares, work, plans, number, plan, payload, transfer, since, end)
    w[ln.MOVED][0] = 0
    fl.solve(numbers, shares, work, room, each, plans, w[ln.CHANGES], now)


@k.INNER
def await_layers(w, arriving, marks, mark_before, mark_at, entry):
    """Work out when each pass that somebody waits for passes its next layer (``KvTraffic._await_layer``)."""
    for lane in range(entry):
        marks[lane] = k.NEVER
        here = arriving[lane]
        if not here[tr.WAITS] or not is_apart(w, lane):
            continue
        p, table = w[ln.PIPE][lane], ln._table(w, lane)
        number = here[tr.LAYER]
        if number == mark_at[lane, table, 0]:
            continue
        last = mark_at[lane, table, 1 + number]
        if p[ln.PHASE] == ln.ON and last >= w[ln.COLLECTIVES][lane, table, p[ln.AT], 1]:
            continue
        found, ns = p[ln.START] + p[ln.LATE], w[ln.CLASSES][lane, 0, ln.NS]
        for cls in range(len(ns)):
            found += mark_before[lane, table, number, cls] * ns[cls]
        marks[lane] = found


@k.INNER
def log_stretched(mine, g, here, head, pending, now, width, phases, size, rows, varying):
    """Write a run of steps of which the last one met K/V, and took longer: that is a row of its own."""
    steps = mine[k.STEPS]
    if steps > 1:
        mine[k.STEPS] = steps - 1
        k._log_run(mine, g, head, pending, here[tr.APART], width, rows, varying)
        head[k.ROW_START] = here[tr.APART]
        head[k.ROW_CONTEXT] += (steps - 1) * mine[k.DECODES]
        head[k.ROW_USED] += k._entered(mine, phases, size, steps)
    mine[k.STEPS] = 1
    k._log_run(mine, g, head, pending[(steps - 1) * width :], now, width, rows, varying)
    mine[k.STEPS] = steps


@k.INNER
def is_stretched(w, g, here, lane):
    """Whether the step of a lane that links said the end of lost time somewhere."""
    found = False
    for at in range(here[tr.TOLD], g[k.STRETCH_AT]):
        found = found or w[ln.STRETCHES][at, 4] == lane
    return found
