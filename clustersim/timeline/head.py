"""``templates.json``: the part of a timeline on disk that is no table, read strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from clustersim import inputs
from clustersim.errors import InputError, Problem, unreadable
from clustersim.graph.blueprint import STEP_KINDS, STREAMS
from clustersim.graph.template import AT_TIMES, PassTemplate, template_from
from clustersim.timeline.layout import Layout, PoolShape

FORMAT: Final = 5
HEAD: Final = "templates.json"
POOL: Final = ("sp", "tp", "stages", "first_replica", "first_rank", "lockstep")
MOST_LAYERS: Final = 1 << 16
MOST_RANKS: Final = 1 << 22
MOST: Final = 1 << 60
"""No time, count or sum of a record reaches this: 36 years in ns."""
_FIELDS: Final = {
    "format": int, "templates": list, "pools": list, "column_sets": list, "irregular_sizes": list,
    "digest": str, "num_spans": int, "num_steps": int,
}  # fmt: skip
_WORDS: Final = {int: "a whole number", str: "a text", list: "a list", dict: "an object", bool: "true or false"}


def read_object(path: Path, types: Mapping[str, type]) -> dict[str, Any]:
    """Read a JSON file that must hold an object with (at least) these values.

    Parameters
    ----------
    path : Path
    types : mapping
        Key → type of its value.

    Raises
    ------
    InputError
        When it can't be read, is no object, or a value is missing or of another type.
    """
    try:
        found = json.loads(inputs.read_text(path, most=inputs.RECORD_BYTES))
    except (ValueError, RecursionError) as error:
        place = (error.lineno, error.colno) if isinstance(error, json.JSONDecodeError) else (None, None)
        message = f"cannot be read as JSON ({unreadable(error)}); expected what `clustersim run` wrote"
        raise InputError(Problem(file=str(path), line=place[0], column=place[1], message=message)) from None
    if not isinstance(found, dict):
        raise InputError(Problem(file=str(path), message=f"found {shown(found)}; expected an object"))
    _refuse_other_types(path, found, types)
    return found


def _refuse_other_types(path: Path, found: Mapping[str, Any], types: Mapping[str, type]) -> None:
    wrong = [
        Problem(file=str(path), path=key, message=f"found {shown(found.get(key))}; expected {_WORDS[of]}")
        for key, of in types.items()
        if type(found.get(key)) is not of
    ]
    if wrong:
        raise InputError(wrong)


def shown(value: Any) -> str:
    """Return a value of JSON as it is written there, cut where it is long."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}…"


