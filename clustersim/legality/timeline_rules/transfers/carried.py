"""RUN-2 and PP-2 of transfers: outputs of stages, hand-overs and swaps carry what they must, and take what that takes.

What a transfer takes over its route is worked out anew (``declared.transfers``). Where nothing else can be on a link of
its route it takes exactly that; elsewhere no less, and all together carry no more than the links can (``links``). How
much longer its share of the links makes it is not judged.
Transfers that a failure cut off are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.legality.declared.transfers import BoolArray, Ways
from clustersim.legality.declared.users import HAND_OVER, SWAP
from clustersim.legality.finding import NOTHING, Finding, FindingOfParts, Rows, lacking, merged
from clustersim.legality.history import History
from clustersim.legality.timeline_rules.views.reading import Reading
from clustersim.timeline.passes import parts
from clustersim.timeline.tables import HOST
from clustersim.values import dataclass

HALF_NS: Final = 0.501
"""Durations are whole nanoseconds."""
ROUNDED_NS: Final = 2
"""What a weak link adds is rounded by itself, and so is what others on a link leave."""
TAKE: Final = "let a transfer take what its bytes take over its route"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers:
    """Transfers of one kind, a position in each array per transfer.

    Parameters
    ----------
    ways : Ways
    pair, carried, settled, start, end : int64 arrays
        Position in ``ways``, bytes, when it was settled how links are, start and end.
    where, columns : str, mapping
        Where a transfer is: a template, and the columns that it names.
    apart : bool array, optional
        Which are under way when no other move of K/V is.
    """

    ways: Ways
    pair: Int64Array
    carried: Int64Array
    settled: Int64Array
    start: Int64Array
    end: Int64Array
    where: str
    columns: Mapping[str, Any]
    apart: BoolArray | None = None


def outputs(reading: Reading) -> Finding:
    """RUN-2: the send of a stage's output takes what its bytes take over the route to the next stage."""
    tables = reading.history.folded
    if tables is None or reading.passes is None or tables.stages == 1:
        return NOTHING
    if reading.declared.carriage is None:
        return lacking("what sends take (no routes were declared)")
    return _timed(_outputs(reading, parts(len(reading.passes))))


def outputs_in(reading: Reading) -> Iterator[Transfers]:
    """Yield the outputs that stages of one pool sent on."""
    return _outputs(reading, [slice(0, 0 if reading.passes is None else len(reading.passes))])


def _outputs(reading: Reading, chosen: Iterable[slice]) -> Iterator[Transfers]:
    """Yield the outputs of some passes after those of others."""
    passes, sends, declared = reading.passes, reading.sends, reading.declared
    if passes is None or sends is None or declared.carriage is None or declared.pp == 1:
        return
    ways = declared.carriage.sends(declared.first_rank)
    for some in chosen:
        made, sent = passes.part(some), sends.of(some)
        known = (made.replica >= declared.first_replica) & (made.replica < declared.first_replica + declared.dp)
        known &= made.stage < declared.pp
        found = (sent.ends > 0) & known[:, None]
        places, ranks = np.nonzero(found)
        start, end, carried = (values[found] for values in (sent.starts, sent.ends, sent.carried))
        number = (made.replica[places] - declared.first_replica) * declared.pp + made.stage[places]
        yield Transfers(
            ways=ways,
            pair=number * declared.stage_ranks + ranks,
            carried=carried,
            settled=made.start[places],
            start=start,
            end=end,
            where="{place}, send of local rank {rank}",
            columns={"place": Rows(made, places), "rank": ranks},
        )


def payloads(reading: Reading) -> Finding:
    """PP-2: every TP rank of a stage sends the hidden state of all tokens that it has, together those of the step."""
    tables, passes, runs, declared = reading.history.folded, reading.passes, reading.runs, reading.declared
    if tables is None or passes is None or runs is None or tables.stages == 1:
        return NOTHING
    prefills, decodes = runs.column("prefill_tokens"), runs.column("decode_tokens")
    if declared.hidden_bytes is None or prefills is None or decodes is None:
        return lacking("what should have been sent (hidden_bytes, or the tokens of steps, were not told)")
    sends = reading.sends
    assert sends is not None
    due_tokens = prefills + decodes
    judging = FindingOfParts("send the hidden state of every token of the step")
    for some in parts(len(passes)):
        made, sent = passes.part(some), sends.of(some)
        at = runs.at(made.replica, made.step)
        rows = np.flatnonzero((sent.has > 0) & (at >= 0))
        carried, tokens = sent.carried[rows], due_tokens[at[rows]]
        told, due = sum(carried.T), tokens * declared.hidden_bytes * declared.tp
        uneven = np.zeros(len(rows), bool)  # of one rank that sends what is due, it is even
        for rank in range(declared.stage_ranks if declared.stage_ranks > 1 else 0):
            uneven |= carried[:, rank] != carried[:, rank - rank % declared.tp]
            uneven |= carried[:, rank] % declared.hidden_bytes != 0
        judging.look(
            len(rows), (told != due) | uneven, Rows(made, rows),
            "sends {told:,} bytes{parts} where {tokens:,} tokens × {declared.hidden_bytes:,} bytes from each of "
            "{declared.tp} TP ranks are {due:,}",
            told=told, tokens=tokens, declared=declared, due=due,
            parts=Rows(("", ", not as many from each TP rank,"), told == due),
        )  # fmt: skip
    return judging.finding


