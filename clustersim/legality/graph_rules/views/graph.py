"""One or more steps of a deployment as plain columns: all that the rules of level G read.

Nodes are operators on one rank, or over a group of ranks; *memberships* say which rank takes part in which node, and
when in its program. A *row* is an edge as one rank sees it: both ends have that rank. Tests change columns; rules
derive what is legal from plan, model and columns, and know nothing of the code that made these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import cached_property, wraps
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from clustersim.clock import FloatArray, Int64Array
from clustersim.cost.precision import Precision
from clustersim.graph.batch import Chunk
from clustersim.graph.blueprint import COLLECTIVE_OPS, EDGE_KINDS, Node
from clustersim.graph.stepgraph import Written
from clustersim.graph.steps import DecodeToken
from clustersim.model.architecture import ModelSpec
from clustersim.plan.parallel import ParallelPlan
from clustersim.values import dataclass

BoolArray = npt.NDArray[np.bool_]
T = TypeVar("T")

DATA: Final = EDGE_KINDS.index("data")
KV: Final = EDGE_KINDS.index("kv")
SYNC: Final = EDGE_KINDS.index("sync")
ORDER: Final = EDGE_KINDS.index("order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step carries.

    Parameters
    ----------
    kind : str
        ``prefill``, ``decode`` or ``mixed``.
    chunks : tuple of Chunk
        Parts of prompts; the first ``shared`` tokens of a request are blocks that other requests own.
    decodes : tuple of DecodeToken or None
        Sequences that decode; None where only their number is known.
    sequences, keys : tuple of int
        Per SP rank, how many sequences decode, and the keys that these attend to.
    lane, replica : int
        Steps of one lane follow each other; lanes are micro-batches that have no sequence in common.
    shared : dict from int to int
        Request → tokens of a prefix that it shares.
    half : int
        1 or 2 where it is that half of a step, the second right behind the first; what the step does as one, such as
        its LM head, is in either half with the half's own tokens.
    whole : tuple of int
        Of a half, the requests of the whole step.
    """

    kind: str
    chunks: tuple[Chunk, ...] = ()
    decodes: tuple[DecodeToken, ...] | None = None
    sequences: tuple[int, ...] = (0,)
    keys: tuple[int, ...] = (0,)
    lane: int = 0
    replica: int = 0
    shared: dict[int, int] = field(default_factory=dict)
    half: int = 0
    whole: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphView:
    """Columns of a graph over one or more steps.

    Parameters
    ----------
    symbols : tuple of Node
        What nodes are: shape and declared rule of an operator; column ``symbol`` points into it.
    step, layer, stage : int arrays of shape (nodes,)
        Layer and stage are numbers of ``model`` and ``plan``; layer −1 outside the layers.
    amount, attended : float arrays of shape (nodes,)
        Amount for what the step carries, NaN where unknown; attended (query, key) pairs of a prefill attention, keys
        of a decode attention, NaN elsewhere.
    member_node, member_rank, member_position : int arrays of shape (memberships,)
        Who takes part in what, and the place in that rank's program.
    source, target, kind : int arrays of shape (edges,)
        Kind is an index into ``EDGE_KINDS``.
    steps : tuple of Step
    plan, model, precision
        None where they are not known: what needs them can't be checked.
    layer_names, stage_names : tuple of int
        Numbers of layers and stages for messages, where the graph is a shortened one.
    cached_layers : tuple of int
        Attentions of each stage of the whole deployment.
    evenly_routed : bool
        Whether amounts of experts are those of an even routing, rather than of tokens that were routed.
    in_features : bool
        Whether amounts are forms of a batch's features, so that segments and what operators move are as in ``batch``;
        in graphs of other programs both are their own affair.
    shown : tuple of int or None
        The stages that a graph of a part of the plan shows; None: all of them.
    unsaid : tuple of frozenset of str
        Per symbol, the fields of a graph from outside that are defaults, and no statements; empty: none.
    nameless : frozenset of str
        Names of operators that nobody knows, and which may be collectives of any kind.
    unknown : bool array of shape (nodes,) or None
        Operators of which nobody knows what they are, where rules are to find only what is wrong whatever they are.
    not_asked : frozenset of str
        Operators that the graph need not show: work of the host, where another program draws what devices do.
    unit : int array of shape (nodes,) or None
        Which module of its stage each node is of, where a graph from outside says it (``unsaid`` tells which do).
    written : tuple of Written
        Per node, which one it is in the file of a graph from outside; empty: there is none.
    names_are_foreign : bool
        Whether operators have names of another program, which may leave out what these do not need to say.
    split_said : frozenset of str or None
        What of ``plan.split`` a graph from outside states; None: all of it.
    devices : tuple of str or None
        The device of each rank, None for one that has none, where a graph from outside says them.
    topology : tuple of str or None
        The names of all devices by number, where it says them.
    whose : int or None
        The replica that the ranks from 0 on are of, where it says that.
    """

    symbols: tuple[Node, ...]
    symbol: Int64Array
    step: Int64Array
    layer: Int64Array
    stage: Int64Array
    amount: FloatArray
    attended: FloatArray
    member_node: Int64Array
    member_rank: Int64Array
    member_position: Int64Array
    source: Int64Array
    target: Int64Array
    kind: Int64Array
    steps: tuple[Step, ...]
    plan: ParallelPlan | None = None
    model: ModelSpec | None = None
    precision: Precision | None = None
    layer_names: tuple[int, ...] = ()
    stage_names: tuple[int, ...] = ()
    cached_layers: tuple[int, ...] = ()
    evenly_routed: bool = True
    in_features: bool = True
    shown: tuple[int, ...] | None = None
    unsaid: tuple[frozenset[str], ...] = ()
    unknown: BoolArray | None = None
    nameless: frozenset[str] = frozenset()
    not_asked: frozenset[str] = frozenset()
    names_are_foreign: bool = False
    split_said: frozenset[str] | None = None
    devices: tuple[str | None, ...] | None = None
    topology: tuple[str, ...] | None = None
    whose: int | None = None
    unit: Int64Array | None = None
    written: tuple[Written, ...] = ()

    def __len__(self) -> int:
        return len(self.symbol)

    def mask(self, test: Callable[[Node], bool]) -> BoolArray:
        """Return which nodes are operators for which ``test`` holds."""
        return np.array([test(symbol) for symbol in self.symbols], bool)[self.symbol]

    def says(self, *fields: str) -> BoolArray:
        """Return which nodes state all of these fields, rather than leave one of them to its default."""
        told = [not unsaid.intersection(fields) for unsaid in self.unsaid] or [True] * len(self.symbols)
        return np.array(told, bool)[self.symbol]

    def unsaid_of(self, symbol: int) -> frozenset[str]:
        """Return the fields that an operator leaves to their defaults."""
        return self.unsaid[symbol] if self.unsaid else frozenset()

    def named(self, *names: str) -> BoolArray:
        """Return which nodes have one of these names, the parts of a ring counted as what they are parts of."""
        return np.array([name in names for name in self.base_names], bool)[self.symbol]

    @cached_property
    def base_names(self) -> tuple[str, ...]:
        """The name of each symbol, the parts of a ring counted as what they are parts of."""
        return tuple(base_name(symbol) for symbol in self.symbols)

    def column(self, name: str) -> Int64Array:
        """Return an integer field of the operators, per node."""
        return np.array([int(getattr(symbol, name)) for symbol in self.symbols], np.int64)[self.symbol]

    @cached_property
    def worked_out(self) -> dict[Callable[[GraphView], Any], Any]:
        """What :func:`once` keeps: function → what it found."""
        return {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Distinct base names; :attr:`name` points into it."""
        return tuple(dict.fromkeys(base_name(symbol) for symbol in self.symbols))

    @cached_property
    def name(self) -> Int64Array:
        """Per node, the index of its base name in :attr:`names`."""
        number = {name: at for at, name in enumerate(self.names)}
        return np.array([number[base_name(symbol)] for symbol in self.symbols], np.int64)[self.symbol]

    @cached_property
    def size(self) -> Int64Array:
        """Ranks of each node."""
        return np.bincount(self.member_node, minlength=len(self)).astype(np.int64)

    @cached_property
    def rank(self) -> Int64Array:
        """Lowest rank of each node; −1 where it has none."""
        found = np.full(len(self), np.iinfo(np.int64).max, np.int64)
        np.minimum.at(found, self.member_node, self.member_rank)
        return np.where(self.size > 0, found, -1)

    @cached_property
    def num_ranks(self) -> int:
        """One more than the highest rank."""
        return int(self.member_rank.max(initial=-1)) + 1

    @cached_property
    def _member_keys(self) -> Int64Array:
        return np.sort(self.member_node * self.num_ranks + self.member_rank)

    def takes_part(self, node: Int64Array, rank: Int64Array) -> BoolArray:
        """Return for pairs of nodes and ranks whether the rank is a member of the node."""
        if not len(self._member_keys):
            return np.zeros(len(node), bool)
        keys = node * self.num_ranks + rank
        at = np.minimum(np.searchsorted(self._member_keys, keys), len(self._member_keys) - 1)
        found: BoolArray = (self._member_keys[at] == keys) & (rank >= 0)
        return found

    @cached_property
    def members(self) -> tuple[Int64Array, Int64Array]:
        """CSR of memberships: (offsets of shape (nodes + 1,), ranks ascending)."""
        order = np.lexsort((self.member_rank, self.member_node))
        return np.concatenate(([0], np.cumsum(self.size))), self.member_rank[order]

    @cached_property
    def rows(self) -> tuple[Int64Array, Int64Array]:
        """Edges as ranks see them: (edge, rank).

        An edge from one rank's operator to a node has that operator's rank, whether or not the node lists it; an edge
        between two nodes of many ranks is one row per common rank.
        """
        single = ~self.mask(lambda symbol: symbol.op in COLLECTIVE_OPS)
        single_source, single_target = single[self.source], single[self.target]
        edge = np.arange(len(self.source))
        alone = single_source | single_target
        rank = np.where(single_source, self.rank[self.source], self.rank[self.target])
        many = edge[~alone]
        offsets, ranks = self.members
        counts = self.size[self.source[many]]
        repeated = np.repeat(many, counts)
        inside = np.arange(len(repeated)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(offsets[self.source[many]], counts) + inside
        shared = self.takes_part(self.target[repeated], ranks[at])
        return (
            np.concatenate((edge[alone], repeated[shared])),
            np.concatenate((rank[alone], ranks[at][shared])),
        )

    @cached_property
    def within_step(self) -> BoolArray:
        """Per edge, whether both ends are of one step."""
        same: BoolArray = self.step[self.source] == self.step[self.target]
        return same

    def of_steps(self, test: Callable[[Step], bool]) -> BoolArray:
        """Return which nodes are of steps for which ``test`` holds."""
        return np.array([test(step) for step in self.steps], bool)[self.step]

    def shows(self, stage: int) -> bool:
        """Return whether the graph should have a stage's operators."""
        return self.shown is None or stage in self.shown

    def shows_each(self, stage: Int64Array) -> BoolArray:
        """Return :meth:`shows` of many stages."""
        return np.ones(len(stage), bool) if self.shown is None else np.isin(stage, self.shown)

    def num_shown(self, pp: int) -> int:
        """Return how many of so many stages the graph should have."""
        return pp if self.shown is None else sum(stage < pp for stage in self.shown)

    def local(self, rank: Int64Array) -> Int64Array:
        """Return the number of a rank within its stage."""
        return rank % self.plan.stage_ranks if self.plan is not None else rank

    def s_of(self, rank: Int64Array) -> Int64Array:
        """Return the SP coordinate of ranks."""
        return self.local(rank) // (self.plan.tp if self.plan is not None else 1)

    def replica_of(self, rank: Int64Array) -> Int64Array:
        """Return the replica of ranks."""
        return rank // self.plan.replica_ranks if self.plan is not None else rank * 0


def once(function: Callable[[GraphView], T]) -> Callable[[GraphView], T]:
    """Let a function of a view alone work once for each: several rules ask, and a view never changes.

    What it returns is shared: nobody may change an array of it.
    """

    @wraps(function)
    def found(view: GraphView) -> T:
        if function not in view.worked_out:
            view.worked_out[function] = function(view)
        kept: T = view.worked_out[function]
        return kept

    return found


def base_name(node: Node) -> str:
    """Return the name of an operator; a ring's ``attention_prefill_2`` is an ``attention_prefill``."""
    return node.op if node.op == "attention_prefill" else node.name
