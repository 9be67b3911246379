"""What the core works on: records, lists of them, and the numbers of events, facts and reasons.

Functions of the core take ``s`` (:class:`State`) and ``p`` (:class:`~clustersim.core.prices.Prices`); ``r`` is the
number of a replica, ``one`` that of a sequence. All instants are ns.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from clustersim.compiled import Record

NEVER: Final = (1 << 63) - 1

DONE, FULL, GROW, ASK_DECODE, ASK_PART, ASK_ROW, ASK_STEP, ASK_PAIRS, WIDEN, OUTAGES, TOO_LATE = range(11)
ASK_ROUTE, ASK_BATCH, ASK_PASS, ASK_EVENTS, ASK_USES, LACKS_BLOCKS, ASK_SLOWDOWN, ASK_LAYERS = range(11, 19)
"""Why the core stops: at the end; where logs, or lists of sequences and events, have no room; where a price is missing,
or pairs to choose from; where rows of prices have no room; where replicas fail or come back; where an instant is beyond
64 bits; where a user's router or scheduler decides; where a step is to be run by events, and where these go on;
where it is unknown what communications put on links; where a user's scheduler admits what there are no blocks for;
where devices or links may be slower than they should be; where it is unknown when a group passes layers."""

ENDS, HAND_OVERS, ARRIVALS, DEPARTURES, DECISIONS, STOPPING = range(6)
"""Phases of an instant, in their order."""

EVENTS, STEP_END, COPY_END, TRANSFER, PASS, LAYER, FAULT, TIMEOUT, CANCELLATION = range(9)
"""Kinds of events, in their order at an instant."""

REJECTED, ADMITTED, PREEMPTED, FINISHED, REUSED, SWAPPED_OUT, SWAPPED_IN, CANCELLED, LOST = range(1, 10)
HANDED_OVER, RECEIVED = 10, 11
"""``serving.decision``'s numbers of facts (a test compares them)."""
KEPT: Final = 12
"""Which owner keeps a sequence that was admitted; logged as a fact, and recorded as none."""
BEFORE_ALL: Final = -1
"""Rank of those that belong to a static batch; others have 0 or more."""
TURN_OVER: Final = -2
NOT_POOLED: Final = -1
"""``timeline.record``'s: a fact that says nothing of blocks."""

QUEUE_FULL, WAITED, LEFT_QUEUE, LEFT_PROMPT, LEFT_OUTPUT, ALL_FAILED, LOST_IN_FAILURE, LOST_WAITING = range(8)
NO_DECODERS, LOST_COMPUTED, TOO_LONG = 8, 9, 10
"""Why a request ended without an answer: its replica's queue took no more; it waited too long; its client gave it up
while it waited to be admitted, before its first token, or behind that; every replica had failed when it came; it was
lost with its replica, or since nothing took it over; every decode replica had failed when it came, or when its prompt
was computed; to be recomputed it was too long for the prefill pool."""

PREFILL, DECODE, MIXED = range(3)
"""Kinds of step as they are recorded (``graph.blueprint.STEP_KINDS``; a test compares them)."""

ROUTERS: Final = ("round_robin", "least_outstanding", "fewest_waiting", "power_of_two", "prefix_aware")
ROUND_ROBIN, LEAST_OUTSTANDING, FEWEST_WAITING, POWER_OF_TWO, PREFIX_AWARE = range(len(ROUTERS))
CUSTOM: Final = len(ROUTERS)
"""A user's own router."""

WAITS, AT_ONCE = 1, 2
"""Whether a sequence that is displaced waits for a replica that lives, or is lost at once."""

