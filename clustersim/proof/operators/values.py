"""What nodes hand on: numbers with the rows and columns that they are of. A number that is not there is NaN."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import numpy as np

from clustersim.clock import FloatArray, Int64Array
from clustersim.graph.blueprint import EdgeKind
from clustersim.proof.tokens import BoolArray
from clustersim.values import dataclass

Columns = slice | Int64Array
"""Features that a rank has of a value."""

ALL = slice(None)


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen, as the others below: one is made per node, rank and step
class Dense:
    """One vector per token of the step.

    Parameters
    ----------
    data : float64 array of shape (tokens of the step, whole width)
        NaN but for ``rows`` and ``columns``.
    rows : int64 array
    columns : slice or int64 array
    partial : bool
        Whether each rank has a term of a sum. For messages; nothing is computed from it.
    what : str
        ``hidden`` features, ``router`` logits, or the ``gate`` of shared experts.
    """

    data: FloatArray
    rows: Int64Array
    columns: Columns = field(default_factory=lambda: ALL)
    partial: bool = False
    what: Literal["hidden", "router", "gate"] = "hidden"


@dataclass(slots=True, kw_only=True, eq=False)
class Attended(Dense):
    """The output of attention, with what it takes to go on with further keys.

    Parameters
    ----------
    weight : float64 array of shape (tokens, heads)
        Logarithm of the sum of exponents so far.
    seen : bool array of shape (tokens, slots)
        The keys that each token has attended to.
    """

    weight: FloatArray
    seen: BoolArray


@dataclass(slots=True, kw_only=True, eq=False)
class Keys:
    """Entries of one layer's K/V cache.

    Parameters
    ----------
    entries : float64 array of shape (slots, K/V heads, width of key and value)
    own : bool
        Whether they lie in the rank's own cache; else they were brought by communication.
    queries : float64 array of shape (tokens, heads × width) or None
        Queries that travel with them (scheme ``all_to_all``).
    """

    entries: FloatArray
    own: bool
    queries: FloatArray | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Expanded:
    """Latents expanded to heads.

    Parameters
    ----------
    data : float64 array of shape (slots, heads, width of the key's part and the value)
    turned : float64 array of shape (slots, width)
        The rotary part of the keys that communication brought.
    """

    data: FloatArray
    turned: FloatArray


@dataclass(slots=True, kw_only=True, eq=False)
class Routed:
    """Tokens on their way through experts: one row per (token, expert).

    Parameters
    ----------
    token, expert : int64 arrays of shape (pairs,)
    share : float64 array of shape (pairs,)
        What the expert's output is multiplied with.
    data : float64 array of shape (pairs, width)
    columns, partial
        As in :class:`Dense`.
    """

    token: Int64Array
    expert: Int64Array
    share: FloatArray
    data: FloatArray
    columns: Columns = field(default_factory=lambda: ALL)
    partial: bool = False

    def chosen(self, which: BoolArray | Int64Array) -> Routed:
        """Return some of the pairs."""
        return Routed(
            token=self.token[which], expert=self.expert[which], share=self.share[which], data=self.data[which]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moved:
    """K/V on its way to where decode reads it: layer → slots with entries that arrive, slots that leave."""

    arriving: dict[int, tuple[Int64Array, FloatArray]]
    leaving: dict[int, Int64Array]


@dataclass(slots=True, kw_only=True, eq=False)
class TokenIds:
    """Token ids of a rank's rows; −1 where there is none."""

    ids: Int64Array


Value = Dense | Keys | Expanded | Routed | Moved | TokenIds | None


@dataclass(slots=True, kw_only=True, eq=False)  # not frozen: one is made per edge, rank and step
class Arrival:
    """What one in-edge brought to one rank."""

    kind: EdgeKind
    source: int
    value: Value


def bent(x: FloatArray, cap: float) -> FloatArray:
    """Bend numbers to ±cap: cap · tanh(x / cap), by exponents."""
    found: FloatArray = cap * (1 - 2 / (np.exp(2 * x / cap) + 1))
    return found


def nothing(rows: int, width: int) -> FloatArray:
    """Return numbers that are not there."""
    return np.full((rows, width), np.nan)


def joined(parts: list[FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """Return numbers that lie in several places as one array.

    What is nowhere is NaN, and so is what comes twice and differs: nothing says which of both to take.
    """
    found: FloatArray | None = None
    differ: BoolArray | None = None
    for part in parts:
        if part.shape != shape:
            continue
        if found is None:
            found = part
            continue
        other = (found != part) & ~np.isnan(found) & ~np.isnan(part)
        differ = other if differ is None else differ | other
        found = np.where(np.isnan(found), part, found)
    if found is not None and differ is not None and differ.any():
        found = np.where(differ, np.nan, found)
    return np.full(shape, np.nan) if found is None else found


def routed(parts: list[Routed], width: int) -> Routed:
    """Return the pairs of several places in their order."""
    if not parts:
        none = np.empty(0, np.int64)
        return Routed(token=none, expert=none, share=np.empty(0), data=np.empty((0, width)))
    return Routed(
        token=np.concatenate([part.token for part in parts]),
        expert=np.concatenate([part.expert for part in parts]),
        share=np.concatenate([part.share for part in parts]),
        data=np.concatenate([part.data for part in parts]),
    )


def per_head(x: FloatArray, heads: int) -> FloatArray:
    """Return vectors of shape (rows, heads × width) as (rows, heads, width)."""
    return x.reshape(len(x), heads, x.shape[1] // heads)
