"""Which keys an attention operator reads: a sliding window, a part of a ring, all tokens of some heads, of one half.

As a text, which step graphs write and which ends the names of attention features (``pairs@4096#1~2``)::

    @4096   a sliding window of 4096 tokens
    #1      what the ring brought in its first shift (#0: the rank's own segment)
    *       all tokens of the prompt, for the heads that the rank has after an all-to-all
    ~2      of the second half of a step of two micro-batches
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final

from clustersim.values import dataclass

_TEXT: Final = re.compile(r"(?:@([0-9]{1,18}))?(?:#([0-9]{1,9})|(\*))?(?:~([0-9]))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Of the attention features, those that one node reads.

    Parameters
    ----------
    window : int or None
        Tokens that its sliding window spans.
    hop : int or None
        Shifts of a ring that brought the keys; 0 for the rank's own.
    by_heads : bool
        Whether SP has given the rank all tokens of some of the heads.
    half : int or None
        Which half of a step of two micro-batches it is of, 1 or 2.
    """

    window: int | None = None
    hop: int | None = None
    by_heads: bool = False
    half: int | None = None
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        window, hop, half = (
            "" if value is None else f"{mark}{value}"
            for mark, value in (("@", self.window), ("#", self.hop), ("~", self.half))
        )
        object.__setattr__(self, "text", f"{window}{hop}{'*' if self.by_heads else ''}{half}")

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)


PLAIN: Final = Variant()


def read_variant(text: str) -> Variant | None:
    """Read a variant such as ``@4096#1``; None where the text is none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    window, hop, half = (None if found[at] is None else int(found[at]) for at in (1, 2, 4))
    return Variant(window=window, hop=hop, by_heads=found[3] is not None, half=half)
