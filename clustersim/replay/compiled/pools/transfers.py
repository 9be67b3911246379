"""Requests on their way from pool to pool, and the moves of their K/V, for a compiler.

What is decided is that of ``replay.pools.hand_overs`` and ``replay.pools.kv_moves``: each rank that sends has a queue,
and each that is reached takes the first of those that it can, the one that was asked for first.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from clustersim.replay.compiled import kernel as k
from clustersim.replay.compiled import links as ln

FACT_HANDED_OVER, FACT_RECEIVED = 10, 11
"""``serving.decision``'s numbers of these facts (a test compares them)."""

HANDS: Final = ("leaving", "landed", "passing", "moving", "turn", "serial", "spare", "asked", "entry", "shards",
                "layers", "by_layer", "balanced", "parts", "room")  # fmt: skip
(LEAVING, LANDED, PASSING, MOVING, TURN, SERIAL, SPARE_MOVES, ASKED, ENTRY, SHARDS, LAYERS, BY_LAYER, BALANCED,
 PARTS, MOVE_ROOM) = range(len(HANDS))  # fmt: skip
"""Requests for which a decode replica is to be chosen at this instant, whose K/V is there, and that have passed layers;
ranks to be reached by something that may start now; turn of the router; moves asked for; the first free place for a
move; whether schedulers have been asked at this instant. Of the rest only ``room`` changes: the free places."""
TRANSFER: Final = ("source", "target", "start", "missing", "sampled", "reserved", "passed", "due", "behind")
SOURCE, TARGET, START, MISSING, SAMPLED, RESERVED, PASSED, DUE, BEHIND = range(len(TRANSFER))
"""Of a request on its way (``kv_transfers.KvTransfer``); the layers that it has passed, and those that nobody has
looked at; the request that waits behind it at its decode replica."""
MOVE: Final = ("request", "part", "pair", "first", "tokens", "serial", "start", "behind")
REQUEST, PART, PAIR, FIRST, TOKENS, MOVE_SERIAL, MOVE_START, MOVE_BEHIND = range(len(MOVE))
MOVED: Final = ("request", "part", "pair", "first", "tokens", "start", "end")
ARRIVING: Final = ("count", "head", "tail", "receiving", "foreign", "apart", "told", "passing", "waits")
COUNT, HEAD, TAIL, RECEIVING, FOREIGN, APART, TOLD, LAYER, WAITS = range(len(ARRIVING))
"""Of a lane: who waits for blocks here, and how many have them and are on their way; moves on its links; when the step
began of which links say when it ends, and the stretches told before it; the layers that it has passed, and whether
somebody waits for them."""
SENDER: Final = ("first", "last")
QUEUE_FIRST, QUEUE_LAST = range(len(SENDER))
PAIRS: Final = ("sender", "receiver", "kind", "plan")
SENDER_OF, RECEIVER_OF, KIND_OF, PLAN_OF = range(len(PAIRS))
SORTED_LEAVING, SORTED_LANDED, SORTED_PASSING, CHANGED = range(4)
"""Lists of what is due at this instant."""


@k.INNER
def insert(row, count, one):
    """Put a number in its place in a sorted list of so many, once; return how many there are."""
    at = count
    while at > 0 and row[at - 1] > one:
        at -= 1
    if at > 0 and row[at - 1] == one:
        return count
    for place in range(count, at, -1):
        row[place] = row[place - 1]
    row[at] = one
    return count + 1


@k.INNER
def ask(hands, moves, queues, lists, pairs, request, part, pair, first, tokens):
    """Queue a move (``KvMoves.ask``)."""
    one = hands[SPARE_MOVES]
    move = moves[one]
    hands[SPARE_MOVES] = move[MOVE_BEHIND]
    hands[MOVE_ROOM] -= 1
    hands[SERIAL] += 1
    move[REQUEST], move[PART], move[PAIR], move[FIRST], move[TOKENS] = request, part, pair, first, tokens
    move[MOVE_SERIAL], move[MOVE_BEHIND] = hands[SERIAL], -1
    queue = queues[pairs[pair, SENDER_OF]]
    if queue[QUEUE_FIRST] < 0:
        queue[QUEUE_FIRST] = one
        hands[MOVING] = insert(lists[CHANGED], hands[MOVING], pairs[pair, RECEIVER_OF])
    else:
        moves[queue[QUEUE_LAST], MOVE_BEHIND] = one
    queue[QUEUE_LAST] = one


@k.INNER
def ask_layer(hands, transfers, moves, queues, lists, pairs, pair_of, shard_of, layer_parts, prompts, request, layer):
    """Ask for the moves of what the last chunk adds to a layer."""
    transfer = transfers[request]
    start = transfer[START]
    for at in range(layer_parts[layer, 0]):
        part = layer_parts[layer, 1 + at]
        pair = pair_of[shard_of[part], transfer[SOURCE], transfer[TARGET] - hands[ENTRY]]
        ask(hands, moves, queues, lists, pairs, request, part, pair, start, prompts[request] - start)


