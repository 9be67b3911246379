"""What is settled between two pools at an instant: who has landed, who leaves where, and which moves start.

What ends a transfer early is here, too: its client gives it up. Before a decode replica has reserved blocks nothing
has moved, and it is gone at once. Later its moves run to their end, since what an RDMA read was asked for is not called
back: then it has arrived, and is let go with its blocks in both pools.
"""

from __future__ import annotations

from typing import Any

from clustersim.core.hand_overs import NOBODY, ask_layer, start_moves
from clustersim.core.prefix_cache import keep_no_more, release
from clustersim.core.progress import lend, most_blocks, promise
from clustersim.core.record import is_full, note, note_reason
from clustersim.core.routing import lacks_room, route, show_replicas
from clustersim.core.state import (
    ASK_PAIRS,
    CANCELLED,
    FULL,
    GROW,
    HANDED_OVER,
    LEFT_OUTPUT,
    LOST,
    LOST_COMPUTED,
    PREEMPTED,
    RECEIVED,
)  # fmt: skip
from clustersim.core.steps import (
    decide_anew,
    end_request,
    rank_in_queue,
    take_out,
    taken_by_run,
    touch,
    weigh,
)

DECODERS = 1
"""Number of the pool where requests go on."""


def give_back(s: Any, r: int, one: int, kind: int, tokens: int) -> None:
    """Take back the blocks of a sequence that is computed and leaves its prefill replica."""
    rep, seq = s.replicas[r], s.sequences[one]
    if rep.caching:
        keep_no_more(s, r, one)
        release(s, r, one)
    lend(s, r, one, -seq.blocks)
    promise(s, r, one, -most_blocks(rep, seq))
    note(s, r, kind, seq.request, tokens, rep.blocks - rep.free)
    touch(s, r)


def land(s: Any, p: Any, one: int) -> None:
    """Let a sequence decode whose K/V is there; one that was given up meanwhile leaves."""
    way, other = s.sequences[one], s.sequences[one].partner
    seq, r = s.sequences[other], way.target
    rep = s.replicas[r]
    give_back(s, way.source, one, HANDED_OVER, way.computed)
    way.is_on_way = 0
    rep.receiving -= 1
    s.order[r][rep.running] = other
    rep.running += 1
    promise(s, r, other, most_blocks(rep, seq) - seq.blocks)
    if len(s.sequence_of) > 0:
        s.sequence_of[seq.request] = other
    note(s, r, RECEIVED, seq.request, seq.computed, rep.blocks - rep.free + taken_by_run(s, p, r))
    decide_anew(s, p, r)
    if seq.leaving:
        seq.leaving = 0
        take_out(s, r, other, taken_by_run(s, p, r))


def take_over(s: Any, p: Any, one: int) -> int:
    """Choose a decode replica for a sequence, which waits there for blocks; return 0, or what is needed before."""
    clock, pool, seq = s.clock[0], s.pools[DECODERS], s.sequences[s.sequences[one].partner]
    if pool.choices == pool.drawn:
        clock.asking = DECODERS
        return ASK_PAIRS
    r = route(s, p, DECODERS, seq.request, seq.prompt + seq.generated)
    if r < 0:
        return show_replicas(s, p, seq.request, 0)
    rep, other = s.replicas[r], s.sequences[one].partner
    if lacks_room(clock, rep):
        return GROW
    pool.choices += 1
    clock.chosen = -1
    s.sequences[one].target = seq.replica = r
    seq.behind = NOBODY
    if rep.arriving > 0:
        s.sequences[rep.last_arriving].behind = other
    else:
        rep.first_arriving = other
    rep.last_arriving = other
    rep.arriving += 1
    rank_in_queue(s, other)
    weigh(s, r, seq.prompt + seq.output)
    if rep.first_arriving == other:
        decide_anew(s, p, r)
    touch(s, r)
    return 0


def is_hopeless(s: Any) -> bool:
    """Whether no decode replica lives, or ever will: those that fail for good at this instant are down."""
    pool, down = s.pools[s.clock[0].pools - 1], 0
    for number in range(len(s.outages)):
        outage = s.outages[number]
        down += outage.until < 0 and outage.at <= s.clock[0].now and outage.replica >= pool.first
    return s.clock[0].pools > 1 and down == pool.size


def leave(s: Any, p: Any, one: int) -> int:
    """Let a sequence go to a decode replica, or end where none ever lives again; return 0, or what is needed before.

    One whose step is under way is lost only when that has ended.
    """
    seq = s.sequences[one]
    if seq.is_on_way == 0 or seq.target >= 0:
        return 0
    if s.pools[DECODERS].living > 0:
        return take_over(s, p, one)
    if seq.sampled and is_hopeless(s):
        seq.is_on_way = 0
        give_back(s, seq.source, one, PREEMPTED, seq.generated)
        note(s, seq.source, LOST, seq.request, seq.generated, 0)
        note_reason(s, seq.request, LOST_COMPUTED, 0)
        end_request(s, one)
    return 0


def settle_hand_overs(s: Any, p: Any, n: Any, h: Any) -> int:
    """Let arrive what has landed, route what leaves, and start moves, each in the order of requests.

    Returns 0, or what is needed before all has happened.
    """
    clock = s.clock[0]
    while clock.landed_at < clock.landed:
        if is_full(s):
            return FULL
        if clock.events + 3 > clock.event_room:
            return GROW
        clock.landed_at += 1
        land(s, p, s.sequences[clock.landed_at - 1].landed_one)
    while clock.leaving_at < clock.leaving:
        if is_full(s):
            return FULL
        asked = leave(s, p, s.sequences[clock.leaving_at].leaving_one)
        if asked:
            return asked
        clock.leaving_at += 1
    while clock.passed_at < clock.passed:
        if h.streams[0].spares < h.hand_overs[0].shards:
            return GROW
        one = s.sequences[clock.passed_at].passed_one
        clock.passed_at += 1
        s.sequences[one].passed += 1
        ask_layer(s, h, one, h.layers[s.sequences[one].passed - 1])
    clock.landed = clock.landed_at = clock.leaving = clock.leaving_at = clock.passed = clock.passed_at = 0
    asked = start_moves(s, p, n, h)
    if asked == 0:
        clock.unsettled = 0
    return asked


def expect_no_more(s: Any, r: int, other: int) -> None:
    """Forget a sequence that was to be received, and has no blocks yet."""
    rep, seq, before, at = s.replicas[r], s.sequences[other], NOBODY, s.replicas[r].first_arriving
    while at != other:
        before, at = at, s.sequences[at].behind
    if before >= 0:
        s.sequences[before].behind = seq.behind
    else:
        rep.first_arriving = seq.behind
    if rep.last_arriving == other:
        rep.last_arriving = before
    rep.arriving -= 1
    weigh(s, r, -(seq.prompt + seq.output))


def cancel_transfer(s: Any, p: Any, one: int) -> None:
    """Let the client give a request up that is on its way: it goes now, or when it has arrived."""
    seq = s.sequences[one]
    if seq.reserved:
        s.sequences[seq.partner].leaving = 1
        return
    seq.is_on_way = 0
    if seq.target >= 0:
        expect_no_more(s, seq.target, seq.partner)
        decide_anew(s, p, seq.target)
    if seq.sampled == 0:  # the step with its last chunk is under way
        seq.leaving = 1
        s.replicas[seq.source].leaving += 1
        return
    give_back(s, seq.source, one, CANCELLED, seq.generated)
    note_reason(s, seq.request, LEFT_OUTPUT, 0)
    end_request(s, one)
