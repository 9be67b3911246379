"""Steps of a replica: how long they are under way, stage after stage, and what they bring.

Nothing outside stretches a pass or a send here, and stages take micro-batches in the order in which they were launched:
with d(k, s) what the pass of micro-batch k lasts on stage s and c(k, s) its send ::

    start(k, s) = max(end(k − 1, s), arrival(k, s)),      end(k, s) = start(k, s) + d(k, s)
    sent(k, s)  = max(sent(k − 1, s), end(k, s)) + c(k, s),  arrival(k, s + 1) = the latest sent(k, s) of its ranks

With one stage, a decision to decode that would be taken again goes on as a *run* of steps, until one of them has its
last token, lacks a block, or somebody comes. A run is priced up to the next arrival anywhere, and goes on from there.
"""

from __future__ import annotations

from typing import Any, Final

from clustersim.core.custom import consult
from clustersim.core.events import VERSIONS, expect
from clustersim.core.group_prices import price_asked
from clustersim.core.hand_overs import await_layer, open_by_layer, reserve, sample
from clustersim.core.passes import launch
from clustersim.core.prefix_cache import keep_blocks, release, store
from clustersim.core.prices import OF_DECODE, count_of, price_step
from clustersim.core.progress import blocks_of, decodes_next, free_of
from clustersim.core.queue import drop, remove
from clustersim.core.ranks import BY_RANKS, extend_ranks, note_found, price_ranks
from clustersim.core.record import close_episode, log_chunk, log_run, note, note_reason
from clustersim.core.scheduler import leave, schedule
from clustersim.core.state import (
    ASK_DECODE,
    ASK_PASS,
    ASK_SLOWDOWN,
    ASK_STEP,
    CANCELLED,
    DECODE,
    FINISHED,
    LEAST_OUTSTANDING,
    LEFT_OUTPUT,
    LEFT_PROMPT,
    LEFT_QUEUE,
    MIXED,
    NEVER,
    PREFILL,
    STEP_END,
    TOO_LATE,
    TURN_OVER,
)
from clustersim.core.swapping import give_up_swapped
from clustersim.cost.attention import decode_ns, decode_steps_ns

TOGETHER: Final = 8
"""Decode steps that are priced at once."""
OF_ALL: Final = -1
PIECE: Final = 3
"""A run goes on by one in 2³ of its steps at least, so that it isn't asked for each of them."""


def settle(s: Any, r: int) -> None:
    """Bring the tournament up to date, whose root is the replica with the smallest load, the first among equals."""
    tree, pool = s.load_tree, s.pools[s.replicas[r].pool]
    base, at = pool.tree_at, (pool.leaves + r - pool.first) >> 1
    while at > 0:
        left, right = tree[base + 2 * at], tree[base + 2 * at + 1]
        least = right < 0 or s.replicas[left].outstanding <= s.replicas[right].outstanding
        tree[base + at] = left if least else right
        at >>= 1


def weigh(s: Any, r: int, tokens: int) -> None:
    """Add tokens of unfinished requests to the load of a replica, or take them away."""
    rep = s.replicas[r]
    rep.outstanding += tokens
    if s.pools[rep.pool].router == LEAST_OUTSTANDING:
        settle(s, r)


def touch(s: Any, r: int) -> None:
    """Let a replica decide at this instant, with all that take their steps with it, in the order of their numbers."""
    clock, touched, r = s.clock[0], s.touched, s.replicas[r].group_first
    rep = s.replicas[r]
    if rep.is_touched == 0:
        rep.is_touched = 1
        at = clock.touched
        clock.touched += 1
        while at > 0 and touched[at - 1] > r:
            touched[at] = touched[at - 1]
            at -= 1
        touched[at] = r


def rank_in_queue(s: Any, one: int) -> None:
    """Say where a sequence comes in the order of a queue."""
    seq = s.sequences[one]
    seq.rank = seq.then = 0
    seq.batch = -1
    if s.replicas[seq.replica].ranked:
        at = s.replicas[seq.replica].pool * s.clock[0].total + seq.request
        seq.rank, seq.then = s.ranks[at], seq.arrived + s.thens[at]