ROW: Final = (
    "start_ns", "kind", "slot", "batch_requests", "prefill_tokens", "decode_tokens", "context_tokens", "waiting",
    "running", "kv_blocks_used", "count", "end_ns", "number", "replica",
)  # fmt: skip
"""Columns of a run of steps in the log; the last two are the row of prices and the replica."""
CHUNK: Final = ("replica", "step", "request", "start", "count", "sampled")
EPISODE: Final = ("replica", "slot", "request", "first_step", "last_step")
FACT: Final = ("replica", "time_ns", "kind", "request", "value", "used")
REASON: Final = ("request", "why", "value")
STRETCH: Final = ("replica", "step", "stage", "instance", "ns")
"""Columns of an instance of a pass that took so much longer than it costs, logged before the step that it is of."""
COPY: Final = ("replica", "stage", "request", "out", "tokens", "blocks", "start_ns", "end_ns", "decided_ns", "owner")
"""Columns of a copy to host memory, or back from there; it is logged when it is decided."""
MOVE: Final = ("request", "sender", "receiver", "shard", "layer", "first", "tokens", "start_ns", "end_ns")
"""Columns of a move of K/V from rank to rank; it is logged when it has ended."""


class Clock(Record):
    """The run as a whole.

    ``next`` is the request that comes next, ``turn`` how many came. ``freed`` is how many more clients of a closed loop
    may send; ``held`` how many turns of sessions wait for the one before them, and ``due`` how many need not any more,
    of which ``round`` come just now. Requests that are displaced are in
    [``displaced_from``, ``displaced_to``], and are placed from ``displaced_at`` on. ``asking`` is whose price or
    decision is asked for, or which request's replica, or the pool that lacks pairs; ``answered`` is whether the price
    is there, ``chosen`` the replica, −1 for none, and ``asked`` the last instant at which schedulers were asked.

    Something is ``unsettled`` between ``pools`` at this instant: so many sequences have ``landed``, are ``leaving`` for
    whom no decode replica is chosen, and have ``passed`` a layer; ``…_at`` is how far that has come. Then there are
    places in the logs, and their room.
    """

    __slots__ = (
        "answered",
        "asked",
        "asking",
        "cancels",
        "chosen",
        "chunks_at",
        "chunks_room",
        "closed",
        "copies_at",
        "copies_room",
        "decodes_at",
        "decodes_room",
        "displaced_at",
        "displaced_from",
        "displaced_to",
        "due",
        "ended",
        "event_room",
        "events",
        "facts_at",
        "facts_room",
        "freed",
        "held",
        "horizon",
        "landed",
        "landed_at",
        "leaving",
        "leaving_at",
        "margin",
        "max_run",
        "most_stages",
        "moved_at",
        "moved_room",
        "next",
        "now",
        "opened",
        "passed",
        "passed_at",
        "phase",
        "pools",
        "queue_room",
        "reasons_at",
        "reasons_room",
        "replicas",
        "round",
        "rows_at",
        "rows_room",
        "senders",
        "serial",
        "spares",
        "stretches_at",
        "stretches_room",
        "timeout",
        "total",
        "touched",
        "touched_at",
        "turn",
        "unsettled",
        "varying_at",
        "varying_room",
    )  # fmt: skip


class Pool(Record):
    """Replicas from the ``first`` on, and the router to them.

    Of ``size`` replicas ``gone`` never come back. ``choices`` counts what it chose, of those ``living``; pairs are
    there from ``first_pair`` to ``drawn``, at ``pairs_at`` on. The tournament by load begins at ``tree_at``, with so
    many ``leaves``. What copies of blocks take is in ``copies_ns`` from ``copies_at`` on, ``copies_size`` each.
    """

    __slots__ = (
        "choices",
        "copies_at",
        "copies_size",
        "drawn",
        "first",
        "first_pair",
        "gone",
        "leaves",
        "living",
        "pairs_at",
        "router",
        "size",
        "tree_at",
    )


