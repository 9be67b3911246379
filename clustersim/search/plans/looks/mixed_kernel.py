"""A replay of a replica that computes prompts and decodes, over plain numbers (:mod:`.mixed`)."""

from __future__ import annotations

import math

from clustersim.search.plans.looks.kernels import Floats, Told, Whole


def mixed_late(
    stages: int, budget: int, most: int, room: float, rows: Whole, columns: Whole, width: int, slowest: Floats,
    latency: Floats, key: float, pair: float, tpot: float, arrived: Floats, prompt: Floats, decodes: Whole, by: Floats,
    decodes_by: Floats, free: int,
) -> Told:  # fmt: skip
    """Return how many requests miss a target, and what :func:`~clustersim.search.plans.looks.kernels.decodes_late`
    tells, of requests with their first token in time.

    Sequences that decode together are a group: a chain of them (``behind``), of which each ends at a step of the group.

    Parameters
    ----------
    stages : int
        Steps in flight.
    budget, most, room : int, int, float
        Most tokens of a step, sequences, and tokens in the K/V pool.
    rows, columns : sequence of int
        Prompt tokens, and sequences that decode → row and column of ...
    width, slowest, latency : int, sequence of float, sequence of float
        ... the nanoseconds of a step on the slowest stage, and on all, row by row, of so many columns.
    key, pair, tpot : float
        What a key of decodes and a pair of prompts add on a stage, and the target.
    arrived, prompt, decodes, by, decodes_by : sequence
        When each request comes, its prompt tokens and further ones, and when the first and the last are due.
    free : int
        How many may be late.
    """
    count, size = len(arrived), stages + most + 2
    head, members, steps, soonest, keys = [-1] * size, [0] * size, [0] * size, [0] * size, [0.0] * size
    behind, ends_at, first_at = [-1] * count, [0] * count, [0.0] * count
    spare, spared, ready, foremost, waiting = list(range(size)), size, [0] * size, 0, 0
    lands, group_of, ended_of = [0.0] * stages, [0] * stages, [-1] * stages
    open_of, rest_of, done_of = [0] * stages, [0.0] * stages, [0.0] * stages
    place, left, computed = [0] * (stages + 1), [0.0] * (stages + 1), [0.0] * (stages + 1)
    coming, running, decoding, begun, flying, front = 0, 0, 0, 0, 0, 0
    now, held, late, waited, many, last = 0.0, 0.0, 0, 0.0, 0, 0.0
    while coming < count or running > 0:
        while flying > 0 and lands[front] <= now:
            group, last = group_of[front], lands[front]
            steps[group] += 1
            keys[group], held = keys[group] + members[group], held + members[group]
            if rest_of[front] > 0.0:
                place[begun], left[begun], computed[begun] = open_of[front], rest_of[front], done_of[front]
                begun += 1
            if members[group] > 0 and soonest[group] == steps[group]:
                one, before, soon = head[group], -1, -1
                while one >= 0:
                    after = behind[one]
                    if ends_at[one] > steps[group]:
                        soon, before = ends_at[one] if soon < 0 else min(soon, ends_at[one]), one
                    else:
                        if before < 0:
                            head[group] = after
                        else:
                            behind[before] = after
                        has, took = prompt[one] + decodes[one], last - first_at[one]
                        keys[group], held, members[group] = keys[group] - has, held - has, members[group] - 1
                        decoding, running = decoding - 1, running - 1
                        late += took > decodes[one] * tpot or (took >= 0.0 and last > decodes_by[one])
                        if took >= 0.0:  # who is late counts once
                            waited, many = waited + took, many + decodes[one]
                    one = after
                soonest[group] = soon
            one = ended_of[front]
            while one >= 0:
                after, missed = behind[one], last > by[one]
                late += missed
                if decodes[one] > 0:
                    first_at[one] = math.inf if missed else last
                    ends_at[one], keys[group] = steps[group] + decodes[one], keys[group] + prompt[one]
                    soonest[group] = ends_at[one] if members[group] == 0 else min(soonest[group], ends_at[one])
                    behind[one], head[group], members[group] = head[group], one, members[group] + 1
                    decoding += 1
                else:
                    running, held = running - 1, held - prompt[one]
                one = after
            if members[group] > 0:
                ready[(foremost + waiting) % size] = group
                waiting += 1
            else:
                spare[spared] = group
                spared += 1
            front, flying = (front + 1) % stages, flying - 1
        if late > free:
            break
        if flying == stages:
            now = lands[front]
            continue
        share = min((decoding + stages - 1) // stages, budget)
        if waiting > 0:
            group, foremost, waiting = ready[foremost], (foremost + 1) % size, waiting - 1
        else:
            spared -= 1
            group = spare[spared]
        while members[group] > share or (members[group] < share and waiting > 0):
            source, target, some = ready[foremost], group, share - members[group]
            if some < 0:
                source, target, some = group, spare[spared - 1], -some
            for _ in range(min(some, members[source])):  # those that came last
                one = head[source]
                head[source], members[source] = behind[one], members[source] - 1
                to_go = ends_at[one] - steps[source]
                has = prompt[one] + decodes[one] - to_go
                keys[source], keys[target] = keys[source] - has, keys[target] + has
                ends_at[one] = steps[target] + to_go
                soonest[target] = ends_at[one] if members[target] == 0 else min(soonest[target], ends_at[one])
                behind[one], head[target], members[target] = head[target], one, members[target] + 1
            if source == group:
                foremost, waiting, spared = (foremost - 1) % size, waiting + 1, spared - 1
                ready[foremost] = target
            elif members[source] == 0:
                foremost, waiting = (foremost + 1) % size, waiting - 1
                spare[spared] = source
                spared += 1
        whole = float(budget - members[group])
        free_tokens, pairs, slot = whole, 0.0, (front + flying) % stages
        ended_of[slot], rest_of[slot] = -1, 0.0
        while free_tokens > 0.0:
            if begun > 0:
                begun -= 1
                one, rest, done = place[begun], left[begun], computed[begun]
            else:
                if coming == count or arrived[coming] > now or running == most:
                    break
                if running > 0 and held + prompt[coming] > room:
                    break
                one, rest, done = coming, prompt[coming], 0.0
                coming, running, held = coming + 1, running + 1, held + rest
            took = min(rest, free_tokens)
            free_tokens, pairs = free_tokens - took, pairs + took * done + took * (took + 1.0) / 2.0
            if took < rest:
                open_of[slot], rest_of[slot], done_of[slot] = one, rest - took, done + took
            else:
                behind[one], ended_of[slot] = ended_of[slot], one
        if members[group] == 0 and free_tokens == whole:
            spare[spared] = group
            spared += 1
            comes = arrived[coming] if coming < count else math.inf
            next_end = lands[front] if flying > 0 else math.inf
            now = next_end if comes <= now else min(comes, next_end)
            continue
        cell = rows[int(whole - free_tokens)] * width + columns[members[group]]
        more = key * keys[group] + pair * pairs
        lands[slot], group_of[slot] = now + latency[cell] + stages * more, group
        flying += 1
        now = lands[slot] if stages == 1 else now + slowest[cell] + more
    return late, waited, many, last