def arm(s: Any, r: int) -> None:
    """Let something happen when a micro-batch leaves the last stage, or the first stage is free for another one."""
    rep, flights = s.replicas[r], s.flights[r]
    due = flights[rep.oldest].end if rep.flying > 0 else NEVER
    if rep.stages > 1 and rep.flying < rep.stages and s.clock[0].now < s.free_at[r][0]:
        due = min(due, s.free_at[r][0])
    rep.version = (rep.version + 1) & VERSIONS
    if due < NEVER:
        expect(s, due, STEP_END, r, rep.version)


def end_turn(s: Any, request: int) -> None:
    """Let the turn be due that waits for a request which has ended: by its number, behind those that come just now."""
    clock, after = s.clock[0], s.turns[request]
    s.turns[request] = TURN_OVER
    if after >= 0:
        clock.held -= 1
        at, first = clock.due, clock.due - clock.round
        while at > first or (at > 0 and s.due_turns[at - 1] < after):  # the first one is the last
            s.due_turns[at] = s.due_turns[at - 1]
            at -= 1
        s.due_turns[at] = after
        clock.due += 1


# ---- what a step brings ---------------------------------------------------------------------------------------------
def end_request(s: Any, one: int) -> None:
    """Let a request go that ended."""
    clock, seq = s.clock[0], s.sequences[one]
    s.spare[clock.spares] = one
    clock.spares += 1
    if seq.partner >= 0:
        s.spare[clock.spares] = seq.partner
        clock.spares += 1
    clock.ended += 1
    clock.freed += 1
    if len(s.sequence_of) > 0:
        s.sequence_of[seq.request] = -1
    if len(s.follows) > 0:
        end_turn(s, seq.request)


def free_sequence(s: Any, r: int, one: int) -> None:
    """Let a request go that ended at a replica."""
    end_request(s, one)
    weigh(s, r, -(s.sequences[one].prompt + s.sequences[one].output))


def leave_pool(s: Any, r: int, one: int) -> None:
    """Let a sequence go on in the next pool, where its client did not give it up."""
    rep, seq = s.replicas[r], s.sequences[one]
    if seq.leaving == 0:
        drop(s.order[r], rep.running, one)
        rep.running -= 1
        close_episode(s, r, one)
        weigh(s, r, -(seq.prompt + seq.output))
        if rep.caching:
            keep_blocks(s, r, one)
        sample(s, one)


def finish(s: Any, r: int, one: int) -> None:
    """Let a sequence go that has its last token."""
    rep, seq = s.replicas[r], s.sequences[one]
    if seq.hands_over:
        leave_pool(s, r, one)
        return
    if rep.caching:
        release(s, r, one)
    leave(s, r, one)
    note(s, r, FINISHED, seq.request, seq.generated, rep.blocks - rep.free)
    close_episode(s, r, one)
    if seq.leaving:
        rep.leaving -= 1
        seq.leaving = 0
    free_sequence(s, r, one)


def take_out(s: Any, r: int, one: int, taken: int) -> None:
    """Let a sequence go that no step carries, and whose client gave it up; a run has taken so many blocks meanwhile."""
    rep, seq = s.replicas[r], s.sequences[one]
    if seq.blocks > 0:
        rep.prefilling -= 1 - seq.decodes
        if rep.caching:
            release(s, r, one)
        leave(s, r, one)
    elif seq.away:
        give_up_swapped(s, r, one)
    elif seq.displaced == 0:
        remove(s, r, one)
    close_episode(s, r, one)
    note(s, r, CANCELLED, seq.request, seq.generated, rep.blocks - rep.free + taken)
    why = LEFT_OUTPUT
    if seq.admitted == 0:
        why = LEFT_QUEUE
    elif seq.generated == 0:
        why = LEFT_PROMPT
    note_reason(s, seq.request, why, 0)
    free_sequence(s, r, one)


