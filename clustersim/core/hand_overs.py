"""Requests that change replicas: from the prefill pool, where their first token was sampled, to the decode pool.

As DistServe (Zhong et al., OSDI 2024, section 4.3) and vLLM's disaggregated prefill do: a decode replica *pulls*. It
reserves blocks for a prompt when it has them, and until then the prefill replica keeps its own, so that a decode pool
that is full holds the prefill pool back. What was preempted on a decode replica is recomputed there, and comes
before prompts that are to be received. ::

    prefill replica   ──prompt──┤first token          blocks kept              ├ handed over: blocks back
    router                      └─► decode replica                             │
    decode replica                  arriving ───► blocks reserved ──moves─────┤ received ─► decodes

``transfer: layerwise``, as Splitwise (Patel et al., ISCA 2024, section 4.3) does::

    prefill replica   ─chunk──last chunk──────────┤first token    ├ handed over: blocks back
    router                    └─► decode replica                  │
    decode replica                arriving ─► blocks reserved     │
                                              ─chunk─layer─layer──┤ received ─► decodes

A request is two sequences, one at each end; ``partner`` says which is the other one. What comes up at one instant is
settled in ``core.pools``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record
from clustersim.core.events import VERSIONS, drop_first, expect, first_kind, first_number, first_version
from clustersim.core.flows import enter, leave
from clustersim.core.kv_moves import ask, choose_sender, end_first
from clustersim.core.passes import end_layer, tell
from clustersim.core.progress import blocks_of, emptiest, free_of, lend, promise
from clustersim.core.record import log_move, note
from clustersim.core.state import ADMITTED, EVENTS, GROW, KEPT, LAYER, NOT_POOLED, TRANSFER
from clustersim.core.transfers import expect_transfer

NOBODY: Final = -1
MOVE_OF_KV: Final = 3
"""Whose a path is, besides ``core.passes``'."""
ALL_LAYERS: Final = -1
"""``timeline.tables``': the layer of a move of all that both ranks have in common."""


class HandOvers(Record):
    """What all transfers have in common.

    The first ``prefill`` replicas hand over. Of each, ``sources`` ranks send to ``targets`` ranks, ``shards`` in all
    for each sequence, in ``layers``; a request has ``most`` moves. Where SP ranks keep sequences apart, so many ranks
    in a row are of one place (``of_source``, ``of_target``). ``sizes`` is how many kinds of bytes there are; the ranks
    that send have the paths from ``first_path`` on. Moves may be run ``by_events`` (``replay.core_events``).
    """

    __slots__ = (
        "by_events", "first_path", "layers", "most", "of_source", "of_target", "prefill", "shards", "sizes", "sources",
        "targets",
    )  # fmt: skip


class KvShard(Record):
    """What one rank sends another: their places among those of a replica that send, and that are reached."""

    __slots__ = ("source", "target")


class KvRoute(Record):
    """Between two ranks: which costs its moves have, and the places of its links [first, end) (``core.flows``)."""

    __slots__ = ("end", "first", "kind")


class HandOverLists(NamedTuple):
    """What hands requests over; all lists are empty where there is one pool."""

    hand_overs: Any
    layers: Any
    """In the order in which a step passes them …"""
    layer_times: Any
    """… and when each flight does."""
    shards: Any
    routes: Any
    """By prefill replica, decode replica, shard, and the SP ranks that keep a sequence."""
    sizes: Any
    """Which kind of bytes a shard has of a layer, or (first) of all: ``shard × (layers + 1) + 1 + layer``."""
    moves_ns: Any
    """What moves of so many tokens take, by kind of way and kind of bytes …"""
    links_ns: Any
    """… and what of it they are on links."""
    streams: Any
    """This and the following are ``core.kv_moves.KvMoves``."""
    senders: Any
    receivers: Any
    moves: Any
    moved: Any
    """The log of moves (``state.MOVE``)."""


def open_transfer(s: Any, one: int, start: int) -> None:
    """Let a sequence begin to leave, as it will be when its prompt is computed and its first token is sampled."""
    seq, sequences = s.sequences[one], s.sequences
    other = sequences[seq.partner]
    other.request, other.prompt, other.output, other.replica = seq.request, seq.prompt, s.outputs[seq.request], NOBODY
    other.arrived, other.preemptions, other.copies = seq.arrived, seq.preemptions, seq.copies
    other.computed, other.generated = seq.prompt + seq.output - 1, seq.output
    other.admitted = other.decodes = 1
    other.blocks = other.busy = other.leaving = other.displaced = other.away = other.hands_over = other.shared = 0
    other.first_step = other.last_step = -1
    seq.is_on_way, seq.source, seq.target, seq.start = 1, seq.replica, NOBODY, start
    seq.reserved = seq.sampled = seq.missing = seq.passed = 0
    let_leave(s, one)