class Head:
    """What ``templates.json`` says, once it is known to make sense.

    Parameters
    ----------
    folder : Path
        The folder ``timeline`` of a run directory.

    Raises
    ------
    InputError
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / HEAD
        values = read_object(self.file, {"format": int})
        if values["format"] != FORMAT:
            found = values["format"]
            message = f"was written in format {found}, this version reads {FORMAT}; run the scenario again"
            raise InputError(Problem(file=str(self.file), message=message))
        _refuse_other_types(self.file, values, _FIELDS)
        self.digest: str = values["digest"]
        self.layout = Layout(pools=tuple(self._pools(values["pools"])))
        self.num_spans = self._whole("num_spans", values["num_spans"], 0, MOST)
        self.num_steps = self._whole("num_steps", values["num_steps"], 0, (1 << 31) - 1)
        self.irregular_sizes: list[int] = self._wholes(
            "irregular_sizes", values["irregular_sizes"], -MOST_RANKS, MOST_RANKS
        ).tolist()
        self.templates = tuple(
            self._template(f"templates[{number}]", template) for number, template in enumerate(values["templates"])
        )
        most = max((template.num_classes for template in self.templates), default=0) - 1
        sets = self._ragged("column_sets", values["column_sets"], 0, most)
        self.column_sets = tuple(tuple(columns) for columns in sets)

    def _refuse(self, where: str, message: str) -> NoReturn:
        raise InputError(Problem(file=str(self.file), path=where, message=message))

    def _pools(self, rows: Any) -> Iterator[PoolShape]:
        if not isinstance(rows, list) or not rows:
            self._refuse("pools", f"found {shown(rows)}; expected a list of {', '.join(POOL)} of each pool")
        before = PoolShape(sp=1, tp=1, stages=1)
        for number, row in enumerate(rows):
            where = f"pools[{number}]"
            values = self._wholes(where, row, 0, MOST_RANKS).tolist()
            if len(values) != len(POOL):
                self._refuse(where, f"found {len(values)} numbers; expected {', '.join(POOL)}")
            found = PoolShape(**dict(zip(POOL, values, strict=True)))
            if min(found.sp, found.tp, found.stages, found.lockstep) < 1 or found.stages > 1 << 12:
                self._refuse(where, f"found {shown(row)}; expected sp, tp, stages and lockstep of 1 at least")
            if found.lockstep > 1 and found.stages > 1:
                self._refuse(where, f"found {shown(row)}; expected one stage of replicas in lockstep")
            replicas = found.first_replica - before.first_replica
            if number == 0 and (found.first_replica or found.first_rank):
                self._refuse(where, f"found {shown(row)}; expected the first pool to begin at 0")
            if number and (replicas < 1 or found.first_rank - before.first_rank != replicas * before.replica_ranks):
                self._refuse(where, f"found {shown(row)}; expected a pool that begins where the one before it ends")
            if number and before.lockstep not in (1, replicas):
                self._refuse(f"pools[{number - 1}]", f"found lockstep {before.lockstep}; expected 1 or all {replicas}")
            before = found
            yield found

    def _whole(self, where: str, value: Any, low: int, high: int) -> int:
        return int(self._wholes(where, [value], low, high)[0])

    def _wholes(self, where: str, values: Any, low: int, high: int) -> Any:
        """Return a list of whole numbers from ``low`` to ``high`` as an array."""
        if not isinstance(values, list):
            self._refuse(where, f"found {shown(values)}; expected a list of whole numbers")
        found = np.empty(0, np.int64)
        if values:
            try:
                found = np.array(values)
            except ValueError:  # lists of several lengths
                found = np.array(values, object)
            if found.dtype.kind != "i" or found.ndim != 1:
                odd = next((value for value in values if type(value) is not int or abs(value) > MOST), values)
                self._refuse(where, f"found {shown(odd)}; expected whole numbers from {low:,} to {high:,}")
        bad = np.flatnonzero((found < low) | (found > high))
        if len(bad):
            at = int(bad[0])
            self._refuse(f"{where}[{at}]", f"found {found[at]:,}; expected a whole number from {low:,} to {high:,}")
        return found

    def _ragged(self, where: str, rows: Any, low: int, high: int) -> list[list[int]]:
        """Return lists of whole numbers from ``low`` to ``high``."""
        if not isinstance(rows, list) or not {list}.issuperset(map(type, rows)):
            self._refuse(where, f"found {shown(rows)}; expected a list of lists")
        self._wholes(where, list(chain.from_iterable(rows)), low, high)
        return rows

    def _template(self, where: str, values: Any) -> PassTemplate:
        if not isinstance(values, dict):
            self._refuse(where, f"found {shown(values)}; expected an object")
        names = [field.name for field in fields(PassTemplate)]
        for name in (*names, *values):
            if (name in values) != (name in names) and (name in values or name not in AT_TIMES):
                word = "a value" if name in values else "nothing"
                self._refuse(f"{where}.{name}", f"found {word}; expected {', '.join(names)}")
        for name, value, wanted in self._plain(values):
            if type(value) is not type(wanted[0]) or value not in wanted:
                self._refuse(f"{where}.{name}", f"found {shown(value)}; expected {_either(wanted)}")
        if not _are_symbols(values["symbols"]):
            self._refuse(f"{where}.symbols", "expected a list of name, operator and module, three texts each")
        self._numbers(where, values)
        return template_from(values)

    def _plain(self, values: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[Any, ...] | range]]:
        pools = self.layout.pools
        ranks = tuple(dict.fromkeys(pool.pass_ranks for pool in pools))
        yield "kind", values["kind"], STEP_KINDS
        yield "stage", values["stage"], range(max(pool.stages for pool in pools))
        yield "variant", values["variant"], range(MOST_RANKS)
        yield "ranks", values["ranks"], range(ranks[0], ranks[0] + 1) if len(ranks) == 1 else ranks
        yield "receives", values["receives"], (False, True)

    def _numbers(self, where: str, values: Mapping[str, Any]) -> None:
        """Judge the numbers of a template: each refers to something that it has."""
        classes, instances, nodes = (
            len(values[name]) if isinstance(values[name], list) else 0
            for name in ("class_symbol", "instance_class", "node_instance")
        )
        fitting = [pool.sp * pool.lockstep for pool in self.layout.pools if pool.pass_ranks == values["ranks"]]
        told = len(values["exits"]) if isinstance(values["exits"], list) else 0
        sp = told if told in fitting else max(fitting)  # two pools may have as many ranks, and not the same SP
        ranks, symbols = values["ranks"], len(values["symbols"])
        for name, length, low, high in (
            ("class_symbol", classes, 0, symbols - 1),
            ("instance_class", instances, 0, classes - 1),
            ("instance_stream", instances, 0, len(STREAMS) - 1),
            ("exits", sp, -1, instances - 1),
            ("node_instance", nodes, 0, instances - 1),
            ("node_symbol", nodes, 0, symbols - 1),
            ("node_layer", nodes, -1, MOST_LAYERS),
            ("send_classes", ranks, 0, classes - 1),
        ):
            self._long(f"{where}.{name}", self._wholes(f"{where}.{name}", values[name], low, high), length)
        for name, high in zip(AT_TIMES, (2, classes - 1), strict=True):
            if name in values:
                self._long(f"{where}.{name}", self._wholes(f"{where}.{name}", values[name], 0, high), nodes)
        for name, length, high in (
            ("instance_s", instances, sp - 1),
            ("after", instances, instances - 1),
            ("members", nodes, ranks - 1),
        ):
            rows = self._ragged(f"{where}.{name}", values[name], 0, high)
            self._long(f"{where}.{name}", rows, length)
            empty = next((at for at, row in enumerate(rows) if not row), None)
            if name != "after" and empty is not None:
                self._refuse(f"{where}.{name}[{empty}]", "found an empty list; expected a number at least")
        self._in_order(where, values["after"])
        if not instances or not nodes:
            self._refuse(where, "found no operator; expected one at least")

    def _in_order(self, where: str, after: list[list[int]]) -> None:
        for at, needed in enumerate(after):
            if needed and max(needed) >= at:
                message = f"operator {at} needs operator {max(needed)}; expected operators that come before it only"
                self._refuse(f"{where}.after[{at}]", message)

    def _long(self, where: str, values: Any, length: int) -> None:
        fewer = where.endswith(".send_classes") and len(values) < length  # ranks that idle send nothing
        if len(values) != length and not fewer:
            self._refuse(where, f"found {len(values):,} values; expected {length:,}")


def _are_symbols(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(symbol, list) and len(symbol) == 3 and all(isinstance(word, str) for word in symbol)
        for symbol in values
    )


def _either(choices: tuple[Any, ...] | range) -> str:
    if isinstance(choices, range):
        low, high = choices[0], choices[-1]
        return f"{low}" if low == high else f"a whole number from {low} to {high:,}"
    return " or ".join(shown(choice) for choice in choices)
