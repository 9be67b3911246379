"""What ``--vary`` says: ``plan.tp=1,2,4``, ``workload.arrivals.rate=1..10/s:1``, ``plan.dp=1..64:x2``.

Values are YAML, as ``--set`` takes them, divided by commas outside of brackets and quotes. A range has both ends, the
unit of its numbers, and what is added from one to the next (1 between whole numbers) or, after an ``x``, multiplied.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, Final

from clustersim.errors import InputError
from clustersim.scenario.document import parse_yaml

MOST: Final = 100_000
"""Values of one key, and runs (a run takes a tenth of a second or more)."""

_NUMBER: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_UNIT: Final = r"[^0-9\s.:][^\s:]*?"
_RANGE: Final = re.compile(
    rf"(?P<low>{_NUMBER})\s*(?P<low_unit>{_UNIT})?\.\.(?P<high>{_NUMBER})\s*(?P<high_unit>{_UNIT})?"
    rf"(?::(?P<times>x)?(?P<step>{_NUMBER})\s*(?P<step_unit>{_UNIT})?)?"
)
_OPENING: Final = {"[": "]", "{": "}"}


def values_of(text: str) -> tuple[str, ...]:
    """Return the values that a text lists, each as ``--set`` takes it.

    Raises
    ------
    ValueError
        When a value is empty or there twice, a range is none, or there are too many.

    Examples
    --------
    >>> values_of("1..2/s:0.5")
    ('1/s', '1.5/s', '2/s')
    >>> values_of("{tp: 2, pp: 2}, {tp: 4}")
    ('{tp: 2, pp: 2}', '{tp: 4}')
    >>> values_of("1..64:x4")
    ('1', '4', '16', '64')
    """
    parts = [_range(part) or [part] for part in _parts(text)]
    found = [value for part in parts for value in part]
    twice = (
        next((value for place, value in enumerate(found) if value in found[:place]), None)
        if len(found) < 1000
        else None
    )
    if twice is not None:
        raise ValueError(f"lists {twice} twice")
    for value, *_ in parts:  # the others of a range are numbers with the same unit
        try:
            parse_yaml(value, "value")
        except InputError as error:
            raise ValueError(f"{value!r} is no YAML: {error.problems[0].message}") from None
    return tuple(found)


def text_of(value: Any) -> str:
    """Return plain data as a value that ``--set`` reads as the same."""
    if isinstance(value, str):
        try:
            plain = parse_yaml(value, "value").data == value
        except InputError:
            plain = False
        return value if plain and value == value.strip() else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)


def _parts(text: str) -> list[str]:
    """Divide a text at the commas that are outside of brackets and quotes."""
    parts: list[str] = []
    open_: list[str] = []
    start, quote = 0, ""
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and (not text[start:place].strip() or open_):
            quote = sign
        elif sign in _OPENING:
            open_.append(_OPENING[sign])
        elif open_ and sign == open_[-1]:
            open_.pop()
        elif sign == "," and not open_:
            parts.append(text[start:place].strip())
            start = place + 1
    parts.append(text[start:].strip())
    if "" in parts:
        raise ValueError(
            f"lists nothing between two commas, or at an end; expected values such as 1,2,4, found {text!r}"
        )
    return parts


def _range(text: str) -> list[str]:
    """Return the values of a range; empty where the text is no range."""
    if text[0] in "'\"[{" or ".." not in text or "../" in text:
        return []
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no range; expected ends, unit and step such as 1..10/s:1, or 1..64:x2")
    units = dict.fromkeys(unit for name in ("low", "high", "step") if (unit := found[f"{name}_unit"]) is not None)
    if len(units) > 1:
        raise ValueError(f"{text!r} has numbers in {' and '.join(units)}; expected one unit")
    low, high = Decimal(found["low"]), Decimal(found["high"])
    if found["step"] is None and (low % 1 or high % 1):
        raise ValueError(f"{text!r} does not say the step between its values; expected such as {text}:0.5")
    step, times = Decimal(found["step"] or 1), found["times"] is not None
    if high < low:
        raise ValueError(f"the range {text!r} holds no number; write the smaller end first")
    if step <= (1 if times else 0) or (times and low <= 0):
        raise ValueError(f"the range {text!r} never ends; expected a step above {'1, from above 0' if times else '0'}")
    if not times and (high - low) / step > MOST:
        raise ValueError(f"the range {text!r} has more than {MOST:,} values; take a larger step")
    values, (unit,) = [], [*units, ""][:1]
    gap = " " if unit and re.search(rf"[0-9]\s+{re.escape(unit)}", text) else ""
    while low <= high:
        values.append(f"{_plain(low)}{gap}{unit}")
        low = low * step if times else low + step
    return values


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