@k.INNER
def reserve(
    hands,
    mine,
    here,
    transfers,
    moves,
    queues,
    lists,
    pairs,
    pair_of,
    shard_of,
    layer_parts,
    prompts,
    lim,
    g,
    facts,
    now,
    lane,
):
    """Set blocks aside for a prompt that waits elsewhere, and ask for its moves; return whether it could."""
    if here[COUNT] == 0 or mine[k.WAITING] > 0 or mine[k.ORDER] + here[RECEIVING] >= lim[k.MAX_REQUESTS]:
        return False
    request = here[HEAD]
    needed = -(-prompts[request] // lim[k.SIZE])
    if needed > mine[k.FREE]:
        return False
    transfer = transfers[request]
    mine[k.FREE] -= needed
    here[COUNT] -= 1
    here[HEAD] = transfer[BEHIND]
    here[RECEIVING] += 1
    k._fact(mine, g, facts, now, k.FACT_ADMITTED, request, prompts[request], lim[k.TOTAL] - mine[k.FREE])
    transfer[RESERVED] = 1
    transfer[MISSING] = 0
    if transfer[START] > 0:
        transfer[MISSING] = hands[SHARDS]
        for part in range(hands[SHARDS]):
            pair = pair_of[part, transfer[SOURCE], lane - hands[ENTRY]]
            ask(hands, moves, queues, lists, pairs, request, part, pair, 0, transfer[START])
    if transfer[START] < prompts[request]:
        transfer[MISSING] += hands[LAYERS]
    for layer in range(transfer[PASSED]):
        ask_layer(
            hands, transfers, moves, queues, lists, pairs, pair_of, shard_of, layer_parts, prompts, request, layer
        )
    return True


@k.INNER
def check(hands, lists, transfers, request):
    """Let a sequence arrive of which nothing is missing."""
    transfer = transfers[request]
    if transfer[RESERVED] and transfer[SAMPLED] and transfer[MISSING] == 0:
        hands[LANDED] = insert(lists[SORTED_LANDED], hands[LANDED], request)


@k.INNER
def begin_to_leave(hands, lists, transfers, request, lane, start):
    """Let a sequence begin to leave."""
    transfer = transfers[request]
    transfer[SOURCE], transfer[TARGET], transfer[START] = lane, -1, start
    hands[LEAVING] = insert(lists[SORTED_LEAVING], hands[LEAVING], request)


@k.INNER
def leave(g, hands, lists, transfers, mine, outputs, prompts, lim, facts, first, lane):
    """Keep the blocks of those whose first token was sampled, and that go on elsewhere; their facts are none."""
    kept, at = 0, first
    times, rest = facts
    for place in range(first, g[k.FACT_AT]):
        request = np.int64(rest[place, 1])
        if rest[place, 0] == k.FACT_FINISHED and outputs[request] > 1:
            kept += -(-prompts[request] // lim[k.SIZE])
            g[k.ENDED] -= 1
            g[k.FREED] -= 1
            if not hands[BY_LAYER]:
                begin_to_leave(hands, lists, transfers, request, lane, prompts[request])
            transfers[request, SAMPLED] = 1
            check(hands, lists, transfers, request)
        else:
            times[at, 0] = times[place, 0]
            for column in range(rest.shape[1]):
                rest[at, column] = rest[place, column]
            rest[at, 3] += kept
            at += 1
    g[k.FACT_AT] = at
    mine[k.FREE] -= kept


@k.INNER
def receive(g, mine, here, slot, line, lim, prompts, outputs, facts, now, request, taken):
    """Let a sequence decode whose K/V is here now."""
    here[RECEIVING] -= 1
    mine[k.SPARE] -= 1
    one = line[k.SPARES, mine[k.SPARE]]
    slot[one, k.REQUEST], slot[one, k.PROMPT], slot[one, k.OUTPUT] = request, prompts[request], outputs[request]
    slot[one, k.DONE_TOKENS], slot[one, k.GENERATED] = prompts[request], 1
    slot[one, k.FIRST_STEP] = slot[one, k.LAST_STEP] = -1
    slot[one, k.IS_FRESH] = 0
    slot[one, k.BLOCKS] = -(-prompts[request] // lim[k.SIZE])
    slot[one, k.PLACE] = mine[k.PLACES]
    mine[k.PLACES] += 1
    line[k.ORDERED, mine[k.ORDER]] = one
    mine[k.ORDER] += 1
    line[k.LOOSENED, mine[k.LOOSE]] = one
    mine[k.LOOSE] += 1
    used = lim[k.TOTAL] - mine[k.FREE] + taken
    k._fact(mine, g, facts, now, FACT_RECEIVED, request, prompts[request], used)


@k.INNER
def route(hands, loads, lanes):
    """Choose among the replicas that decode."""
    entry = hands[ENTRY]
    if not hands[BALANCED]:
        hands[TURN] += 1
        return entry + (hands[TURN] - 1) % (lanes - entry)
    best = entry
    for lane in range(entry + 1, lanes):
        if loads[lane] < loads[best]:
            best = lane
    return best


@k.INNER
def begin(w, move, pairs, sizes_of, durations, transfer_ns, alone, may_meet, sender, now):
    """Put a move on its way (``KvTraffic.send``)."""
    q, pair = w[ln.PIPE][sender], move[PAIR]
    kind = sizes_of[move[PART], pairs[pair, KIND_OF]]
    move[MOVE_START] = now
    q[ln.SENT] = ln._later(now, durations[kind, move[TOKENS]])
    q[ln.TRANSFER] = 0 if alone[pair] else transfer_ns[kind, move[TOKENS]]
    q[ln.ENTERS] = q[ln.SENT] - q[ln.TRANSFER]
    for lane in range(may_meet.shape[1]):
        w[ln.MEETS][sender, lane] = may_meet[pair, lane]
    at = len(w[ln.PIPE]) + sender
    if q[ln.TRANSFER] > 0:
        q[ln.SENDING], w[ln.CHANGES][at] = ln.READY, q[ln.ENTERS]
    else:
        q[ln.SENDING], w[ln.CHANGES][at] = ln.QUIET, q[ln.SENT]


@k.INNER
def end_move(w, g, hands, lists, transfers, moves, queues, reached, pairs, moved, now, sender):
    """End a move: its streams are free, and what is behind it is the first of its rank."""
    queue = queues[sender]
    one = queue[QUEUE_FIRST]
    move = moves[one]
    at = moved[0, 0]
    row = moved[1 + at]
    row[0], row[1], row[2], row[3], row[4] = move[REQUEST], move[PART], move[PAIR], move[FIRST], move[TOKENS]
    row[5], row[6] = move[MOVE_START], now
    moved[0, 0] += 1
    receiver = pairs[move[PAIR], RECEIVER_OF]
    reached[receiver] = 0
    hands[MOVING] = insert(lists[CHANGED], hands[MOVING], receiver)
    queue[QUEUE_FIRST] = move[MOVE_BEHIND]
    move[MOVE_BEHIND] = hands[SPARE_MOVES]
    hands[SPARE_MOVES] = one
    hands[MOVE_ROOM] += 1
    if queue[QUEUE_FIRST] >= 0:
        behind = moves[queue[QUEUE_FIRST]]
        hands[MOVING] = insert(lists[CHANGED], hands[MOVING], pairs[behind[PAIR], RECEIVER_OF])
    transfers[move[REQUEST], MISSING] -= 1
    check(hands, lists, transfers, move[REQUEST])


@k.INNER
def first_of(moves, queues, pairs, receiver):
    """Return who sends the move to a rank that nothing reaches, of the first ones of ranks the earliest; or −1."""
    best = -1
    for sender in range(len(queues)):
        one = queues[sender, QUEUE_FIRST]
        if one < 0 or pairs[moves[one, PAIR], RECEIVER_OF] != receiver:
            continue
        if best < 0 or moves[one, MOVE_SERIAL] < moves[queues[best, QUEUE_FIRST], MOVE_SERIAL]:
            best = sender
    return best


@k.INLINED
def passed(hands, lists, transfers, mine, here, slot, line, outputs, lane):
    """Take note that a step has passed a layer: that much of the prompts that it computes to their ends can leave."""
    here[LAYER] += 1
    for place in range(mine[k.CHUNKS]):
        one = line[k.CARRIED, place]
        request = slot[one, k.REQUEST]
        if outputs[request] > 1 and slot[one, k.DONE_TOKENS] + slot[one, k.TAKEN] == slot[one, k.PROMPT]:
            transfers[request, DUE] += 1
            hands[PASSING] = insert(lists[SORTED_PASSING], hands[PASSING], request)


@k.INLINED
def launched(hands, lists, transfers, mine, here, slot, line, outputs, lane):
    """Let prompts leave, layer by layer, that a step is about to compute to their ends; return whether it does any."""
    found = False
    for place in range(mine[k.CHUNKS]):
        one = line[k.CARRIED, place]
        request = slot[one, k.REQUEST]
        if outputs[request] > 1 and slot[one, k.DONE_TOKENS] + slot[one, k.TAKEN] == slot[one, k.PROMPT]:
            begin_to_leave(hands, lists, transfers, request, lane, slot[one, k.DONE_TOKENS])
            found = True
    here[LAYER], here[WAITS] = 0, found
    return found
