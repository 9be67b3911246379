"""The summary of a run as an object: ``summary.ttft_ms.p99``, and a mapping all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from clustersim.errors import did_you_mean

_MOST_SHOWN: Final = 400
"""Characters of a mapping that shows itself whole; of a longer one, its keys are."""


class Summary(dict[str, Any]):
    """What ``summary.json`` holds, with its keys as attributes at every depth.

    Examples
    --------
    >>> summary = Summary({"ttft_ms": {"p99": 812.5}})
    >>> summary.ttft_ms.p99 == summary["ttft_ms"]["p99"]
    True
    """

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        inside = dict(values)
        super().__init__({key: Summary(value) if type(value) is dict else value for key, value in inside.items()})

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if len(text) <= _MOST_SHOWN else f"<Summary of {len(self)} keys: {', '.join(self)}>"

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key; a mapping as a summary of its own."""
        if name not in self:
            raise AttributeError(f"no {name!r} in this summary{did_you_mean(name, list(self))}")
        value = self[name]
        return Summary(value) if type(value) is dict else value

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"no {name!r} in this summary{did_you_mean(str(name), list(self))}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(key for key in self if key.isidentifier())})
