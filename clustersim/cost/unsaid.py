"""What an engine decides where a scenario does not say it: scheduler, budgets, blocks, and the share of memory.

::

    defaults:
    - {max_batch_requests: 256, max_batch_tokens: 2048, kv_block_tokens: 16, memory_utilization: 0.9}
    - {where: {memory: 70 GiB}, max_batch_requests: 1024, max_batch_tokens: 8192}
    - {where: {device: a100}, max_batch_requests: 256}

Of the entries that hold, the later one decides. ``where`` asks for a device with at least so much memory, or whose
name begins so; for a model whose longest sequence has at least so many tokens (``positions``); for one of two pools.
``max_batch_tokens: longest`` is the longest sequence of the model. ``memory_utilization`` may be what is left beside a
``reserve``, as SGLang works it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from clustersim import units
from clustersim.cluster.device import Device
from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.values import dataclass

LONGEST: Final = "longest"
SCHEDULERS: Final = ("static", "continuous", "chunked_prefill")
POOLS: Final = ("prefill", "decode")
PREEMPTIONS: Final = ("recompute", "never")
ADMISSIONS: Final = ("whole_prompt", "first_chunk")
MOST: Final = 1_000_000_000
MOST_BYTES: Final = 1e15
"""Largest budget (as in scenarios)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Bytes that an engine keeps free of weights and K/V, rounded to a share of memory with three digits.

    Parameters
    ----------
    fixed_bytes, per_token_bytes, per_captured_bytes, per_rank_bytes : float
        And for each token of the largest step (at least ``least_tokens``), for each sequence of the largest captured
        graph, and for each rank of a replica.
    least_tokens : int
    least_bytes : float
        No less than this in all.
    """

    fixed_bytes: float = 0.0
    per_token_bytes: float = 0.0
    least_tokens: int = 0
    per_captured_bytes: float = 0.0
    per_rank_bytes: float = 0.0
    least_bytes: float = 0.0

    def share(self, memory_bytes: float, *, tokens: int, captured: int, ranks: int) -> float:
        """Return the share of memory that is left, at least 0.001."""
        kept = self.fixed_bytes + self.per_token_bytes * max(tokens, self.least_tokens)
        kept = max(kept + self.per_captured_bytes * captured + self.per_rank_bytes * ranks, self.least_bytes)
        return max(0.001, round((memory_bytes - kept) / memory_bytes, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an engine looks at when it decides: the device of a rank, the model's longest sequence, pool and ranks."""

    device: Device
    positions: int | None = None
    pool: str | None = None
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Values that hold where all of ``where`` does."""

    values: Mapping[str, Any]
    where: Mapping[str, Any] = field(default_factory=dict)

    def holds(self, place: Place) -> bool:
        """Tell whether it holds in a place."""
        tests: dict[str, Callable[[Any], bool]] = {
            "memory": lambda least: place.device.memory_bytes >= least,
            "device": place.device.name.startswith,
            "positions": lambda least: (place.positions or 0) >= least,
            "pool": lambda name: place.pool == name,
        }
        return all(tests[key](value) for key, value in self.where.items())


def decided(entries: tuple[Entry, ...], said: Mapping[str, Any], place: Place, captured: int) -> dict[str, Any]:
    """Return what is not said and an engine decides, by key of ``serving``; ``captured`` is its largest graph.

    By default no more requests are taken up than a step has tokens, and where preempted sequences are swapped
    prefixes are not cached, which is not simulated together. First chunks admit only where there are some, and where
    preemption is by recomputation.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        if entry.holds(place):
            found |= entry.values
    found = {key: value for key, value in found.items() if said.get(key) is None}
    if found.get("max_batch_tokens") == LONGEST:
        found["max_batch_tokens"] = place.positions
    if said.get("preemption") == "swap":
        found.pop("prefix_caching", None)
    if said.get("preemption") in ("swap", "never") or said.get("scheduler") not in (None, "chunked_prefill"):
        found.pop("admission", None)
    tokens = found.get("max_batch_tokens") or said.get("max_batch_tokens")
    if tokens and found.get("max_batch_requests"):
        found["max_batch_requests"] = min(found["max_batch_requests"], tokens)
    share = found.get("memory_utilization")
    if isinstance(share, Reserve):
        memory = place.device.memory_bytes
        found["memory_utilization"] = share.share(memory, tokens=tokens or 0, captured=captured, ranks=place.ranks)
    return {key: value for key, value in found.items() if value is not None}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"expected a whole number from 1 to {MOST:,}, but found {value!r}")
    return value


