"""Two pools as arrays of integers: their lanes, hand-overs, and K/V on its way, for a compiler.

Lanes are those of :mod:`clustersim.replay.compiled.kernel`, of both pools side by side; what is on links is that of
:mod:`clustersim.replay.compiled.links` and of :mod:`~clustersim.replay.compiled.pools.flows`: here a *stage* is a lane,
and what is sent at a *boundary* is the move from one rank. What hand-overs decide is that of
``replay.pools.hand_overs`` and ``kv_moves``.

**An instant.** As on the clock of a run, what is due comes first by phase: steps end and links change; hand-overs;
arrivals; decisions. A hand-over that a decision brings comes at the same instant behind it. A run of decode steps is
priced up to the next thing that may happen elsewhere, and is cut to the step under way when a hand-over touches its
lane.
"""

from __future__ import annotations

from typing import Final

from numba import njit

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln
from clustersim.replay.compiled.pools import flows as fl
from clustersim.replay.compiled.pools import stretched as to
from clustersim.replay.compiled.pools import transfers as tr
from clustersim.replay.compiled.sources import source_of

FULL_OF_MOVES: Final = k.TOO_LATE + 1
"""What ``advance_pools`` returns besides those of the kernel: there is no room for the moves of another request."""


@k.INNER
def _sort(row, count):
    """Sort the first numbers of a list."""
    for at in range(1, count):
        one, place = row[at], at
        while place > 0 and row[place - 1] > one:
            row[place] = row[place - 1]
            place -= 1
        row[place] = one


