"""Replays of replicas in lockstep over plain numbers, of lists or of arrays for a compiler."""

from __future__ import annotations

import math

from clustersim.search.plans.looks.kernels import Floats, Told, Whole


def lockstep_decodes_late(
    ranks: int, most: int, room: float, waits: bool, streams: bool, own: Floats, key: Floats, shared: Floats,
    padded: Whole, arrived: Floats, decodes: Whole, context: Floats, within: Floats, by: Floats,
    longest: int, free: int,
) -> Told:  # fmt: skip
    """Return what :func:`decodes_late` tells, of replicas in lockstep to which requests come in turn, each with a token
    to decode at least. A step takes what the rank that takes longest does; where graphs are padded, all compute what
    the fullest one does, and the one with most keys attends longest.

    Parameters
    ----------
    ranks, most, room : int, int, float
        Most sequences, and tokens in the K/V pool, of a rank.
    waits : bool
        Whether who is taken while any rank decodes joins a step later.
    streams : bool
        See :func:`decodes_late`.
    own, key : sequence of float
        By the sequences of a rank: nanoseconds of its part of a step, and what each of their keys adds.
    shared, padded : sequence of float, of int
        Sequences that all ranks compute → nanoseconds that they take more for these; those of the fullest rank → how
        many each of them computes, 0 where it is what it has.
    arrived, decodes, context, within, by, free
        See :func:`decodes_late`.
    longest : int
        Most decodes of one.
    """
    count, size = len(arrived), longest + 2
    coming, running, keys = list(range(ranks)), [0] * ranks, [0.0] * ranks
    taken, held = [0] * ranks, [0.0] * ranks
    after, ending, since = [-1] * count, [-1] * size, [0.0] * count
    now, late, steps, waited, tokens = 0.0, 0, 0, 0.0, 0
    while True:
        together, fullest, longest_ns, attends_ns, comes, later = 0, 0, 0.0, 0.0, -1.0, False
        for rank in range(ranks):
            running[rank], keys[rank] = running[rank] + taken[rank], keys[rank] + held[rank]
            taken[rank], held[rank] = 0, 0.0
            later = later or (waits and running[rank] > 0)
        for rank in range(ranks):
            one = coming[rank]
            while one < count and arrived[one] <= now and running[rank] + taken[rank] < most:
                if running[rank] + taken[rank] > 0 and keys[rank] + held[rank] + context[one] > room:
                    break
                slot = (steps + decodes[one] + later) % size
                after[one], ending[slot], since[one] = ending[slot], one, now if streams else arrived[one]
                taken[rank], held[rank] = taken[rank] + 1, held[rank] + context[one] + 1.0
                one += ranks
            coming[rank] = one
            if not later:
                running[rank], keys[rank] = running[rank] + taken[rank], keys[rank] + held[rank]
                taken[rank], held[rank] = 0, 0.0
            if running[rank] > 0:
                together, fullest = together + running[rank], max(fullest, running[rank])
                attends_ns = max(attends_ns, key[running[rank]] * keys[rank])
                longest_ns = max(longest_ns, own[running[rank]] + key[running[rank]] * keys[rank])
            elif one < count and (comes < 0.0 or arrived[one] < comes):
                comes = arrived[one]
        if together == 0:
            if comes < 0.0:
                return late, waited, tokens, now
            now = max(now, comes)
            continue
        if padded[fullest] > 0:
            longest_ns = max(longest_ns, own[fullest] + attends_ns)
        now += longest_ns + shared[ranks * padded[fullest] if padded[fullest] > 0 else together]
        steps += 1
        for rank in range(ranks):
            keys[rank] += running[rank]
        one = ending[steps % size]
        ending[steps % size] = -1
        while one >= 0:
            rank = one % ranks
            running[rank], keys[rank] = running[rank] - 1, keys[rank] - (context[one] + 1.0 + decodes[one])
            late += now - since[one] > within[one] or (streams and since[one] > by[one])
            waited, tokens = waited + (now - since[one]), tokens + decodes[one]
            one = after[one]
        if late > free:
            return late, waited, tokens, now