class Replica(Record):
    """One replica: what its scheduler may do, whom it has, and the step that it decides.

    ``begun`` counts running sequences whose prompt is not computed, those preempted included; ``promised`` the blocks
    that those who run hold at their ends; ``free_at`` is when its first stage is free. ``away`` counts those in host
    memory and on their way, of which ``swapped`` leave or are at rest; ``copies`` those on their way.
    ``owners`` are SP ranks that keep sequences apart; ``split`` says what is priced rank by rank (``core.ranks``).
    ``outage`` is its last one. A user's router is shown the blocks that the run under way has ``taken``, and those of a
    prompt that are ``cached``; ``has_chosen`` is whether a user's scheduler has chosen, and ``standing`` how many
    members decode again, without being asked for, until something happens. ``first_kept`` is the last of those that
    keep cached blocks since their K/V has not moved yet, and that do not run any more. It is ``slow`` or not until the
    next ``change``. It takes its steps together with ``group_size`` replicas, itself included, from ``group_first`` on
    (``core.groups``). Where its steps run by events, those of a ``calm`` one nothing disturbs but what slows it.
    """

    __slots__ = (
        # what is configured
        "block_tokens", "blocks", "max_tokens", "max_requests", "longest", "chunked", "static", "ranked", "keeps_room",
        "first_chunk", "gives_up", "stages", "overlap", "window", "queue_limit", "caching", "custom",
        "by_events", "calm", "copies_by_events", "host_blocks", "meets", "pool", "by_layer", "owners", "first_owner",
        "split", "group_first", "group_size", "by_group",
        # whom it has
        "free", "running", "prefilling", "waiting", "outstanding", "promised", "leaving", "step", "decodes_in_flight",
        "flying", "oldest", "version", "is_touched", "batch", "away", "swapped", "copies",
        "is_down", "outage", "taken", "has_chosen", "standing", "arriving", "first_arriving", "last_arriving",
        "receiving", "first_kept", "cached", "slow", "change",
        # the step being decided
        "launched", "again", "decodes", "chunks", "evicted", "left", "steady", "new", "context", "pairs",
        "keys", "attended", "near_pairs", "near_keys", "near_attended", "near_growth", "near_steps",
    )  # fmt: skip


class Owner(Record):
    """An SP rank that keeps sequences of its own, in a pool of its own, where there are several.

    Its copies under way give ``coming`` blocks back, and ``host`` are its free ones in host memory; ``short`` says
    whether somebody waits for such blocks: of the only owner, too. ``promised`` are the blocks that those who run hold
    at their ends. It ``lacks`` blocks where its next free ones are for a prompt that is begun; ``left`` are those
    without members of the batch being made up. Then there are those who decode in the step being decided, and what they
    attend to.
    """

    __slots__ = (
        "attended", "coming", "decodes", "free", "host", "lacks", "left", "near_attended", "near_growth", "promised",
        "short",
    )  # fmt: skip


