"""Replays of a pool at the least times of its steps, over plain numbers: of lists in Python, of arrays for a compiler.

Both give the same: the same floating-point numbers are added, multiplied and compared in the same order.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence

from clustersim.clock import FloatArray, Int64Array

Floats = Sequence[float] | FloatArray
Whole = Sequence[int] | Int64Array
Told = tuple[int, float, int, float]


def prompts_late(
    budget: int, kinds: Whole, own: Floats, sending: Floats, pair: Floats,
    arrived: Floats, prompt: Floats, by: Floats, done: MutableSequence[float] | FloatArray, free: int,
) -> int:  # fmt: skip
    """Return how many prompts are computed too late; where they are more than may be, only that.

    Parameters
    ----------
    budget : int
        Most tokens of a step.
    kinds : sequence of int
        Stages → which of the kinds that follow.
    own, sending : sequence of float
        Nanoseconds of the pass of a step, and of what is sent behind it: by tokens, one kind after the other.
    pair : sequence of float
        What a pair that is attended to adds, by kind.
    arrived, prompt, by : sequence of float
        When each prompt comes, its tokens, and when it has to be computed.
    done : array
        Where it is noted when each is computed.
    free : int
        How many may be late.
    """
    count, stages = len(arrived), len(kinds)
    size = stages + 1  # a step leaves one prompt open at most, and opens none while another one could go on
    free_at, sent_at, flight = [0.0] * stages, [0.0] * stages, [0.0] * stages
    place, left, computed, ends, taken = [0] * size, [0.0] * size, [0.0] * size, [0.0] * size, [False] * size
    first, flying, begun, coming, late, now = 0, 0, 0, 0, 0, 0.0
    while coming < count or begun > 0:
        now = max(now, free_at[0])
        if flying == stages:
            now = max(now, flight[first])
        while flying > 0 and flight[first] <= now:
            first, flying = (first + 1) % stages, flying - 1
        room, pairs, some, known, fresh = float(budget), 0.0, False, begun, coming
        for here in range(known):
            taken[here] = room > 0.0 and ends[here] <= now
            if taken[here]:
                took = min(left[here], room)
                pairs += took * computed[here] + took * (took + 1.0) / 2.0
                left[here], computed[here], room, some = left[here] - took, computed[here] + took, room - took, True
        while room > 0.0 and coming < count and arrived[coming] <= now:
            took = min(prompt[coming], room)
            pairs += took * (took + 1.0) / 2.0
            room -= took
            if took < prompt[coming]:
                place[begun], left[begun], computed[begun], taken[begun] = coming, prompt[coming] - took, took, True
                begun += 1
            coming += 1
        if not some and coming == fresh:
            comes = arrived[coming] if coming < count else flight[first]
            now = min(comes, flight[first]) if flying > 0 else comes
            continue
        tokens, end = budget - int(room), now
        for stage in range(stages):
            row = kinds[stage] * (budget + 1) + tokens
            end = max(end, free_at[stage]) + own[row] + pair[kinds[stage]] * pairs
            free_at[stage] = end
            end = max(end, sent_at[stage]) + sending[row]
            sent_at[stage] = end
        flight[(first + flying) % stages] = end
        flying += 1
        for one in range(fresh, coming - (begun - known)):
            late += end > by[one]
            done[one] = end
        kept = 0
        for here in range(begun):
            if taken[here]:
                ends[here] = end
            if taken[here] and left[here] == 0.0:
                late += end > by[place[here]]
                done[place[here]] = end
            if left[here] > 0.0:
                place[kept], left[kept], computed[kept], ends[kept] = (
                    place[here],
                    left[here],
                    computed[here],
                    ends[here],
                )
                kept += 1
        begun = kept
        if late > free:
            return late
    return late


def decodes_late(
    step_ns: Floats, key_ns: Floats, room: float, waits: bool, streams: bool,
    arrived: Floats, decodes: Whole, context: Floats, within: Floats, by: Floats, free: int,
) -> Told:  # fmt: skip
    """Return how many requests get their tokens too slowly; where they are more than may be, only that. With it come
    the nanoseconds that were waited for tokens, for how many, and when the last one came.

    Parameters
    ----------
    step_ns, key_ns : sequence of float
        By the sequences of a pool: nanoseconds of a token of each, and what each of their keys adds.
    room : float
        Tokens that the K/V pool has room for.
    waits : bool
        Whether who is taken while others decode joins them a step later.
    streams : bool
        Whether clients get first tokens from here: then what requests wait for a place is not between their tokens.
    arrived, decodes, context, within, by : sequence
        When each request comes with its first token, how many tokens follow, those of its prompt, how long those that
        follow may take, and when it needs a place where its first token comes from here.
    free : int
        How many may be late.
    """
    count, most, size = len(arrived), len(step_ns) - 1, 3
    for one in decodes:
        size = max(size, one + 2)
    heads = [-1] * size  # of those that end at a step, by the step modulo this
    behind, since = [-1] * count, [0.0] * count
    coming, running, steps, late, now, keys, waited, tokens = 0, 0, 0, 0, 0.0, 0.0, 0.0, 0
    taken, held = 0, 0.0
    while coming < count or running + taken > 0:
        if running + taken == 0:
            now = max(now, arrived[coming])
        running, keys, taken, held = running + taken, keys + held, 0, 0.0
        later = waits and running > 0
        while coming < count and arrived[coming] <= now and running + taken < most:
            if running + taken > 0 and keys + held + context[coming] > room:
                break
            if decodes[coming] > 0:
                slot = (steps + decodes[coming] + later) % size
                behind[coming], heads[slot], since[coming] = heads[slot], coming, now if streams else arrived[coming]
                taken, held = taken + 1, held + context[coming] + 1.0
            coming += 1
        if not later:
            running, keys, taken, held = running + taken, keys + held, 0, 0.0
        if running == 0:
            continue
        now += step_ns[running] + key_ns[running] * keys
        steps, keys = steps + 1, keys + running
        slot = steps % size
        one = heads[slot]
        heads[slot] = -1
        while one >= 0:
            running -= 1
            keys -= context[one] + 1.0 + decodes[one]
            late += now - since[one] > within[one] or (streams and since[one] > by[one])
            waited, tokens = waited + (now - since[one]), tokens + decodes[one]
            one = behind[one]
        if late > free:
            break
    return late, waited, tokens, now
