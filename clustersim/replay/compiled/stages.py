"""Lanes with pipeline stages as arrays of integers: what ``PipeLane`` and ``GroupedScheduler`` do, for a compiler.

It goes on where :mod:`clustersim.replay.compiled.kernel` ends, whose arrays and functions it uses: sequences, queue,
prompts, blocks and prices are the same. What stages add:

- several groups decode. Each has a row of ``groups`` (the first scalars of a lane, and two more), of ``members`` (the
  first lists of a lane) and of ``phases``; ``ready`` holds those that wait for a step, and those that are free;
- several micro-batches are in flight, a ring that lands in the order of launches. All that happens to one is worked out
  when it is launched, by the recurrence of :mod:`clustersim.replay.lanes.pipelines.pipelined`;
- each step has a slot (``serving.grouped.decode_slots``), and prices of several stages, of which those that are alike
  are worked out once.

There are no runs of steps: a scheduler with stages is asked for each.
"""

from __future__ import annotations

from typing import Final

from numba import njit

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled.sources import source_of

SCALARS: Final = (
    "decoding", "flying", "oldest", "asked", "waiting_groups", "spare_groups", "group", "previous", "step_slot",
)  # fmt: skip
(DECODING, FLYING, OLDEST, ASKED, WAITING_GROUPS, SPARE_GROUPS, GROUP, PREVIOUS, STEP_SLOT) = range(
    len(k.SCALARS), len(k.SCALARS) + len(SCALARS)
)
"""What a lane has besides those of the kernel."""

GROUP_SCALARS: Final = (*k.SCALARS[:5], "latest", "slot")
LATEST, GROUP_SLOT = 5, 6
"""The latest place of admission among those that ever joined; the slot that it used last, −1 before."""
WAITS, SPARE = range(2)
"""Rows of ``ready``: groups that wait, in the order in which they came back; groups that are free."""


@k.INLINED
def _new_group(s, groups, phases, ready):
    """Return a group without members, which waits."""
    s[SPARE_GROUPS] -= 1
    group = ready[SPARE, s[SPARE_GROUPS]]
    ready[WAITS, s[WAITING_GROUPS]] = group
    s[WAITING_GROUPS] += 1
    q = groups[group]
    q[k.CLOCK] = q[k.COUNT] = q[k.COMPUTED] = q[k.FRESH] = 0
    q[k.LAST] = q[LATEST] = q[GROUP_SLOT] = -1
    for phase in range(phases.shape[1]):
        phases[group, phase] = 0
    return group


@k.INLINED
def _join_group(group, slot, groups, members, finishes, phases, lim, one):
    q = groups[group]
    k._join(q, slot, members[group], finishes, phases[group], lim, one)
    q[LATEST] = max(q[LATEST], slot[one, k.PLACE])


