"""Lanes of one stage as arrays of integers: what ``DecodeJumpLane`` and ``GroupedScheduler`` decide, for a compiler.

Everything is in this file, so that what is compiled is what is cached. It is Python: without a compiler (numba's
``NUMBA_DISABLE_JIT=1``) it runs as it stands, and that is how it is debugged.

**State of a lane.** Scalars are in ``s`` (names below), what a running sequence is in ``slot[number, field]`` with as
many numbers as a replica may have sequences, and lists in ``line[name, position]``. A sequence is *loose* (decodes, in
no group yet), in the *group* (a heap by the clock at which it has its last token), *begun* (its prompt), carried as a
*chunk*, or preempted. The group's clock counts decode steps; members are brought up to date only where somebody looks.
While any is swapped to the host or copied, every step is decided as where a block is missing (:func:`_careful`).

**The clock of all lanes.** What happens at one instant happens in three phases, as in
``replay.lanes.clocks.shared_clock``: steps end, requests arrive, schedulers decide. A run of decode steps is priced up
to the next arrival anywhere, and goes on when it turns out to have gone elsewhere; one that comes here while nobody
waits ends the run with its step.

**Stops.** :func:`advance` returns where it needs something, and goes on there when it is called again: ``FULL`` before
a lane is touched, when what that may write could exceed a buffer; an ``ASK_…`` when a lane has decided, and a price is
missing.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numba import njit

from clustersim.replay.compiled import prefixes as px

KEPT: Final[dict[str, Any]] = {"cache": True, "error_model": "numpy", "nogil": True, "_nrt": False}
"""Of what is called from Python, whose other threads go on meanwhile. Nothing is allocated there: who counts references
to each view of an array, takes as long for that as for all else."""
INNER: Final = px.INNER
INLINED: Final = njit(**px.OPTIONS, forceinline=True)
"""Of what each step calls: a call hands over seven numbers or more of each array."""
NEVER: Final = (1 << 63) - 1
PLACE_BITS: Final = (1 << 31) - 1
"""With ``number & PLACE_BITS`` a compiler knows that a place does not count from the end, and asks no more."""

DONE, FULL, ASK_DECODE, ASK_PART, ASK_ROW, ASK_STEP, ASK_FLOWS, WIDEN, TOO_LATE = range(9)
"""What ``advance`` returns."""

CLOCK_SCALARS: Final = (
    "now", "phase", "next", "freed", "awake", "awoken", "lane", "answered", "row_at", "varying_at", "chunk_at",
    "decode_at", "fact_at", "stretch_at", "copy_at", "ended",
)  # fmt: skip
(NOW, PHASE, NEXT, FREED, AWAKE, AWOKEN, LANE, ANSWERED, ROW_AT, VARYING_AT, CHUNK_AT,
 DECODE_AT, FACT_AT, STRETCH_AT, COPY_AT, ENDED) = range(len(CLOCK_SCALARS))  # fmt: skip
ENDS, ARRIVALS, DECISIONS = range(3)
"""Phases of an instant."""

SCALARS: Final = (
    "clock", "count", "computed", "last", "fresh", "replica", "head", "waiting", "free", "step", "before", "places",
    "order", "loose", "begun", "chunks", "given_up", "spare", "launched", "is_awake", "goes_on", "new", "context",
    "pairs", "keys", "decodes", "attended", "steady", "steps", "limit", "evicted", "decodes_flying",
    "near_pairs", "near_keys", "near_attended", "near_growth", "near_steps",
    "swapped", "inbound", "outbound", "in_since", "out_since", "in_end", "out_end", "copy_end", "step_end", "host",
    "coming", "short",
)  # fmt: skip
(
    CLOCK, COUNT, COMPUTED, LAST, FRESH, REPLICA, HEAD, WAITING, FREE, STEP, BEFORE, PLACES,
    ORDER, LOOSE, BEGUN, CHUNKS, GIVEN_UP, SPARE, LAUNCHED, IS_AWAKE, GOES_ON, NEW, CONTEXT,
    PAIRS, KEYS, DECODES, ATTENDED, STEADY, STEPS, LIMIT, EVICTED, DECODES_FLYING,
    NEAR_PAIRS, NEAR_KEYS, NEAR_ATTENDED, NEAR_GROWTH, NEAR_STEPS,
    SWAPPED, INBOUND, OUTBOUND, IN_SINCE, OUT_SINCE, IN_END, OUT_END, COPY_END, STEP_END, HOST,
    COMING, SHORT,
) = range(len(SCALARS))  # fmt: skip
"""The first five are those of a group: where there are stages, each group has its own (``q`` below). The five that are
near are sums within the model's sliding window, how the last of them grows step by step, and for how many steps it
does. Then come sequences that leave or are at rest, and those being copied; since when the first in each direction is,
and when it ends; when any of them does; when the step beside them does; blocks free at the host; those that copies will
give back; whether the next free ones are for who waits for that."""

FIELDS: Final = (
    "request", "prompt", "output", "done", "generated", "joined", "blocks", "place", "first_step", "last_step",
    "is_fresh", "chosen", "taken", "slot", "flies", "copied", "leaves", "shared",
)  # fmt: skip
(REQUEST, PROMPT, OUTPUT, DONE_TOKENS, GENERATED, JOINED, BLOCKS, PLACE, FIRST_STEP, LAST_STEP,
 IS_FRESH, CHOSEN, TAKEN, SLOT, FLIES, COPIED, LEAVES, SHARED) = range(len(FIELDS))  # fmt: skip

LINES: Final = (
    "heap",
    "fresh",
    "order",
    "loose",
    "begun",
    "chunks",
    "given_up",
    "spare",
    "ready",
    "away",
    "coming_in",
    "going_out",
)
(HEAP, FRESHLY, ORDERED, LOOSENED, BEGINNING, CARRIED, PREEMPTED_ONES, SPARES, READY, AWAY, COMING_IN,
 GOING_OUT) = range(len(LINES))  # fmt: skip
"""Slots: the group; not carried yet; those that run by admission; loose; begun; chunks of the step; preempted by
request; free; ready; swapped by request; copied in, and out, in turn. The first two are those of a group."""

LIMITS: Final = (
    "block_tokens", "blocks", "max_tokens", "max_requests", "longest", "chunked", "max_run", "stride", "first",
    "closed", "balanced", "horizon", "stages", "overlap", "keeps_room", "first_chunk", "gives_up",
    "window", "margin", "together",
    "rows", "varying", "chunks", "decodes", "facts", "stretches",
)  # fmt: skip
(
    SIZE,
    TOTAL,
    MAX_TOKENS,
    MAX_REQUESTS,
    LONGEST,
    CHUNKED,
    MAX_RUN,
    STRIDE,
    FIRST,
    CLOSED,
    BALANCED,
    HORIZON,
    STAGES,
    OVERLAP,
    KEEPS_ROOM,
    FIRST_CHUNK,
    GIVES_UP,
    WINDOW,
    MARGIN,
    TOGETHER,
    ROOM_ROWS,
    ROOM_VARYING,
    ROOM_CHUNKS,
    ROOM_DECODES,
    ROOM_FACTS,
    ROOM_STRETCHES,
) = range(len(LIMITS))

FACT_ADMITTED, FACT_PREEMPTED, FACT_FINISHED, FACT_REUSED, FACT_SWAPPED_OUT, FACT_SWAPPED_IN = 2, 3, 4, 5, 6, 7
"""``serving.decision``'s numbers of these facts (a test compares them)."""
ROW: Final = (
    "start_ns", "context_tokens", "end_ns", "kind", "slot", "batch_requests", "prefill_tokens", "decode_tokens",
    "waiting", "running", "kv_blocks_used", "count", "number", "replica",
)  # fmt: skip
"""Columns of a row of steps, as the record calls them, those of int64 first: what is logged has the record's types, or
int32 for one that is smaller."""
(ROW_START, ROW_CONTEXT, ROW_END, ROW_KIND, ROW_SLOT, ROW_REQUESTS, ROW_NEW, ROW_DECODES, ROW_WAITING, ROW_RUNNING,
 ROW_USED, ROW_COUNT, ROW_NUMBER, ROW_REPLICA) = range(len(ROW))  # fmt: skip
WIDE: Final = ROW_KIND
"""So many columns are of int64."""
STEP_PREFILL, STEP_DECODE, STEP_MIXED = 0, 1, 2
"""``graph.blueprint``'s numbers of these kinds of step (a test compares them)."""