def _tokens(value: object) -> int | str:
    return LONGEST if value == LONGEST else _count(value)


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, but found {value!r}")
    return value


def _name(value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"expected one of {', '.join(known)}, but found {value!r}{hint}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected how the name of a device begins, such as a100, but found {value!r}")
    return value


def share_from(value: object) -> float:
    """Read a share of memory, above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"expected a share above 0 and at most 1, but found {value!r}")
    return float(value)


def bytes_from(value: object) -> float:
    """Read a number of bytes, with its unit."""
    found = units.parse(value, "bytes")
    if found < 0:
        raise ValueError(f"expected at least 0 B, but found {value!r}")
    if found > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES:g} B, but found {value!r}")
    return found


_RESERVE: Final = {
    "fixed": ("fixed_bytes", bytes_from),
    "per_token": ("per_token_bytes", bytes_from),
    "least_tokens": ("least_tokens", _count),
    "per_captured_sequence": ("per_captured_bytes", bytes_from),
    "per_rank": ("per_rank_bytes", bytes_from),
    "at_least": ("least_bytes", bytes_from),
}


def _utilization(value: object) -> float | Reserve:
    if not isinstance(value, dict):
        return share_from(value)
    read = {key: of for key, (_, of) in _RESERVE.items()}
    problems, found = mapping_from(value, read)
    if problems:
        raise InputError(problems)
    return Reserve(**{_RESERVE[key][0]: one for key, one in found.items()})


VALUES: Final[Mapping[str, Any]] = {
    "scheduler": lambda value: _name(value, SCHEDULERS),
    "max_batch_requests": _count,
    "max_batch_tokens": _tokens,
    "kv_block_tokens": _count,
    "prefix_caching": _switch,
    "memory_utilization": _utilization,
    "preemption": lambda value: _name(value, PREEMPTIONS),
    "admission": lambda value: _name(value, ADMISSIONS),
}
"""Key of ``serving`` that an engine may decide → how its value is read."""
_WHERE: Final[Mapping[str, Any]] = {
    "memory": bytes_from,
    "device": _text,
    "positions": _count,
    "pool": lambda value: _name(value, POOLS),
}


def mapping_from(value: object, known: Mapping[str, Any], where: str = "") -> tuple[list[Problem], dict[str, Any]]:
    """Read a mapping whose keys are known, each by its reader; return what is wrong, placed, and what is not."""
    if not isinstance(value, dict):
        return [Problem(message=f"expected a mapping, but found {value!r}", path=where)], {}
    problems, found = [], {}
    for key, one in value.items():
        path = f"{where}.{key}" if where else f".{key}"
        if key not in known:
            problems.append(Problem(message=f"unknown key{did_you_mean(str(key), list(known))}", path=path))
            continue
        try:
            found[key] = known[key](one)
        except InputError as error:
            problems += [Problem(message=inner.message, path=path + inner.path) for inner in error.problems]
        except ValueError as error:
            problems.append(Problem(message=str(error), path=path))
    return problems, found


def entries_from(value: object) -> tuple[Entry, ...]:
    """Read ``defaults`` of an engine.

    Raises
    ------
    InputError
        With every problem; paths begin below the key, such as ``[1].where.memory``.
    ValueError
        Unless it is a list.
    """
    if not isinstance(value, list):
        raise ValueError(f"expected a list of mappings, but found {value!r}")
    problems: list[Problem] = []
    entries = []
    for place, one in enumerate(value):
        at = f"[{place}]"
        where = one.get("where", {}) if isinstance(one, dict) else {}
        rest = {key: inner for key, inner in one.items() if key != "where"} if isinstance(one, dict) else one
        wrong, values = mapping_from(rest, VALUES, at)
        also, conditions = mapping_from(where, _WHERE, f"{at}.where")
        problems += [*wrong, *also]
        entries.append(Entry(values=values, where=conditions))
    if problems:
        raise InputError(problems)
    return tuple(entries)
