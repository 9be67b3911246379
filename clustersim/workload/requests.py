"""The requests of one run as columns: when each arrives, how long its prompt is, how many tokens it wants.

It holds numbers, not text: what a prompt says is at most a hash per block (for prefix reuse). Requests of one session
are its turns: each is sent when the workload says, and not before the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.column import by_parts
from clustersim.errors import InputError, Problem
from clustersim.values import dataclass
from clustersim.workload.limits import MAX_NS, check_positive, check_whole, check_window, raise_any
from clustersim.workload.prefix_hashes import HashRows, equal_hash_rows, repeat_hash_rows
from clustersim.workload.rounding import divide_rounded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Requests in order of arrival; requests that arrive at one instant keep the order of their source.

    Parameters
    ----------
    arrived_at_ns : Int64Array, shape (n,)
        Instant of arrival, not negative, not decreasing.
    prompt_tokens, output_tokens : Int64Array, shape (n,)
        Lengths, not negative. Who asks for no output token failed where it was recorded, and is rejected.
    prefix_hashes : tuple of Int64Array or None
        Per request, one number per block of ``hash_block_tokens`` prompt tokens from the start of the prompt.
        Two requests share a prefix exactly as far as their numbers agree. The last block may be partial
        (Mooncake) or left out when it is partial (ShareGPT).
    hash_block_tokens : int or None
        Tokens per hashed block; given exactly when ``prefix_hashes`` is.
    concurrency : int or None
        Closed loop: arrivals are ignored, this many requests are in flight, and the next one is released when
        one ends.
    priorities : Int64Array or None, shape (n,)
        How urgent each request is: lower numbers go first, as in vLLM.
    cancel_after_ns : Int64Array or None, shape (n,)
        How long after its arrival the client gives up each request; −1: never.
    sessions : Int64Array or None, shape (n,)
        Which session each request is a turn of, −1: of none. None: turns wait for nobody.
    source : str
        Where the requests come from, for messages and reports.

    Notes
    -----
    The arrays are read-only int64; what is given otherwise is copied.

    Raises
    ------
    InputError
        With every reason for which the columns make no sense.
    """

    arrived_at_ns: Int64Array
    prompt_tokens: Int64Array
    output_tokens: Int64Array
    prefix_hashes: HashRows | None = None
    hash_block_tokens: int | None = None
    concurrency: int | None = None
    priorities: Int64Array | None = None
    cancel_after_ns: Int64Array | None = None
    sessions: Int64Array | None = None
    source: str

    def __post_init__(self) -> None:
        for name in _COLUMNS:
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        for name in _OPTIONAL:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        if self.prefix_hashes is not None:
            hashes = tuple(_frozen("prefix_hashes", row) for row in self.prefix_hashes)
            object.__setattr__(self, "prefix_hashes", hashes)
        raise_any(_problems(self))

    def __len__(self) -> int:
        return self.arrived_at_ns.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Requests):
            return NotImplemented
        plain = all(getattr(self, name) == getattr(other, name) for name in _PLAIN)
        return (
            plain
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS)
            and all(_equal(getattr(self, name), getattr(other, name)) for name in _OPTIONAL)
            and equal_hash_rows(self.prefix_hashes, other.prefix_hashes)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no cheap hash

    @property
    def span_ns(self) -> int:
        """Nanoseconds from the first arrival to the last; 0 when there is none."""
        return int(self.arrived_at_ns[-1] - self.arrived_at_ns[0]) if len(self) else 0

    @property
    def follows(self) -> Int64Array | None:
        """Per request, the turn before it in its session, −1 where it waits for none; None where turns don't wait."""
        if self.sessions is None:
            return None
        order = np.argsort(self.sessions, kind="stable")
        same = (self.sessions[order][1:] == self.sessions[order][:-1]) & (self.sessions[order][1:] >= 0)
        found = np.full(len(self), -1, np.int64)
        found[order[1:][same]] = order[:-1][same]
        return found

    def take(self, num_requests: int, path: str = "requests") -> Requests:
        """Return the first ``num_requests`` requests, which ``path`` asks for.

        Raises
        ------
        InputError
            When there are fewer; the message says how many there are.
        """
        problems = check_whole(path, num_requests, low=0, high=MAX_NS)
        if not problems and num_requests > len(self):
            only = f"{self.source} has only {len(self)}"
            expected = f"expected at most {len(self)}" + (", or a trace that is repeated" if path == "requests" else "")
            message = f"asked for {num_requests} requests, but {only}; {expected}"
            problems = [Problem(path=path, message=message)]
        raise_any(problems)
        return _slice(self, 0, num_requests, shift_ns=0)

    def window(self, start_ns: int, end_ns: int) -> Requests:
        """Return the requests that arrive in ``[start_ns, end_ns)`` after the first one.

        The first request that remains arrives at 0: a run starts with its first request.
        """
        raise_any(check_window(start_ns, end_ns))
        if not len(self):
            return self
        since_first = self.arrived_at_ns - self.arrived_at_ns[0]
        first, last = np.searchsorted(since_first, [start_ns, min(end_ns, MAX_NS)]).tolist()
        shift_ns = int(self.arrived_at_ns[first]) if first < last else 0
        return _slice(self, first, last, shift_ns=shift_ns)

    def scaled(self, rate_scale: float) -> Requests:
        """Return the requests at ``rate_scale`` times the rate: 2.0 halves every instant.

        Instants are divided exactly and rounded to the nearest nanosecond, half to even. The scale counts as
        the decimal number that was written: 1.1 is 11/10, not its binary neighbour.
        """
        raise_any(check_positive("rate_scale", rate_scale))
        arrived_at_ns = divide_rounded(self.arrived_at_ns, Fraction(repr(float(rate_scale))))
        return replace(self, arrived_at_ns=arrived_at_ns)

    @property
    def period_ns(self) -> int:
        """Nanoseconds from the first request to that of the next repetition; see :meth:`repeat_to`."""
        return self.span_ns + round(Fraction(self.span_ns, max(len(self) - 1, 1)))

    def repeat_to(self, num_requests: int) -> Requests:
        """Repeat these requests end to end until there are ``num_requests``.

        A repetition starts one mean gap, span / (n - 1), after the last request of the one before: the mean
        rate stays. It is new traffic of the same kind, of sessions of its own: prompts share blocks within a
        repetition as they did in the first, and none across repetitions (otherwise all prompts of a repetition
        would be cached).
        Hashes are renumbered 0, 1, … in ascending order for this; a trace numbered so keeps its numbers.
        """
        if num_requests <= len(self):
            return self.take(num_requests)
        if not len(self):
            raise InputError(Problem(path="requests", message=f"{self.source} has no requests to repeat"))
        period_ns = self.period_ns
        copies = -(-num_requests // len(self))
        if int(self.arrived_at_ns[-1]) + (copies - 1) * period_ns > MAX_NS:
            message = f"{num_requests} requests at the rate of {self.source} last longer than 292 years"
            raise InputError(Problem(path="requests", message=message))
        hashes, sessions = self.prefix_hashes, self.sessions
        most = 0 if sessions is None else int(sessions.max()) + 1
        changes: dict[str, Callable[[Int64Array, Int64Array], Int64Array]] = {
            "arrived_at_ns": lambda column, copy: column + copy * period_ns,
            "sessions": lambda column, copy: np.where(column < 0, column, column + copy * most),
        }

        def repeated(name: str, some: slice) -> Int64Array:
            copy, place = np.divmod(np.arange(some.start, some.stop, dtype=np.int64), len(self))
            column: Int64Array = getattr(self, name)[place]
            return changes[name](column, copy) if name in changes else column

        columns: dict[str, Any] = {
            name: by_parts(np.int64, num_requests, partial(repeated, name))
            for name in (*_COLUMNS, *_OPTIONAL)
            if getattr(self, name) is not None
        }
        rows = None if hashes is None else repeat_hash_rows(hashes, num_requests)
        return replace(self, prefix_hashes=rows, **columns)


_COLUMNS = ("arrived_at_ns", "prompt_tokens", "output_tokens")
_OPTIONAL = ("priorities", "cancel_after_ns", "sessions")
_PLAIN = ("hash_block_tokens", "concurrency", "source")


def requests_in_order(
    *,
    arrived_at_ns: Int64Array,
    prompt_tokens: Int64Array,
    output_tokens: Int64Array,
    prefix_hashes: Sequence[Int64Array] | None = None,
    hash_block_tokens: int | None = None,
    priorities: Int64Array | None = None,
    cancel_after_ns: Int64Array | None = None,
    sessions: Int64Array | None = None,
    source: str,
) -> Requests:
    """Sort recorded columns by arrival (stable) and let the first request arrive at 0."""
    order = np.argsort(arrived_at_ns, kind="stable")
    arrived = arrived_at_ns[order]
    return Requests(
        arrived_at_ns=arrived - arrived[:1],
        prompt_tokens=prompt_tokens[order],
        output_tokens=output_tokens[order],
        prefix_hashes=None if prefix_hashes is None else tuple(prefix_hashes[i] for i in order.tolist()),
        hash_block_tokens=hash_block_tokens,
        priorities=None if priorities is None else priorities[order],
        cancel_after_ns=None if cancel_after_ns is None else cancel_after_ns[order],
        sessions=None if sessions is None else sessions[order],
        source=source,
    )


def _optional(requests: Requests, change: Callable[[Int64Array], Int64Array]) -> dict[str, Any]:
    """Return the optional columns that are there, each changed."""
    columns = {name: getattr(requests, name) for name in _OPTIONAL}
    return {name: change(column) for name, column in columns.items() if column is not None}


def _equal(mine: Int64Array | None, other: Int64Array | None) -> bool:
    return mine is other if mine is None or other is None else np.array_equal(mine, other)


def _frozen(name: str, values: npt.ArrayLike) -> Int64Array:
    array = np.asarray(values)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or array.size == 0):
        message = f"found shape {array.shape} of {array.dtype}; expected a one-dimensional array of integers"
        raise InputError(Problem(path=name, message=message))
    if array.dtype == np.int64 and not array.flags.writeable:
        return array
    if array.dtype.kind == "u" and array.size and int(array.max()) > MAX_NS:
        raise InputError(Problem(path=name, message=f"found {array.max()}; expected numbers below 2**63"))
    copy = array.astype(np.int64)
    copy.flags.writeable = False
    return copy