DECODE_TERMS: Final = (
    "heads", "dims", "operand_bytes", "kv_heads", "flops", "read", "flop_rate", "byte_rate", "floor_s", "head_s",
    "hidden_head_s", "most",
)  # fmt: skip
PREFILL_TERMS: Final = (
    "ramp", "twice", "dims", "flop_rate", "byte_rate", "read", "ends", "fixed", "serial_s", "key_s", "most",
)  # fmt: skip
"""Fields of ``cost.scalar``'s records, in the order of their columns here."""
CURVES: Final = max(len(DECODE_TERMS), len(PREFILL_TERMS))
"""Column behind them: how many curves were measured."""
KNOWN: Final = CURVES + 1
"""Whether at these fixed keys: where not, all lies outside."""
OUTSIDE: Final = CURVES + 2
"""How many durations lay outside what was measured: counted here. Then come the curves' outer axes, starts, places,
inner axes and ratios."""
OUTERS: Final = CURVES + 3
ROOM: Final = 1e-6
"""``cost.curves``' room at the ends of curves."""


@INNER
def _octave(value):
    """Return ``cost.curves.octave``."""
    mantissa, exponent = math.frexp(max(value, 2.0**-60))
    return exponent - 2.0 + 2.0 * mantissa


@INNER
def _share(low, high, value):
    return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.0


@INNER
def _first_from(terms, at, low, high, sought):
    """Return the first place in [low, high) of the ascending numbers behind ``at`` that is not below ``sought``."""
    while low < high:
        middle = (low + high) // 2
        if terms[at + middle] < sought:
            low = middle + 1
        else:
            high = middle
    return low


@INNER
def _along(terms, count, curve, inner):
    """Return the ratio along one of the curves, and whether it lies outside."""
    starts = OUTERS + count
    points = np.int64(terms[starts + count])
    places = starts + count + 1
    first, last = np.int64(terms[starts + curve]), np.int64(terms[starts + curve + 1]) - 1
    found = _first_from(terms, places, first, last + 1, curve * 4096.0 + inner)
    above = min(max(found, first + 1), last)
    below = max(above - 1, first)
    inners = places + points
    share = _share(terms[inners + below], terms[inners + above], inner)
    ratios = inners + points
    outside = inner < terms[inners + first] - ROOM or inner > terms[inners + last] + ROOM
    return terms[ratios + below] + share * (terms[ratios + above] - terms[ratios + below]), outside


@INNER
def _measured(terms, outer, inner):
    """Return measured / roofline (``cost.curves.Curves``), 1 where nothing was measured."""
    count = np.int64(terms[CURVES])
    if count == 0:
        return 1.0
    here, at = _octave(outer), _octave(inner)
    above = min(max(_first_from(terms, OUTERS, 0, count, here), 1), max(1, count - 1))
    below, above = above - 1, min(above, count - 1)
    share = _share(terms[OUTERS + below], terms[OUTERS + above], here)
    first, first_off = _along(terms, count, below, at)
    second, second_off = _along(terms, count, above, at)
    off = terms[KNOWN] == 0.0 or here < terms[OUTERS] - ROOM or here > terms[OUTERS + count - 1] + ROOM
    if off or (share < 1.0 and first_off) or (share > 0.0 and second_off):
        terms[OUTSIDE] += 1.0
    return first + share * (second - first)


@INLINED
def _decode_fixed(terms, batch):
    """Return what decode attention of a batch has in common, whatever its keys: as :func:`_decode_step` takes it."""
    blocks = batch * terms[3]
    hidden = blocks * terms[10]
    least_s, other_bytes = terms[8] + blocks * terms[9], batch * terms[0] * terms[1] * terms[2]
    return terms[11], terms[4], terms[6], terms[5], other_bytes, terms[7], hidden * hidden, least_s


@INLINED
def _decode_step(terms, fixed, batch, keys, gap_s, longest_ns):
    """Return nanoseconds of decode attention (``cost.scalar.decode_ns``), or −1 where arrays have to tell."""
    most, flops, flop_rate, read, other_bytes, byte_rate, hidden, least_s = fixed
    if keys > most:
        return -1
    compute = keys * flops / flop_rate
    reading = (keys * read + other_bytes) / byte_rate
    if hidden > 0.0:
        reading = math.sqrt(reading * reading + hidden)
    seconds = least_s + math.sqrt(compute * compute + reading * reading)
    if terms[CURVES] > 0.0:
        seconds *= _measured(terms, batch, keys / batch)
    ns = (seconds + gap_s) * 1e9
    if not ns < longest_ns:
        return -1
    return np.int64(np.rint(ns))


FEW: Final = 4
"""Decode steps from which on as many are priced at once as a processor does together, though the run may end before."""


@INLINED
def _decode_many(fixed, batch, keys, gap_s, found, at, count):
    """Do as :func:`_decode_step` for steps in turn of what was not measured, of which the last one is none for arrays.

    In a loop without a way out, of which processors do several rounds at once.
    """
    _, flops, flop_rate, read, other_bytes, byte_rate, hidden, least_s = fixed
    for place in range(count):
        seen = keys + place * batch
        compute = seen * flops / flop_rate
        reading = (seen * read + other_bytes) / byte_rate
        if hidden > 0.0:
            reading = math.sqrt(reading * reading + hidden)
        seconds = least_s + math.sqrt(compute * compute + reading * reading)
        found[at + place] = np.int64(np.rint((seconds + gap_s) * 1e9))


@INNER
def _decode_ns(terms, batch, keys, gap_s, longest_ns):
    """Return nanoseconds of decode attention of a step by itself, or −1 where arrays have to tell."""
    return _decode_step(terms, _decode_fixed(terms, batch), batch, keys, gap_s, longest_ns)


@INNER
def _prefill_ns(terms, pairs, queries, keys, gap_s, longest_s):
    """Return nanoseconds of prefill attention (``cost.scalar.prefill_ns``), or −1 where arrays have to tell."""
    if keys > terms[10] or queries > terms[10]:
        return -1
    busy = (pairs + queries * terms[0]) * terms[1] * terms[2] / terms[3]
    busy += (keys * terms[5] + queries * terms[6]) / terms[4]
    serial = terms[8] * math.sqrt(pairs) + terms[9] * keys
    seconds = terms[7] + math.sqrt(busy * busy + serial * serial)
    if terms[CURVES] > 0.0:
        seconds *= _measured(terms, queries, (2.0 * pairs / queries - 1.0) / queries)
    seconds += gap_s
    if not seconds < longest_s:
        return -1
    return np.int64(np.rint(seconds * 1e9))


