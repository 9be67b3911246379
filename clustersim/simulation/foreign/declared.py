"""What ``--given`` declares about tables from elsewhere: the plan, and what serving was sized for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clustersim.errors import InputError, Problem, did_you_mean
from clustersim.legality.history import Declared

DEGREES: Final = ("tp", "sp", "pp", "dp")
"""The axes of the mesh, from the one that varies fastest."""
AMOUNT: Final = 1 << 40
NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    **dict.fromkeys((*DEGREES, "ep"), (1, 1 << 12)),
    "block_tokens": (1, AMOUNT),
    "pool_blocks": (0, AMOUNT),
    "max_batch_tokens": (1, AMOUNT),
    "max_batch_requests": (1, AMOUNT),
    "top_k": (1, AMOUNT),
    "hidden_bytes": (1, AMOUNT),
    "horizon_ns": (0, (1 << 62) - 1),
}
"""Whole numbers that can be declared: from, to."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sp_scheme": ("all_gather", "ring", "all_to_all"),
    "sp_decode": ("idle", "dp"),
    "ep_scope": ("replica", "global"),
    "decode_overlap": ("per_sequence", "none"),
    "prefix_caching": ("false", "true"),
}
"""Words that can be declared."""
TRUTH: Final = {"false": False, "true": True}
KEYS: Final = ", ".join([*NUMBERS, *(f"{name} ({' | '.join(words)})" for name, words in WORDS.items())])
"""All that can be declared, as help."""


def declared_in(given: Sequence[str]) -> dict[str, Any]:
    """Return what was declared, as ``NAME=VALUE``.

    Raises
    ------
    InputError
        With every declaration that makes no sense, or is made twice.
    """
    found: dict[str, Any] = {}
    problems = []
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        message = _wrong(name, value) if equals else f"found {text!r}; expected NAME=VALUE, with NAME one of {KEYS}"
        if not message and name in found:
            message = f"{name} is declared twice; declare it once"
        if message:
            problems.append(Problem(path="--given", message=message))
        else:
            found[name] = int(value) if name in NUMBERS else TRUTH.get(value, value)
    if problems:
        raise InputError(problems)
    return found


def _wrong(name: str, value: str) -> str:
    if name in NUMBERS:
        low, high = NUMBERS[name]
        if not re.fullmatch("[0-9]{1,19}", value) or not low <= int(value) <= high:
            return f"{name} must be a whole number, at least {low} and at most {high}; found {value[:40]!r}"
        return ""
    if name in WORDS:
        return "" if value in WORDS[name] else f"{name} must be one of {', '.join(WORDS[name])}; found {value[:40]!r}"
    return f"nothing is called {name!r}{did_you_mean(name, [*NUMBERS, *WORDS])}"


def declared_for(declared: Mapping[str, Any], ranks: int) -> Declared:
    """Return what was declared together with what follows from it for the ranks that were recorded.

    Degrees that were not declared are 1 where those that were account for all ranks, and ``dp`` follows from the
    others. Otherwise nobody knows which rank is where: all count as one stage whose ``mesh`` is not known.

    Parameters
    ----------
    declared : mapping
        As :func:`declared_in` returns it.
    ranks : int
        One more than the highest rank of the spans.

    Raises
    ------
    InputError
        If the degrees make fewer ranks than were recorded, or too many replicas.
    """
    whole = {"ep_scope": None, "prefix_caching": None, **declared}
    size = math.prod(declared.get(name, 1) for name in DEGREES)
    inner = math.prod(declared.get(name, 1) for name in ("tp", "sp", "pp"))
    if all(name in declared for name in DEGREES) and ranks > size:
        message = f"tp × sp × pp × dp are {size} ranks, but the spans have rank {ranks - 1}; declare the degrees of all"
        raise InputError(Problem(path="--given", message=message))
    if all(name in declared for name in ("tp", "sp", "pp")):
        replicas = -(-max(ranks, 1) // inner)
        if replicas > NUMBERS["dp"][1]:
            message = f"tp × sp × pp are {inner} ranks, which makes {replicas} replicas of the spans"
            raise InputError(Problem(path="--given", message=f"{message}; expected at most {NUMBERS['dp'][1]}"))
        return Declared(**{"dp": replicas, **whole})
    if ranks <= size:
        return Declared(**whole)
    return Declared(**{**whole, "tp": ranks, "sp": 1, "pp": 1, "dp": 1, "mesh": False})