def _problems(requests: Requests) -> list[Problem]:
    sizes = {name: getattr(requests, name).size for name in _COLUMNS}
    sizes |= {name: column.size for name, column in _optional(requests, lambda column: column).items()}
    if requests.prefix_hashes is not None:
        sizes["prefix_hashes"] = len(requests.prefix_hashes)
    found: list[tuple[str, str]] = []
    if len(set(sizes.values())) > 1:
        found.append(("", "columns of unequal length: " + ", ".join(f"{k} {v}" for k, v in sizes.items())))
    for name in _COLUMNS:
        negative = np.flatnonzero(getattr(requests, name) < 0)
        if negative.size:
            at = int(negative[0])
            found.append((name, f"found {getattr(requests, name)[at]} at index {at}; expected 0 or more"))
    for name, column in _optional(requests, lambda column: column).items():
        low = 0 if name == "priorities" else -1
        below = np.flatnonzero(column < low)
        if below.size:
            found.append((name, f"found {column[below[0]]} at index {below[0]}; expected {low} or more"))
    late = np.flatnonzero(requests.arrived_at_ns[1:] < requests.arrived_at_ns[:-1])
    if late.size:
        found.append(("arrived_at_ns", f"request {int(late[0]) + 1} arrives before request {int(late[0])}"))
    if (requests.prefix_hashes is None) != (requests.hash_block_tokens is None):
        message = "prefix_hashes and hash_block_tokens are given together or not at all"
        found.append(("hash_block_tokens", message))
    problems = [Problem(path=path, message=message) for path, message in found]
    for name in ("hash_block_tokens", "concurrency"):
        if getattr(requests, name) is not None:
            problems += check_whole(name, getattr(requests, name), low=1)
    return problems


def _slice(requests: Requests, first: int, last: int, *, shift_ns: int) -> Requests:
    hashes = requests.prefix_hashes
    return replace(
        requests,
        arrived_at_ns=requests.arrived_at_ns[first:last] - shift_ns,
        prompt_tokens=requests.prompt_tokens[first:last],
        output_tokens=requests.output_tokens[first:last],
        prefix_hashes=None if hashes is None else hashes[first:last],
        **_optional(requests, lambda column: column[first:last]),
    )