@INLINED
def _over(tokens, size):
    """Return how many blocks tokens take. Most blocks have 16: what is divided by a constant is shifted."""
    return (tokens + 15) >> 4 if size == 16 else -(-tokens // size)


@INLINED
def _phase(clock, size):
    """Return the place of a clock within a block."""
    return clock & 15 if size == 16 else (clock % size) & PLACE_BITS


@INLINED
def _copy(target, at, source, count):
    """Copy the first numbers of an array to a place in another: a loop, since slices take long to compile."""
    at &= PLACE_BITS
    for place in range(count & PLACE_BITS):
        target[at + place] = source[place]


@INLINED
def _fact(s, g, facts, now, kind, request, value, used):
    at = g[FACT_AT] & PLACE_BITS
    times, rest = facts
    times[at, 0] = now
    rest[at, 0] = kind
    rest[at, 1] = request
    rest[at, 2] = value
    rest[at, 3] = used
    if rest.shape[1] > 4:
        rest[at, 4] = s[REPLICA]
    g[FACT_AT] = at + 1


@INLINED
def _close(s, g, slot, decodes, one, last_step):
    """Log an episode of decoding, if one is open."""
    first = slot[one, FIRST_STEP]
    if 0 <= first <= last_step:
        at = g[DECODE_AT] & PLACE_BITS
        decodes[at, 0] = slot[one, SLOT]
        decodes[at, 1] = slot[one, REQUEST]
        decodes[at, 2] = first
        decodes[at, 3] = last_step
        if decodes.shape[1] > 4:
            decodes[at, 4] = s[REPLICA]
        g[DECODE_AT] = at + 1
    slot[one, FIRST_STEP] = -1


@INLINED
def _before(slot, finishes, a, b):
    """Whether a member of the group comes before another: by the clock at its last token, then by admission."""
    return finishes[a] < finishes[b] or (finishes[a] == finishes[b] and slot[a, PLACE] < slot[b, PLACE])


@INLINED
def _join(q, slot, line, finishes, phases, lim, one):
    """Let a sequence join a group."""
    clock, done = q[CLOCK], slot[one, DONE_TOKENS]
    slot[one, JOINED] = clock
    finishes[one] = clock + slot[one, OUTPUT] - slot[one, GENERATED]
    phases[_phase(clock - done, lim[SIZE])] += 1
    q[COMPUTED] += done
    heap, at = line[HEAP], q[COUNT] & PLACE_BITS
    q[COUNT] = at + 1
    while at > 0:
        above = ((at - 1) & PLACE_BITS) >> 1
        if not _before(slot, finishes, one, heap[above]):
            break
        heap[at] = heap[above]
        at = above
    heap[at] = one
    slot[one, IS_FRESH] = 1
    line[FRESHLY, q[FRESH] & PLACE_BITS] = one
    q[FRESH] += 1


@INLINED
def _pop(q, slot, line, finishes):
    """Take the member out of a group that has its last token first."""
    heap = line[HEAP]
    found = heap[0]
    q[COUNT] -= 1
    size = q[COUNT] & PLACE_BITS
    if size > 0:
        last, at = heap[size], 0
        while True:
            below = (2 * at + 1) & PLACE_BITS
            if below >= size:
                break
            if below + 1 < size and _before(slot, finishes, heap[below + 1], heap[below]):
                below += 1
            if not _before(slot, finishes, heap[below], last):
                break
            heap[at] = heap[below]
            at = below
        heap[at] = last
    return found


@INLINED
def _remove(line, name, count, one):
    """Take a slot out of a list of so many, which keeps its order."""
    row = line[name]
    at = 0
    while row[at] != one:
        at += 1
    for place in range(at & PLACE_BITS, (count & PLACE_BITS) - 1):
        row[place] = row[place + 1]


@INNER
def _put_back(s, slot, line, one):
    """Put a prompt of which a step has computed a part among those begun, by admission."""
    row, at = line[BEGINNING], s[BEGUN]
    while at > 0 and slot[row[at - 1], PLACE] > slot[one, PLACE]:
        row[at] = row[at - 1]
        at -= 1
    row[at] = one
    s[BEGUN] += 1


@INLINED
def _first_waiting(s, line):
    """Return the slot of the first that waits where it was preempted, else −1; then its request is at ``HEAD``."""
    return line[PREEMPTED_ONES, 0] if s[GIVEN_UP] > 0 else -1


@INLINED
def _needed(s, slot, prompts, one):
    """Return the tokens that the first that waits computes."""
    if one < 0:
        return prompts[s[HEAD] & PLACE_BITS]
    one &= PLACE_BITS
    return slot[one, PROMPT] + slot[one, GENERATED]


@INNER
def _cached(s, slot, line, prompts, lim, one, free, c):
    """Return how many blocks the first that waits would take over, where so many are free."""
    px.catch_up(c, s[REPLICA], free)
    request = slot[one, REQUEST] if one >= 0 else s[HEAD]
    return px.leading(c, s[REPLICA], request, (_needed(s, slot, prompts, one) - 1) // lim[SIZE])


@INLINED
def _admit(s, g, slot, line, prompts, outputs, behind, lim, one, count, blocks, facts, now, used, cached=0, c=None):
    """Take up the first that waits, with its first chunk; what is ``cached`` of it counts as computed."""
    if one >= 0:
        for place in range(s[GIVEN_UP] - 1):
            line[PREEMPTED_ONES, place] = line[PREEMPTED_ONES, place + 1]
        s[GIVEN_UP] -= 1
    else:
        s[SPARE] -= 1
        one = line[SPARES, s[SPARE] & PLACE_BITS]
        request = s[HEAD] & PLACE_BITS
        s[HEAD] = behind[request]
        slot[one, REQUEST] = request
        slot[one, PROMPT] = prompts[request]
        slot[one, OUTPUT] = outputs[request]
        slot[one, GENERATED] = 0
        slot[one, FIRST_STEP] = -1
        slot[one, LAST_STEP] = -1
    one &= PLACE_BITS
    slot[one, DONE_TOKENS] = cached * lim[SIZE]
    slot[one, IS_FRESH] = 0
    slot[one, BLOCKS] = cached + blocks
    slot[one, PLACE] = s[PLACES]
    s[PLACES] += 1
    s[WAITING] -= 1
    line[ORDERED, s[ORDER] & PLACE_BITS] = one
    s[ORDER] += 1
    _fact(s, g, facts, now, FACT_ADMITTED, slot[one, REQUEST], slot[one, PROMPT] + slot[one, GENERATED], used)
    if c is not None:
        slot[one, SHARED] = cached
        px.take_over(c, s[REPLICA], slot[one, REQUEST], cached)
        if cached > 0:
            _fact(s, g, facts, now, FACT_REUSED, slot[one, REQUEST], slot[one, DONE_TOKENS], used)
    slot[one, TAKEN] = count
    line[CARRIED, s[CHUNKS] & PLACE_BITS] = one
    s[CHUNKS] += 1
    return one


@INLINED
def _promised(s, slot, line, size):
    """Return how many blocks those who run hold at their ends."""
    found = 0
    for place in range(s[ORDER]):
        one = line[ORDERED, place]
        found += _most(slot[one, PROMPT], slot[one, OUTPUT], size)
    return found


@INLINED
def _most(prompt, output, size):
    """Return how many blocks a request holds at its end."""
    return -(-(prompt + max(output - 1, 0)) // size)


@INLINED
def _choose(s, g, slot, line, prompts, outputs, behind, lim, facts, now, budget, free, c=None):
    """Choose prompt chunks (``PromptQueue.choose``); return whether a prompt that is begun lacks a block."""
    size, longest = lim[SIZE], lim[LONGEST]
    chunks = 0
    for place in range(s[BEGUN]):
        one = line[BEGINNING, place]
        count = min(slot[one, PROMPT] + slot[one, GENERATED] - slot[one, DONE_TOKENS], budget, longest)
        if count == 0:
            continue
        missing = _over(slot[one, DONE_TOKENS] + count, size) - slot[one, BLOCKS]
        if missing > free:
            return True
        free -= missing
        budget -= count
        slot[one, TAKEN] = count
        line[CARRIED, chunks & PLACE_BITS] = one
        chunks += 1
    for place in range(chunks):
        one = line[CARRIED, place]
        slot[one, BLOCKS] = _over(slot[one, DONE_TOKENS] + slot[one, TAKEN], size)
    s[CHUNKS] = chunks
    promised = _promised(s, slot, line, size) if lim[KEEPS_ROOM] and s[WAITING] > 0 else 0
    while s[WAITING] > 0 and budget > 0 and s[ORDER] < lim[MAX_REQUESTS]:
        one = _first_waiting(s, line)
        need, cached = _needed(s, slot, prompts, one), 0
        if c is not None:
            cached = _cached(s, slot, line, prompts, lim, one, free, c)
            need -= cached * size
        count = min(need, budget, longest)
        if count < need and not lim[CHUNKED] and (s[CHUNKS] > 0 or need <= lim[MAX_TOKENS]):
            break
        missing = taken = _over(count, size)
        if c is not None:
            taken += px.unheld(c, s[REPLICA], slot[one, REQUEST] if one >= 0 else s[HEAD], cached)
        if taken + (0 if lim[FIRST_CHUNK] else _over(need, size) - missing) > free:
            break
        if lim[KEEPS_ROOM]:  # nobody is preempted, so that the first that waits has not run
            promised += _most(prompts[s[HEAD]], outputs[s[HEAD]], size)
            if promised > lim[TOTAL]:
                break
        free -= taken
        budget -= count
        used = lim[TOTAL] - free
        _admit(s, g, slot, line, prompts, outputs, behind, lim, one, count, missing, facts, now, used, cached, c)
    if s[CHUNKS] > 0:
        s[FREE] = free
    return False


@INLINED
def _join_loose(s, slot, line, finishes, phases, lim):
    for place in range(s[LOOSE]):
        _join(s, slot, line, finishes, phases, lim, line[LOOSENED, place])
    s[LOOSE] = 0


@INLINED
def _sum_chunks(s, slot, line, window, c=None):
    """Add up what is told of the chunks of a step, and let go of the prompts that it goes on with."""
    new = context = pairs = keys = near_pairs = near_keys = 0
    for place in range(s[CHUNKS]):
        one = line[CARRIED, place]
        start, taken = slot[one, DONE_TOKENS], slot[one, TAKEN]
        new += taken
        context += start
        pairs += taken * start + taken * (taken + 1) // 2
        keys += start + taken
        short = min(max(window - 1 - start, 0), taken)  # so many tokens attend to less than the window
        near_pairs += short * (start + 1) + short * (short - 1) // 2 + (taken - short) * window
        near_keys += min(start, window - 1) + taken
        begun = start > 0
        if c is not None:  # else one that was just admitted has computed nothing
            begun = False
            for at in range(s[BEGUN]):
                begun = begun or line[BEGINNING, at] == one
        if begun:
            _remove(line, BEGINNING, s[BEGUN], one)
            s[BEGUN] -= 1
    s[NEW], s[CONTEXT], s[PAIRS], s[KEYS] = new, context, pairs, keys
    s[NEAR_PAIRS], s[NEAR_KEYS] = near_pairs, near_keys


@INLINED
def _sum_near(s, q, slot, member, window):
    """Add up the keys within the window to which a group attends in its next step (``WindowSum``)."""
    keys = growth = 0
    steps = NEVER
    for place in range(q[COUNT] if window > 0 else 0):
        one = member[HEAP, place]
        seen = slot[one, DONE_TOKENS] + q[CLOCK] - slot[one, JOINED] + 1
        keys += min(seen, window)
        if seen < window:
            growth += 1
            steps = min(steps, window - seen)
    s[NEAR_ATTENDED], s[NEAR_GROWTH], s[NEAR_STEPS] = keys, growth, steps


@INLINED
def _launch(s, g, slot, line, lim, decodes, group, c=None):
    """Note what a step carries (``GroupedScheduler._launch``): chunks that were chosen, and the group or nobody."""
    count = s[COUNT] if group else 0
    s[DECODES] = count
    s[STEADY] = s[CHUNKS] == 0 and count == s[ORDER]
    if c is not None:  # where blocks are taken that it would take over, the first that waits needs fewer at once
        s[STEADY] = s[STEADY] and (s[WAITING] == 0 or s[ORDER] >= lim[MAX_REQUESTS])
    if group:
        step, last = s[STEP], s[LAST]
        s[BEFORE] = last
        for place in range(s[FRESH]):
            one = line[FRESHLY, place]
            if slot[one, FIRST_STEP] >= 0 and last != slot[one, LAST_STEP]:
                _close(s, g, slot, decodes, one, slot[one, LAST_STEP])
            if slot[one, FIRST_STEP] < 0:
                slot[one, FIRST_STEP] = step
            slot[one, IS_FRESH] = 0
        s[FRESH] = 0
        s[LAST] = step
        _sum_near(s, s, slot, line, lim[WINDOW])
    _sum_chunks(s, slot, line, lim[WINDOW], c)
    s[ATTENDED] = s[COMPUTED] + count if group else 0
    s[LAUNCHED] = 1
    s[STEPS] = 0


@INLINED
def _next(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c=None):
    """Decide the next step (``GroupedScheduler.next``); it is launched, or there is nothing to run."""
    s[CHUNKS] = 0
    if s[SWAPPED] + s[INBOUND] > 0:
        _careful(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c)
        return
    asked = s[WAITING] > 0 or s[BEGUN] > 0
    if asked and not lim[CHUNKED]:
        if _choose(s, g, slot, line, prompts, outputs, behind, lim, facts, now, lim[MAX_TOKENS], s[FREE], c):
            _careful(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c)
            return
        if s[CHUNKS] > 0:
            _launch(s, g, slot, line, lim, decodes, s[COUNT] < 0, c)  # no group; a constant would be compiled by itself
            return
    _join_loose(s, slot, line, finishes, phases, lim)
    group = s[COUNT] > 0
    free = s[FREE]
    if group:
        free -= phases[_phase(s[CLOCK], lim[SIZE])]
    if free < 0:
        _careful(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c)
        return
    if asked and lim[CHUNKED]:
        budget = lim[MAX_TOKENS] - s[COUNT]
        if _choose(s, g, slot, line, prompts, outputs, behind, lim, facts, now, budget, free, c):
            _careful(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c)
            return
        if s[CHUNKS] > 0:
            _launch(s, g, slot, line, lim, decodes, group, c)
            return
    if not group:
        return
    s[FREE] = free
    _launch(s, g, slot, line, lim, decodes, group, c)


@INNER
def _put_by_request(slot, line, name, count, one):
    """Put a slot into a list of so many in order of requests."""
    row, at = line[name], count
    while at > 0 and slot[row[at - 1], REQUEST] > slot[one, REQUEST]:
        row[at] = row[at - 1]
        at -= 1
    row[at] = one


@INNER
def _swap_out(s, slot, line, one, blocks):
    """Let a victim leave for the host, which has room for it (``SwappingScheduler._preempt``)."""
    s[HOST] -= blocks
    s[COMING] += blocks
    slot[one, COPIED] = blocks
    slot[one, LEAVES] = 1
    _put_by_request(slot, line, AWAY, s[SWAPPED], one)
    s[SWAPPED] += 1
    line[GOING_OUT, s[OUTBOUND]] = one
    s[OUTBOUND] += 1


@INNER
def _swap_in(s, g, slot, line, lim, facts, now):
    """Let come back whoever was swapped out and has room (``SwappingScheduler._swap_in``)."""
    size = lim[SIZE]
    while s[SWAPPED] > 0:  # for whom there are places: nobody was admitted meanwhile
        one = line[AWAY, 0]
        done = slot[one, DONE_TOKENS]
        margin = lim[MARGIN] if s[ORDER] + s[INBOUND] > 0 else 0
        if slot[one, LEAVES] or s[SHORT] or -(-(done + 1) // size) + margin > s[FREE]:
            return
        _remove(line, AWAY, s[SWAPPED], one)
        s[SWAPPED] -= 1
        blocks = -(-done // size)
        s[FREE] -= blocks
        slot[one, BLOCKS] = slot[one, COPIED] = blocks
        line[COMING_IN, s[INBOUND]] = one
        s[INBOUND] += 1
        _fact(s, g, facts, now, FACT_SWAPPED_IN, slot[one, REQUEST], done, lim[TOTAL] - s[FREE])


@INNER
def _begin_copies(s, slot, line, copies_ns, now):
    """Start the first copy in each direction where none is under way (``HostCopies``)."""
    if s[INBOUND] > 0 and s[IN_END] == NEVER:
        s[IN_SINCE] = now
        s[IN_END] = now + copies_ns[0, slot[line[COMING_IN, 0], COPIED]]
    if s[OUTBOUND] > 0 and s[OUT_END] == NEVER:
        s[OUT_SINCE] = now
        s[OUT_END] = now + copies_ns[1, slot[line[GOING_OUT, 0], COPIED]]
    s[COPY_END] = min(s[IN_END], s[OUT_END])


@INNER
def _log_copy(s, g, slot, copies, one, out, since, now):
    at = g[COPY_AT]
    copies[at, 0] = slot[one, REQUEST]
    copies[at, 1] = out
    copies[at, 2] = slot[one, DONE_TOKENS]
    copies[at, 3] = slot[one, COPIED]
    copies[at, 4] = since
    copies[at, 5] = now
    copies[at, 6] = s[REPLICA]
    g[COPY_AT] = at + 1


@INNER
def _end_copies(s, g, slot, line, lim, copies_ns, facts, copies, now):
    """Account for copies that end now, and start those behind them (``SwappingScheduler.copied``)."""
    if s[OUT_END] == now:
        one = line[GOING_OUT, 0]
        _remove(line, GOING_OUT, s[OUTBOUND], one)
        s[OUTBOUND] -= 1
        s[OUT_END] = NEVER
        slot[one, LEAVES] = 0
        s[COMING] -= slot[one, COPIED]
        s[FREE] += slot[one, COPIED]
        _log_copy(s, g, slot, copies, one, 1, s[OUT_SINCE], now)
        _fact(s, g, facts, now, FACT_SWAPPED_OUT, slot[one, REQUEST], slot[one, DONE_TOKENS], lim[TOTAL] - s[FREE])
    if s[IN_END] == now:
        one = line[COMING_IN, 0]
        _remove(line, COMING_IN, s[INBOUND], one)
        s[INBOUND] -= 1
        s[IN_END] = NEVER
        s[HOST] += slot[one, COPIED]
        slot[one, PLACE] = s[PLACES]
        s[PLACES] += 1
        line[ORDERED, s[ORDER]] = one
        s[ORDER] += 1
        _log_copy(s, g, slot, copies, one, 0, s[IN_SINCE], now)
        if _decoding(slot, one):
            line[LOOSENED, s[LOOSE]] = one
            s[LOOSE] += 1
        else:
            _put_back(s, slot, line, one)
    _begin_copies(s, slot, line, copies_ns, now)


@INNER
def _decoding(slot, one):
    return slot[one, GENERATED] > 0 and slot[one, PROMPT] + slot[one, GENERATED] == slot[one, DONE_TOKENS] + 1


@INNER
def _give_way(s, g, slot, line, lim, facts, now, victim, c=None):
    """Let a sequence wait again, or leave for its host, without blocks (``Preemption._preempt``)."""
    s[EVICTED] += 1
    _remove(line, ORDERED, s[ORDER], victim)
    s[ORDER] -= 1
    blocks = slot[victim, BLOCKS]
    slot[victim, BLOCKS] = 0
    if c is not None:
        blocks = px.release(c, s[REPLICA], victim, blocks, slot[:, REQUEST], slot[:, SHARED], line[ORDERED], s[ORDER])
    if 0 < blocks <= s[HOST]:
        _swap_out(s, slot, line, victim, blocks)
        return
    s[FREE] += blocks
    slot[victim, DONE_TOKENS] = 0
    _put_by_request(slot, line, PREEMPTED_ONES, s[GIVEN_UP], victim)
    s[GIVEN_UP] += 1
    s[WAITING] += 1
    _fact(s, g, facts, now, FACT_PREEMPTED, slot[victim, REQUEST], slot[victim, GENERATED], lim[TOTAL] - s[FREE])


@INNER
def _grow(s, g, slot, line, lim, facts, now, one, tokens, c=None):
    """Take the blocks that ``tokens`` need, from those admitted later if need be; return whether it has them."""
    while True:
        missing = -(-tokens // lim[SIZE]) - slot[one, BLOCKS]
        if missing > 0 and s[SHORT]:
            return False
        if missing <= s[FREE]:
            if missing > 0:
                s[FREE] -= missing
                slot[one, BLOCKS] += missing
            return True
        if s[COMING] > 0 and missing <= s[FREE] + s[COMING]:
            s[SHORT] = 1
            return False
        victim = -1
        for place in range(s[ORDER] - 1, -1, -1):
            other = line[ORDERED, place]
            if other == one:
                break
            if slot[other, BLOCKS] > 0 and not slot[other, CHOSEN] and not slot[other, FLIES]:
                victim = other
                break
        if victim < 0:
            return False
        _give_way(s, g, slot, line, lim, facts, now, victim, c)


@INNER
def _careful_decodes(s, g, slot, line, lim, facts, now, budget, c=None):
    """Choose decodes (``Scheduler._decodes``); return how many."""
    chosen = decoding = ready = 0
    if s[DECODES_FLYING] > 0 and not lim[OVERLAP]:
        return chosen
    for place in range(s[ORDER]):
        one = line[ORDERED, place]
        if _decoding(slot, one):
            decoding += 1
            if not slot[one, FLIES]:
                line[READY, ready] = one
                ready += 1
    share = -(-decoding // lim[STAGES])
    for place in range(min(ready, share, budget)):
        one = line[READY, place]
        done = slot[one, DONE_TOKENS]
        has_room = done < slot[one, BLOCKS] * lim[SIZE]
        if has_room or (slot[one, BLOCKS] > 0 and _grow(s, g, slot, line, lim, facts, now, one, done + 1, c)):
            slot[one, CHOSEN] = 1
            chosen += 1
    return chosen


@INNER
def _careful_prefills(s, g, slot, line, prompts, outputs, behind, lim, facts, now, budget, c=None):
    """Choose chunks (``Scheduler._prefills``)."""
    whole = not lim[CHUNKED]
    limit = budget if whole else min(budget, lim[LONGEST])
    ready = 0
    for place in range(s[ORDER]):
        one = line[ORDERED, place]
        if not _decoding(slot, one) and not slot[one, FLIES]:
            line[READY, ready] = one
            ready += 1
    exhausted = False
    for place in range(ready):
        one = line[READY, place]
        count = min(slot[one, PROMPT] + slot[one, GENERATED] - slot[one, DONE_TOKENS], budget, limit)
        if count == 0 or slot[one, BLOCKS] == 0:
            continue
        if _grow(s, g, slot, line, lim, facts, now, one, slot[one, DONE_TOKENS] + count, c):
            slot[one, CHOSEN] = 1
            slot[one, TAKEN] = count
            line[CARRIED, s[CHUNKS]] = one
            s[CHUNKS] += 1
            budget -= count
        elif lim[FIRST_CHUNK] and lim[GIVES_UP] and s[ORDER] > 1 and line[ORDERED, s[ORDER] - 1] == one:
            _give_way(s, g, slot, line, lim, facts, now, one, c)  # Preemption._gives_up
        else:
            exhausted = True
    places = lim[MAX_REQUESTS] - s[INBOUND] if s[SWAPPED] == 0 else 0
    while s[WAITING] > 0 and budget > 0 and s[ORDER] < places:
        one = _first_waiting(s, line)
        need, cached = _needed(s, slot, prompts, one), 0
        if c is not None:
            cached = _cached(s, slot, line, prompts, lim, one, s[FREE], c)
            need -= cached * lim[SIZE]
        count = min(need, budget, limit)
        alone = need > lim[MAX_TOKENS] and s[CHUNKS] == 0
        if s[EVICTED] > 0 or (whole and count < need and not alone):
            break
        missing = taken = -(-count // lim[SIZE])
        if c is not None:
            taken += px.unheld(c, s[REPLICA], slot[one, REQUEST] if one >= 0 else s[HEAD], cached)
        if exhausted or taken + (0 if lim[FIRST_CHUNK] else -(-need // lim[SIZE]) - missing) > s[FREE]:
            break
        s[FREE] -= taken
        used = lim[TOTAL] - s[FREE]
        one = _admit(s, g, slot, line, prompts, outputs, behind, lim, one, count, missing, facts, now, used, cached, c)
        slot[one, CHOSEN] = 1
        budget -= count


@INNER
def _decide(s, g, slot, line, prompts, outputs, behind, lim, facts, now, c=None):
    """Choose decodes and chunks (``Scheduler.schedule``); return how many decode."""
    chosen, away = 0, s[SWAPPED]
    while True:
        s[EVICTED] = s[CHUNKS] = s[SHORT] = 0
        for place in range(s[ORDER]):
            slot[line[ORDERED, place], CHOSEN] = 0
        if lim[CHUNKED]:
            chosen = _careful_decodes(s, g, slot, line, lim, facts, now, lim[MAX_TOKENS], c)
            if s[EVICTED] == 0:
                left = lim[MAX_TOKENS] - chosen
                _careful_prefills(s, g, slot, line, prompts, outputs, behind, lim, facts, now, left, c)
        else:
            _careful_prefills(s, g, slot, line, prompts, outputs, behind, lim, facts, now, lim[MAX_TOKENS], c)
            chosen = 0
            if s[CHUNKS] == 0:
                chosen = _careful_decodes(s, g, slot, line, lim, facts, now, lim[MAX_TOKENS], c)
        if s[EVICTED] == 0 and (lim[CHUNKED] or s[CHUNKS] == 0):
            _swap_in(s, g, slot, line, lim, facts, now)
        if chosen + s[CHUNKS] > 0:
            break
        if s[EVICTED] == 0:
            if away == 0 or s[SWAPPED] > 0:
                break
            away = 0  # others may be admitted again
    return chosen


@INNER
def _careful(s, g, slot, line, finishes, phases, prompts, outputs, behind, lim, decodes, facts, now, c=None):
    """Decide as the scheduler itself does, where somebody may have to give way (``GroupedScheduler._careful``)."""
    size, clock = lim[SIZE], s[CLOCK]
    for place in range(s[COUNT]):
        one = line[HEAP, place]
        grown = clock - slot[one, JOINED]
        slot[one, DONE_TOKENS] += grown
        slot[one, GENERATED] += grown
        slot[one, BLOCKS] = -(-slot[one, DONE_TOKENS] // size)
        if not slot[one, IS_FRESH]:
            slot[one, LAST_STEP] = s[LAST]
    s[COUNT] = s[COMPUTED] = s[LOOSE] = s[FRESH] = s[BEGUN] = 0
    for phase in range(size):
        phases[phase] = 0
    out = s[OUTBOUND]
    chosen = _decide(s, g, slot, line, prompts, outputs, behind, lim, facts, now, c)
    if c is not None:  # who was just admitted is not begun, and does not decode, whatever it took over
        for place in range(s[CHUNKS]):
            slot[line[CARRIED, place], CHOSEN] = 2
    for place in range(out, s[OUTBOUND]):
        one = line[GOING_OUT, place]
        _close(s, g, slot, decodes, one, slot[one, LAST_STEP])
    for place in range(s[ORDER]):
        one = line[ORDERED, place]
        if slot[one, DONE_TOKENS] == 0 or slot[one, CHOSEN] == 2:
            continue
        if not _decoding(slot, one):
            line[BEGINNING, s[BEGUN]] = one
            s[BEGUN] += 1
        elif slot[one, CHOSEN]:
            _join(s, slot, line, finishes, phases, lim, one)
        else:
            line[LOOSENED, s[LOOSE]] = one
            s[LOOSE] += 1
    if chosen + s[CHUNKS] > 0:
        _launch(s, g, slot, line, lim, decodes, chosen > 0, c)
        s[STEADY] = 0  # who gave way may come back in the next step


@INLINED
def _finish(s, g, slot, line, lim, loads, facts, decodes, now, one, last_step, c=None):
    blocks = slot[one, BLOCKS]
    if c is not None:
        blocks = px.release(c, s[REPLICA], one, blocks, slot[:, REQUEST], slot[:, SHARED], line[ORDERED], s[ORDER])
    s[FREE] += blocks
    _remove(line, ORDERED, s[ORDER], one)
    s[ORDER] -= 1
    line[SPARES, s[SPARE] & PLACE_BITS] = one
    s[SPARE] += 1
    g[ENDED] += 1
    g[FREED] += 1
    loads[s[REPLICA] & PLACE_BITS] -= slot[one, PROMPT] + slot[one, OUTPUT]
    _fact(s, g, facts, now, FACT_FINISHED, slot[one, REQUEST], slot[one, GENERATED], lim[TOTAL] - s[FREE])
    if slot[one, FIRST_STEP] >= 0:
        _close(s, g, slot, decodes, one, last_step)


@INLINED
def _entered(s, phases, size, steps):
    """Return the blocks that members enter in the next ``steps`` steps but the first."""
    entered, left, at = 0, steps - 1, _phase(s[CLOCK], size)
    while left >= size:
        entered += s[COUNT]
        left -= size
    for _ in range(left):
        at = _phase(at + 1, size)
        entered += phases[at]
    return entered


@INLINED
def _affordable(s, phases, size, limit, free):
    """Return how many of the next ``limit`` steps have their blocks, when all but the first take from ``free``."""
    if limit * s[COUNT] <= free or (limit // size + 1) * s[COUNT] <= free:
        return limit
    for step in range(1, limit):
        free -= phases[_phase(s[CLOCK] + step, size)]
        if free < 0:
            return step
    return limit


@INLINED
def _log_row(rows, at, head):
    """Write a row of steps."""
    wide, narrow = rows
    for place in range(WIDE):
        wide[at, place] = head[place]
    for place in range(ROW_REPLICA - WIDE):
        narrow[at, place] = head[WIDE + place]
    if narrow.shape[1] > ROW_REPLICA - WIDE:
        narrow[at, ROW_REPLICA - WIDE] = head[ROW_REPLICA]


@INLINED
def _log_run(s, g, head, pending, now, width, rows, varying):
    """Write the step or run of steps that ends, and what varied in it."""
    at = g[ROW_AT] & PLACE_BITS
    head[ROW_COUNT] = s[STEPS]
    head[ROW_END] = now
    _log_row(rows, at, head)
    g[ROW_AT] = at + 1
    out, size = g[VARYING_AT] & PLACE_BITS, s[STEPS] * width
    _copy(varying, out, pending, size)
    g[VARYING_AT] = out + size


@INLINED
def _step_group(q, group, s, g, slot, line, finishes, phases, lim, loads, now, decodes, facts, c=None):
    """Give each member of a group its tokens; let those go that have all (``DecodeGroup.advance``)."""
    steps, size = s[STEPS], lim[SIZE]
    clock = q[CLOCK] + steps
    q[CLOCK] = clock
    q[COMPUTED] += steps * q[COUNT]
    while q[COUNT] > 0 and finishes[group[HEAP, 0]] <= clock:
        one = _pop(q, slot, group, finishes)
        phases[_phase(slot[one, JOINED] - slot[one, DONE_TOKENS], size)] -= 1
        done = slot[one, DONE_TOKENS] + clock - slot[one, JOINED]
        slot[one, DONE_TOKENS] = done
        slot[one, GENERATED] = slot[one, OUTPUT]
        slot[one, BLOCKS] = _over(done, size)
        q[COMPUTED] -= done
        # its blocks are given back below; nobody looks at them in between
        _finish(s, g, slot, line, lim, loads, facts, decodes, now, one, q[LAST], c)


@INLINED
def _compute(s, g, slot, line, lim, loads, now, chunks, decodes, facts, step, one, c=None):
    """Account for a prompt chunk of a step that ended (``GroupedScheduler._compute``)."""
    start, count = slot[one, DONE_TOKENS], slot[one, TAKEN]
    done = start + count
    slot[one, DONE_TOKENS] = done
    if slot[one, FIRST_STEP] >= 0:  # computed anew after a preemption
        _close(s, g, slot, decodes, one, slot[one, LAST_STEP])
    left = slot[one, PROMPT] + slot[one, GENERATED] - done
    sampled = 0
    if left == 0:
        if slot[one, GENERATED] < slot[one, OUTPUT]:
            slot[one, GENERATED] += 1
            sampled = 1
        if slot[one, GENERATED] >= slot[one, OUTPUT]:
            _finish(s, g, slot, line, lim, loads, facts, decodes, now, one, slot[one, LAST_STEP], c)
        else:
            line[LOOSENED, s[LOOSE] & PLACE_BITS] = one
            s[LOOSE] += 1
    elif left == 1 and slot[one, GENERATED] > 0:  # the last token of what it computes anew is a decode step
        line[LOOSENED, s[LOOSE]] = one
        s[LOOSE] += 1
    else:
        _put_back(s, slot, line, one)
    at = g[CHUNK_AT] & PLACE_BITS
    chunks[at, 0] = step
    chunks[at, 1] = slot[one, REQUEST]
    chunks[at, 2] = start
    chunks[at, 3] = count
    chunks[at, 4] = sampled
    if chunks.shape[1] > 5:
        chunks[at, 5] = s[REPLICA]
    g[CHUNK_AT] = at + 1


@INLINED
def _land(s, g, slot, line, finishes, phases, lim, loads, now, chunks, decodes, facts, c=None):
    """Account for what ends now (``GroupedScheduler.complete``); what it has filled is kept before anybody leaves."""
    if c is not None:
        for place in range(s[CHUNKS]):
            one = line[CARRIED, place]
            full = (slot[one, DONE_TOKENS] + slot[one, TAKEN]) // lim[SIZE]
            px.catch_up(c, s[REPLICA], s[FREE])
            slot[one, SHARED], freed = px.store(c, s[REPLICA], slot[one, REQUEST], slot[one, SHARED], full)
            s[FREE] += freed
    steps, first = s[STEPS], s[STEP]
    s[STEP] = first + steps
    if s[DECODES] > 0:
        if steps > 1:
            s[FREE] -= _entered(s, phases, lim[SIZE], steps)
            s[LAST] = first + steps - 1
        _step_group(s, line, s, g, slot, line, finishes, phases, lim, loads, now, decodes, facts, c)
    for place in range(s[CHUNKS]):
        _compute(s, g, slot, line, lim, loads, now, chunks, decodes, facts, first, line[CARRIED, place], c)
    s[CHUNKS] = s[STEPS] = 0


@INLINED
def _head(s, lim, head, now, context, number):
    """Note what is known of a step, or run of steps, that begins now."""
    head[ROW_START] = now
    head[ROW_KIND] = STEP_DECODE if s[CHUNKS] == 0 else STEP_MIXED if s[DECODES] > 0 else STEP_PREFILL
    head[ROW_SLOT] = 0 if s[DECODES] > 0 else -1
    head[ROW_REQUESTS] = s[CHUNKS] + s[DECODES]
    head[ROW_NEW] = s[NEW]
    head[ROW_DECODES] = s[DECODES]
    head[ROW_CONTEXT] = context
    head[ROW_WAITING] = s[WAITING] + s[SWAPPED] + s[INBOUND]
    head[ROW_RUNNING] = s[ORDER]
    head[ROW_USED] = lim[TOTAL] - s[FREE]
    head[ROW_NUMBER] = number
    head[ROW_REPLICA] = s[REPLICA]


@INLINED
def _counts(s):
    """Return what a step is told by (``graph.prices.parts.ALIASES``)."""
    return (
        s[NEW] + s[DECODES], s[CHUNKS] + s[DECODES], s[NEW], s[DECODES], s[CONTEXT], s[CONTEXT] + s[NEW], s[KEYS],
    )  # fmt: skip


@njit(**KEPT)
def find_row(s, weights, keys):
    """Return the position of a step's counts in a table, or of a free one, and their key."""
    tokens, requests, new, decodes, context, seen, keys_ = _counts(s)
    key = tokens * weights[0] + requests * weights[1] + new * weights[2] + decodes * weights[3]
    key += context * weights[4] + seen * weights[5] + keys_ * weights[6]
    at = (key % len(keys)) & PLACE_BITS
    while keys[at] != key and keys[at] != -1:
        at = (at + 1) % len(keys)
    return at, key


@INNER
def _make_row(s, parts, part_ns, at, key, keys, values, made):
    """Add up a row from its parts, and give it the next number; return 0, or what is to be asked for."""
    if parts[0] == 0:
        return ASK_ROW
    if 2 * (made[1] + 1) > len(keys):
        return WIDEN
    counts = _counts(s)
    total = 0
    for part in range(parts[0]):
        place = parts[1 + part]
        ns = part_ns[part, counts[place] if place >= 0 else 0]
        if ns < 0:
            return ASK_PART
        total += ns
    keys[at] = key
    values[at, 0] = total
    values[at, 1] = made[0]
    made[0] += 1
    made[1] += 1
    return 0


@INLINED
def _prompts_ns(s, g, seconds, weights, keys, values, parts, part_ns, made, cores, core_kinds, terms, answer, pending):
    """Return what is to be asked for, 0 for nothing; nanoseconds of a step that prefills; the number of its row."""
    table = 1 if s[DECODES] > 0 else 0
    at, key = find_row(s, weights[table], keys[table])
    if keys[table, at] != key:
        asked = _make_row(s, parts[table], part_ns[table], at, key, keys[table], values[table], made[table])
        if asked:
            return asked, 0, 0
    total, number = values[table, at, 0], values[table, at, 1]
    for core in range(cores[table]):
        near = core_kinds[table, core, 2]
        if g[ANSWERED]:
            ns = answer[core]
        elif core_kinds[table, core, 0] == 0:
            pairs, keys_ = (s[NEAR_PAIRS], s[NEAR_KEYS]) if near else (s[PAIRS], s[KEYS])
            ns = _prefill_ns(terms[table, core], pairs, s[NEW], keys_, seconds[0], seconds[2])
        else:
            attended = s[NEAR_ATTENDED] if near else s[ATTENDED]
            ns = _decode_ns(terms[table, core], s[DECODES], attended, seconds[0], seconds[2] * 1e9)
        if ns < 0:
            return ASK_STEP, 0, 0
        pending[core] = ns
        total += core_kinds[table, core, 1] * ns
    return 0, total, number


@INLINED
def _price_prompts(
    s,
    g,
    lim,
    seconds,
    weights,
    keys,
    values,
    parts,
    part_ns,
    made,
    cores,
    core_kinds,
    terms,
    answer,
    head,
    pending,
    ends,
):
    """Price a step that prefills; return 0, or what is to be asked for."""
    asked, total, number = _prompts_ns(
        s, g, seconds, weights, keys, values, parts, part_ns, made, cores, core_kinds, terms, answer, pending
    )
    if asked:
        return asked
    g[ANSWERED] = 0
    if total >= NEVER - g[NOW]:
        return TOO_LATE
    _head(s, lim, head, g[NOW], s[CONTEXT] + s[ATTENDED], number)
    s[STEPS] = s[LIMIT] = 1
    ends[s[REPLICA] & PLACE_BITS] = g[NOW] + total
    return 0


@INLINED
def _price_decodes(
    s,
    g,
    line,
    finishes,
    phases,
    lim,
    seconds,
    decode_rows,
    cores,
    core_kinds,
    terms,
    answer,
    head,
    pending,
    ends,
    until,
):
    """Begin or continue a run of decode steps, up to an instant; return 0, or what is to be asked for."""
    count, mine = s[DECODES] & PLACE_BITS, s[REPLICA] & PLACE_BITS
    base = decode_rows[count, 0]
    if base < 0:
        return ASK_DECODE
    if s[LAUNCHED]:
        limit = min(finishes[line[HEAP, 0]] - s[CLOCK], lim[MAX_RUN]) if s[STEADY] else 1
        s[LIMIT] = min(_affordable(s, phases, lim[SIZE], limit, s[FREE]), s[NEAR_STEPS])
        _head(s, lim, head, g[NOW], s[ATTENDED], decode_rows[count, 1])
        ends[mine] = g[NOW]
    classes = cores[2]
    gap = seconds[1] if decode_rows[count, 2] else seconds[0]
    steps, end, limit = s[STEPS] & PLACE_BITS, ends[mine], s[LIMIT]
    keys, near, first = s[ATTENDED] + steps * count, s[NEAR_ATTENDED] + steps * s[NEAR_GROWTH], steps
    longest_ns, fixed = seconds[2] * 1e9, _decode_fixed(terms[2, 0], count)
    alone, instances = classes == 1 and not g[ANSWERED] and not core_kinds[2, 0, 2], core_kinds[2, 0, 1]
    many = lim[TOGETHER] if alone and terms[2, 0, CURVES] == 0.0 else 0
    ahead = steps
    while True:
        total = base
        if many > 0 and steps == ahead and limit - steps >= FEW and keys + (many - 1) * count <= fixed[0]:
            _decode_many(fixed, count, keys, gap, pending, steps, many)
            if 0 <= pending[(steps + many - 1) & PLACE_BITS] < longest_ns - 1.0:  # what fewer keys take is less
                ahead += many
            else:
                many = 0
        if alone:
            ns = pending[steps & PLACE_BITS]
            if steps >= ahead:
                ns = _decode_step(terms[2, 0], fixed, count, keys, gap, longest_ns)
                pending[steps] = ns
            total = -1 if ns < 0 else base + instances * ns
        for core in range(0 if alone else classes):
            seen = near if core_kinds[2, core, 2] else keys
            if classes > 1:
                fixed = _decode_fixed(terms[2, core], count)
            ns = answer[core] if g[ANSWERED] else _decode_step(terms[2, core], fixed, count, seen, gap, longest_ns)
            if ns < 0:
                total = -1
                break
            pending[steps * classes + core] = ns
            total += core_kinds[2, core, 1] * ns
        if total < 0:
            break
        g[ANSWERED] = 0
        if total >= NEVER - end:
            return TOO_LATE
        end += total
        steps += 1
        keys += count
        near += s[NEAR_GROWTH]
        if steps >= limit or end >= until:
            break
    s[STEPS] = steps
    ends[mine] = end
    return ASK_STEP if steps == first else 0


@INLINED
def _settle(tree, keys, lane):
    """Bring a tournament of lanes up to date, whose root has the smallest key, the first lane among equals."""
    size = len(tree) >> 1
    at = ((size + lane) & PLACE_BITS) >> 1
    while at > 0:
        left, right = tree[2 * at], tree[2 * at + 1]
        tree[at] = left if right < 0 or keys[left & PLACE_BITS] <= keys[right] else right
        at >>= 1


@INLINED
def _wake(s, g, awake):
    """Ask a lane for a decision, once."""
    if not s[IS_AWAKE]:
        s[IS_AWAKE] = 1
        awake[g[AWAKE]] = s[REPLICA]
        g[AWAKE] += 1


@INLINED
def _is_full(g, lim):
    return (
        g[ROW_AT] >= lim[ROOM_ROWS]
        or g[VARYING_AT] >= lim[ROOM_VARYING]
        or g[CHUNK_AT] >= lim[ROOM_CHUNKS]
        or g[DECODE_AT] >= lim[ROOM_DECODES]
        or g[FACT_AT] >= lim[ROOM_FACTS]
        or g[STRETCH_AT] >= lim[ROOM_STRETCHES]
        or g[COPY_AT] >= lim[ROOM_ROWS]
    )


@INLINED
def _arrive(g, s, loads, load_tree, lim, prompts, outputs, refused, behind, tail, came, routed, request, chosen=-1):
    """Queue the next request where it goes, and return that lane; −1 where the request can never run."""
    lanes = len(loads)
    lane = load_tree[1] if lim[BALANCED] else g[NEXT] - g[NEXT] // lanes * lanes
    if chosen >= 0:
        lane = chosen
    g[NEXT] += 1
    g[FREED] -= 1
    came[request] = g[NOW]
    routed[request] = lane
    if refused[request]:
        g[ENDED] += 1
        g[FREED] += 1
        return -1
    mine = s[lane]
    if mine[WAITING] > mine[GIVEN_UP]:
        behind[tail[lane]] = request
    else:
        mine[HEAD] = request
    tail[lane] = request
    mine[WAITING] += 1
    if lim[BALANCED]:
        loads[lane] += prompts[request] + outputs[request]
        _settle(load_tree, loads, lane)
    return lane


@INNER
def _taken(s, lim, phases, head, pending, core_kinds, cores, base, before):
    """Return the blocks that a run under way has taken besides those of its first step (``Lane.taken``).

    Before an instant; where it ends there and goes on, all its steps but the next one have ended.
    """
    if s[STEPS] == 0 or s[CHUNKS] > 0:
        return 0
    ended, end, width = 0, head[ROW_START], cores[2]
    for step in range(s[STEPS] if s[GOES_ON] else s[STEPS] - 1):
        end += base
        for core in range(width):
            end += core_kinds[2, core, 1] * pending[step * width + core]
        if end >= before:
            break
        ended += 1
    return _entered(s, phases, lim[SIZE], ended + 1)


@INNER
def _route(c, s, g, loads, phases, lim, head, pending, core_kinds, cores, decode_rows, prompt, request):
    """Return the lane that has most of a prompt cached, −1 where loads tell (``serving.router.PrefixAware``)."""
    routing, most, least = c[px.ROUTING], 0, NEVER
    if len(routing) == 0:
        return -1
    for lane in range(len(s)):
        count = s[lane, WAITING] + s[lane, ORDER]
        most, least = max(most, count), min(least, count)
    if most - least > routing[1] and most > routing[2] * least:
        return -1
    found, longest, before = -1, 0, g[NOW] + (c[px.ASKED][0] == g[NOW])
    for lane in range(len(s)):
        mine = s[lane]
        base = decode_rows[mine[DECODES], 0]
        taken = _taken(mine, lim, phases[lane], head[lane], pending[lane], core_kinds, cores, base, before)
        px.catch_up(c, lane, mine[FREE] - taken)
        cached = px.leading(c, lane, request, (prompt - 1) // lim[SIZE])
        if cached > longest or (cached == longest and found >= 0 and loads[lane] < loads[found]):
            found, longest = lane, cached
    tokens = longest * lim[SIZE]
    return -1 if tokens < routing[0] * prompt else found


@njit(**KEPT)
def advance(
    g,
    s,
    slot,
    line,
    finishes,
    phases,
    head,
    pending,
    answer,
    ends,
    end_tree,
    loads,
    load_tree,
    awake,
    lim,
    seconds,
    arrived,
    prompts,
    outputs,
    refused,
    behind,
    tail,
    came,
    routed,
    weights,
    keys,
    values,
    parts,
    part_ns,
    made,
    decode_rows,
    cores,
    core_kinds,
    terms,
    copies_ns,
    copies,
    rows,
    varying,
    chunks,
    decodes,
    facts,
    c=None,
):
    """Go on from instant to instant until there is nothing more to do, or something is needed.

    Parameters
    ----------
    g : int64 array of shape (len(CLOCK_SCALARS),)
    s, slot, line, finishes, phases : int64 arrays
        The state by lane: (lanes, len(SCALARS)), (lanes, slots, len(FIELDS)), (lanes, len(LINES), slots),
        (lanes, slots), (lanes, block tokens).
    head, pending : int64 arrays of shape (lanes, len(ROW)) and (lanes, …)
        The row of the run under way, and what varies in it.
    answer : int64 array
        What the classes take that were asked for.
    ends, loads : int64 arrays of shape (lanes,)
        When what is under way ends, ``NEVER`` where nothing is; tokens of unfinished requests.
    end_tree, load_tree : int64 arrays of shape (2 × a power of 2,)
        The lane with the smallest of them below each node, −1 where there is none.
    awake : int64 array of shape (lanes,)
    lim : int64 array of shape (len(LIMITS),)
    seconds : float64 array of shape (3,)
        The gap before a kernel without and with a captured graph, and how long none may take.
    arrived, prompts, outputs : int64 arrays of shape (requests,)
        Of the run; those at ``FIRST``, ``FIRST + STRIDE``, … come here.
    refused : bool array of shape (requests,)
    behind : int64 array of shape (requests,)
        Of each that waits or waited, the next one at its lane.
    tail : int64 array of shape (lanes,)
        The last that came to each lane, −1 before there is one.
    came, routed : int64 arrays of shape (requests,)
        When and where each came; written here.
    weights : int64 array of shape (2, 7)
        What each of a step's counts is worth in the number that tells a row of a step that prefills, and of a mixed
        one; 0 of those that do not tell any.
    keys, values : int64 arrays of shape (2, size) and (2, size, 2)
        Those counts as one number, −1 where there is none → nanoseconds without attention, number of the row.
    parts : int64 array of shape (2, 1 + parts)
        Into how many parts a row falls, 0 where they can't be added up here, and the count that each depends on, −1 for
        none.
    part_ns : int64 array of shape (2, parts, count)
        Nanoseconds of each, −1 where unknown.
    made : int64 array of shape (2, 2)
        The number of the next row, and rows in the table.
    decode_rows : int64 array of shape (requests that may run + 1, 4)
        Sequences that decode → nanoseconds without attention, −1 where unknown; row; whether a graph is captured; what
        a send takes.
    cores : int64 array of shape (3,)
        Classes that attend, of the steps that prefill, are mixed, and decode.
    core_kinds : int64 array of shape (3, classes, 3)
        0 where one is of prefill, else 1; its instances; 1 where it attends within the window.
    terms : float64 array of shape (3, classes, 12)
        ``PREFILL_TERMS`` or ``DECODE_TERMS``.
    copies_ns : int64 array of shape (2, blocks + 1)
        What copies of so many blocks take, in from the host and out; without any where nobody swaps.
    copies : int64 array of shape (…, 7)
        Copies that ended, the lane last.
    rows, facts : tuples of an int64 and an int32 array
        What is logged, the lane last where there are several: (…, WIDE) and (…, len(ROW) − WIDE), (…, 1) and (…, 5).
    varying, chunks, decodes : int64, int32, int32 arrays of shape (…,), (…, 6), (…, 5)
    c : tuple of arrays or None
        ``prefixes.PREFIXES``, where prompts share what is cached.

    Returns
    -------
    int
        ``DONE``, ``FULL``, ``ASK_DECODE``, ``ASK_PART``, ``ASK_ROW``, ``ASK_STEP``, ``WIDEN`` or ``TOO_LATE``.
    """
    stride, first, total = lim[STRIDE], lim[FIRST], len(arrived)
    while True:
        now = g[NOW]
        if g[PHASE] == ENDS:
            while ends[end_tree[1]] == now:
                if _is_full(g, lim):
                    return FULL
                lane = end_tree[1] & PLACE_BITS
                mine = s[lane]
                beside = mine[COPY_END] != NEVER  # then steps are taken singly
                if not beside and mine[STEPS] < mine[LIMIT]:
                    mine[GOES_ON] = 1
                elif not beside or (mine[STEPS] > 0 and mine[STEP_END] == now):
                    width = cores[2] if mine[CHUNKS] == 0 else cores[1] if mine[DECODES] > 0 else cores[0]
                    _log_run(mine, g, head[lane], pending[lane], now, width, rows, varying)
                    _land(
                        mine, g, slot[lane], line[lane], finishes[lane], phases[lane], lim, loads, now, chunks, decodes,
                        facts, c,
                    )  # fmt: skip
                    if lim[BALANCED]:
                        _settle(load_tree, loads, lane)
                if mine[COPY_END] == now:
                    _end_copies(mine, g, slot[lane], line[lane], lim, copies_ns, facts, copies, now)
                _wake(mine, g, awake)
                ends[lane] = NEVER
                _settle(end_tree, ends, lane)
            g[PHASE] = ARRIVALS
        if g[PHASE] == ARRIVALS:
            while True:
                request = (first + g[NEXT] * stride) & PLACE_BITS
                if request >= total or (g[FREED] <= 0 if lim[CLOSED] else arrived[request] != now):
                    break
                if _is_full(g, lim):
                    return FULL
                chosen = -1
                if c is not None:
                    chosen = _route(
                        c, s, g, loads, phases, lim, head, pending, core_kinds, cores, decode_rows, prompts[request],
                        request,
                    )  # fmt: skip
                lane = _arrive(
                    g, s, loads, load_tree, lim, prompts, outputs, refused, behind, tail, came, routed, request, chosen
                )
                if lane < 0:
                    continue
                lane &= PLACE_BITS
                mine = s[lane]
                if mine[WAITING] == 1:  # those before it are kept out as ever
                    if mine[GOES_ON]:
                        mine[GOES_ON] = 0
                        _log_run(mine, g, head[lane], pending[lane], now, cores[2], rows, varying)
                        _land(
                            mine, g, slot[lane], line[lane], finishes[lane], phases[lane], lim, loads, now, chunks,
                            decodes, facts, c,
                        )  # fmt: skip
                    elif mine[STEPS] > 0:
                        mine[LIMIT] = mine[STEPS]
                _wake(mine, g, awake)
            g[PHASE] = DECISIONS
        request = (first + g[NEXT] * stride) & PLACE_BITS
        soon = NEVER if lim[CLOSED] or request >= total else arrived[request]
        while g[AWOKEN] < g[AWAKE]:
            lane = awake[g[AWOKEN] & PLACE_BITS] & PLACE_BITS
            mine = s[lane]
            if not mine[GOES_ON] and not mine[LAUNCHED] and mine[STEPS] == 0:
                if _is_full(g, lim):
                    return FULL
                _next(
                    mine, g, slot[lane], line[lane], finishes[lane], phases[lane], prompts, outputs, behind, lim,
                    decodes, facts, now, c,
                )  # fmt: skip
                if mine[INBOUND] + mine[OUTBOUND] > 0:
                    _begin_copies(mine, slot[lane], line[lane], copies_ns, now)
            asked = 0
            if mine[GOES_ON] or mine[LAUNCHED]:
                if mine[CHUNKS] > 0:
                    asked = _price_prompts(
                        mine, g, lim, seconds, weights, keys, values, parts, part_ns, made, cores, core_kinds,
                        terms, answer, head[lane], pending[lane], ends,
                    )  # fmt: skip
                else:
                    if mine[GOES_ON]:
                        ends[lane] = now
                    until = now if lim[CLOSED] else min(soon, lim[HORIZON] + 1)
                    if mine[WAITING] > 0:
                        until = NEVER if lim[HORIZON] == NEVER - 1 else lim[HORIZON] + 1
                    asked = _price_decodes(
                        mine, g, line[lane], finishes[lane], phases[lane], lim, seconds, decode_rows, cores, core_kinds,
                        terms, answer, head[lane], pending[lane], ends, until,
                    )  # fmt: skip
                if asked:
                    g[LANE] = lane
                    return asked
                mine[GOES_ON] = mine[LAUNCHED] = 0
                mine[STEP_END] = ends[lane]
                _settle(end_tree, ends, lane)
            if copies_ns.shape[1] > 0:
                ends[lane] = min(mine[STEP_END] if mine[STEPS] > 0 else NEVER, mine[COPY_END])
                _settle(end_tree, ends, lane)
            mine[IS_AWAKE] = 0
            g[AWOKEN] += 1
        g[AWAKE] = g[AWOKEN] = 0
        if c is not None:
            c[px.ASKED][0] = now
        now = min(ends[end_tree[1]], soon)
        if now > lim[HORIZON]:
            return DONE
        g[NOW] = now
        g[PHASE] = ENDS