def let_leave(s: Any, one: int) -> None:
    """Let a decode replica be chosen for a sequence, in the order of requests."""
    clock, seq, sequences = s.clock[0], s.sequences[one], s.sequences
    clock.unsettled = 1
    for place in range(clock.leaving_at, clock.leaving):
        if sequences[place].leaving_one == one:
            return
    at = clock.leaving
    while at > clock.leaving_at and sequences[sequences[at - 1].leaving_one].request > seq.request:
        sequences[at].leaving_one = sequences[at - 1].leaving_one
        at -= 1
    sequences[at].leaving_one = one
    clock.leaving += 1


def sample(s: Any, one: int) -> None:
    """Let a sequence leave whose prompt is computed and whose first token is sampled; it keeps its blocks."""
    seq = s.sequences[one]
    if seq.is_on_way == 0:
        open_transfer(s, one, seq.computed)
    seq.sampled = 1
    check_landed(s, one)
    if seq.target == NOBODY:  # if there will never be anybody, it ends now
        let_leave(s, one)


def check_landed(s: Any, one: int) -> None:
    """Let a sequence arrive of which nothing is missing."""
    clock, seq, sequences = s.clock[0], s.sequences[one], s.sequences
    if seq.reserved and seq.sampled and seq.missing == 0:
        at = clock.landed
        while at > 0 and sequences[sequences[at - 1].landed_one].request > seq.request:
            sequences[at].landed_one = sequences[at - 1].landed_one
            at -= 1
        sequences[at].landed_one = one
        clock.landed += 1
        clock.unsettled = 1


def reserve(s: Any, h: Any, r: int) -> int:
    """Reserve blocks for prompts that wait elsewhere, in turn; return 0, or ``GROW``."""
    rep = s.replicas[r]
    taken = rep.running + rep.receiving + rep.away
    while rep.arriving > 0 and rep.waiting + rep.swapped == 0 and taken < rep.max_requests:
        other = rep.first_arriving
        seq = s.sequences[other]
        blocks = blocks_of(rep, seq.computed)
        seq.owner = emptiest(s, r)
        if blocks > free_of(s, r, seq.owner):
            break
        if h.streams[0].spares < h.hand_overs[0].most:
            return GROW
        rep.first_arriving = seq.behind
        rep.arriving -= 1
        rep.receiving += 1
        taken += 1
        lend(s, r, other, blocks)
        promise(s, r, other, blocks)
        note(s, r, ADMITTED, seq.request, seq.computed, rep.blocks - rep.free)
        if rep.owners > 1:
            note(s, r, KEPT, seq.request, seq.owner, NOT_POOLED)
        ask_all(s, h, seq.partner)
    return 0


def ask_all(s: Any, h: Any, one: int) -> None:
    """Ask for all moves of a sequence for which blocks are there, as far as they can begin."""
    way, owner = s.sequences[one], h.hand_overs[0]
    way.reserved = s.clock[0].unsettled = 1
    way.missing = owner.shards if way.start > 0 else 0
    if way.start < s.sequences[way.partner].computed:
        way.missing += owner.most - owner.shards
    for shard in range(owner.shards if way.start > 0 else 0):
        ask_move(s, h, one, shard, ALL_LAYERS, 0, way.start)
    for number in range(way.passed):
        ask_layer(s, h, one, h.layers[number])


def ask_layer(s: Any, h: Any, one: int, layer: int) -> None:
    """Ask for the moves of what the last chunk adds to a layer."""
    way, owner = s.sequences[one], h.hand_overs[0]
    tokens = s.sequences[way.partner].computed - way.start
    for shard in range(owner.shards):
        if h.sizes[shard * (owner.layers + 1) + 1 + layer] >= 0:
            ask_move(s, h, one, shard, layer, way.start, tokens)


def ask_move(s: Any, h: Any, one: int, shard: int, layer: int, first: int, tokens: int) -> None:
    """Ask for the move of one shard of a sequence."""
    way, owner, ends = s.sequences[one], h.hand_overs[0], h.shards[shard]
    f = way.source * owner.sources + ends.source * owner.of_source + way.owner
    to = (way.target - owner.prefill) * owner.targets + ends.target * owner.of_target
    move = h.moves[ask(h, f, to + s.sequences[way.partner].owner)]
    move.one, move.shard, move.layer, move.first, move.tokens = one, shard, layer, first, tokens


def open_by_layer(s: Any, r: int, k: int, base: int) -> None:
    """Let prompts leave, layer by layer, that a step is about to compute to their end.

    Not before: that step has all blocks that it needs, so whatever decode blocks are reserved for will arrive, and no
    two prompts can wait for blocks that the other one holds in the other pool.
    """
    flight = s.flights[r][k]
    flight.opens = flight.layer = 0
    s.clock[0].opened = (s.clock[0].opened + 1) & VERSIONS
    flight.version = s.clock[0].opened
    for place in range(base + flight.decodes, base + flight.decodes + flight.chunks):
        one = s.members[r][place]
        seq = s.sequences[one]
        if seq.hands_over and seq.taken == seq.prompt + seq.generated - seq.computed:
            open_transfer(s, one, seq.computed)
            flight.opens = 1