def lockstep_late(
    ranks: int, budget: int, most: int, room: float, rows: Whole, columns: Whole, width: int, ns: Floats,
    shared: Floats, key: float, pair: float, tpot: float, arrived: Floats, prompt: Floats, decodes: Whole, by: Floats,
    decodes_by: Floats, longest: int, free: int,
) -> Told:  # fmt: skip
    """Return how many requests miss a target on replicas in lockstep, and what :func:`decodes_late` tells, of requests
    with their first token in time.

    They come to the ranks in turn. A step takes what the rank that takes longest does.

    Parameters
    ----------
    ranks : int
    budget, most, room : int, int, float
        Most tokens of a step, sequences, and tokens in the K/V pool of a rank.
    rows, columns : sequence of int
        Prompt tokens, and sequences that decode, of a rank → row and column of ...
    width, ns : int, sequence of float
        ... the nanoseconds of a step, row by row, of so many columns.
    shared : sequence of float
        Tokens of all ranks → nanoseconds that they take more for these.
    key, pair, tpot : float
        What a key of decodes and a pair of prompts add, and the target.
    arrived, prompt, decodes, by, decodes_by : sequence
        When each request comes, its prompt tokens and further ones, and when the first and the last are due.
    longest : int
        Most decodes of one.
    free : int
        How many may be late.
    """
    count, size = len(arrived), longest + 2
    coming, running, decoding = list(range(ranks)), [0] * ranks, [0] * ranks
    held, part, left, computed = [0.0] * ranks, [-1] * ranks, [0.0] * ranks, [0.0] * ranks
    keys = [0.0] * ranks
    first_at, after, ending = [0.0] * count, [-1] * count, [-1] * size
    done = [0] * (ranks * 2 + budget * ranks)
    now, late, step, waited, many = 0.0, 0, 0, 0.0, 0
    while True:
        took_longest, some, ended, of_all = 0.0, False, 0, 0
        for rank in range(ranks):
            tokens, pairs = float(budget - decoding[rank]), 0.0
            whole = tokens
            while tokens > 0.0:
                if part[rank] < 0:
                    one = coming[rank]
                    if one >= count or arrived[one] > now or running[rank] == most:
                        break
                    if running[rank] > 0 and held[rank] + prompt[one] > room:
                        break
                    part[rank], left[rank], computed[rank] = one, prompt[one], 0.0
                    coming[rank], running[rank], held[rank] = one + ranks, running[rank] + 1, held[rank] + prompt[one]
                took = min(left[rank], tokens)
                pairs += took * computed[rank] + took * (took + 1.0) / 2.0
                left[rank], computed[rank], tokens = left[rank] - took, computed[rank] + took, tokens - took
                if left[rank] <= 0.0:
                    done[ended] = part[rank]
                    ended += 1
                    part[rank] = -1
            if tokens < whole or decoding[rank] > 0:
                some, of_all = True, of_all + int(whole - tokens) + decoding[rank]
                took_ns = ns[rows[int(whole - tokens)] * width + columns[decoding[rank]]]
                took_ns += key * (keys[rank] + decoding[rank]) + pair * pairs
                took_longest = max(took_longest, took_ns)
        if not some:
            comes = -1.0
            for rank in range(ranks):
                if coming[rank] < count and (comes < 0.0 or arrived[coming[rank]] < comes):
                    comes = arrived[coming[rank]]
            if comes < 0.0:
                return late, waited, many, now
            now = max(now, comes)
            continue
        now += took_longest + shared[of_all]
        step += 1
        for rank in range(ranks):
            held[rank], keys[rank] = held[rank] + decoding[rank], keys[rank] + decoding[rank]
        one = ending[step % size]
        ending[step % size] = -1
        while one >= 0:
            rank, took_ns = one % ranks, now - first_at[one]
            if took_ns >= 0.0:
                waited, many = waited + took_ns, many + decodes[one]
            late += took_ns > decodes[one] * tpot or (took_ns >= 0.0 and now > decodes_by[one])
            decoding[rank], running[rank] = decoding[rank] - 1, running[rank] - 1
            tokens = prompt[one] + decodes[one]
            held[rank], keys[rank] = held[rank] - tokens, keys[rank] - tokens
            one = after[one]
        for place in range(ended):
            one = done[place]
            rank, missed = one % ranks, now > by[one]
            late += missed
            if decodes[one] > 0:
                first_at[one] = math.inf if missed else now
                slot = (step + decodes[one]) % size
                after[one], ending[slot] = ending[slot], one
                decoding[rank], keys[rank] = decoding[rank] + 1, keys[rank] + prompt[one]
            else:
                running[rank], held[rank] = running[rank] - 1, held[rank] - prompt[one]
        if late > free:
            return late, waited, many, now
