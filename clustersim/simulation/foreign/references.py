"""Whether tables from elsewhere fit each other: every step, request and operator that a row names is there, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from clustersim.errors import Problem
from clustersim.graph.blueprint import COLLECTIVE_OPS, OPS
from clustersim.graph.vocabulary import MODULES, kind_of, module_of
from clustersim.simulation.foreign.table import ForeignTable

Tables = Mapping[str, ForeignTable]

KEYS: Final = {
    "steps": ("replica", "step"),
    "requests": ("request",),
    "held": ("replica", "block", "request", "taken_ns"),
}
"""Table → the columns that make a row unique."""
SPREAD: Final = ("dispatch", "combine", "kv_move")
"""Operators that are collectives of one kind or another, as the plan has it."""
NAMES_STEPS: Final = ("chunks", "decodes", "routes")
NAMES_REQUESTS: Final = ("facts", "chunks", "decodes", "routes", "held")


def problems_of(tables: Tables) -> Iterator[Problem]:
    """Yield what does not fit, the first row of each kind."""
    for name in KEYS:
        if name in tables:
            yield from _twice(tables[name])
    yield from _replicas(tables)
    for name in NAMES_STEPS:
        if name in tables and "steps" in tables:
            yield from _unknown(tables[name], tables["steps"], ("replica", "step"))
    for name in NAMES_REQUESTS:
        if name in tables and "requests" in tables:
            yield from _unknown(tables[name], tables["requests"], ("request",))
    yield from _slots(tables)
    yield from _sampled(tables)
    if "spans" in tables:
        yield from _needs(tables["spans"])
        yield from _kinds(tables["spans"])
        yield from _modules(tables["spans"])
    if "flows" in tables:
        yield from _capacities(tables["flows"])


def _rows(table: ForeignTable, columns: tuple[str, ...]) -> list[Any]:
    return list(zip(*(table.columns[column].tolist() for column in columns), strict=True))


def _named(columns: tuple[str, ...], key: Any) -> str:
    """Return ``step 3 of replica 1``."""
    return " of ".join(f"{column} {value}" for column, value in zip(reversed(columns), reversed(key), strict=True))


def _twice(table: ForeignTable) -> Iterator[Problem]:
    columns = KEYS[table.name]
    first: dict[Any, int] = {}
    for row, key in enumerate(_rows(table, columns)):
        if first.setdefault(key, row) != row:
            message = f"found {_named(columns, key)} again, after row {first[key] + 1}; expected it once"
            yield table.problem(row, columns[-1], message)
            return


def _replicas(tables: Tables) -> Iterator[Problem]:
    """A table that does not say on which replica something was can't be told beside one that does."""
    having = [table for table in tables.values() if "replica" in table.columns]
    several = [table for table in having if table.columns["replica"].any()]
    for table in having:
        if several and "replica" not in table.recorded:
            message = f"lacks; expected, as {several[0].path} has replica {several[0].columns['replica'].max()}"
            yield Problem(file=str(table.path), path="replica", message=message)


def _unknown(table: ForeignTable, other: ForeignTable, columns: tuple[str, ...]) -> Iterator[Problem]:
    known = set(_rows(other, columns))
    for row, key in enumerate(_rows(table, columns)):
        if key not in known:
            message = f"found {_named(columns, key)}, which {other.path} does not have; expected one of its rows"
            yield table.problem(row, columns[-1], message)
            return


def _slots(tables: Tables) -> Iterator[Problem]:
    """Every decode is in the micro-batch of its step."""
    decodes, steps = tables.get("decodes"), tables.get("steps")
    if decodes is None or steps is None:
        return
    slots: dict[Any, int] = {}
    told, column = (steps, "step") if "slot" in steps.recorded else (decodes, "slot")
    for key, slot in zip(_rows(told, ("replica", "step")), told.columns["slot"].tolist(), strict=True):
        slots.setdefault(key, slot)
    own = decodes.columns["slot"].tolist() if "slot" in decodes.recorded else None
    for row, key in enumerate(_rows(decodes, ("replica", "step"))):
        slot = slots.get(key, -1)
        if slot < 0:
            message = f"found {_named(('replica', 'step'), key)}, whose slot is none; expected a step with decodes"
            yield decodes.problem(row, column, message)
            return
        if own is not None and own[row] != slot:
            message = f"found {own[row]}; expected {slot}, the slot of {_named(('replica', 'step'), key)}"
            yield decodes.problem(row, "slot", message)
            return


def _sampled(tables: Tables) -> Iterator[Problem]:
    """Where lengths are known, which chunk gave a token matters."""
    chunks = tables.get("chunks")
    if chunks is not None and "requests" in tables and "sampled" not in chunks.recorded:
        message = "lacks; expected beside a table of requests: 1 where the chunk gave a token, else 0"
        yield Problem(file=str(chunks.path), path="sampled", message=message)


def _needs(spans: ForeignTable) -> Iterator[Problem]:
    if "after" not in spans.recorded:
        return
    if "id" not in spans.recorded:
        yield Problem(file=str(spans.path), path="id", message="lacks; expected beside after, which names ids")
        return
    first: dict[str, int] = {}
    for row, name in enumerate(spans.columns["id"].tolist()):
        if name and first.setdefault(name, row) != row:
            yield spans.problem(row, "id", f"found {name!r} again, after row {first[name] + 1}; expected each id once")
            return
        if " " in name:
            yield spans.problem(row, "id", f"found {name!r}; expected an id without spaces")
            return
    for row, text in enumerate(spans.columns["after"].tolist()):
        for name in text.split():
            if name not in first:
                yield spans.problem(row, "after", f"found {name!r}; expected ids of this table, separated by spaces")
                return


def _kinds(spans: ForeignTable) -> Iterator[Problem]:
    """An operator is of the kind that its name says, where both are words of step graphs."""
    if not {"name", "op"} <= spans.recorded:
        return
    for row, (name, op) in enumerate(zip(spans.columns["name"].tolist(), spans.columns["op"].tolist(), strict=True)):
        kind = kind_of(name)
        spread = name in SPREAD and op in COLLECTIVE_OPS
        if op in OPS and kind is not None and op != kind and not spread:
            yield spans.problem(row, "op", f"found {op!r}; expected {kind!r}, as {name} is (or words of your own)")
            return


def _modules(spans: ForeignTable) -> Iterator[Problem]:
    """An operator is in the module that its name says, where both are words of step graphs."""
    if not {"name", "module"} <= spans.recorded:
        return
    told = list(zip(spans.columns["name"].tolist(), spans.columns["module"].tolist(), strict=True))
    due = {name: module_of(name) for name, _ in dict.fromkeys(told)}
    for row, (name, module) in enumerate(told):
        if module in MODULES and due[name] not in (None, module):
            message = f"found {module!r}; expected {due[name]!r}, where {name} is (or words of your own)"
            yield spans.problem(row, "module", message)
            return


def _capacities(flows: ForeignTable) -> Iterator[Problem]:
    link, capacity = flows.columns["link"], flows.columns["capacity"]
    _, first, link_of = np.unique(link, return_index=True, return_inverse=True)
    for row in np.flatnonzero(capacity != capacity[first][link_of.reshape(-1)])[:1].tolist():
        told = capacity[first][link_of.reshape(-1)][row]
        message = f"found {capacity[row]:g}; expected {told:g}, as in the first row of link {link[row]}"
        yield flows.problem(row, "capacity", message)