def moves_take(history: History) -> Finding:
    """RUN-2: a transfer of K/V entries takes what its bytes take over its route: a hand-over, or a swap."""
    moves, carriage = history.moves, history.declared.carriage
    if moves is None or not len(moves["request"]):
        return NOTHING
    if carriage is None:
        return lacking("what moves of K/V take (no routes were declared)")
    broken_off = bool(history.declared.down) and history.hands_over
    cut = lacking("what transfers took that a failure cut off (they are not recorded)") if broken_off else NOTHING
    return merged(*(_timed([one]) for one in moves_in(history)), cut)


def moves_in(history: History) -> Iterator[Transfers]:
    """Yield hand-overs, and swaps."""
    moves, carriage = history.moves, history.declared.carriage
    if moves is None or carriage is None:
        return
    source, target = (moves[name].astype(np.int64) for name in ("from_rank", "to_rank"))
    ranks = carriage.ranks
    astray = (np.minimum(source, target) < HOST) | (np.maximum(source, target) >= ranks) | (source == target)
    swapped = (source == HOST) | (target == HOST)
    for kind, mine in ((HAND_OVER, ~swapped & ~astray), (SWAP, swapped & ~astray)):
        rows = np.flatnonzero(mine)
        if not len(rows):
            continue
        keys, pair = np.unique((source[rows] + 1) * (ranks + 1) + target[rows] + 1, return_inverse=True)
        pairs = [(key // (ranks + 1) - 1, key % (ranks + 1) - 1) for key in keys.tolist()]
        start, end, carried = (moves[name][rows].astype(np.int64) for name in ("start_ns", "end_ns", "bytes"))
        yield Transfers(
            ways=carriage.ways(kind, pairs),
            pair=pair.reshape(-1),
            carried=carried,
            settled=start,
            start=start,
            end=end,
            where="request {move.request}, rank {move.from_rank} to {move.to_rank}",
            columns={"move": Rows(moves, rows)},
            apart=_apart(history, rows),
        )


def _apart(history: History, rows: Int64Array) -> BoolArray | None:
    """Return which moves of K/V are under way when no other one is; None where some may not have been recorded."""
    moves, declared = history.moves, history.declared
    assert moves is not None
    if declared.down or declared.horizon_ns is not None:
        return None
    starts, ends = np.sort(moves["start_ns"]), np.sort(moves["end_ns"])
    begun = np.searchsorted(starts, moves["end_ns"][rows], side="left")
    ended = np.searchsorted(ends, moves["start_ns"][rows], side="right")
    found: BoolArray = begun - ended == 1
    return found


def _timed(transfers: Iterable[Transfers]) -> Finding:
    """Judge how long transfers take."""
    judgings = [FindingOfParts(TAKE) for _ in range(3)]
    for some in transfers:
        least, most = some.ways.bounds(some.pair, some.carried, (some.settled, some.start, some.end), some.apart)
        took = some.end - some.start
        for judging, (looked, broken, bound, word) in zip(judgings, (
            (len(took), took < least - ROUNDED_NS, least, "least"),
            (0, took > most + ROUNDED_NS, most, "most, as nothing else can be on it,"),
            (0, _misses(some, took, least), least, "least, and as nothing else can be on it at most,"),
        ), strict=True):  # fmt: skip
            judging.look(
                looked, broken, some.where,
                "takes {took:,} ns for {carried:,} bytes, which take {bound:,.0f} ns at {word} over its route",
                took=took, carried=some.carried, bound=bound, word=word, **some.columns,
            )  # fmt: skip
    return merged(*(judging.finding for judging in judgings))


def _misses(some: Transfers, took: Int64Array, alone: FloatArray) -> BoolArray:
    """Return which transfers miss what they take alone by a nanosecond or two, where no link is ever weak."""
    found = np.zeros(len(took), bool)
    missed = np.abs(took - alone)
    near = np.flatnonzero((missed > HALF_NS) & (missed <= ROUNDED_NS))
    if len(near) and not some.ways.weak:
        found[near] = ~some.ways.may_share(some.pair[near], None if some.apart is None else some.apart[near])
    return found