@k.INLINED
def _bring(slot, clock, size, one):
    """Bring a member of a group up to date."""
    grown = clock - slot[one, k.JOINED]
    slot[one, k.JOINED] = clock
    slot[one, k.DONE_TOKENS] += grown
    slot[one, k.GENERATED] += grown
    slot[one, k.BLOCKS] = -(-slot[one, k.DONE_TOKENS] // size)


@k.INNER
def _take_apart(s, slot, line, groups, members, ready, lim):
    """Free all groups that wait, their members up to date; mark these and those that are loose as chosen, alone."""
    for place in range(s[k.ORDER]):
        slot[line[k.ORDERED, place], k.CHOSEN] = 0
    for place in range(s[k.LOOSE]):
        slot[line[k.LOOSENED, place], k.CHOSEN] = 1
    s[k.LOOSE] = 0
    for number in range(s[WAITING_GROUPS]):
        group = ready[WAITS, number]
        q = groups[group]
        for place in range(q[k.COUNT]):
            one = members[group, k.HEAP, place]
            _bring(slot, q[k.CLOCK], lim[k.SIZE], one)
            if not slot[one, k.IS_FRESH]:
                slot[one, k.LAST_STEP] = q[k.LAST]
            slot[one, k.CHOSEN] = 1
        ready[SPARE, s[SPARE_GROUPS]] = group
        s[SPARE_GROUPS] += 1
    s[WAITING_GROUPS] = 0


@k.INLINED
def _join_loose(s, group, slot, line, groups, members, finishes, phases, lim):
    for place in range(s[k.LOOSE]):
        _join_group(group, slot, groups, members, finishes, phases, lim, line[k.LOOSENED, place])
    s[k.LOOSE] = 0


@k.INLINED
def _first(s, slot, line, groups, members, finishes, phases, ready, lim, share):
    """Return the first to decode, in order of admission, as a group that waits (``ReadyDecodes.first``), or −1."""
    loose = s[k.LOOSE]
    if s[WAITING_GROUPS] == 1:
        group = ready[WAITS, 0]
        count = groups[group, k.COUNT]
        if count + loose <= share:
            _join_loose(s, group, slot, line, groups, members, finishes, phases, lim)
            return group
        if count == share:
            earliest = k.NEVER
            for place in range(loose):
                earliest = min(earliest, slot[line[k.LOOSENED, place], k.PLACE])
            if earliest > groups[group, LATEST]:
                return group
    elif s[WAITING_GROUPS] == 0:
        if loose == 0:
            return -1
        if loose <= share:
            group = _new_group(s, groups, phases, ready)
            _join_loose(s, group, slot, line, groups, members, finishes, phases, lim)
            return group
    _take_apart(s, slot, line, groups, members, ready, lim)
    group = _new_group(s, groups, phases, ready)
    for place in range(s[k.ORDER]):
        one = line[k.ORDERED, place]
        if not slot[one, k.CHOSEN]:
            continue
        if groups[group, k.COUNT] < share:
            _join_group(group, slot, groups, members, finishes, phases, lim, one)
        else:
            line[k.LOOSENED, s[k.LOOSE]] = one
            s[k.LOOSE] += 1
    return group


@k.INLINED
def _slot_of(q, member, slot, last_steps):
    """Return the slot for a step that carries a group (``DecodeSlots._slot_of``)."""
    first = member[k.HEAP, 0]
    for place in range(1, q[k.COUNT]):
        one = member[k.HEAP, place]
        if slot[one, k.PLACE] < slot[first, k.PLACE]:
            first = one
    last_step = slot[first, k.LAST_STEP] if slot[first, k.IS_FRESH] else q[k.LAST]
    if slot[first, k.FIRST_STEP] >= 0 and last_steps[slot[first, k.SLOT]] == last_step:
        return slot[first, k.SLOT]
    found = 0
    for number in range(1, len(last_steps)):
        if last_steps[number] < last_steps[found]:
            found = number
    return found


@k.INLINED
def _open(s, q, member, g, slot, last_steps, decodes):
    """Let episodes begin for those who have none in the slot of this step, and return it (``DecodeSlots._open``)."""
    chosen, fresh = _slot_of(q, member, slot, last_steps), q[k.FRESH]
    if fresh < q[k.COUNT] and (chosen != q[GROUP_SLOT] or last_steps[chosen] != q[k.LAST]):
        for place in range(q[k.COUNT]):
            one = member[k.HEAP, place]
            if not slot[one, k.IS_FRESH]:
                slot[one, k.LAST_STEP] = q[k.LAST]
                member[k.FRESHLY, fresh] = one
                fresh += 1
    for place in range(fresh):
        one = member[k.FRESHLY, place]
        if slot[one, k.FIRST_STEP] >= 0:
            last_step = slot[one, k.LAST_STEP]
            if slot[one, k.SLOT] != chosen or last_steps[chosen] != last_step:
                k._close(s, g, slot, decodes, one, last_step)
        if slot[one, k.FIRST_STEP] < 0:
            slot[one, k.FIRST_STEP] = s[k.STEP]
            slot[one, k.SLOT] = chosen
        slot[one, k.IS_FRESH] = 0
    q[k.FRESH] = 0
    return chosen


@k.INLINED
def _launch(s, g, slot, line, groups, members, ready, last_steps, lim, decodes, group):
    """Note what a step carries (``GroupedScheduler._launch``): chunks that were chosen, and a group, −1 for none."""
    s[GROUP], s[k.DECODES], s[k.ATTENDED], s[STEP_SLOT], s[PREVIOUS] = group, 0, 0, -1, -1
    if group >= 0:
        q = groups[group]
        s[WAITING_GROUPS] -= 1
        at = 0
        while ready[WAITS, at] != group:
            at += 1
        for place in range(at, s[WAITING_GROUPS]):
            ready[WAITS, place] = ready[WAITS, place + 1]
        s[k.DECODES_FLYING] += 1
        chosen = q[GROUP_SLOT]
        if q[k.FRESH] > 0 or chosen < 0 or last_steps[chosen] != q[k.LAST]:
            chosen = _open(s, q, members[group], g, slot, last_steps, decodes)
        s[STEP_SLOT], s[PREVIOUS] = chosen, last_steps[chosen]
        q[GROUP_SLOT] = chosen
        last_steps[chosen] = q[k.LAST] = s[k.STEP]
        s[k.DECODES], s[k.ATTENDED] = q[k.COUNT], q[k.COMPUTED] + q[k.COUNT]
        k._sum_near(s, q, slot, members[group], lim[k.WINDOW])
    k._sum_chunks(s, slot, line, lim[k.WINDOW])
    s[k.STEP] += 1
    s[k.LAUNCHED] = 1


@k.INLINED
def _next(
    s, g, slot, line, groups, members, finishes, phases, ready, last_steps, flight, carried, prompts, outputs, behind,
    lim, decodes, facts, now,
):  # fmt: skip
    """Decide the next step (``GroupedScheduler.next``); it is launched, or there is nothing to run."""
    s[k.CHUNKS] = 0
    asked = s[k.WAITING] > 0 or s[k.BEGUN] > 0
    lacks, group, free = False, -1, s[k.FREE]
    if asked and not lim[k.CHUNKED]:
        lacks = k._choose(s, g, slot, line, prompts, outputs, behind, lim, facts, now, lim[k.MAX_TOKENS], free)
    if not lacks and s[k.CHUNKS] == 0:
        if s[k.DECODES_FLYING] == 0 or lim[k.OVERLAP]:
            share = min(-(-s[DECODING] // lim[k.STAGES]), lim[k.MAX_TOKENS])
            group = _first(s, slot, line, groups, members, finishes, phases, ready, lim, share)
        budget = lim[k.MAX_TOKENS]
        if group >= 0:
            free -= phases[group, groups[group, k.CLOCK] % lim[k.SIZE]]
            budget -= groups[group, k.COUNT]
        lacks = free < 0
        if not lacks and asked and lim[k.CHUNKED]:
            lacks = k._choose(s, g, slot, line, prompts, outputs, behind, lim, facts, now, budget, free)
    if lacks:
        _careful(
            s, g, slot, line, groups, members, finishes, phases, ready, last_steps, flight, carried, prompts, outputs,
            behind, lim, decodes, facts, now,
        )  # fmt: skip
    elif s[k.CHUNKS] > 0:
        _launch(s, g, slot, line, groups, members, ready, last_steps, lim, decodes, group)
    elif group >= 0:
        s[k.FREE] = free
        _launch(s, g, slot, line, groups, members, ready, last_steps, lim, decodes, group)


@k.INNER
def _mark_flying(s, slot, line, groups, members, flight, carried, size):
    """Mark who is in flight, and bring them up to date."""
    for place in range(s[k.ORDER]):
        slot[line[k.ORDERED, place], k.FLIES] = 0
    for number in range(s[FLYING]):
        at = (s[OLDEST] + number) % len(flight)
        group = flight[at, ln.FLIGHT_GROUP]
        if group >= 0:
            for place in range(groups[group, k.COUNT]):
                one = members[group, k.HEAP, place]
                _bring(slot, groups[group, k.CLOCK], size, one)
                slot[one, k.FLIES] = 1
        for place in range(flight[at, ln.FLIGHT_CHUNKS]):
            slot[carried[at, place], k.FLIES] = 1


@k.INNER
def _careful(
    s, g, slot, line, groups, members, finishes, phases, ready, last_steps, flight, carried, prompts, outputs, behind,
    lim, decodes, facts, now,
):  # fmt: skip
    """Decide as the scheduler itself does, where somebody may have to give way (``GroupedScheduler._careful``)."""
    _take_apart(s, slot, line, groups, members, ready, lim)
    _mark_flying(s, slot, line, groups, members, flight, carried, lim[k.SIZE])
    chosen = k._decide(s, g, slot, line, prompts, outputs, behind, lim, facts, now)
    group = _new_group(s, groups, phases, ready) if chosen > 0 else -1
    s[DECODING] = s[k.BEGUN] = 0
    for place in range(s[k.ORDER]):
        one = line[k.ORDERED, place]
        decoding = k._decoding(slot, one)
        s[DECODING] += decoding
        if slot[one, k.FLIES] or slot[one, k.DONE_TOKENS] == 0:
            continue
        if not decoding:
            line[k.BEGINNING, s[k.BEGUN]] = one
            s[k.BEGUN] += 1
        elif slot[one, k.CHOSEN]:
            _join_group(group, slot, groups, members, finishes, phases, lim, one)
        else:
            line[k.LOOSENED, s[k.LOOSE]] = one
            s[k.LOOSE] += 1
    if chosen + s[k.CHUNKS] > 0:
        _launch(s, g, slot, line, groups, members, ready, last_steps, lim, decodes, group)


@k.INLINED
def _price(
    s, g, seconds, weights, keys, values, parts, part_ns, part_sends, made, decode_rows, cores, core_kinds, terms,
    answer, cost, pending,
):  # fmt: skip
    """Price the step that was launched, on each kind of stage; return 0, or what is to be asked for."""
    count, mixed = s[k.DECODES], 1 if s[k.DECODES] > 0 else 0
    for kind in range(len(cost)):
        if s[k.CHUNKS] > 0:
            asked, total, number = k._prompts_ns(
                s, g, seconds, weights[kind], keys[kind], values[kind], parts[kind], part_ns[kind], made[kind],
                cores[kind], core_kinds[kind], terms[kind], answer[kind], pending[kind],
            )  # fmt: skip
            if asked:
                return asked
            at = part_sends[kind, mixed, 0]
            send = part_sends[kind, mixed, 1 + (k._counts(s)[at] if at >= 0 else 0)]
        else:
            total, number, send = decode_rows[kind, count, 0], decode_rows[kind, count, 1], decode_rows[kind, count, 3]
            if total < 0:
                return k.ASK_DECODE
            gap = seconds[1] if decode_rows[kind, count, 2] else seconds[0]
            for core in range(cores[kind, 2]):
                if g[k.ANSWERED]:
                    ns = answer[kind, core]
                else:
                    attended = s[k.NEAR_ATTENDED] if core_kinds[kind, 2, core, 2] else s[k.ATTENDED]
                    ns = k._decode_ns(terms[kind, 2, core], count, attended, gap, seconds[2] * 1e9)
                if ns < 0:
                    return k.ASK_STEP
                pending[kind, core] = ns
                total += core_kinds[kind, 2, core, 1] * ns
        cost[kind, 0] = total
        cost[kind, 1] = number
        cost[kind, 2] = send
    g[k.ANSWERED] = 0
    return 0


@k.INLINED
def _fly(flight, free_at, sent_at, of_stage, passes, sent, cost, here, now):
    """Work out all that will happen to the micro-batch that was launched (``PipeLane._launch``); return 0."""
    at, last = now, len(free_at) - 1
    for stage in range(last + 1):
        kind = of_stage[stage]
        at = max(at, free_at[stage])
        passes[here, stage, 0] = at
        passes[here, stage, 1] = cost[kind, 1]
        if cost[kind, 0] + cost[kind, 2] >= k.NEVER - at:
            return k.TOO_LATE
        at += cost[kind, 0]
        free_at[stage] = at
        if stage < last:
            at = max(at, sent_at[stage])
            sent[here, stage, 0] = at
            if cost[kind, 2] >= k.NEVER - at:
                return k.TOO_LATE
            at += cost[kind, 2]
            sent[here, stage, 1] = sent_at[stage] = at
    flight[here, ln.END] = at
    return 0


@k.INLINED
def _board(s, lim, line, flight, carried, head, varied, of_stage, cores, cost, pending, now):
    """Note what is known of the micro-batch that was launched, and return where."""
    here = (s[OLDEST] + s[FLYING]) % len(flight)
    table = 2 if s[k.CHUNKS] == 0 else 1 if s[k.DECODES] > 0 else 0
    width = 0
    for kind in of_stage:
        for core in range(cores[kind, table]):
            varied[here, width] = pending[kind, core]
            width += 1
    k._head(s, lim, head[here], now, s[k.CONTEXT] + s[k.ATTENDED], cost[0, 1])
    head[here, k.ROW_SLOT] = s[STEP_SLOT]
    flight[here, ln.END] = k.NEVER
    flight[here, ln.FLIGHT_GROUP] = s[GROUP]
    flight[here, ln.FLIGHT_CHUNKS] = s[k.CHUNKS]
    flight[here, ln.FLIGHT_STEP] = s[k.STEP] - 1
    flight[here, ln.FLIGHT_PREVIOUS] = s[PREVIOUS]
    flight[here, ln.WIDTH] = width
    for place in range(s[k.CHUNKS]):
        carried[here, place] = line[k.CARRIED, place]
    s[FLYING] += 1
    return here


@k.INLINED
def _land(
    s, g, slot, line, groups, members, finishes, phases, ready, flight, carried, head, passes, varied, sent, lim, loads,
    now, rows, all_passes, sends, varying, chunks, decodes, facts,
):  # fmt: skip
    """Log what leaves the last stage now, and account for it (``GroupedScheduler.complete``)."""
    here, at = s[OLDEST], g[k.ROW_AT]
    head[here, k.ROW_COUNT] = 1
    head[here, k.ROW_END] = now
    k._log_row(rows, at, head[here])
    for stage in range(lim[k.STAGES]):
        k._copy(all_passes[at, stage], 0, passes[here, stage], 2)
        if stage + 1 < lim[k.STAGES]:
            k._copy(sends[at, stage], 0, sent[here, stage], 2)
    width, out = flight[here, ln.WIDTH], g[k.VARYING_AT]
    k._copy(varying, out, varied[here], width)
    g[k.ROW_AT] = at + 1
    g[k.VARYING_AT] = out + width
    s[OLDEST] = (here + 1) % len(flight)
    s[FLYING] -= 1
    group, step = flight[here, ln.FLIGHT_GROUP], flight[here, ln.FLIGHT_STEP]
    if group >= 0:
        s[k.DECODES_FLYING] -= 1
        q, count = groups[group], groups[group, k.COUNT]
        s[k.STEPS] = 1
        k._step_group(q, members[group], s, g, slot, line, finishes, phases[group], lim, loads, now, decodes, facts)
        s[k.STEPS] = 0
        s[DECODING] -= count - q[k.COUNT]
        if q[k.COUNT] > 0:
            ready[WAITS, s[WAITING_GROUPS]] = group
            s[WAITING_GROUPS] += 1
        else:
            ready[SPARE, s[SPARE_GROUPS]] = group
            s[SPARE_GROUPS] += 1
    loose = s[k.LOOSE]
    for place in range(flight[here, ln.FLIGHT_CHUNKS]):
        k._compute(s, g, slot, line, lim, loads, now, chunks, decodes, facts, step, carried[here, place])
    s[DECODING] += s[k.LOOSE] - loose


@k.INLINED
def _due(s, flight, free_at, now):
    """Return when a micro-batch leaves the last stage, or before that the first stage is free for a launch."""
    leaves = flight[s[OLDEST], ln.END] if s[FLYING] > 0 else k.NEVER
    if s[FLYING] < len(flight) and now < free_at[0] < leaves:
        return free_at[0]
    return leaves


def _kept(source):
    """Return what is called; the compiler keeps it under ``source``, which tells whose functions it has."""

    @njit(**k.KEPT)
    def advance_stages(
        g, s, slot, line, finishes, groups, members, phases, ready, last_steps, flight, carried, head, passes,
        varied, sent, free_at, sent_at, answer, cost, pending, of_stage, ends, end_tree, loads, load_tree, awake,
        lim, seconds, arrived, prompts, outputs, refused, behind, tail, came, routed, weights, keys, values, parts,
        part_ns,
        part_sends, made, decode_rows, cores, core_kinds, terms, rows, varying, chunks, decodes, facts, all_passes,
        sends, shared, told, classes,
    ):  # fmt: skip
        """Go on from instant to instant, as ``kernel.advance`` does, and return what it returns.

        Parameters
        ----------
        g, s, slot, line, finishes : int64 arrays
            As in the kernel; ``s`` has ``SCALARS`` besides.
        groups, members, phases : int64 arrays of shape (lanes, stages + 1, …)
            ``GROUP_SCALARS``; heap and those not carried yet: (2, slots); (block tokens,).
        ready : int64 array of shape (lanes, 2, stages + 1)
        last_steps : int64 array of shape (lanes, stages)
            Of each slot, −1 before there is one.
        flight, carried, head, passes, varied, sent : int64 arrays of shape (lanes, stages, …)
            A ring of micro-batches in flight: ``FLIGHT``; chunks; row; (stages, 2) start and row of each pass; what
            varies; (stages − 1, 2) start and end of each send.
        free_at, sent_at : int64 arrays of shape (lanes, stages)
            When each stage and boundary is free.
        answer, pending : int64 arrays of shape (kinds, classes)
        cost : int64 array of shape (kinds, 3)
            Nanoseconds of the pass, number of its row, nanoseconds of its send.
        of_stage : int64 array of shape (stages,)
            Which kind each stage is: stages of a kind cost the same.
        ends, end_tree, loads, load_tree, awake, lim, seconds : arrays
        arrived, prompts, outputs, refused, behind, tail, came, routed : arrays
            As in the kernel.
        weights, keys, values, parts, part_ns, made, decode_rows, cores, core_kinds, terms : arrays
            As in the kernel, by kind; ``decode_rows`` has nanoseconds of the send besides.
        part_sends : int64 array of shape (kinds, 2, 1 + count)
            The count that sends depend on, −1 for none; nanoseconds for each value of it.
        rows, varying, chunks, decodes, facts : arrays
            As in the kernel.
        all_passes, sends : int64 arrays of shape (rows, stages, 2) and (rows, stages − 1, 2)
            Beside each row.
        shared, told, classes : tuples of int64 arrays
            State of lanes whose sends share links, empty arrays where none do; what they and prices tell of links
            (``compiled.link_lanes``, ``compiled.link_prices``).
        """
        _ = source
        stride, first, total = lim[k.STRIDE], lim[k.FIRST], len(arrived)
        shares = len(shared[0]) > 0
        while True:
            now = g[k.NOW]
            if shares and now >= k.NEVER - 1:
                return k.TOO_LATE
            if g[k.PHASE] == k.ENDS:
                while ends[end_tree[1]] == now:
                    if k._is_full(g, lim):
                        return k.FULL
                    lane = end_tree[1]
                    mine = s[lane]
                    if shares:
                        w = ln.of_lane(shared, head, passes, sent, flight, free_at, of_stage, told, g, lane)
                        if ln.next_change(w) == now:
                            ln.change(w, now)
                            if shared[ln.MOVED][lane, 0] > 0:
                                g[k.LANE] = lane
                                return k.ASK_FLOWS
                            continue
                    if not shares or free_at[lane, 0] == now:
                        mine[ASKED] = 0
                    if mine[FLYING] > 0 and flight[lane, mine[OLDEST], ln.END] == now:
                        mine[ASKED] = 0
                        _land(
                            mine, g, slot[lane], line[lane], groups[lane], members[lane], finishes[lane], phases[lane],
                            ready[lane], flight[lane], carried[lane], head[lane], passes[lane], varied[lane],
                            sent[lane],
                            lim, loads, now, rows, all_passes, sends, varying, chunks, decodes, facts,
                        )  # fmt: skip
                        if lim[k.BALANCED]:
                            k._settle(load_tree, loads, lane)
                    k._wake(mine, g, awake)
                    ends[lane] = k.NEVER
                    k._settle(end_tree, ends, lane)
                g[k.PHASE] = k.ARRIVALS
            if g[k.PHASE] == k.ARRIVALS:
                while True:
                    request = first + g[k.NEXT] * stride
                    if request >= total or (g[k.FREED] <= 0 if lim[k.CLOSED] else arrived[request] != now):
                        break
                    lane = k._arrive(
                        g, s, loads, load_tree, lim, prompts, outputs, refused, behind, tail, came, routed, request
                    )
                    if lane < 0:
                        continue
                    mine = s[lane]
                    mine[ASKED] = 0
                    if free_at[lane, 0] <= now and mine[FLYING] < lim[k.STAGES]:
                        ends[lane] = k.NEVER
                        k._settle(end_tree, ends, lane)
                    k._wake(mine, g, awake)
                g[k.PHASE] = k.DECISIONS
            request = first + g[k.NEXT] * stride
            soon = k.NEVER if lim[k.CLOSED] or request >= total else arrived[request]
            while g[k.AWOKEN] < g[k.AWAKE]:
                lane = awake[g[k.AWOKEN]]
                mine = s[lane]
                if ends[lane] == k.NEVER:
                    ready_to = free_at[lane, 0] <= now and mine[FLYING] < lim[k.STAGES]
                    if ready_to and not mine[ASKED] and not mine[k.LAUNCHED]:
                        if k._is_full(g, lim):
                            return k.FULL
                        mine[ASKED] = 1
                        _next(
                            mine, g, slot[lane], line[lane], groups[lane], members[lane], finishes[lane], phases[lane],
                            ready[lane], last_steps[lane], flight[lane], carried[lane], prompts, outputs, behind, lim,
                            decodes, facts, now,
                        )  # fmt: skip
                    if mine[k.LAUNCHED]:
                        asked = _price(
                            mine, g, seconds, weights, keys, values, parts, part_ns, part_sends, made,
                            decode_rows,
                            cores, core_kinds, terms, answer, cost, pending,
                        )  # fmt: skip
                        if not asked:
                            here = _board(
                                mine, lim, line[lane], flight[lane], carried[lane], head[lane], varied[lane], of_stage,
                                cores, cost, pending, now,
                            )  # fmt: skip
                            if shares:
                                w = ln.of_lane(shared, head, passes, sent, flight, free_at, of_stage, told, g, lane)
                                ln.launch(w, mine, parts, classes, cores, cost, pending, now)
                            else:
                                asked = _fly(
                                    flight[lane], free_at[lane], sent_at[lane], of_stage, passes[lane], sent[lane],
                                    cost, here, now,
                                )  # fmt: skip
                        if asked:
                            g[k.LANE] = lane
                            return asked
                        mine[k.LAUNCHED] = 0
                    if shares:
                        ends[lane] = k.NEVER
                        for at in shared[ln.CHANGES][lane]:
                            ends[lane] = min(ends[lane], at)
                    else:
                        ends[lane] = _due(mine, flight[lane], free_at[lane], now)
                    k._settle(end_tree, ends, lane)
                mine[k.IS_AWAKE] = 0
                g[k.AWOKEN] += 1
            g[k.AWAKE] = g[k.AWOKEN] = 0
            now = min(ends[end_tree[1]], soon)
            if now > lim[k.HORIZON]:
                return k.DONE
            g[k.NOW] = now
            g[k.PHASE] = k.ENDS

    return advance_stages


advance_stages = _kept(source_of(k, ln))
"""See :func:`_kept`; what was compiled with another kernel, or with other links, is not read again."""