def await_layer(s: Any, h: Any, r: int, k: int) -> None:
    """Let something happen when a step passes its next layer."""
    flight, size = s.flights[r][k], len(h.layers)
    if flight.layer < size and s.replicas[r].by_events == 0:
        expect(s, h.layer_times[r][k * size + flight.layer], LAYER, r * s.clock[0].most_stages + k, flight.version)


def pass_layer(s: Any, h: Any, number: int, version: int) -> None:
    """Take note that the step with the last chunks of some prompts has passed a layer."""
    most = s.clock[0].most_stages
    r = number // most
    k = number - r * most
    flight = s.flights[r][k]
    if flight.version == version:
        flight.layer += 1
        await_layer(s, h, r, k)
        note_layer(s, r, k)


def note_layer(s: Any, r: int, k: int) -> None:
    """Let the prompts that a step computes to their end leave with the layer that it has passed."""
    clock, flight, sequences = s.clock[0], s.flights[r][k], s.sequences
    base = k * (len(s.members[r]) // s.replicas[r].stages)
    for place in range(base + flight.decodes, base + flight.decodes + flight.chunks):
        one = s.members[r][place]
        seq = sequences[one]
        if seq.is_on_way and seq.reserved:
            at = clock.passed
            while at > 0 and sequences[sequences[at - 1].passed_one].request > seq.request:
                sequences[at].passed_one = sequences[at - 1].passed_one
                at -= 1
            sequences[at].passed_one = one
            clock.passed += 1
            clock.unsettled = 1
        elif seq.is_on_way:
            seq.passed += 1


def begin_by_events(s: Any, n: Any, h: Any, sender: int) -> None:
    """Let the first move of a sender be run by events, which tell when it ends."""
    streams = h.streams[0]
    n.paths[h.hand_overs[0].first_path + sender].version += 1
    h.senders[streams.begun].begun = sender
    streams.begun += 1
    expect(s, s.clock[0].now, EVENTS, 0, 0)


def start_moves(s: Any, p: Any, n: Any, h: Any) -> int:
    """Start what can start now; return 0, or ``GROW``."""
    clock, owner = s.clock[0], h.hand_overs[0]
    decoders = len(s.replicas) - owner.prefill
    while h.streams[0].changed > 0:
        if clock.events + clock.margin + 3 > clock.event_room:
            return GROW
        sender = choose_sender(h)
        if sender >= 0:
            f = owner.first_path + sender
            move, path = h.moves[h.senders[sender].first], n.paths[f]
            seq = s.sequences[move.one]
            at = (seq.source * decoders + seq.target - owner.prefill) * owner.shards + move.shard
            at = (at * owner.of_source + seq.owner) * owner.of_target + s.sequences[seq.partner].owner
            way = h.routes[at]
            kind = way.kind * owner.sizes + h.sizes[move.shard * (owner.layers + 1) + 1 + move.layer]
            move.start = clock.now
            if owner.by_events:
                begin_by_events(s, n, h, sender)
                continue
            path.left, wait = h.moves_ns[kind][move.tokens], 0
            path.first, path.end = way.first, way.end
            if way.first < way.end:
                carried = h.links_ns[kind][move.tokens]
                if carried > 0:
                    path.left, wait = carried, path.left - carried
                else:
                    path.end = path.first
            if wait == 0:
                enter(n, f, clock.now, path.left)
                tell(s, p, n, f, 1)
            expect_transfer(s, n, f, clock.now + wait if wait > 0 else path.due)
    return 0


def go_on_hand_over(s: Any, p: Any, n: Any, h: Any) -> bool:
    """Let the move go on, or the layer be passed, whose event comes first; return whether it is of either kind."""
    kind, f, version = first_kind(s), first_number(s), first_version(s)
    if kind == LAYER:
        drop_first(s)
        if s.replicas[f // s.clock[0].most_stages].meets:
            k = end_layer(s, p, n, f, version)
            if k >= 0:
                note_layer(s, f // s.clock[0].most_stages, k)
        else:
            pass_layer(s, h, f, version)
        return True
    if kind != TRANSFER or n.paths[f].owner != MOVE_OF_KV:
        return False
    drop_first(s)
    if version == n.paths[f].version & VERSIONS:
        by_events = h.hand_overs[0].by_events
        if n.paths[f].is_on == 0 and by_events == 0:
            enter(n, f, s.clock[0].now, n.paths[f].left)
            expect_transfer(s, n, f, n.paths[f].due)
            tell(s, p, n, f, 1)
        else:
            if by_events == 0:
                leave(n, f)
                tell(s, p, n, f, -1)
            move = h.moves[end_first(h, f - h.hand_overs[0].first_path)]
            seq = s.sequences[move.one]
            log_move(s, h, f - h.hand_overs[0].first_path, move)
            s.clock[0].unsettled = 1
            seq.missing -= 1
            check_landed(s, move.one)
    return True
