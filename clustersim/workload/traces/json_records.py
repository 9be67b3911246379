"""Requests as JSON objects: which of their keys say what, and from these to columns of numbers.

An object is an instant, two lengths, perhaps hashes of the blocks of its prompt, and perhaps that it failed. A key may
lead into objects (``usage.prompt_tokens``); of several names for one the first that is there counts. Further keys are
allowed and not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np

from clustersim.errors import nearest, rename
from clustersim.values import dataclass
from clustersim.workload.limits import MAX_NS, MAX_TOKENS
from clustersim.workload.prefix_hashes import hash_rows
from clustersim.workload.traces.cells import TOKENS_EXPECTED, exact_ns, is_stamp, stamps_like
from clustersim.workload.traces.failed import ERRORS, SUCCESSES, is_error, is_failure
from clustersim.workload.traces.json_text import ABSENT, json_words, value_at
from clustersim.workload.traces.plain_csv import UNIT_UNSAID, UNITS, Unit, ending
from clustersim.workload.traces.text import TraceColumns

_MANY: Final = 4
"""Full blocks from which on a prompt in blocks of half the size can't have a hash for each."""
_SAID: Final = "workload.trace.block_tokens; of Qwen-Bailian the format is bailian"


Complaint = tuple[str, str]
"""Key ("" for the object as such), message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKeys:
    """The keys of one format, the first of which that an object has counts.

    Parameters
    ----------
    arrival, prompt, output : tuple of str
    unit : str or None
        Of instants that are numbers; None: as the name of their key ends (``_ms``). Dates with times need none.
    seconds : tuple of str
        Keys of instants whose numbers are documented to be seconds.
    hashes : str
        Key of the list of hashes; empty where there is none.
    block_tokens : int
        Tokens of a hashed block.
    exact : bool
        Whether all full blocks of a prompt must have a hash: a wrong ``block_tokens`` is found so.
    error, success : tuple of str
    marks : tuple of str
        Keys that tell the format from others.
    wanted : tuple of str
        Keys that at least one object must have.
    """

    arrival: tuple[str, ...]
    prompt: tuple[str, ...]
    output: tuple[str, ...]
    unit: Unit | None = None
    seconds: tuple[str, ...] = ()
    hashes: str = ""
    block_tokens: int = 0
    exact: bool = False
    error: tuple[str, ...] = ERRORS
    success: tuple[str, ...] = SUCCESSES
    marks: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


class RecordReader:
    """Reads objects one by one; the first says which key has the instant, in which unit, and whether there are hashes.

    Parameters
    ----------
    keys : RecordKeys

    Attributes
    ----------
    lacking : set of str
        Keys that are wanted and that no object has had.
    """

    def __init__(self, keys: RecordKeys) -> None:
        self.keys = keys
        self.lacking = set(keys.wanted)
        self._arrival: str | None = None
        self._instant: Callable[[Any], int] = lambda _: 0  # a unit that is not known is said once
        self._hashed: bool | None = None
        self._covered = False
        self._sparse: tuple[int, int, int] | None = None
        self._rows: list[tuple[int, int, int]] = []
        self._hashes: list[list[int]] = []

    def read(self, record: Mapping[str, Any], *, failed: bool = False) -> list[Complaint]:
        """Take an object over, which failed or says itself whether it did; or return what is wrong with it."""
        complaints: list[Complaint] = []
        self.lacking -= {key for key in self.lacking if value_at(record, key) is not ABSENT}
        failed |= self._failed(record, complaints)
        row = (
            self._arrives(record, complaints),
            self._tokens(record, self.keys.prompt, complaints, failed=failed),
            self._tokens(record, self.keys.output, complaints, failed=failed),
        )
        failed |= not row[2]
        hashes: Any = value_at(record, self.keys.hashes) if self.keys.hashes else ABSENT
        if failed and hashes in (ABSENT, None):
            hashes = []  # whether the others have some is theirs to say
        elif self.keys.hashes:
            complaints += self._hash_complaints(hashes, None if failed or complaints else row[1])
        if not complaints:
            self._rows.append((*row[:2], 0 if failed else row[2]))
            self._hashes.append(hashes if self._hashed else [])
        return complaints

    def columns(self) -> TraceColumns:
        """Return what was read."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, 3)
        flat = np.array([value for row in self._hashes for value in row], dtype=np.int64)
        return TraceColumns(
            stamps_ns=table[:, 0],
            prompt_tokens=table[:, 1],
            output_tokens=table[:, 2],
            prefix_hashes=hash_rows(flat, list(map(len, self._hashes))) if self._hashed else None,
            hash_block_tokens=self.keys.block_tokens if self._hashed else None,
        )

    def uncovered(self) -> tuple[int, Complaint] | None:
        """Return the number of the first long prompt, from 1, and what is wrong where none has hashes enough."""
        if self._covered or self._sparse is None:
            return None
        number, count, tokens = self._sparse
        words = f"found {count} hashes for {tokens} tokens in blocks of {self.keys.block_tokens}, and no long prompt"
        return number, (self.keys.hashes, f"{words} has one for each; expected another workload.trace.block_tokens")

    def _failed(self, record: Mapping[str, Any], complaints: list[Complaint]) -> bool:
        errors = (value_at(record, key) for key in self.keys.error)
        failed = any(value is not ABSENT and is_error(value) for value in errors)
        for key in self.keys.success:
            value = value_at(record, key)
            try:
                failed |= value not in (ABSENT, None) and is_failure(value)
            except ValueError as error:
                complaints.append((key, f"found {json_words(value)}; expected {error}"))
        return failed

    def _arrives(self, record: Mapping[str, Any], complaints: list[Complaint]) -> int:
        names = self.keys.arrival if self._arrival is None else (self._arrival,)
        key = next((name for name in names if value_at(record, name) not in (ABSENT, None)), None)
        if key is None:
            complaints.append(_no_key(record, names[0]))
            return 0
        value = value_at(record, key)
        try:
            if self._arrival is None:
                self._arrival = key
                self._instant = self._instants(key, value)
            return self._instant(value)
        except ValueError as error:
            complaints.append((key, str(error)))
            return 0

    def _instants(self, key: str, first: Any) -> Callable[[Any], int]:
        """Return what reads instants: by the unit that is said, as dates, or by what the key's name ends in."""
        unit = self.keys.unit
        if unit == "iso" or (unit is None and isinstance(first, str) and is_stamp(first)):
            return _dates_like(first)
        unit = unit or ("s" if key in self.keys.seconds else ending(key.rsplit(".", maxsplit=1)[-1]))
        if unit is None and isinstance(first, str):
            return _dates_like(first)  # which says what is expected of a date
        if unit is None:
            raise ValueError(UNIT_UNSAID)
        words, ns = UNITS[unit]
        return lambda value: _instant(value, words, ns)

    def _tokens(
        self, record: Mapping[str, Any], names: tuple[str, ...], complaints: list[Complaint], *, failed: bool
    ) -> int:
        key = next((name for name in names if value_at(record, name) is not ABSENT), None)
        value: Any = ABSENT if key is None else value_at(record, key)
        if failed and value in (ABSENT, None):
            return 0
        if key is None:
            complaints.append(_no_key(record, names[0]))
        elif not _is_length(value):
            complaints.append((key, f"found {json_words(value)}; expected {TOKENS_EXPECTED}"))
        else:
            return int(value)
        return 0

    def _hash_complaints(self, hashes: Any, tokens: int | None) -> Iterator[Complaint]:
        key, size = self.keys.hashes, self.keys.block_tokens
        self._hashed = hashes is not ABSENT if self._hashed is None else self._hashed
        if (hashes is not ABSENT) != self._hashed:
            found, others = ("no", "have") if self._hashed else ("a", "lack")
            yield "", f"{found} key {key!r}; the lines before {others} one"
        if hashes is ABSENT:
            return
        if not isinstance(hashes, list) or not all(type(one) is int and 0 <= one <= MAX_NS for one in hashes):
            yield key, f"found {json_words(hashes)}; expected a list of whole numbers from 0 to {MAX_NS:.3g}"
        elif tokens is not None:
            all_full, most = tokens // size, -(-tokens // size)
            full = all_full if self.keys.exact else 0
            if all_full >= _MANY:
                self._covered |= len(hashes) >= all_full
                self._sparse = self._sparse or (len(self._rows) + 1, len(hashes), tokens)
            if not full <= len(hashes) <= most:
                expected = f"at most {most}" if not full else str(most) if full == most else f"{full} or {most}"
                expected += f" for {tokens} tokens in blocks of {size} ({_SAID})"
                yield key, f"found {len(hashes)} hashes; expected {expected}"


