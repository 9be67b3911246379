"""Quantities as people write them, such as ``450 GB/s`` or ``8 us``, and back.

A quantity is a number, a space (optional) and a unit of the expected dimension. Decimal prefixes are powers of
1000 (``GB`` = 10⁹ bytes), binary ones powers of 1024 (``GiB`` = 2³⁰ bytes). A bare number is refused: a unit that
is not written cannot be checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from clustersim.errors import ClustersimError

_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _prefixed(unit: str, *, binary: bool = False) -> dict[str, float]:
    prefixes = _DECIMAL | _BINARY if binary else _DECIMAL
    return {f"{prefix}{unit}": factor for prefix, factor in prefixes.items()}


_BYTES: Final = _prefixed("B", binary=True)
_BITS: Final = {unit: factor / 8 for unit, factor in _prefixed("b").items()}
_TIME: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}

DIMENSIONS: Final[Mapping[str, Mapping[str, float]]] = {
    "bytes": _BYTES,
    "bandwidth": {f"{unit}/s": factor for unit, factor in (_BYTES | _BITS).items()}
    | {f"{prefix}bps": factor / 8 for prefix, factor in _DECIMAL.items()},
    "time": _TIME,
    "rate": {f"/{unit}": 1.0 / seconds for unit, seconds in _TIME.items()},
    "flops": _prefixed("FLOP/s") | _prefixed("FLOPS") | _prefixed("OP/s"),
    "power": _prefixed("W"),
    "price": {"USD/h": 1.0, "$/h": 1.0},
}
"""Per dimension: unit → factor to the base unit (bytes, bytes/s, s, 1/s, FLOP/s, W, USD/h)."""

_EXAMPLES: Final = {
    "bytes": "80 GiB",
    "bandwidth": "450 GB/s",
    "time": "8 us",
    "rate": "4/s",
    "flops": "989 TFLOP/s",
    "power": "700 W",
    "price": "2.5 USD/h",
}
_ARTICLE: Final = {"bytes": "bytes", "flops": "FLOP/s"}
_QUANTITY: Final = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S*)\s*")


class UnitError(ClustersimError, ValueError):
    """A quantity that cannot be read: no number, no unit, or a unit of another dimension."""


def parse(text: object, dimension: str, example: str = "") -> float:
    """Read a quantity of the given dimension.

    Parameters
    ----------
    text : object
        What the user wrote; anything but a string is refused with an example.
    dimension : str
        A key of :data:`DIMENSIONS`.
    example : str
        What messages show; empty: one of the dimension.

    Returns
    -------
    float
        The value in the dimension's base unit.

    Raises
    ------
    UnitError
        When ``text`` is no finite number with a unit of that dimension.

    Examples
    --------
    >>> parse("80 GiB", "bytes")
    85899345920.0
    >>> parse("400 Gb/s", "bandwidth")
    50000000000.0
    """
    units = DIMENSIONS[dimension]
    example, wanted = example or _EXAMPLES[dimension], _ARTICLE.get(dimension, f"a {dimension}")
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise UnitError(f"expected {wanted} with its unit, such as '{example}', but found {text!r}")
    number, unit = found.groups()
    if unit not in units:
        reason = "has no unit" if not unit else f"has the unknown unit {unit!r}"
        raise UnitError(f"{text!r} {reason}; expected {wanted} such as '{example}'{_meant(unit, dimension)}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise UnitError(f"{text!r} is too large; expected {wanted} such as '{example}'")
    return value


_PER_SECOND: Final = "(|s|ps|/s|/secs?|/seconds?)"
_AMOUNT: Final = re.compile(rf"([kmgtp]?)(i?)(b|bits?|bytes?){_PER_SECOND}", re.IGNORECASE)
_OPERATIONS: Final = re.compile(rf"([kmgtp]?)(flop|op)s?{_PER_SECOND}", re.IGNORECASE)
_SPELLED: Final[Mapping[str, str]] = {
    "seconds?|secs?": "s", "milli ?(seconds?|secs?)|msecs?": "ms", "micro ?(seconds?|secs?)|usecs?|mus": "us",
    "nano ?(seconds?|secs?)|nsecs?": "ns", "minutes?|mins": "min", "m": "min' or 'ms", "hours?|hrs?": "h",
}  # fmt: skip
"""Pattern of a spelling, in small letters → unit of time."""
_COUNTED: Final = re.compile("(1|req(uest)?s?|quer(y|ies))?", re.IGNORECASE)


def _meant(unit: str, dimension: str) -> str:
    """Return which units somebody may have meant by one that is unknown; both where a letter may say bits or bytes.

    Examples
    --------
    >>> _meant("GBps", "bandwidth"), _meant("gb/s", "bandwidth")
    ("; did you mean 'GB/s'?", "; did you mean 'GB/s' (bytes) or 'Gb/s' (bits)?")
    """
    if dimension in ("bytes", "bandwidth") and (found := _AMOUNT.fullmatch(unit)):
        return _amount_meant(*found.groups(), dimension=dimension)
    if dimension == "flops" and (found := _OPERATIONS.fullmatch(unit)):
        return f"; did you mean '{found[1].upper()}{found[2].upper()}/s'?"
    if dimension not in ("time", "rate"):
        return _spelt_alike(unit, DIMENSIONS[dimension])
    head, slash, rest = unit.rpartition("/") if dimension == "rate" else ("", "", unit)
    if _COUNTED.fullmatch(head) is None:
        return ""
    if dimension == "rate" and not slash:
        return "; did you mean '/s'?" if unit.lower() in ("rps", "qps", "hz", "s") else ""
    spelled = next((of for pattern, of in _SPELLED.items() if re.fullmatch(pattern, rest.lower())), rest.lower())
    spelled = spelled.partition("'")[0] if slash else spelled
    known = spelled in _TIME or "'" in spelled
    return f"; did you mean '{slash}{spelled}'?" if known else ""


def _amount_meant(prefix: str, binary: str, what: str, per: str, *, dimension: str) -> str:
    is_capital = prefix.isupper()
    prefix = prefix.upper() if prefix not in "kK" or binary else "k" if prefix else ""
    in_bytes, in_bits = f"{prefix}{binary.lower()}B", f"{prefix}{binary.lower()}b"
    says_bits = "it" in what.lower()
    if dimension == "bytes" or binary:  # no unit has binary prefixes of bits
        meant = in_bytes if dimension == "bytes" else f"{in_bytes}/s"
        if says_bits or (what == "b" and prefix and (is_capital or not binary)):
            return f"; did you mean '{meant}'? (8 {in_bits}, bits, are 1 {in_bytes})"
        return f"; did you mean '{meant}'?"
    is_loud = any(letter.isupper() for letter in per)
    if says_bits or "yte" in what.lower() or (what == "B" and not is_loud):
        return f"; did you mean '{in_bits if says_bits else in_bytes}/s'?"
    return f"; did you mean '{in_bytes}/s' (bytes) or '{in_bits}/s' (bits)?"


def _spelt_alike(unit: str, units: Iterable[str]) -> str:
    """Return the unit that is spelt alike but for plural ends and the case of its letters; none of milli and pico."""
    if unit.startswith(("m", "p")):
        return ""
    bare = unit.lower().removesuffix("s").replace("/hr", "/h").replace("watt", "w")
    alike = [known for known in units if known.lower() == bare]
    return f"; did you mean '{alike[0]}'?" if alike else ""


def whole_number(text: object) -> int | None:
    """Return the whole number that was meant by one that is cut short, such as ``8k``; None where it is none.

    Examples
    --------
    >>> whole_number("8k"), whole_number("1.5M"), whole_number("8 GB")
    (8000, 1500000, None)
    """
    found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[2] not in _DECIMAL:
        return None
    value = float(found[1]) * _DECIMAL[found[2]]
    return int(value) if value.is_integer() else None


def format_bytes(value: float) -> str:
    """Write a number of bytes with a binary prefix, such as ``79.6 GiB``."""
    for unit, factor in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} B"


def format_bandwidth(value: float) -> str:
    """Write bytes per second with a decimal prefix, such as ``450 GB/s``."""
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {unit}"
    return f"{value:.4g} B/s"


def format_share(share: float) -> str:
    """Write a share that is held against another one, in percent, and never round it up.

    Examples
    --------
    >>> format_share(0.8999), format_share(0.991), format_share(1.0)
    ('89.9%', '99.1%', '100%')
    """
    return "100%" if share == 1.0 else f"{math.floor(round(1000.0 * share, 6)) / 10:.1f}%"


def format_asked(share: float) -> str:
    """Write a share that is asked for, in percent, with all its digits.

    Examples
    --------
    >>> format_asked(0.9), format_asked(0.995)
    ('90%', '99.5%')
    """
    return f"{100.0 * share:.10g}%"


def at_least(value: float, text: str, dimension: str) -> str:
    """Write a quantity in the unit of another one, so that both compare: three digits, or whole, and no less than it.

    Examples
    --------
    >>> at_least(5_292_250, "200kB", "bytes"), at_least(5_292_250, "1 MB", "bytes")
    ('5,293 kB', '5.3 MB')
    """
    found = _QUANTITY.fullmatch(text)
    unit = found[2] if found is not None and found[2] in DIMENSIONS[dimension] else next(iter(DIMENSIONS[dimension]))
    number = value / DIMENSIONS[dimension][unit]
    digits = max(0, 2 - math.floor(math.log10(number))) if number > 0 else 0
    return f"{math.ceil(number * 10**digits) / 10**digits:,.10g} {unit}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Write a count with its noun; ``nouns`` where more of them take more than an s.

    Examples
    --------
    >>> plural(1, "request"), plural(2000, "request")
    ('1 request', '2,000 requests')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {nouns or noun + 's'}"


def format_seconds(value: float) -> str:
    """Write a duration with the unit that suits it, such as ``8 us`` or ``84.9 s``; minutes from ten of them on."""
    units = (("h", 3600.0, 7200.0), ("min", 60.0, 600.0), ("s", 1.0, 1.0), ("ms", 1e-3, 1e-3), ("us", 1e-6, 1e-6))
    for unit, factor, least in units:
        if abs(value) >= least:
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e9:.4g} ns" if value else "0 s"