def compute_chunk(s: Any, r: int, step: int, one: int) -> None:
    """Account for the chunk of a prompt."""
    rep, seq = s.replicas[r], s.sequences[one]
    seq.busy = 0
    seq.computed += seq.taken
    close_episode(s, r, one)  # of one that is recomputed
    known, sampled = seq.prompt + seq.generated, 0
    if seq.computed == known and seq.generated < seq.output:
        seq.generated += 1
        sampled = 1
    if seq.computed == known or decodes_next(seq):  # the last token of what it computes anew is a decode step
        rep.prefilling -= 1 - seq.decodes
        seq.decodes = 1
    log_chunk(s, r, step, one, sampled)
    if seq.computed == known and seq.generated >= seq.output:
        finish(s, r, one)


def advance_decodes(s: Any, r: int, base: int, flight: Any, steps: int) -> None:
    """Give all that decode their tokens of so many steps, and the blocks that they entered."""
    rep, batch, size = s.replicas[r], s.members[r], s.replicas[r].block_tokens
    last, sequences = flight.step + steps - 1, s.sequences
    for place in range(base, base + flight.decodes):
        seq = sequences[batch[place]]
        seq.busy = 0
        seq.generated += steps
        seq.last_step = last
        seq.computed = computed = seq.computed + steps
        if computed > seq.blocks * size:
            more = blocks_of(rep, computed) - seq.blocks
            rep.free -= more
            seq.blocks += more
            if rep.owners > 1:
                s.owners[rep.first_owner + seq.owner].free -= more


