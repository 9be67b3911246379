"""The first thing in which two timelines differ, in words: a decision, a step, a chunk, an episode, or operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clustersim.timeline.digest import EPISODE_ORDER, digest_parts
from clustersim.timeline.soundness import FACTS
from clustersim.timeline.steps import Steps, steps_of
from clustersim.timeline.tables import CHUNK_COLUMNS, FACT_COLUMNS, Table, Tables

_FACT_ORDER: Final = ("time_ns", *(name for name in FACT_COLUMNS if name != "time_ns"))


def first_difference(one: Tables, other: Tables) -> str | None:
    """Return the first difference of two timelines in words; None where their canonical forms are equal.

    Parameters
    ----------
    one, other : Tables
        Called "this one" and "the other" in the answer.
    """
    parts = [dict(digest_parts(tables)) for tables in (one, other)]
    differing = [name for name in dict.fromkeys((*parts[0], *parts[1])) if parts[0].get(name) != parts[1].get(name)]
    if not differing:
        return None
    found = _first_row("fact", one.facts, other.facts, _FACT_ORDER) or _first_step(one, other)
    found = found or _first_row("chunk", one.chunks, other.chunks, tuple(CHUNK_COLUMNS))
    return found or _first_row("episode", one.decodes, other.decodes, EPISODE_ORDER) or _operators(one, differing[0])


def _first_row(word: str, one: Table, other: Table, columns: Sequence[str]) -> str | None:
    """Return the first rows that differ, in the order of the columns."""
    tables = []
    for table in (one, other):
        rows = np.stack([table[name].astype(np.int64) for name in columns], axis=1)
        tables.append(rows[np.lexsort(rows.T[::-1])])
    at = _first_unequal(*tables)
    if at == len(tables[0]) == len(tables[1]):
        return None
    words = [_row_words(columns, rows[at].tolist()) if at < len(rows) else f"no such {word}" for rows in tables]
    return f"the first {word} that differs: here {words[0]}; there {words[1]}"


def _first_unequal(one: Any, other: Any) -> int:
    length = min(len(one), len(other))
    unequal = one[:length] != other[:length]
    rows = np.flatnonzero(unequal.any(axis=1) if unequal.ndim > 1 else unequal)
    return int(rows[0]) if len(rows) else length


def _row_words(columns: Sequence[str], values: Sequence[int]) -> str:
    pairs = zip(columns, values, strict=True)
    return ", ".join(f"{name} {FACTS[value] if name == 'kind' else f'{value:,}'}" for name, value in pairs)


def _first_step(one: Tables, other: Tables) -> str | None:
    """Return the first step that ends at another time."""
    steps = [steps_of(tables) for tables in (one, other)]
    for replica in range(max(len(found.base) for found in steps)):
        ends = [_ends_of(found, replica) for found in steps]
        step = _first_unequal(*ends)
        if not step == len(ends[0]) == len(ends[1]):
            words = [f"ends at {found[step]:,} ns" if step < len(found) else "is not there" for found in ends]
            return (
                f"the first step that differs: step {step:,} of replica {replica} {words[0]} here and {words[1]} there"
            )
    return None


def _ends_of(steps: Steps, replica: int) -> Any:
    bounds = np.append(steps.base, len(steps.end_ns))
    return steps.end_ns[bounds[replica] : bounds[replica + 1]] if replica < len(steps.base) else steps.end_ns[:0]


def _operators(one: Tables, part: str) -> str:
    """Return what differs inside steps that begin and end at the same times."""
    word, _, number = part.partition(" ")
    if number and int(number) < len(one.templates):
        template = one.templates[int(number)]
        return f"all steps are equal; {word} of operators in {template.kind} steps of stage {template.stage} differ"
    return f"all steps are equal; their {word} differ"
