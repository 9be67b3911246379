"""Just enough of the protobuf wire format [1]_ to write many messages of one shape at once.

A varint may be padded with leading zero groups (``0x80`` bytes): that is legal, every reader accepts it, and
it gives a column of numbers one fixed width, so that a million messages are a matrix of bytes filled column
by column.

.. [1] https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from dataclasses import field

import numpy as np
import numpy.typing as npt

from clustersim.clock import Int64Array
from clustersim.values import dataclass

Octets = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

VARINT, FIXED64, BYTES = 0, 1, 2
"""Wire types."""


def varint(value: int) -> bytes:
    """Encode a non-negative integer, as short as it goes."""
    octets = []
    while value > 0x7F:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*octets, value])


def tag(number: int, wire_type: int) -> bytes:
    """Encode the key that precedes a field's value."""
    return varint(number << 3 | wire_type)


def number_field(number: int, value: int) -> bytes:
    """Encode a field that is a non-negative integer."""
    return tag(number, VARINT) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """Encode a field that is a text, bytes, or a message that is encoded already."""
    content = value.encode("utf-8") if isinstance(value, str) else value
    return tag(number, BYTES) + varint(len(content)) + content


def padded_varints(values: npt.NDArray[np.int64], width: int) -> Octets:
    """Encode non-negative integers below 2^(7·width) as padded varints, shape (n, width)."""
    groups = (values[:, None] >> (7 * np.arange(width))) & 0x7F
    groups[:, :-1] |= 0x80
    return groups.astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Rows:
    """``count`` messages of one shape: pieces of fixed width, present in all rows or where a mask says."""

    count: int
    pieces: list[tuple[Octets, Mask | None]] = field(default_factory=list)

    def constant(self, octets: bytes, mask: Mask | None = None) -> Rows:
        """Append the same bytes to every row."""
        row = np.frombuffer(octets, np.uint8)
        self.pieces.append((np.broadcast_to(row, (self.count, len(row))), mask))
        return self

    def numbers(self, number: int, values: npt.NDArray[np.int64], width: int, mask: Mask | None = None) -> Rows:
        """Append a varint field."""
        self.constant(tag(number, VARINT), mask)
        self.pieces.append((padded_varints(values, width), mask))
        return self

    def numbered(self, number: int, text: str, values: Int64Array, mask: Mask) -> Rows:
        """Append a field that is a text with a non-negative number below 10¹⁰ behind it, as short as it goes."""
        octets = text.encode("utf-8")
        powers = 10 ** np.arange(9, -1, -1, dtype=np.int64)
        digits = (values[:, None] // powers % 10 + ord("0")).astype(np.uint8)
        shown = (values[:, None] >= powers) & mask[:, None]
        shown[:, -1] = mask
        self.constant(tag(number, BYTES), mask)
        self.pieces.append(((len(octets) + shown.sum(axis=1, dtype=np.uint8))[:, None].astype(np.uint8), mask))
        self.constant(octets, mask)
        self.pieces.extend((digits[:, at : at + 1], shown[:, at]) for at in range(len(powers)))
        return self

    def fixed64(self, number: int, values: Int64Array, mask: Mask | None = None) -> Rows:
        """Append a fixed64 field."""
        self.constant(tag(number, FIXED64), mask)
        octets = np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)
        self.pieces.append((octets, mask))
        return self

    def message(self, number: int, inner: Rows, mask: Mask | None = None) -> Rows:
        """Append a message field; where ``mask`` is False it is absent with all that is in it."""
        self.constant(tag(number, BYTES), mask)
        self.pieces.append((padded_varints(inner.lengths(), 2), mask))
        for octets, own in inner.pieces:
            both = mask if own is None else own if mask is None else own & mask
            self.pieces.append((octets, both))
        return self

    def lengths(self) -> Int64Array:
        """Return how many bytes each row has."""
        total = np.zeros(self.count, np.int64)
        for octets, mask in self.pieces:
            total += octets.shape[1] if mask is None else octets.shape[1] * mask.astype(np.int64)
        return total

    def encoded(self) -> bytes:
        """Return all rows, one after the other."""
        width = sum(octets.shape[1] for octets, _ in self.pieces)
        matrix = np.empty((self.count, width), np.uint8)
        present = np.ones((self.count, width), bool)
        at = 0
        for octets, mask in self.pieces:
            size = octets.shape[1]
            matrix[:, at : at + size] = octets
            if mask is not None:
                present[:, at : at + size] = mask[:, None]
            at += size
        return matrix[present].tobytes()
