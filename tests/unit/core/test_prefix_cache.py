"""Blocks of prompts that the core keeps: who holds them, in which order they are taken, and whom a router follows."""

from __future__ import annotations

import pytest

from clustersim.compiled import Objects
from clustersim.core.prefix_cache import (
    Extent,
    PrefixCache,
    PrefixRouting,
    PrefixRun,
    cached_blocks,
    count_free,
    count_shared,
    empty,
    may_lose,
    release,
    store,
    take_over,
)
from clustersim.core.routing import follow_prefix
from clustersim.core.state import Clock, Flight, Pool, Replica, Sequence, State

STORE = Objects()
FIRST, END, RUNS, BLOCKS = (0, 2, 4), (2, 4, 5), (1, 2, 1, 3, 4), (2, 3, 2, 1, 4)
"""Requests 0 and 1 begin with the 2 blocks of run 1, and go on with 3 of run 2 and 1 of run 3; request 2 is run 4."""


def state_of(replicas: int = 1, blocks: int = 10) -> State:
    """Replicas with blocks of 4 tokens; sequence ``n`` is request ``n``, and waits at the first one."""
    s = State(**dict.fromkeys(State._fields))._replace(
        clock=STORE.records(Clock, 1), replicas=STORE.records(Replica, replicas), sequences=STORE.records(Sequence, 3),
        order=STORE.table(replicas, 3), members=STORE.table(replicas, 3), flights=STORE.grid(Flight, replicas, 1),
        caches=STORE.records(PrefixCache, replicas), prefix_runs=STORE.sparse_grid(PrefixRun, replicas, 5),
        extents=STORE.sparse_grid(Extent, replicas, blocks + 2), prefix_first=FIRST, prefix_end=END, prefix_of=RUNS,
        prefix_blocks=BLOCKS, prefix_routing=STORE.records(PrefixRouting, 1), living=[*range(replicas)],
        prompts=[20, 12, 16], pools=STORE.records(Pool, 1),
    )  # fmt: skip
    s.pools[0].living = s.clock[0].replicas = replicas
    for one, (first, end) in enumerate(zip(FIRST, END, strict=True)):
        s.sequences[one].request, s.sequences[one].prompt = one, 4 * sum(BLOCKS[first:end])
    for r in range(replicas):
        rep, extents = s.replicas[r], s.extents[r]
        rep.first_kept, rep.owners, rep.first_owner = -1, 1, r
        rep.block_tokens, rep.stages, rep.blocks, rep.free = 4, 1, blocks, blocks
        s.caches[r].free, s.caches[r].made = blocks, 2
        extents[0].before = extents[0].behind = 1
        extents[1].blocks = blocks
    return s


def run(s: State, one: int, r: int = 0) -> None:
    """Let a sequence compute its whole prompt, and hold its blocks."""
    rep, seq = s.replicas[r], s.sequences[one]
    cached = cached_blocks(s, r, 0, one, seq.prompt, 0)
    take_over(s, r, one, cached)
    rep.free -= seq.prompt // 4 - cached
    seq.blocks, seq.taken = seq.prompt // 4, seq.prompt - seq.computed
    s.order[r][rep.running] = s.members[r][0] = one
    rep.running += 1
    store(s, r, 0, 1)
    seq.computed = seq.prompt


def leave(s: State, one: int, r: int = 0) -> None:
    """Let a sequence that runs go."""
    release(s, r, one)
    s.order[r].remove(one)
    s.order[r].append(0)
    s.replicas[r].running -= 1


def queue_of(s: State, r: int = 0) -> list[tuple[int, int]]:
    """The free blocks in the order in which they are taken: run, and how many."""
    found, extents = [], s.extents[r]
    at = extents[0].behind
    while at:
        found.append((extents[at].run, extents[at].blocks))
        at = extents[at].behind
    return found


def test_a_sequence_takes_over_what_prompts_have_in_common_but_not_its_last_token():
    s = state_of()
    run(s, 0)
    assert cached_blocks(s, 0, 0, 1, 12, 0) == 2  # of run 1; nobody has computed run 3
    assert cached_blocks(s, 0, 0, 0, 20, 0) == 4  # of 5 that are cached: the last one has its last token
    assert cached_blocks(s, 0, 0, 0, 21, 0) == 5  # of one that has generated a token, that is the last one
    assert count_free(s, 0, 1, 2) == 0  # the first sequence holds both
    run(s, 1)
    assert s.replicas[0].free == 4  # 10 less 2 + 3 + 1
    assert count_shared(s, 0, 0) == 2  # they hold 5 and 3


