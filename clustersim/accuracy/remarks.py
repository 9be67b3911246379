"""What a row says beside its configuration that would change its figures: what is not simulated makes no prediction.

Looked for in all columns that say what ran, and in ``note``. A remark that says no to it
(``no LoRA``, ``MTP off``) is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from clustersim.accuracy.row import Inexpressible, Row

UNMODELLED: Final = {
    "LoRA": r"q?lora\w*",
    "speculative decoding": r"speculat\w*|spec[\s_-]?dec\w*|draft\w*|eagle[\s_-]?\d?|medusa|mtp(?:[\s_-]?[1-9])?"
    r"|n-?gram\w*|lookahead[\s_-]dec\w*",
    "beam search": r"beam[\s_-]?(?:search|width|size)",
    "what was cut out of a model": r"prun(?:ed|ing)|sparsegpt|2:4[\s-]spars\w+|\d+ of \d+ layers",
    "offloading to a host": r"(?:(?:cpu|host|disk|nvme|kv)[\s_-]?)?offload\w*",
}
"""What is not simulated in rows, and how it is called there."""
EAGER: Final = re.compile(
    r"\b(?:enforce[\s_-]?)?eager\b|\b(?:no|without) cuda[\s_-]?graphs?|\bcuda[\s_-]?graphs?[\s:=]*(?:off|disabled)",
    re.I,
)
"""What says that an engine captures no graphs."""
_NO: Final = r"\b(?:no|without|w/o|not?[\s-]using)\s+(?:\w+[\s-])?$"
_OFF: Final = re.compile(r"[\s_-]*(?:decoding|search)?[\s:=]*(?:off|none|no|false|disabled|0)\b", re.I)
_FOUND: Final = {name: re.compile(rf"(?<![a-z0-9])(?:{words})(?![a-z])", re.I) for name, words in UNMODELLED.items()}


def check_remarks(row: Row) -> None:
    """Raise where a row says that something ran which is not simulated.

    Raises
    ------
    Inexpressible
        With the remark, and the column that it stands in.
    """
    for column in ("model", "precision", "framework", "parallel", "note", "hardware", "workload", "metric"):
        text = getattr(row, column)
        if any(letter.isdecimal() and not letter.isascii() for letter in text):
            raise Inexpressible(f"not understood: {column} {text!r}; expected digits from 0 to 9")
        for name, remark in remarks_in(text):
            raise Inexpressible(f"{column} {text!r} says {remark!r}: {name} is not simulated")


def remarks_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield (what is not simulated, the words that say so).

    Examples
    --------
    >>> list(remarks_in("vLLM 0.12 (EAGLE-3, no LoRA)")), list(remarks_in("MTP off"))
    ([('speculative decoding', 'EAGLE-3')], [])
    """
    for name, words in _FOUND.items():
        for found in words.finditer(text):
            denied = re.search(_NO, text[: found.start()], re.I)
            if not denied and not _OFF.match(text, found.end()):
                yield name, found[0].strip()
