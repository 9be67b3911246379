"""Copies between devices and hosts, as the core decides them: on streams of their own, in the order of the queue."""

from __future__ import annotations

from typing import Any

from clustersim.compiled import Objects
from clustersim.core import state as st
from clustersim.core.state import Clock, Owner, Pool, Replica, Sequence, State
from clustersim.core.swapping import AT_REST, OUT, copy, end_copy, swap_in, swap_out

STORE = Objects()
IN_NS, OUT_NS = ((0, 10, 20, 30), (0, 1, 2, 3)), ((0, 100, 200, 300), (0, 1_000, 2_000, 3_000))
"""What copies of so many blocks take on each of two stages."""


def state_of(*computed: int, blocks: int = 8, host: int = 8) -> State:
    """One replica of two stages and blocks of 4 tokens, whose sequences have their blocks."""
    s = State(**dict.fromkeys(State._fields))._replace(
        clock=STORE.records(Clock, 1), replicas=STORE.records(Replica, 1), sequences=STORE.records(Sequence, 4),
        pools=STORE.records(Pool, 1), owners=STORE.records(Owner, 2), swapped=STORE.table(1, 4),
        order=STORE.table(1, 4), copies_end=STORE.table(1, 8), sequence_of=[-1] * 4,
        copies_ns=[ns for stage in range(2) for way in (IN_NS, OUT_NS) for ns in way[stage]],
        copies=STORE.log(64), facts=STORE.log(64), times=[0] * 8, whats=[0] * 8,
    )  # fmt: skip
    s.clock[0].now = 1_000
    s.pools[0].copies_size = len(IN_NS[0])
    rep = s.replicas[0]
    rep.block_tokens, rep.stages, rep.blocks, rep.max_requests = 4, 2, blocks, 4
    rep.free, rep.owners = blocks, 1
    for own in s.owners:
        own.host = host
    for one, tokens in enumerate(computed):
        seq = s.sequences[one]
        seq.request, seq.prompt, seq.output, seq.computed = one, tokens, 9, tokens
        rep.free -= -(-tokens // 4)
    return s


def logged(s: State, name: str, columns: tuple[str, ...], *wanted: str) -> list[tuple[int, ...]]:
    """Some columns of what was logged."""
    flat, width = getattr(s, name), len(columns)
    rows: Any = [flat[at : at + width] for at in range(0, getattr(s.clock[0], f"{name}_at"), width)]
    return [tuple(row[columns.index(one)] for one in wanted) for row in rows]


def test_copies_of_a_direction_take_turns_on_each_stage():
    s = state_of(8, 4)
    copy(s, 0, 0, 2, OUT)
    copy(s, 0, 1, 1, OUT)
    assert logged(s, "copies", st.COPY, "request", "stage", "start_ns", "end_ns") == [
        (0, 0, 1_000, 1_200),  # two blocks at 100 ns each
        (0, 1, 1_000, 3_000),  # at 1,000 ns each
        (1, 0, 1_200, 1_300),  # the first stage need not wait for the second one
        (1, 1, 3_000, 4_000),
    ]
    assert s.times[:2] == [3_000, 4_000]  # each ends with its last stage
    assert s.replicas[0].copies == 2


def test_owners_copy_beside_each_other_and_to_blocks_of_their_own():
    s = state_of(8, 4)
    s.replicas[0].owners, s.sequences[1].owner = 2, 1
    s.owners[0].free = s.owners[1].free = 4
    swap_out(s, 0, 0, 2)
    swap_out(s, 0, 1, 1)
    assert logged(s, "copies", st.COPY, "request", "owner", "stage", "start_ns") == [
        (0, 0, 0, 1_000), (0, 0, 1, 1_000), (1, 1, 0, 1_000), (1, 1, 1, 1_000),
    ]  # fmt: skip
    assert [(own.free, own.coming, own.host) for own in s.owners] == [(2, 2, 6), (3, 1, 7)]


def test_blocks_of_a_victim_are_free_when_they_are_copied():
    s = state_of(8, 4)
    rep = s.replicas[0]
    rep.free += 2  # as who runs no more has left
    swap_out(s, 0, 0, 2)
    assert (rep.free, s.owners[0].coming, s.owners[0].host, rep.away) == (5, 2, 6, 1)
    end_copy(s, 0, 0)
    assert (rep.free, s.owners[0].coming, s.owners[0].host, rep.away, rep.copies) == (7, 0, 6, 1, 0)
    assert s.sequences[0].away == AT_REST
    assert logged(s, "facts", st.FACT, "kind", "request", "value", "used") == [(st.SWAPPED_OUT, 0, 8, 1)]


def test_who_comes_back_needs_a_block_for_its_next_token():
    s = state_of(8, blocks=2)
    rep = s.replicas[0]
    rep.free = 2
    swap_out(s, 0, 0, 2)
    end_copy(s, 0, 0)
    swap_in(s, 0)
    assert rep.swapped == 1  # 8 tokens fill two blocks, the ninth needs a third one
    rep.free = rep.blocks = 3
    swap_in(s, 0)
    assert (rep.swapped, rep.away, rep.free, s.owners[0].host) == (0, 1, 1, 6)
    end_copy(s, 0, 0)
    assert (rep.away, s.owners[0].host, rep.running, s.order[0][0]) == (0, 8, 1, 0)


def test_nobody_overtakes_the_first_that_was_swapped_out():
    s = state_of(12, 4, blocks=8)
    rep = s.replicas[0]
    rep.free = 8
    for one, blocks in ((1, 1), (0, 3)):
        swap_out(s, 0, one, blocks)
        end_copy(s, 0, one)
    assert s.swapped[0][:2] == [0, 1]  # in order of requests, not of copies
    rep.free = 3
    swap_in(s, 0)
    assert rep.swapped == 2  # request 1 would have room


def test_one_block_in_a_hundred_stays_free_while_others_run_or_come_back():
    s = state_of(4, 4, blocks=200)
    rep = s.replicas[0]
    rep.free = 200
    for one in (0, 1):
        swap_out(s, 0, one, 1)
        end_copy(s, 0, one)
    rep.free, rep.running = 3, 1  # two for five tokens, and two to spare
    swap_in(s, 0)
    assert rep.swapped == 2
    rep.running = 0
    swap_in(s, 0)
    assert (rep.swapped, rep.free) == (1, 2)  # the other one would have room without any to spare