def test_the_last_block_of_a_sequence_is_taken_before_its_first():
    s = state_of()
    run(s, 0)
    leave(s, 0)
    assert queue_of(s) == [(0, 5), (2, 3), (1, 2)]
    s.replicas[0].free -= 7  # five without content, and two of run 2
    assert cached_blocks(s, 0, 0, 0, 21, 0) == 3
    assert queue_of(s) == [(2, 1), (1, 2)]
    assert may_lose(s, 0, 0, 1, 1) is False  # request 1 has nothing of run 2
    assert may_lose(s, 0, 0, 1, 2) is True  # the second of them is of run 1


def test_blocks_are_free_once_the_last_that_holds_them_goes():
    s = state_of()
    run(s, 0)
    run(s, 1)
    leave(s, 0)
    assert s.replicas[0].free == 7  # run 1 is held
    assert (s.prefix_runs[0][1].held, s.prefix_runs[0][1].holders) == (2, 1)
    leave(s, 1)
    assert s.replicas[0].free == 10
    assert queue_of(s) == [(0, 4), (2, 3), (3, 1), (1, 2)]


def test_a_copy_of_what_is_cached_meanwhile_is_given_back():
    s = state_of()
    rep = s.replicas[0]
    for one in (0, 1):  # both begin before either has computed anything
        s.sequences[one].blocks = s.sequences[one].prompt // 4
        s.sequences[one].taken = s.sequences[one].prompt
        rep.free -= s.sequences[one].blocks
        s.members[0][one] = s.order[0][one] = one
    rep.running = 2
    store(s, 0, 0, 2)
    assert rep.free == 4  # 10 − 5 − 3, and 2 of run 1 come back
    assert s.prefix_runs[0][1].longest == 2


def test_what_decodes_have_taken_is_no_copy_of_what_a_step_fills():
    s = state_of(blocks=5)
    run(s, 1)
    leave(s, 1)  # free: two without content, run 3, run 1
    rep, seq = s.replicas[0], s.sequences[0]
    rep.free = 0  # decodes have taken all since, and nobody has looked
    seq.blocks, seq.taken, s.members[0][0] = 5, 20, 0
    store(s, 0, 0, 1)
    assert rep.free == 0  # it keeps its own blocks
    assert (s.prefix_runs[0][1].cached, s.prefix_runs[0][3].cached) == (2, 0)


@pytest.mark.parametrize(("generated", "decodes"), [(0, 0), (1, 1), (2, 0)])
def test_one_that_takes_over_all_but_its_last_token_decodes_next(generated, decodes):
    s = state_of()
    run(s, 0)
    leave(s, 0)
    seq = s.sequences[0]
    seq.generated = generated
    take_over(s, 0, 0, cached_blocks(s, 0, 0, 0, 20 + generated, 0))
    assert seq.decodes == decodes


def test_a_replica_that_fails_has_nothing_cached():
    s = state_of()
    run(s, 0)
    leave(s, 0)
    empty(s, 0)
    assert cached_blocks(s, 0, 0, 0, 20, 0) == 0
    assert queue_of(s) == [(0, 10)]


@pytest.mark.parametrize(
    ("threshold", "waiting", "chosen"),
    [
        (0.5, 0, 1),  # 8 of its 12 tokens are cached there
        (8 / 12, 0, 1),  # just enough
        (0.7, 0, 0),  # too little: the one with fewest tokens
        (0.5, 3, 0),  # unbalanced: 4 against 0
    ],
)
def test_a_router_follows_what_is_cached_where_that_is_worth_it(threshold, waiting, chosen):
    s = state_of(replicas=2)
    run(s, 0, 1)
    routing = s.prefix_routing[0]
    routing.cache_threshold, routing.balance_abs_threshold, routing.balance_rel_threshold = threshold, 3.0, 1.5
    s.replicas[1].outstanding, s.replicas[1].waiting = 20, waiting
    assert follow_prefix(s, None, 1, 12) == chosen


def test_a_router_knows_the_tokens_that_a_moved_request_has_generated():
    s = state_of(replicas=2)
    run(s, 0, 1)
    s.prefix_routing[0].cache_threshold, s.prefix_routing[0].balance_abs_threshold = 1.0, 9.0
    s.replicas[1].outstanding = 20
    assert follow_prefix(s, None, 0, 20) == 0  # 16 of 20 tokens
    assert follow_prefix(s, None, 0, 21) == 1  # all of its prompt
