"""Columns of whole numbers as a page holds them: differences, or as they are, in planes of bytes, deflated, as base64.

Where neighbours in a column are alike, each number travels as its difference from the one before; where that is no
shorter, as it is; a column of one number is that number. These are made non-negative (0, −1, 1, −2 become 0, 1, 2, 3)
and cut into planes of their 1st, 2nd, … byte, as many as the largest needs; the planes of all columns of a section
are one stream, which ``page/packed.js`` reads with the browser's ``DecompressionStream``. Every number of a timeline
below 2⁵² is exact in JavaScript: 52 days in nanoseconds.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MOST: Final = 1 << 52
"""No instant that a page holds may reach this: its difference from another one, doubled, is below 2⁵³ then."""
_NARROW: Final = 1 << 31
_LEVEL: Final = 6
_TRIED: Final = 1 << 15
"""Numbers of a column, the first ones, of which is tried what is shorter."""


def packed(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return columns as a section of a page.

    Parameters
    ----------
    columns : mapping
        Name → whole numbers, of any shape; a table of shape (rows, columns) travels column by column.

    Returns
    -------
    dict
        ``columns``, a list of [name, numbers, bytes of a code, bytes of a number, 1 where codes are of differences],
        of a column of one number with 0 bytes of a code and this number behind it, and ``data``.
    """
    listed, planes = [], []
    for name, column in columns.items():
        values = np.asarray(column, np.int64).ravel(order="F")
        size = 4 if _is_narrow(values) else 8
        if len(values) and (values == values[0]).all():
            listed.append([name, len(values), 0, size, 0, int(values[0])])
            continue
        change = np.diff(values, prepend=0)
        differs = len(_deflated(change[:_TRIED])) <= len(_deflated(values[:_TRIED]))
        octets = _octets(change if differs else values)
        listed.append([name, len(values), len(octets), size, int(differs)])
        planes.append(octets.tobytes())
    data = base64.b64encode(zlib.compress(b"".join(planes), _LEVEL)).decode("ascii")
    return {"columns": listed, "data": data}


def _octets(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the bytes of numbers that are made non-negative, of shape (bytes of the largest, numbers)."""
    codes = (numbers << 1) ^ (numbers >> 63)
    width = max(1, (int(codes.max(initial=0)).bit_length() + 7) // 8)
    return np.ascontiguousarray(codes.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T)


def _deflated(numbers: npt.NDArray[np.int64]) -> bytes:
    return zlib.compress(_octets(numbers).tobytes(), _LEVEL)


def _is_narrow(values: npt.NDArray[np.int64]) -> bool:
    return not len(values) or (int(values.min()) >= -_NARROW and int(values.max()) < _NARROW)
