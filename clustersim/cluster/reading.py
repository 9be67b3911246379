"""Reads the keys of one YAML mapping and gathers every problem instead of stopping at the first.

A value that cannot be used is noted and replaced by a harmless stand-in, so that reading can go on; whoever
holds the list of problems raises one :class:`~clustersim.errors.InputError` at the end.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from clustersim.errors import Problem, did_you_mean
from clustersim.units import UnitError, parse

_FINITE: Final = sys.float_info.max
_LONGEST_S: Final = 10.0
"""Of a latency (assumed: a link over geostationary satellites has 0.3 s)."""
_MOST: Final = {"bytes": 1e15, "bandwidth": 1e17, "flops": 1e19, "power": 1e6, "price": 1e6}
"""In base units (assumed: some times beyond the largest that there is, a wafer's memory at 21 PB/s, 125 PFLOP/s)."""
MOST_OVERSUBSCRIBED: Final = 1000.0
"""Of a fabric (assumed; a hundred is a very lean one)."""
_MOST_COUNT: Final = 1_000_000
"""Of nodes, devices, links and switches of one kind (assumed: ten times beyond the largest cluster)."""
_LEAST: Final = {"bytes": (1e6, "1 MB"), "bandwidth": (1e3, "1 kB/s"), "flops": (1e6, "1 MFLOP/s")}
"""Dimensions of which there is nothing smaller (assumed): what is slower works no more."""


class Reader:
    """The keys of one mapping that were asked for, and what was wrong with their values.

    Parameters
    ----------
    document : Mapping
        The mapping after YAML parsing; quantities are still text with units.
    problems : list of Problem
        Where problems are added; shared by all readers of one document.
    path : str
        Dotted path of the mapping in its document, such as ``fabric``; empty at the top.
    file : str or None
        What problems name as their file.
    overridden : Collection of str
        Keys whose value came from a scenario's ``topology:`` mapping; their problems have the path
        ``topology.KEY`` and no file.
    """

    def __init__(
        self,
        document: object,
        problems: list[Problem],
        *,
        path: str = "",
        file: str | None = None,
        overridden: Collection[str] = (),
    ) -> None:
        self.path = path
        self.file = file
        self.problems = problems
        self._overridden = overridden
        self._known: list[str] = []
        self._document: Mapping[str, object] = {}
        if isinstance(document, Mapping):
            self._document = document
        else:
            self.problem("", f"expected a mapping, but found {document!r}")

    def problem(self, key: str, message: str) -> None:
        """Note, once, a problem with the value of ``key``, or with the mapping when ``key`` is empty."""
        if key in self._overridden:
            problem = Problem(message=message, path=f"topology.{key}")
        else:
            problem = Problem(message=message, path=self._inner(key), file=self.file)
        if problem not in self.problems:
            self.problems.append(problem)

    def has(self, key: str) -> bool:
        """Tell whether ``key`` has a value; ``null`` counts as none."""
        self._know(key)
        return self._document.get(key) is not None

    def mentions(self, *keys: str) -> bool:
        """Tell whether any of ``keys`` has a value, without knowing them by that."""
        return any(self._document.get(key) is not None for key in keys)

    def section(self, key: str) -> Reader:
        """Return a reader of the mapping under ``key``; an absent mapping reads as an empty one."""
        self._know(key)
        value = self._document.get(key)
        return Reader({} if value is None else value, self.problems, path=self._inner(key), file=self.file)

    def written(self) -> tuple[str, ...]:
        """Return the keys that the mapping has, in the order written."""
        return tuple(str(key) for key in self._document)

    def raw(self, key: str) -> object:
        """Return the value as it is, or None."""
        self._know(key)
        return self._document.get(key)

    def text(self, key: str, default: str | None = None) -> str:
        """Read a non-empty text."""
        value = self._value(key, default, "a name")
        if not isinstance(value, str) or not value:
            if value is not None:
                self.problem(key, f"expected a text, but found {value!r}")
            return "?"
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Read one of ``choices``."""
        value = self._value(key, default, f"one of {', '.join(choices)}")
        if value is not None and value not in choices:
            self.problem(key, f"unknown {value!r}{did_you_mean(str(value), choices)}")
        return str(value) if value in choices else choices[0]

    def texts(self, key: str, length: int | None = None) -> tuple[str, ...]:
        """Read a list of ``length`` texts; without a length one of any, which may be absent."""
        wanted = "a list of names" if length is None else f"a list of {length} names"
        value = self._value(key, () if length is None else None, wanted)
        items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
        texts = tuple(item for item in items if isinstance(item, str) and item)
        if isinstance(value, Sequence) and len(texts) == len(items) == (len(value) if length is None else length):
            return texts
        if value is not None:
            self.problem(key, f"expected {wanted}, but found {value!r}")
        return ("?",) * (length or 0)

    def entries(self, key: str) -> list[Reader]:
        """Return a reader of each mapping in the list under ``key``."""
        value = self._value(key, None, "a list of mappings")
        if value is not None and (not isinstance(value, Sequence) or isinstance(value, str)):
            self.problem(key, f"expected a list of mappings, but found {value!r}")
            return []
        items = value if isinstance(value, Sequence) else ()
        return [
            Reader(item, self.problems, path=f"{self._inner(key)}[{position}]", file=self.file)
            for position, item in enumerate(items)
        ]

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Read ``true`` or ``false``."""
        value = self._value(key, default, "true or false")
        if value is not None and not isinstance(value, bool):
            self.problem(key, f"expected true or false, but found {value!r}")
        return value is True

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Read an integer of at least ``least``."""
        value = self._value(key, default, f"an integer of at least {least}")
        if value is None:
            return max(least, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.problem(key, f"expected an integer of at least {least}, but found {value!r}")
            return max(least, 1)
        if value > _MOST_COUNT:
            self.problem(key, f"expected an integer of at most {_MOST_COUNT:,}, but found {value!r}")
            return max(least, 1)
        return value

    def counts(self, key: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        """Read a non-empty list of integers of at least 1, such as ``[4, 4, 4]``."""
        value = self._value(key, default, "a list of integers such as [4, 4, 4]")
        if value is None:
            return (1,)
        items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
        counts = tuple(item for item in items if type(item) is int and 1 <= item <= _MOST_COUNT)
        if not items or len(counts) < len(items):
            self.problem(
                key, f"expected a list of integers from 1 to {_MOST_COUNT:,} such as [4, 4, 4], but found {value!r}"
            )
            return (1,)
        return counts

    def number(self, key: str, default: float | None = None, *, least: float = 0.0, most: float = math.inf) -> float:
        """Read a plain number of at least ``least``, and at most ``most``."""
        wanted = (
            "a number"
            + (f" of at least {least:g}" if least > -math.inf else "")
            + (f" and at most {most:g}" if most < math.inf else "")
        )
        value = self._value(key, default, wanted)
        if value is None:
            return max(least, 1.0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not max(least, -_FINITE) <= value <= min(most, _FINITE)
        ):
            self.problem(key, f"expected {wanted}, but found {value!r}")
            return max(least, 1.0)
        return float(value)

    def quantity(self, key: str, dimension: str, default: str | None = None, *, zero: bool = False) -> float:
        """Read a quantity with its unit, in the base unit; positive, or also zero when ``zero``."""
        value = self._value(key, default, f"a value with its unit ({dimension})")
        if value is None:
            return 1.0
        try:
            quantity = parse(value, dimension)
        except UnitError as error:
            self.problem(key, str(error))
            return 1.0
        if quantity < 0 or (quantity == 0 and not zero):
            wanted = "no negative" if zero else "a positive"
            self.problem(key, f"expected {wanted} {dimension}, but found {value!r}")
            return 1.0
        if dimension == "time" and quantity > _LONGEST_S:
            self.problem(key, f"expected a time of at most {_LONGEST_S:g} s, but found {value!r}")
            return 1.0
        if quantity > _MOST.get(dimension, float("inf")):
            self.problem(key, f"expected a {dimension} of at most {_MOST[dimension]:g}, but found {value!r}")
            return 1.0
        least, written = _LEAST.get(dimension, (0.0, ""))
        if quantity < least:
            self.problem(key, f"expected at least {written}, but found {value!r}")
            return 1.0
        return quantity

    def maybe(self, key: str, dimension: str) -> float | None:
        """Read a positive quantity that may be absent."""
        return self.quantity(key, dimension) if self.has(key) else None

    def finish(self, beside: Reader | None = None) -> None:
        """Note every key that nobody asked for; one of an override may be meant for the mapping ``beside``, too."""
        for key in self.written():
            if key not in self._known:
                known = [*self._known, *(beside._known if beside is not None and key in self._overridden else ())]
                self.problem(key, f"unknown key {key!r}{did_you_mean(key, known)}")

    def _inner(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

    def _know(self, key: str) -> None:
        if key not in self._known:
            self._known.append(key)

    def _value(self, key: str, default: object, expected: str) -> object:
        if self.has(key):
            return self._document[key]
        if default is None:
            self.problem(key, f"missing; expected {expected}")
        return default