def _no_key(record: Mapping[str, Any], wanted: str) -> Complaint:
    if value_at(record, wanted) is None:
        return wanted, "found null; expected an instant"
    before, dot, last = wanted.rpartition(".")
    inside = value_at(record, before) if dot else record
    guess = nearest(last, list(inside)) if isinstance(inside, dict) else None
    return "", f"no key {wanted!r}" + (rename(wanted, f"{before}{dot}{guess}") if guess else "")


def _instant(value: object, words: str, ns_per_unit: int) -> int:
    last = MAX_NS // ns_per_unit
    if type(value) not in (int, Decimal) or not 0 <= value <= last:  # type: ignore[operator]
        raise ValueError(f"found {json_words(value)}; expected {words} as a number from 0 to {last:.3g}")
    return exact_ns(Decimal(value), ns_per_unit)  # type: ignore[arg-type]


def _dates_like(first: object) -> Callable[[Any], int]:
    """Return what reads dates with times that all say an offset, or all none."""
    parse = stamps_like(first if isinstance(first, str) else "")

    def read(value: object) -> int:
        try:
            return int(parse([value if isinstance(value, str) else ""])[0])
        except ValueError as error:
            raise ValueError(f"found {json_words(value)}; expected {error}") from None

    return read


def _is_length(value: object) -> bool:
    """Say whether a value is a whole number of tokens, perhaps written as ``550.0``."""
    if type(value) is Decimal:
        return value.is_finite() and value == value.to_integral_value() and 0 <= value <= MAX_TOKENS
    return type(value) is int and 0 <= value <= MAX_TOKENS
