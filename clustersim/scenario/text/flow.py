"""A value in one line of YAML: as ``--set`` takes it, and as it fits into any mapping or list."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from clustersim.scenario.text.scalars import plain_scalar

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*( [A-Za-z0-9_./+-]+)*")


def flow(value: Any) -> str:
    """Write a value in one line, inside of any mapping or list.

    Examples
    --------
    >>> flow({"cuts": [40, "12.ffn"], "rate": "4/s", "text": "a: b", "code": "010"})
    '{cuts: [40, 12.ffn], rate: 4/s, text: "a: b", code: "010"}'
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and plain_scalar(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)