def _kept(source):
    """Return what is called; the compiler keeps it under ``source``, which tells whose functions it has."""

    @njit(**k.KEPT)
    def advance_pools(
        g, hands, s, arriving, slot, line, finishes, phases, head, pending, answer, ends, end_tree, loads, entry_loads,
        load_tree, awake, arrived, refused, behind, tail, came, routed, pools, links, told, uses, plan_of, flows,
        transfers, moves, queues, reached, lists, pairs, pair_of, shard_of, layer_parts, alone, may_meet, sizes,
        sizes_of, durations, transfer_ns, mark_before, mark_at, marks, rows, varying, chunks, decodes, facts, moved,
    ):  # fmt: skip
        """Go on from instant to instant, as ``kernel.advance`` does, and return what it returns.

        Parameters
        ----------
        g, s, slot, line, finishes, phases, head, pending, answer, ends, end_tree, loads, load_tree, awake : arrays
            As in the kernel, the lanes of both pools side by side; ``load_tree`` has those at which requests arrive.
        hands : int64 array of shape (len(tr.HANDS),)
        arriving : int64 array of shape (lanes, len(tr.ARRIVING))
        entry_loads : int64 array
            The loads of the first lanes.
        arrived, refused, behind, tail, came, routed : arrays
            As in the kernel.
        pools : pair of tuples
            ``to.POOL`` of each; the first one's outputs are what it computes of requests, 1 token at most.
        links, told, uses : tuples of arrays, float64 array of shape (lanes, 2, classes)
            ``links.LINKS`` up to ``of_stage``, and from there on; plan and payload of each class of operators.
        plan_of : int64 array of shape (lanes, 3, classes, plans)
            The number of each plan among those of ``flows.PLANS``.
        flows : tuple of arrays
            ``flows.FLOW``, ``flows.SHARES``, work space, and ``flows.PLANS``.
        transfers, moves, queues, reached, lists : int64 arrays
            By request ``TRANSFER``; ``MOVE``; by rank that sends ``SENDER``; ranks that are reached; what is due.
        pairs, pair_of, shard_of, layer_parts : int64 arrays
            ``PAIRS``; shard, replica and replica → pair; part → shard; layer → its parts, how many first.
        mark_before, mark_at, marks : int64 arrays
            By lane, kind of step and layer the operators of each class until it is passed; how many layers, and the
            last operator of each; when each lane passes the next one.
        alone, may_meet : arrays
            Which pairs meet nothing, and which lanes each may meet.
        sizes, sizes_of, durations, transfer_ns : arrays
            Bytes of a token by part; part and kind of pair → row of the tables by tokens of what moves take, and use
            links.
        rows, varying, chunks, decodes, facts : arrays
            As in the kernel.
        moved : int64 array
            Moves that have ended; its first row has how many.
        """
        _ = source
        pipe, changes, meets, notes, noted, costs, classes, passes, sends, flight, free_at, of_stage = links
        before, collectives, bounds, stretches = told
        w = (
            pipe, changes, meets, notes, noted, costs, classes, head, passes, sends, flight, free_at, of_stage, before,
            collectives, bounds, stretches, g,
        )  # fmt: skip
        entry, lanes, total, stages = hands[tr.ENTRY], len(s), len(arrived), len(pipe)
        prompts, outputs, closed = pools[1][to.PROMPTS], pools[1][to.OUTPUTS], pools[0][to.LIM][k.CLOSED]
        while True:
            now = g[k.NOW]
            if now >= k.NEVER - 1:
                return k.TOO_LATE
            if g[k.PHASE] != k.DECISIONS:
                if k._is_full(g, pools[0][to.LIM]) or moved[0, 0] + 1 + len(queues) >= len(moved):
                    return k.FULL
                if ends[end_tree[1]] == now:
                    lane = end_tree[1]
                    mine, here = s[lane], arriving[lane]
                    pool = pools[0] if lane < entry else pools[1]
                    ends[lane] = k.NEVER
                    k._settle(end_tree, ends, lane)
                    k._wake(mine, g, awake)
                    if mine[k.STEPS] < mine[k.LIMIT]:
                        mine[k.GOES_ON] = 1
                        continue
                    table = 2 if mine[k.CHUNKS] == 0 else 1 if mine[k.DECODES] > 0 else 0
                    width, first = pool[to.CORES][table], g[k.FACT_AT]
                    if here[tr.APART] >= 0 and to.is_stretched(w, g, here, lane):
                        to.log_stretched(
                            mine, g, here, head[lane], pending[lane], now, width, phases[lane], pool[to.LIM][k.SIZE],
                            rows, varying,
                        )  # fmt: skip
                    else:
                        k._log_run(mine, g, head[lane], pending[lane], now, width, rows, varying)
                    here[tr.APART], here[tr.WAITS] = -1, 0
                    if lane < entry:
                        marks[lane] = k.NEVER
                    k._land(
                        mine, g, slot[lane], line[lane], finishes[lane], phases[lane], pool[to.LIM], loads, now, chunks,
                        decodes, facts,
                    )  # fmt: skip
                    if lane < entry:
                        tr.leave(g, hands, lists, transfers, mine, outputs, prompts, pool[to.LIM], facts, first, lane)
                        if pool[to.LIM][k.BALANCED]:
                            k._settle(load_tree, loads, lane)
                    continue
                due = ln.next_change(w)
                for lane in range(entry):
                    due = min(due, marks[lane])
                if due == now:
                    for place in range(len(changes)):
                        if changes[place] != now:
                            continue
                        if place < stages:
                            if pipe[place, ln.PHASE] == ln.WHOLE:
                                pipe[place, ln.ENDED] = place + 1
                                changes[place] = k.NEVER
                                ends[place] = now
                                k._settle(end_tree, ends, place)
                            else:
                                ln._change_pass(w, place, now)
                            continue
                        sender = place - stages
                        q, gone = pipe[sender], False
                        if q[ln.SENDING] == ln.READY:
                            for lane in range(lanes):
                                if meets[sender, lane]:
                                    arriving[lane, tr.FOREIGN] += 1
                                    pool = pools[0] if lane < entry else pools[1]
                                    to.attend(
                                        w, hands, arriving, uses, s[lane], pool, head[lane], pending[lane], ends,
                                        end_tree, now, lane,
                                    )  # fmt: skip
                            if ln._are_near(w):
                                ln._share(w, sender, now)
                            else:
                                ln._foresee(w, sender, now)
                        elif q[ln.SENDING] == ln.SHARING:
                            ln._part(w, sender, now)
                            gone = True
                        elif now == q[ln.SENT]:
                            gone = True
                        else:
                            ln._meet(w, now)
                        if gone:
                            for lane in range(lanes if q[ln.TRANSFER] > 0 else 0):
                                if meets[sender, lane]:
                                    arriving[lane, tr.FOREIGN] -= 1
                            q[ln.SENDING] = ln.IDLE
                            changes[place] = k.NEVER
                            tr.end_move(
                                w, g, hands, lists, transfers, moves, queues, reached, pairs, moved, now, sender
                            )  # fmt: skip
                    for lane in range(entry):
                        if marks[lane] == now:
                            tr.passed(
                                hands, lists, transfers, s[lane], arriving[lane], slot[lane], line[lane], outputs, lane
                            )  # fmt: skip
                    if noted[0] > 0:
                        to.share_out(w, uses, plan_of, moves, pairs, sizes, queues, lanes, flows, now)
                    if hands[tr.BY_LAYER]:
                        to.await_layers(w, arriving, marks, mark_before, mark_at, entry)
                    continue
                if hands[tr.LANDED] + hands[tr.LEAVING] + hands[tr.PASSING] + hands[tr.MOVING] > 0:
                    if hands[tr.PARTS] * hands[tr.PASSING] > hands[tr.MOVE_ROOM]:
                        return FULL_OF_MOVES
                    for at in range(hands[tr.LANDED]):
                        request = lists[tr.SORTED_LANDED, at]
                        transfer = transfers[request]
                        lane, target = transfer[tr.SOURCE], transfer[tr.TARGET]
                        mine, lim = s[lane], pools[0][to.LIM]
                        mine[k.FREE] += -(-prompts[request] // lim[k.SIZE])
                        used = lim[k.TOTAL] - mine[k.FREE]
                        k._fact(mine, g, facts, now, tr.FACT_HANDED_OVER, request, prompts[request], used)
                        k._wake(mine, g, awake)
                        mine = s[target]
                        taken = to.touch(
                            w, hands, mine, pools[1], phases[target], head[target], pending[target], ends, end_tree,
                            now, target,
                        )  # fmt: skip
                        tr.receive(
                            g, mine, arriving[target], slot[target], line[target], pools[1][to.LIM], prompts, outputs,
                            facts, now, request, taken,
                        )  # fmt: skip
                        k._wake(mine, g, awake)
                    hands[tr.LANDED] = 0
                    for at in range(hands[tr.LEAVING]):
                        request = lists[tr.SORTED_LEAVING, at]
                        lane = tr.route(hands, loads, lanes)
                        transfer, here, mine = transfers[request], arriving[lane], s[lane]
                        transfer[tr.TARGET] = lane
                        loads[lane] += prompts[request] + outputs[request]
                        if here[tr.COUNT] == 0:
                            here[tr.HEAD] = request
                            to.touch(
                                w, hands, mine, pools[1], phases[lane], head[lane], pending[lane], ends, end_tree, now,
                                lane,
                            )  # fmt: skip
                        else:
                            transfers[here[tr.TAIL], tr.BEHIND] = request
                        here[tr.TAIL] = request
                        here[tr.COUNT] += 1
                        k._wake(mine, g, awake)
                    hands[tr.LEAVING] = 0
                    for at in range(hands[tr.PASSING]):
                        request = lists[tr.SORTED_PASSING, at]
                        transfer = transfers[request]
                        while transfer[tr.DUE] > 0:
                            transfer[tr.DUE] -= 1
                            if transfer[tr.RESERVED]:
                                tr.ask_layer(
                                    hands, transfers, moves, queues, lists, pairs, pair_of, shard_of, layer_parts,
                                    prompts, request, transfer[tr.PASSED],
                                )  # fmt: skip
                            transfer[tr.PASSED] += 1
                    hands[tr.PASSING] = 0
                    for at in range(hands[tr.MOVING]):
                        receiver = lists[tr.CHANGED, at]
                        sender = -1 if reached[receiver] else tr.first_of(moves, queues, pairs, receiver)
                        if sender >= 0:
                            reached[receiver] = 1
                            tr.begin(
                                w, moves[queues[sender, tr.QUEUE_FIRST]], pairs, sizes_of, durations, transfer_ns,
                                alone, may_meet, sender, now,
                            )  # fmt: skip
                    hands[tr.MOVING] = 0
                    continue
                request = g[k.NEXT]
                if request < total and (g[k.FREED] > 0 if closed else arrived[request] == now):
                    lane = k._arrive(
                        g, s, entry_loads, load_tree, pools[0][to.LIM], prompts, pools[0][to.OUTPUTS], refused, behind,
                        tail, came, routed, request,
                    )  # fmt: skip
                    if lane >= 0:
                        k._wake(s[lane], g, awake)
                    continue
                if g[k.AWOKEN] == g[k.AWAKE]:
                    g[k.AWAKE] = g[k.AWOKEN] = 0
                    hands[tr.ASKED] = 0
                    due = min(due, ends[end_tree[1]])
                    if request < total and not closed:
                        due = min(due, arrived[request])
                    if due == k.NEVER:
                        return k.DONE
                    g[k.NOW] = due
                    continue
                _sort(awake, g[k.AWAKE])
                g[k.PHASE] = k.DECISIONS
                hands[tr.ASKED] = 1
            request = g[k.NEXT]
            soon = k.NEVER if closed or request >= total else arrived[request]
            while g[k.AWOKEN] < g[k.AWAKE]:
                lane = awake[g[k.AWOKEN]]
                mine, here = s[lane], arriving[lane]
                pool = pools[0] if lane < entry else pools[1]
                lim = pool[to.LIM]
                idle = ends[lane] == k.NEVER and not to.is_apart(w, lane)
                if idle and not mine[k.GOES_ON] and not mine[k.LAUNCHED]:
                    if k._is_full(g, lim):
                        return k.FULL
                    while lane >= entry:
                        if hands[tr.MOVE_ROOM] < hands[tr.PARTS]:
                            return FULL_OF_MOVES
                        if not tr.reserve(
                            hands, mine, here, transfers, moves, queues, lists, pairs, pair_of, shard_of, layer_parts,
                            prompts, lim, g, facts, now, lane,
                        ):  # fmt: skip
                            break
                    k._next(
                        mine, g, slot[lane], line[lane], finishes[lane], phases[lane], prompts, pool[to.OUTPUTS],
                        behind, lim, decodes, facts, now,
                    )  # fmt: skip
                if mine[k.GOES_ON] or mine[k.LAUNCHED]:
                    launched = mine[k.LAUNCHED]
                    if mine[k.CHUNKS] > 0:
                        asked = k._price_prompts(
                            mine, g, lim, pool[to.SECONDS], pool[to.WEIGHTS], pool[to.KEYS],
                            pool[to.VALUES], pool[to.PARTS_OF], pool[to.PART_NS], pool[to.MADE], pool[to.CORES],
                            pool[to.KINDS], pool[to.TERMS], answer, head[lane], pending[lane], ends,
                        )  # fmt: skip
                    else:
                        until = now
                        if here[tr.FOREIGN] == 0:
                            until = min(soon, ln.next_change(w))
                            for other in range(entry):
                                until = min(until, ends[other])
                        if mine[k.GOES_ON]:
                            ends[lane] = now
                        asked = k._price_decodes(
                            mine, g, line[lane], finishes[lane], phases[lane], lim, pool[to.SECONDS],
                            pool[to.DECODE_ROWS], pool[to.CORES], pool[to.KINDS], pool[to.TERMS], answer, head[lane],
                            pending[lane], ends, until,
                        )  # fmt: skip
                    if asked:
                        g[k.LANE] = lane
                        return asked
                    mine[k.GOES_ON] = mine[k.LAUNCHED] = 0
                    k._settle(end_tree, ends, lane)
                    marked = False
                    if launched and hands[tr.BY_LAYER] and lane < entry and mine[k.CHUNKS] > 0:
                        marked = tr.launched(hands, lists, transfers, mine, here, slot[lane], line[lane], outputs, lane)
                    if marked or here[tr.FOREIGN] > 0:
                        to.attend(
                            w, hands, arriving, uses, mine, pool, head[lane], pending[lane], ends, end_tree, now, lane
                        )  # fmt: skip
                        if noted[0] > 0:
                            to.share_out(w, uses, plan_of, moves, pairs, sizes, queues, lanes, flows, now)
                        if hands[tr.BY_LAYER]:
                            to.await_layers(w, arriving, marks, mark_before, mark_at, entry)
                mine[k.IS_AWAKE] = 0
                g[k.AWOKEN] += 1
            g[k.AWAKE] = g[k.AWOKEN] = 0
            g[k.PHASE] = k.ENDS

    return advance_pools


advance_pools = _kept(source_of(k, ln, fl, tr, to))
"""See :func:`_kept`; what was compiled with other modules of these is not read again."""