def land(s: Any, r: int) -> None:
    """Account for the oldest of what is under way, which ends now, and log it."""
    rep, k = s.replicas[r], s.replicas[r].oldest
    flight, batch = s.flights[r][k], s.members[r]
    base, steps, decodes, chunks = k * (len(batch) // rep.stages), flight.steps, flight.decodes, flight.chunks
    log_run(s, r, k, steps, s.clock[0].now)
    if rep.caching and chunks > 0:  # before anybody leaves
        store(s, r, base + decodes, base + decodes + chunks)
    rep.oldest = k + 1 if k + 1 < rep.stages else 0
    rep.flying -= 1
    rep.step += steps - 1
    if decodes > 0:
        rep.decodes_in_flight -= 1
        if rep.stages == 1:
            s.slots[r][0] = flight.step + steps - 1
        advance_decodes(s, r, base, flight, steps)
        for place in range(base, base + decodes if steps >= flight.left else base):
            one = batch[place]
            if s.sequences[one].generated >= s.sequences[one].output:
                finish(s, r, one)
    for place in range(base + decodes, base + decodes + chunks):
        compute_chunk(s, r, flight.step, batch[place])
    if rep.leaving > 0:
        for place in range(base, base + decodes + chunks):
            one = batch[place]
            if s.sequences[one].leaving:
                s.sequences[one].leaving = 0
                rep.leaving -= 1
                take_out(s, r, one, 0)


def land_all(s: Any, r: int) -> None:
    """Do the same for all that take their steps together with a replica."""
    first = s.replicas[r].group_first
    for one in range(first, first + s.replicas[r].group_size):
        land(s, one)


# ---- runs -----------------------------------------------------------------------------------------------------------
def step_ns(p: Any, flight: Any, pending: Any, step: int) -> int:
    """Return what one of the steps of a run takes."""
    if flight.timed:
        return pending[(step + 1) * flight.width - 1]
    took = flight.base_ns
    for core in range(flight.width):
        took += p.terms[flight.terms][core].instances * pending[step * flight.width + core]
    return took


def ended_before(s: Any, p: Any, r: int, instant: int) -> tuple[int, int]:
    """Return how many steps of a run end before an instant, but not its last one, and when the next one ends.

    Instants never go back, so it goes on from where it was.
    """
    r = s.replicas[r].group_first
    flight = s.flights[r][0]
    ended, end = flight.ended, flight.next_end
    if end == 0:
        end = flight.start + step_ns(p, flight, s.pending[r], 0)
    while end < instant and ended + 1 < flight.steps:
        ended += 1
        end += step_ns(p, flight, s.pending[r], ended)
    flight.ended, flight.next_end = ended, end
    return ended, end


def is_run(s: Any, r: int) -> bool:
    """Whether a run of several steps is under way at a replica, or one that may go on."""
    rep = s.replicas[r]
    return rep.stages == 1 and rep.flying > 0 and s.flights[r][0].limit > 1


def cut(s: Any, p: Any, r: int) -> None:
    """End a run with the step that is under way, or that ends now: whoever comes may be the next."""
    clock, first = s.clock[0], s.replicas[r].group_first
    before = clock.now + (clock.asked == clock.now)
    ended, end = ended_before(s, p, first, before)
    sooner = end != s.flights[first][0].end
    for one in range(first, first + s.replicas[r].group_size):
        flight = s.flights[one][0]
        flight.steps = flight.limit = ended + 1
        flight.end = end
    if end == clock.now:
        land_all(s, first)
    if sooner or end == clock.now:
        arm(s, first)


def decide_anew(s: Any, p: Any, r: int) -> None:
    """Let a replica decide when the step that is under way has ended."""
    if is_run(s, r):
        cut(s, p, r)
    touch(s, r)


def taken_by_run(s: Any, p: Any, r: int) -> int:
    """Return the blocks that the run under way has taken by now, besides those of its first step."""
    return taken_of_owner(s, p, r, OF_ALL)


def taken_of_owner(s: Any, p: Any, r: int, owner: int) -> int:
    """Return how many of these are an owner's, or ``OF_ALL``."""
    if not is_run(s, r):
        return 0
    clock, rep, flight = s.clock[0], s.replicas[r], s.flights[r][0]
    ended, _ = ended_before(s, p, r, clock.now + (clock.asked == clock.now))
    found = 0
    for place in range(flight.decodes):
        seq = s.sequences[s.members[r][place]]
        tokens = seq.computed + ended + 1
        if tokens > seq.blocks * rep.block_tokens and (owner == OF_ALL or owner == seq.owner):
            found += blocks_of(rep, tokens) - seq.blocks
    return found


def taken_at_most(s: Any, r: int) -> int:
    """Return how many blocks the run under way, if any, takes in the steps that are priced, besides its first one."""
    flight = s.flights[r][0]
    return flight.decodes * (flight.steps // s.replicas[r].block_tokens + 1) if is_run(s, r) else 0


def horizon_of(s: Any, r: int) -> int:
    """Return for how many steps the same would be decided: until one has its last token, or lacks a block."""
    rep = s.replicas[r]
    steps, size = min(rep.left, s.clock[0].max_run), rep.block_tokens
    steps = min(steps, rep.near_steps)
    if rep.owners == 1 and rep.decodes * (steps // size + 1) <= rep.free:
        return steps
    return blocks_last(s, r, steps)


def blocks_last(s: Any, r: int, steps: int) -> int:
    """Return for how many of so many steps the free blocks of each owner last."""
    rep, batch, phases, size = s.replicas[r], s.members[r], s.phases, s.replicas[r].block_tokens
    for owner in range(rep.owners):
        free = free_of(s, r, owner)
        for phase in range(size):
            phases[phase] = 0
        for place in range(rep.decodes):
            seq = s.sequences[batch[place]]
            if seq.owner == owner:
                within = seq.computed % size
                phases[size - within if within > 0 else 0] += 1  # enters a block in steps of this number
        phase = 0
        for step in range(1, steps):
            phase = phase + 1 if phase + 1 < size else 0
            free -= phases[phase]
            if free < 0:
                steps = step
                break
    return steps


def extend(s: Any, p: Any, r: int, least: int, until: int) -> int:
    """Price further steps of a run: so many, and until one ends at an instant; return 0, or what to ask for."""
    if s.replicas[r].by_events:
        return price_asked(s, r, until, s.flights[r][0].steps + least)
    if s.replicas[r].split == BY_RANKS:
        return extend_ranks(s, p, r, least, until)
    clock, flight, pending, whole = s.clock[0], s.flights[r][0], s.pending[r], p.whole[0]
    batch, width, steps, end = flight.decodes, flight.width, flight.steps, flight.end
    gaps = p.whole[p.of_stage[r][0]]
    gap_s = gaps.graph_gap_s if flight.graph else gaps.gap_s
    enough, begun, change = steps + least, steps, s.replicas[r].change
    if width == 1 and clock.answered == 0:
        t = p.terms[flight.terms][0]
        if t.near == 0 and t.curves == 0:
            while steps < flight.limit and (end < until or steps < enough) and end < change:
                many = min(flight.limit - steps, TOGETHER)
                keys = flight.attended + steps * batch
                last = decode_ns(t, p.curves, batch, keys + (many - 1) * batch, gap_s, whole.longest_s)
                if last < 0:
                    break
                decode_steps_ns(t, batch, keys, gap_s, pending, steps, many)
                for _ in range(many):
                    took = flight.base_ns + t.instances * pending[steps]
                    if took >= NEVER - end:
                        return TOO_LATE
                    end += took
                    steps += 1
                    if end >= change or (end >= until and steps >= enough):
                        break
    while steps < flight.limit and (end < until or steps < enough) and end < change:
        took = flight.base_ns
        for core in range(width):
            t = p.terms[flight.terms][core]
            if clock.answered:
                ns = p.answer[core]
            else:
                keys = flight.attended + steps * batch
                if t.near:
                    keys = flight.near + steps * flight.near_growth
                ns = decode_ns(t, p.curves, batch, keys, gap_s, whole.longest_s)
            if ns < 0:
                flight.steps, flight.end = steps, end
                return ASK_STEP if steps == begun else 0
            pending[steps * width + core] = ns
            took += t.instances * ns
        if took >= NEVER - end:
            return TOO_LATE
        clock.answered = 0
        end += took
        steps += 1
    flight.steps, flight.end = steps, end
    if end >= change:  # the next step may take another time
        flight.limit = steps
    return 0


def soonest(s: Any, r: int) -> int:
    """Return up to when a run may be priced: until somebody may come, or nothing is simulated any more."""
    clock = s.clock[0]
    if s.replicas[r].pool > 0:
        return s.times[0] if clock.events > 0 else NEVER
    if s.replicas[r].waiting > 0 and s.replicas[r].ranked == 0 and s.replicas[r].custom == 0:
        return clock.horizon + 1 if clock.horizon < NEVER - 1 else NEVER
    if clock.closed or clock.held > 0:
        return clock.now
    soon = s.arrived[clock.next] if clock.next < clock.total else NEVER
    return min(soon, clock.horizon + 1) if clock.horizon < NEVER - 1 else soon


# ---- what begins ----------------------------------------------------------------------------------------------------
def add_up_chunks(s: Any, r: int, base: int) -> None:
    """Add up what prices ask of the chunks of the step that was decided."""
    rep, batch, window = s.replicas[r], s.members[r], s.replicas[r].window
    new = context = pairs = keys = near_pairs = near_keys = 0
    for place in range(base + rep.decodes, base + rep.decodes + rep.chunks):
        seq = s.sequences[batch[place]]
        start, taken = seq.computed, seq.taken
        new += taken
        context += start
        pairs += taken * start + taken * (taken + 1) // 2
        keys += start + taken
        if window > 0:
            short = min(max(window - 1 - start, 0), taken)  # so many tokens attend to less than the window
            near_pairs += short * (start + 1) + short * (short - 1) // 2 + (taken - short) * window
            near_keys += min(start, window - 1) + taken
    rep.new, rep.context, rep.pairs, rep.keys = new, context, pairs, keys
    rep.near_pairs, rep.near_keys = near_pairs, near_keys


def add_up_near(s: Any, r: int, base: int) -> None:
    """Add up the keys within the window to which decodes attend, how they grow, and for how many steps they do."""
    rep, batch, window = s.replicas[r], s.members[r], s.replicas[r].window
    keys = growth = 0
    steps = NEVER
    for place in range(base, base + rep.decodes if window > 0 else base):
        seen = s.sequences[batch[place]].computed + 1
        keys += min(seen, window)
        if seen < window:
            growth += 1
            steps = min(steps, window - seen)
    rep.near_attended, rep.near_growth, rep.near_steps = keys, growth, steps


def open_episodes(s: Any, r: int, base: int) -> int:
    """Give the decodes of a step their slot: that of the first of them if nobody used it since, else the oldest."""
    rep, batch, slots = s.replicas[r], s.members[r], s.slots[r]
    slot = 0
    if rep.stages > 1:
        first = s.sequences[batch[base]]
        slot = first.slot
        if first.first_step < 0 or slots[slot] != first.last_step:
            slot = 0
            for other in range(rep.stages):
                if slots[other] < slots[slot]:
                    slot = other
    last, sequences = slots[slot], s.sequences
    for place in range(base, base + rep.decodes):
        one = batch[place]
        seq = sequences[one]
        if seq.last_step != last or seq.slot != slot or seq.first_step < 0:
            if seq.first_step >= 0:
                close_episode(s, r, one)
            seq.first_step, seq.slot = rep.step, slot
    return slot


def describe(s: Any, r: int, k: int, base: int) -> None:
    """Note what is known of the step that was decided."""
    rep, flight = s.replicas[r], s.flights[r][k]
    flight.slot = flight.previous = -1
    if rep.decodes > 0:
        flight.slot = open_episodes(s, r, base)
        flight.previous = s.slots[r][flight.slot]
        s.slots[r][flight.slot] = rep.step
        rep.decodes_in_flight += 1
    add_up_near(s, r, base)
    add_up_chunks(s, r, base)
    flight.start, flight.step, flight.steps, flight.limit, flight.goes_on = s.clock[0].now, rep.step, 0, 1, 0
    flight.ended = flight.next_end = flight.timed = flight.found = flight.slowed = 0
    flight.decodes, flight.chunks, flight.new, flight.left = rep.decodes, rep.chunks, rep.new, rep.left
    flight.kind = (MIXED if rep.decodes > 0 else PREFILL) if rep.chunks > 0 else DECODE
    flight.context, flight.attended = rep.context + rep.attended, rep.attended
    flight.near, flight.near_growth = rep.near_attended, rep.near_growth
    flight.waiting, flight.running, flight.used = rep.waiting + rep.away, rep.running, rep.blocks - rep.free
    rep.step += 1
    rep.launched = 1


def begin_run(s: Any, p: Any, r: int) -> int:
    """Price a step that only decodes at a replica of one stage, or a run of them; return 0, or what to ask for."""
    rep, flight = s.replicas[r], s.flights[r][0]
    if rep.split == BY_RANKS:
        if flight.steps == 0:
            flight.end, flight.row, flight.limit = flight.start, -1, horizon_of(s, r) if rep.steady else 1
        return extend_ranks(s, p, r, 1, soonest(s, r))
    if flight.steps == 0:
        count, kind = rep.decodes, p.of_stage[r][0]
        if p.decode_ns[kind][count] < 0:
            return ASK_DECODE
        flight.base_ns, flight.row = p.decode_ns[kind][count], p.decode_row[kind][count]
        flight.graph, flight.terms = p.decode_graph[kind][count], 3 * kind + OF_DECODE
        flight.width, flight.end = p.attending[flight.terms], flight.start
        flight.limit = horizon_of(s, r) if rep.steady and rep.slow == 0 else 1
    return extend(s, p, r, 1, soonest(s, r))


def pass_stages(s: Any, p: Any, r: int, k: int) -> int:
    """Work out all that will happen to a micro-batch; return 0, or ``TOO_LATE``."""
    rep, flight, whole, clock = s.replicas[r], s.flights[r][k], p.whole[0], s.clock[0]
    free_at, sent_at, passes, sends = s.free_at[r], s.sent_at[r], s.passes[r], s.sends[r]
    pending, ranks, last = s.pending[r], clock.senders, rep.stages - 1
    at, width, out, sent = flight.start, 0, k * (len(pending) // rep.stages), k * 2 * ranks * last
    for stage in range(last + 1):
        kind = p.of_stage[r][stage]
        of = 3 * kind + (OF_DECODE if flight.chunks == 0 else 1 if flight.decodes > 0 else 0)
        for core in range(p.attending[of]):
            pending[out + width] = p.varying[kind * whole.classes + core]
            width += 1
        at = max(at, free_at[stage])
        if last > 0:
            passes[2 * (k * rep.stages + stage)], passes[2 * (k * rep.stages + stage) + 1] = at, p.cost[kind][1]
        if p.cost[kind][0] >= NEVER - at:
            return TOO_LATE
        start = at
        at += p.cost[kind][0]
        free_at[stage] = at
        if stage < last:
            latest = 0
            for rank in range(ranks):
                leaves = at
                if rep.split:
                    leaves = start + p.leaves[kind * ranks + rank]
                    if leaves < start:  # it has nothing to send
                        sends[sent + rank] = sends[sent + ranks + rank] = 0
                        continue
                begin = max(leaves, sent_at[stage * ranks + rank])
                took = p.sent[kind * ranks + rank]
                if took >= NEVER - begin:
                    return TOO_LATE
                sends[sent + rank], sends[sent + ranks + rank] = begin, begin + took
                sent_at[stage * ranks + rank] = begin + took
                latest = max(latest, begin + took)
            at = latest
            sent += 2 * ranks
    if rep.split:
        note_found(s, p, r, k)
    flight.end, flight.steps, flight.width, flight.row = at, 1, width, p.cost[p.of_stage[r][0]][1]
    return 0


def run_by_events(s: Any, r: int, k: int) -> int:
    """Ask that a step is run by events, which tell when the first stage is free again, and when the step ends.

    What nothing can disturb is priced instead, a run of decode steps at once, and ``timed``.
    """
    rep, flight = s.replicas[r], s.flights[r][k]
    if flight.timed:
        return price_asked(s, r, soonest(s, r), flight.steps + 1)
    if s.clock[0].answered:
        return 0
    flight.end, flight.steps, flight.width, flight.row = NEVER, 1, 0, -1
    s.free_at[r][0] = NEVER
    if rep.calm and rep.by_group == 0 and flight.kind == DECODE and rep.steady:
        flight.limit = horizon_of(s, r)
    return ASK_PASS


def foresee_layers(s: Any, p: Any, h: Any, r: int, k: int) -> None:
    """Work out when a step passes each layer: when its attention over prompts has ended."""
    rep, flight, whole, out = s.replicas[r], s.flights[r][k], p.whole[0], k * len(h.layers)
    for stage in range(rep.stages):
        kind = p.of_stage[r][stage]
        table = 2 * kind + (1 if flight.decodes > 0 else 0)
        at = flight.start if rep.stages == 1 else s.passes[r][2 * (k * rep.stages + stage)]
        for layer in range(p.layers[kind]):
            for column in range(whole.columns):
                times = p.layer_classes[table][layer * whole.columns + column]
                if times > 0:
                    place = p.class_place[table][column]
                    count = count_of(rep, place) if place >= 0 else 0
                    at += times * p.class_ns[table][column * whole.width + count]
            for core in range(p.attending[3 * kind + table % 2]):
                at += p.layer_attention[table][layer * whole.classes + core] * p.varying[kind * whole.classes + core]
            h.layer_times[r][out] = at
            out += 1


def price_launched(s: Any, p: Any, n: Any, r: int, k: int) -> int:
    """Find out when the step that was decided ends; return 0, or what is to be asked for."""
    rep, clock, flight = s.replicas[r], s.clock[0], s.flights[r][k]
    if rep.by_events:
        asked = run_by_events(s, r, k)
    elif clock.now >= rep.change:
        asked = ASK_SLOWDOWN
    elif flight.slowed:
        asked = 0
    elif rep.stages == 1 and rep.chunks == 0 and rep.meets == 0:
        asked = begin_run(s, p, r)
    else:
        asked = price_ranks(s, p, r) if rep.split else price_step(s, p, r)
        if asked == 0 and rep.meets:
            asked = launch(s, p, n, r, k)
        elif asked == 0:
            asked = pass_stages(s, p, r, k)
    if asked == 0 and rep.slow > flight.slowed:
        flight.slowed = 1
        asked = ASK_SLOWDOWN
    if asked == 0:
        clock.answered = 0
    return asked


def decide(s: Any, p: Any, n: Any, h: Any, r: int) -> int:
    """Launch what the scheduler decides, where it can be launched now; return 0, or what is to be asked for."""
    rep = s.replicas[r]
    if rep.flying > 0 and s.flights[r][rep.oldest].goes_on:
        flight = s.flights[r][rep.oldest]
        asked = extend(s, p, r, (flight.steps >> PIECE) + 1, soonest(s, r))
        if asked == 0:
            flight.goes_on = 0
            arm(s, r)
        return asked
    k = rep.oldest + rep.flying
    k = k - rep.stages if k >= rep.stages else k
    if rep.launched == 0:
        if rep.flying == rep.stages or s.free_at[r][0] > s.clock[0].now:
            arm(s, r)
            return 0
        base = k * (len(s.members[r]) // rep.stages)
        if rep.arriving > 0:
            asked = reserve(s, h, r)
            if asked:
                return asked
        if rep.custom:
            asked = consult(s, r, base)
            if asked:
                return asked
        else:
            schedule(s, r, base)
        if rep.decodes + rep.chunks == 0:
            arm(s, r)
            return 0
        describe(s, r, k, base)
        if rep.by_layer:
            open_by_layer(s, r, k, base)
    asked = price_launched(s, p, n, r, k)
    if asked == 0:
        if rep.by_layer and rep.meets + rep.by_events == 0 and s.flights[r][k].opens:
            foresee_layers(s, p, h, r, k)
            await_layer(s, h, r, k)
        rep.launched = 0
        rep.flying += 1
        arm(s, r)
    return asked


# ---- the horizon ----------------------------------------------------------------------------------------------------
def stop(s: Any, p: Any, r: int) -> None:
    """Log what has ended at the horizon, and the episodes that are open; what is under way has not happened."""
    rep, clock = s.replicas[r], s.clock[0]
    priced = rep.meets + rep.slow == 0 and (rep.by_events == 0 or s.flights[rep.group_first][0].timed)
    if rep.stages == 1 and rep.flying > 0 and s.flights[r][0].kind == DECODE and priced:
        flight, ended, end, first = s.flights[r][0], 0, s.flights[r][0].start, rep.group_first
        last = end
        while ended < flight.steps:
            end += step_ns(p, s.flights[first][0], s.pending[first], ended)
            if end > clock.horizon:
                break
            ended, last = ended + 1, end
        if ended > 0:
            log_run(s, r, 0, ended, last)
            for place in range(flight.decodes):
                s.sequences[s.members[r][place]].last_step = flight.step + ended - 1
    for place in range(rep.running):
        close_episode(s, r, s.order[r][place])
    for place in range(rep.waiting):
        close_episode(s, r, s.queues[r][place])
