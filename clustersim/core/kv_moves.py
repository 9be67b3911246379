"""K/V entries that go from rank to rank, one move at a time on each stream.

A rank has a stream on which entries leave it and one on which they reach it. Moves from a rank go in the order in which
they were asked for; the first of each rank starts when the stream of the other end is free as well, the one that was
asked for first before the others. Only ranks are looked at that became free, or for which another move came to be the
first of its rank. Functions take ``n`` (:class:`KvMoves`, or the state of the core); ``f`` is the number of a rank that
sends, ``q`` that of one that is reached. They know no instants.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record

NONE: Final = -1


class Streams(Record):
    """How many moves were ``asked`` for, and have just ``begun``; the first of the ``spares``; how many receivers have
    changed."""

    __slots__ = ("asked", "begun", "changed", "spare", "spares")


class Sender(Record):
    """A rank that sends: its moves from ``first`` to ``last``, and who is ``behind`` it at the same receiver.

    ``begun`` is a column: senders whose moves have just begun by events.
    """

    __slots__ = ("begun", "behind", "first", "is_sending", "last")


class Receiver(Record):
    """A rank that is reached: the ``first`` sender whose first move goes there and has not started.

    ``changed`` is no field of this one but a column: receivers for which another move may be able to start.
    """

    __slots__ = ("changed", "first", "is_changed", "is_reached")


class Move(Record):
    """What goes from a sender to a receiver of a sequence: ``tokens`` of a shard from the ``first`` on, in a layer."""

    __slots__ = ("behind", "first", "layer", "one", "receiver", "serial", "shard", "start", "tokens")


class KvMoves(NamedTuple):
    """All streams, and the moves that were asked for (``core.state.State`` has these fields as well)."""

    streams: Any
    senders: Any
    receivers: Any
    moves: Any


def mark_receiver(n: Any, q: int) -> None:
    """Let somebody look whether a move to a receiver can start."""
    streams = n.streams[0]
    if n.receivers[q].is_changed == 0:
        n.receivers[q].is_changed = 1
        n.receivers[streams.changed].changed = q
        streams.changed += 1


def present(n: Any, f: int) -> None:
    """Let the first move of a sender, behind nobody any more, wait for its receiver."""
    move, before = n.moves[n.senders[f].first], NONE
    q = move.receiver
    at = n.receivers[q].first
    while at >= 0 and n.moves[n.senders[at].first].serial < move.serial:
        before, at = at, n.senders[at].behind
    n.senders[f].behind = at
    if before >= 0:
        n.senders[before].behind = f
    else:
        n.receivers[q].first = f
    mark_receiver(n, q)


def ask(n: Any, f: int, q: int) -> int:
    """Queue a move; there is room for it. Return its number."""
    streams, sender = n.streams[0], n.senders[f]
    m = streams.spare
    move = n.moves[m]
    streams.spare = move.behind
    streams.spares -= 1
    streams.asked += 1
    move.serial, move.receiver, move.behind = streams.asked, q, NONE
    if sender.first >= 0:
        n.moves[sender.last].behind = m
        sender.last = m
    else:
        sender.first = sender.last = m
        present(n, f)
    return m


def choose_sender(n: Any) -> int:
    """Return a sender whose first move is to start now, −1 for none; both streams are its from now on."""
    streams = n.streams[0]
    while streams.changed > 0:
        streams.changed -= 1
        receiver = n.receivers[n.receivers[streams.changed].changed]
        receiver.is_changed = 0
        f = receiver.first
        if f >= 0 and receiver.is_reached == 0:
            receiver.first = n.senders[f].behind
            receiver.is_reached = n.senders[f].is_sending = 1
            return f
    return NONE


def withdraw(n: Any, f: int) -> None:
    """Let the first move of a sender, which has not started, wait for its receiver no more."""
    receiver, before = n.receivers[n.moves[n.senders[f].first].receiver], NONE
    at = receiver.first
    while at != f:
        before, at = at, n.senders[at].behind
    if before >= 0:
        n.senders[before].behind = n.senders[f].behind
    else:
        receiver.first = n.senders[f].behind


def drop_moves(n: Any, f: int, one: int) -> bool:
    """Forget all moves of a sequence from a sender; return whether one of them was under way."""
    streams, sender, first = n.streams[0], n.senders[f], n.senders[f].first
    was_first = first >= 0 and n.moves[first].one == one
    was_sending = was_first and sender.is_sending > 0
    if was_sending:
        sender.is_sending = n.receivers[n.moves[first].receiver].is_reached = 0
        mark_receiver(n, n.moves[first].receiver)
    elif was_first:
        withdraw(n, f)
    at, last = first, NONE
    sender.first = sender.last = NONE
    while at >= 0:
        move, behind = n.moves[at], n.moves[at].behind
        if move.one == one:
            move.behind = streams.spare
            streams.spare = at
            streams.spares += 1
        else:
            move.behind = NONE
            if last >= 0:
                n.moves[last].behind = at
            else:
                sender.first = at
            sender.last = last = at
        at = behind
    if was_first and sender.first >= 0:
        present(n, f)
    return was_sending


def end_first(n: Any, f: int) -> int:
    """End the move that is under way from a sender; return its number, which is spare from now on."""
    streams, sender = n.streams[0], n.senders[f]
    m = sender.first
    move = n.moves[m]
    sender.first, sender.is_sending = move.behind, 0
    move.behind = streams.spare
    streams.spare = m
    streams.spares += 1
    n.receivers[move.receiver].is_reached = 0
    mark_receiver(n, move.receiver)
    if sender.first >= 0:
        present(n, f)
    return m
