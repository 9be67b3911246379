"""A history as plain data: what a replay, another simulator or an engine recorded, and what was declared beforehand.

A history may lack any of its parts; what lacks is None, and rules that need it answer "not checkable". How a timeline
of this program becomes one is in ``run.audit``, and how files from elsewhere do in ``run.foreign.history``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Final

from clustersim.clock import Int64Array
from clustersim.graph.stepgraph import StepGraph
from clustersim.legality.declared.faults import Outage, SlowRank, WeakGroup
from clustersim.legality.declared.policy import Policy
from clustersim.legality.declared.transfers import Carriage
from clustersim.legality.prices.deployment import PricedDeployment
from clustersim.plan.exchange import DEEPEP
from clustersim.timeline.parts import of_pool
from clustersim.timeline.tables import Table, Tables
from clustersim.values import dataclass

FACTS: Final = (
    "arrived", "rejected", "admitted", "preempted", "finished", "reused", "swapped_out", "swapped_in", "cancelled",
    "lost", "handed_over", "received",
)  # fmt: skip
(
    ARRIVED, REJECTED, ADMITTED, PREEMPTED, FINISHED, REUSED, SWAPPED_OUT, SWAPPED_IN, CANCELLED,
    LOST, HANDED_OVER, RECEIVED,
) = range(len(FACTS))  # fmt: skip
KINDS: Final = ("prefill", "decode", "mixed")
STREAMS: Final = ("compute", "comm", "send", "recv", "host")

SPAN_COLUMNS: Final = (
    "start_ns", "end_ns", "rank", "stream", "symbol", "layer", "step", "replica", "stage", "group",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was declared: the plan, the limits of serving and of the K/V pool. None: it was not said.

    Parameters
    ----------
    tp, sp, pp, dp, ep : int
        Degrees of the plan.
    sp_scheme, sp_decode : str or None
        ``all_gather``, ``ring`` or ``all_to_all``; ``idle`` or ``dp``.
    ep_scope : str or None
        ``replica``, or ``global``: experts over the ranks of all replicas.
    decode_overlap : str
        ``per_sequence``, or ``none``: at most one decode step of a replica in flight.
    block_tokens, pool_blocks : int or None
        Tokens per K/V block; blocks of a replica's pools together.
    max_batch_tokens, max_batch_requests : int or None
        What the buffers of a step were sized for.
    top_k : int or None
        Experts that a token visits.
    horizon_ns : int or None
        Where the history was cut; None: it is complete.
    prefix_caching : bool or None
        Whether sequences share full prompt blocks of equal content; None: it was not said.
    hash_tokens : int or None
        Prompt tokens per hash of ``History.prefixes``.
    hidden_bytes : int or None
        Hidden state of one token, as stages hand it on: hidden × bytes per element.
    down : tuple of Outage
    loses : tuple of (int, int)
        Replica and instant at which it fails for which what it served is declared to be lost.
    eager : bool
        Whether a replica that has work is known to begin a step as soon as it can; a user's scheduler need not.
    role : str
        ``all``; or ``prefill`` or ``decode``, of a pool that does only that.
    router : str or None
        Which of the replicas that live a request goes to, by the name of the policy; None: a user's own.
    carriage : Carriage or None
        What follows for transfers between ranks: how long each takes, and which may share links with what.
    slow : tuple of SlowRank
    host_blocks : int or None
        Blocks of a replica in host memory together, where sequences are swapped.
    host_block_bytes : tuple of int or None
        Bytes of a block on a rank of each stage.
    weak_groups : tuple of WeakGroup
    mesh : bool
        Whether the degrees say where each rank is. Where they do not, ``tp`` counts all ranks, and rules that need
        to know who is in which group, stage and replica have nothing to look at.
    first_replica, first_rank : int
        Where the replicas of a pool begin.
    kv_held : tuple of mapping
        By stage and TP rank: layer → K/V heads that the rank is to hold; a latent counts as one.
    kv_head_bytes : tuple of float
        By layer: bytes of one head of one token.
    deployment : PricedDeployment or None
        What operators run on, as far as it bears on what they cost.
    policy : Policy or None
        Who is to be served when; None: it was not said.
    """

    tp: int = 1
    sp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    sp_scheme: str | None = None
    sp_decode: str | None = None
    ep_scope: str | None = "replica"
    decode_overlap: str = "per_sequence"
    block_tokens: int | None = None
    pool_blocks: int | None = None
    max_batch_tokens: int | None = None
    max_batch_requests: int | None = None
    top_k: int | None = None
    horizon_ns: int | None = None
    prefix_caching: bool | None = False
    hash_tokens: int | None = None
    hidden_bytes: int | None = None
    down: tuple[Outage, ...] = ()
    loses: tuple[tuple[int, int], ...] = ()
    eager: bool = False
    role: str = "all"
    router: str | None = None
    carriage: Carriage | None = field(default=None, repr=False)
    slow: tuple[SlowRank, ...] = ()
    host_blocks: int | None = None
    host_block_bytes: tuple[int, ...] | None = None
    weak_groups: tuple[WeakGroup, ...] = ()
    mesh: bool = True
    first_replica: int = 0
    first_rank: int = 0
    kv_held: tuple[Mapping[int, frozenset[int]], ...] = ()
    kv_head_bytes: tuple[float, ...] = ()
    deployment: PricedDeployment | None = None
    policy: Policy | None = None

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.sp * self.tp

    @property
    def apart(self) -> tuple[str, ...]:
        """Names of collectives that do not run as others of their kind do: those of DeepEP."""
        ours = self.deployment is not None and self.deployment.plan.ep.exchange in DEEPEP
        return ("dispatch", "combine") if ours else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class DeclaredGraph:
    """A step graph of a plan, which level G judges.

    Parameters
    ----------
    kind : str
        ``prefill``, ``decode`` or ``mixed``.
    first_replica : int
        Of the pool whose plan it is.
    ranks, tp, stages : int
        Ranks of a stage (of all replicas, where they share each pass); how many of them are a TP group; stages.
    of_stage : callable
        Stage → the graph of that stage, every rank and layer of it.
    """

    kind: str
    first_replica: int
    ranks: int
    tp: int
    stages: int
    of_stage: Callable[[int], StepGraph]


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanTable:
    """Spans, one by one.

    Parameters
    ----------
    columns : Table
        ``SPAN_COLUMNS``. ``rank`` is global; ``stream`` an index into ``STREAMS``; ``symbol`` one into ``symbols``;
        ``layer`` −1 outside the layers; ``group`` is equal for the spans of one execution of a collective, −1 for
        other work. It may also have ``bytes``, what a send carries, and ``cost_ns``, what a span takes at least
        where it does not share a link; −1 where that was not said.
    symbols : tuple of (name, op, module)
    after : (sources, targets)
        Rows that must end before others start.
    numbered : bool
        Whether the steps were told; where not, all spans count as step 0.
    recorded : frozenset of str
        The columns of a table from outside, by their names there; empty where it is none.
    """

    columns: Table
    symbols: tuple[tuple[str, str, str], ...]
    after: tuple[Int64Array, Int64Array] | None = None
    numbered: bool = True
    recorded: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What another run of the same requests came to: per request, −1 where it did not finish.

    Parameters
    ----------
    declared : Declared
    tokens, entries : int64 arrays of shape (requests,)
        Tokens that each finished request got, and K/V entries that it held at the end.
    """

    declared: Declared
    tokens: Int64Array
    entries: Int64Array


@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """Everything that a rule of level T may look at.

    Parameters
    ----------
    pools : tuple of Declared
        What was declared: of all replicas, or of the prefill and of the decode pool.
    requests : Table or None
        ``prompt_tokens`` and ``output_tokens`` by number of the request; where known also ``arrives_ns``,
        ``explained`` (1 where a rejection has its reason), ``listed`` (0 for numbers that are no request),
        ``cancels_ns`` (how long after its arrival the client gives it up, −1 for never), ``priority``, in place of
        ``arrives_ns`` also ``recorded_ns`` and ``follows`` (the turn that must have ended, −1 for none), and what its
        time was spent on (``requests.spent.SPENT``).
    steps, chunks, decodes, facts : Table or None
        As in ``timeline.tables``; columns that may lack are named by the rules that need them. Facts may have
        ``explained`` too.
    moves : Table or None
        Transfers of K/V entries, as in ``timeline.tables``.
    folded : Tables or None
        Passes and transfers of a timeline of this program.
    spans : SpanTable or None
        Spans one by one, where there is no folded form.
    routes : Table or None
        ``replica, step, layer, request, token, expert``: a row per token and expert that it was sent to; where known
        also ``selected``, the expert that the gate selected for that row, −1 where that was not said.
    held : Table or None
        ``replica, block, request, taken_ns, freed_ns, content``: who held which K/V block when, ``freed_ns`` −1
        where it never gave it back; equal ``content`` ≥ 0 marks a shared prefix.
    flows : Table or None
        ``link, start_ns, end_ns, rate, capacity``: bytes per second on a link.
    prefixes : tuple of int64 arrays or None
        Per request, hashes of the blocks of its prompt from the start on: what was declared to be equal.
    graphs : tuple of DeclaredGraph
        What steps of the plan run; empty where that is not known.
    digests : tuple of (str, str)
        Where a digest of this history comes from, and the digest.
    other : Outcome or None
        The same requests under another plan.
    concurrency : int or None
        Requests that a closed loop keeps in flight; None: each arrives when the workload says.
    layerwise : bool
        Whether a prefill pool is to hand K/V over layer by layer.
    """

    pools: tuple[Declared, ...]
    requests: Table | None = None
    steps: Table | None = None
    chunks: Table | None = None
    decodes: Table | None = None
    facts: Table | None = None
    folded: Tables | None = None
    spans: SpanTable | None = None
    routes: Table | None = None
    held: Table | None = None
    flows: Table | None = None
    prefixes: tuple[Int64Array, ...] | None = None
    graphs: tuple[DeclaredGraph, ...] = ()
    digests: tuple[tuple[str, str], ...] = ()
    other: Outcome | None = None
    moves: Table | None = None
    concurrency: int | None = None
    layerwise: bool = False

    @property
    def declared(self) -> Declared:
        """What was declared of all replicas, or of the first pool."""
        return self.pools[0]

    @property
    def hands_over(self) -> bool:
        """Whether requests go on in a second pool."""
        return len(self.pools) > 1

    def apart(self) -> tuple[History, ...]:
        """Return a history per pool, of what happened inside its replicas: itself, where there is one."""
        if not self.hands_over or self.folded is None:
            return (self,)
        parts = [of_pool(self.folded, number) for number in range(len(self.pools))]
        return tuple(
            replace(
                self, pools=(declared,), folded=part, steps=part.steps, chunks=part.chunks,
                decodes=part.decodes, facts=part.facts, moves=part.moves,
            )
            for declared, part in zip(self.pools, parts, strict=True)
        )  # fmt: skip
