"""A figure in the JSON that plotly.js reads: traces, and a layout.

plotly's own Python objects check each value that they are given, and copy it: a fifth of the time of a small run, and
more at its start. Their names are kept here; tests give every figure to them (``tests/unit/checked_figure.py``).
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_NARROW: Final = ("int8", "int16", "int32")
_SENT: Final = frozenset({*_NARROW, "uint8", "uint16", "uint32", "float32", "float64"})
"""Arrays that plotly.js takes as bytes (its ``lib/array.js``)."""


class Figure:
    """Traces and the layout of a figure; what is None is left out.

    Parameters
    ----------
    layout : mapping, optional
        As plotly's reference has it.

    Attributes
    ----------
    data : list of dict
        A trace each, as plotly's reference has it; values may be arrays.
    layout : dict
    """

    def __init__(self, layout: Mapping[str, Any] | None = None) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {}
        self.update_layout(layout or {})

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.layout["height"])

    def add_scatter(self, **trace: Any) -> None:
        """Add points or lines."""
        self._add("scatter", trace)

    def add_bar(self, **trace: Any) -> None:
        """Add bars."""
        self._add("bar", trace)

    def add_heatmap(self, **trace: Any) -> None:
        """Add cells."""
        self._add("heatmap", trace)

    def _add(self, kind: str, trace: Mapping[str, Any]) -> None:
        self.data.append({"type": kind, **_said(trace)})

    def update_layout(self, *parts: Mapping[str, Any], **part: Any) -> None:
        """Set keys of the layout; keys inside a mapping that was there are added to it."""
        for one in (*parts, part):
            _merge(self.layout, _said(one))

    def add_shape(self, **shape: Any) -> None:
        """Add a line or a rectangle."""
        self.layout.setdefault("shapes", []).append(_said(shape))

    def add_annotation(self, **note: Any) -> None:
        """Add words at a place."""
        self.layout.setdefault("annotations", []).append(_said(note))

    def to_json(self) -> str:
        """Return the figure as JSON that can stand in a script of a page: no value ends the script."""
        told = {"data": self.data, "layout": self.layout}
        try:
            text = json.dumps(told, default=_plain, separators=(",", ":"), allow_nan=False)
        except ValueError:  # a number that is none
            text = json.dumps(_finite(told), default=_plain, separators=(",", ":"), allow_nan=False)
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("/", "\\u002f")


def _said(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a mapping, and of those in it, without what is None."""
    return {
        key: _said(value) if isinstance(value, Mapping) else value for key, value in part.items() if value is not None
    }


def _merge(into: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _plain(value: Any) -> Any:
    """Return an array or number of numpy as JSON has it."""
    return _sent(value) if isinstance(value, np.ndarray) else value.item()


def _sent(values: npt.NDArray[Any]) -> Any:
    """Return an array as plotly.js takes it: its bytes in base 64, whole numbers in as few as they need."""
    if values.dtype.kind == "i" and values.size:
        low, high = int(values.min()), int(values.max())
        narrow = (name for name in _NARROW if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
        values = values.astype(next(narrow, values.dtype))
    if values.dtype.name not in _SENT or not values.size:
        return values.tolist()
    data = b64encode(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()).decode()
    told = {"dtype": f"{values.dtype.kind}{values.dtype.itemsize}", "bdata": data}
    return told | ({"shape": ", ".join(map(str, values.shape))} if values.ndim > 1 else {})


def _finite(value: Any) -> Any:
    """Return values with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
