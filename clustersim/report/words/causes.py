"""What latencies went to, in words: the largest shares of the mean, and of the slowest requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clustersim.report.words.diagnosis import LEAST, SHOWN, WORDS
from clustersim.report.words.faults import and_then, is_blamed, share_of_faults
from clustersim.report.words.run import share_words

SHOWN_OF_SLOWEST: Final = 2


def cause_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (what, words) pairs for the terminal: of TTFT and TPOT, their mean and their slowest 1 %."""
    found = []
    for name in ("ttft", "tpot"):
        causes = (summary.get("causes") or {}).get(name)
        if causes:
            mean, slowest = _largest(causes["mean"], SHOWN), _largest(causes["slowest"], SHOWN_OF_SLOWEST)
            first = ""
            if is_blamed(summary, name):
                share = share_words(share_of_faults(summary, name) or 0.0)
                first = f"{share} of p99 by faults, {and_then(summary, name)}: "
            found.append((f"{name.upper()} causes", f"{first}{mean}; slowest 1%: {slowest}"))
    return found


def _largest(shares: Mapping[str, float], most: int) -> str:
    ranked = sorted(((share, cause) for cause, share in shares.items()), reverse=True)[:most]
    return ", ".join(f"{share_words(share)} {WORDS[cause]}" for share, cause in ranked if share >= LEAST)