class Sequence(Record):
    """A request at a replica: its progress, and its decode steps in a row (``first_step`` to ``last_step``).

    It ``decodes`` where its next step is a decode step. It is ``busy`` while a step carries it, while it is chosen for
    the step being decided, and while it is copied;
    ``place`` is where it waits, ``away`` where it is between the pool and host memory (``core.swapping``); ``rank`` and
    ``then`` order the queue before its number does. It is ``displaced`` while it has no replica. Its first ``shared``
    blocks are cached; a user's scheduler is shown how many ``cached`` ones it would take over that waits.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "away",
        "batch",
        "behind",
        "decodes",
        "blocks",
        "busy",
        "cached",
        "computed",
        "copies",
        "displaced",
        "first_step",
        "generated",
        "hands_over",
        "last_step",
        "leaving",
        "output",
        "owner",
        "partner",
        "place",
        "preemptions",
        "prompt",
        "rank",
        "replica",
        "request",
        "shared",
        "slot",
        "taken",
        "then",
        # on its way to another pool
        "is_on_way",
        "landed_one",
        "leaving_one",
        "missing",
        "passed",
        "passed_one",
        "reserved",
        "sampled",
        "source",
        "start",
        "target",
    )  # fmt: skip


class Flight(Record):
    """A step, or run of steps, that is under way.

    ``left`` is how many steps the first member to end has left; ``previous`` the step that used its slot before;
    ``ended`` counts steps of a run that have ended, as far as somebody has asked, and ``next_end`` is when the one
    behind them ends, 0 where nobody has. Where it is ``timed``, what varies ends with what each step takes; so many
    values were ``found`` (``core.ranks``). Where it ``opens`` transfers, ``layer`` counts layers that it has passed,
    and events of these have its ``version``. It is ``slowed`` once it is known what it takes longer.
    """

    __slots__ = (
        "attended",
        "base_ns",
        "chunks",
        "context",
        "decodes",
        "end",
        "ended",
        "found",
        "goes_on",
        "graph",
        "kind",
        "layer",
        "left",
        "limit",
        "near",
        "near_growth",
        "new",
        "next_end",
        "opens",
        "previous",
        "row",
        "running",
        "slot",
        "slowed",
        "start",
        "step",
        "steps",
        "terms",
        "timed",
        "used",
        "version",
        "waiting",
        "width",
    )  # fmt: skip


class Outage(Record):
    """A replica that is down from ``at`` until an instant, −1: for good; what it served is lost where it ``loses``."""

    __slots__ = ("at", "loses", "replica", "until")


class State(NamedTuple):
    """Everything but prices; lists by replica are ``…[r][place]``."""

    clock: Any
    pools: Any
    """Of replicas, each with its router."""
    replicas: Any
    owners: Any
    """Of all replicas, from ``replica.first_owner`` on those of each; one where nothing is kept apart."""
    sequences: Any
    spare: Any
    """Sequences that are free: the first ``clock.spares``."""
    queues: Any
    """A heap of those that wait."""
    order: Any
    """Those that run, in order of admission."""
    ready: Any
    """Room for those that one decision looks at."""
    swapped: Any
    """Those that leave for host memory or are at rest there, in the order of the queue; from the end of the list on
    those that are copied back, as they were decided."""
    copies_end: Any
    """When copies end that are under way or wait for that, of each stage and owner: in, then out."""
    copies_ns: Any
    """What copies of so many blocks take on each stage: in, then out."""
    flights: Any
    """A ring of what is under way, the oldest at ``replica.oldest``."""
    members: Any
    """Whom each flight carries: its decodes, then its chunks, ``flight × width`` on."""
    pending: Any
    """What varies in each flight, class by class and step by step."""
    passes: Any
    """Start and row of each stage's pass of each flight, where there are stages."""
    sends: Any
    """Starts of each boundary's sends, then ends, of each flight."""
    free_at: Any
    """When each stage is free."""
    sent_at: Any
    """When each rank has sent all that it had to, boundary by boundary."""
    slots: Any
    """The last step of each slot of decodes."""
    phases: Any
    times: Any
    whats: Any
    """A heap of events: instants, and kind, number and version in one."""
    choice: Any
    """Whom a user's scheduler chose."""
    touched: Any
    """Replicas that are to decide at this instant."""
    load_tree: Any
    """A tournament of replicas by outstanding tokens."""
    pairs: Any
    """Two places of ``living`` for each request, drawn at random, where the router asks for them."""
    living: Any
    """Replicas that live, from ``pool.first`` on those of a pool."""
    outages: Any
    """Of all replicas."""
    retried: Any
    """The last replica that each request was sent to when its own had failed, −1 for none; of all where any fails."""
    arrived: Any
    prompts: Any
    outputs: Any
    ranks: Any
    """What orders requests in the queues of each pool, before their numbers do …"""
    thens: Any
    """… and by how much later they come to be ordered."""
    cancel_after: Any
    refused: Any
    came: Any
    routed: Any
    sequence_of: Any
    """Request → its sequence, −1 before and behind; of all where any may leave or be copied."""
    order_of_arrival: Any
    """The requests that came."""
    follows: Any
    """The turn before each request, −1 for none; of all where there are sessions."""
    turns: Any
    """Of each request ``TURN_OVER`` when it has ended, else the turn that is due and waits for it, −1 for none."""
    due_turns: Any
    """Turns that need not wait any more, and have not come."""
    caches: Any
    """What each owner keeps of prompts; this and the following are empty where they keep nothing."""
    prefix_runs: Any
    """Runs of blocks, by cache and number."""
    extents: Any
    """Their queues of free blocks."""
    prefix_first: Any
    prefix_end: Any
    """Where the runs of each request are …"""
    prefix_of: Any
    """… their numbers …"""
    prefix_blocks: Any
    """… and how many blocks of a run it has."""
    prefix_routing: Any
    rows: Any
    varying: Any
    chunks: Any
    decodes: Any
    facts: Any
    all_passes: Any
    all_sends: Any
    reasons: Any
    copies: Any
