"""What a page is asked for: how large it may be, and what it shows first; and what can't be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError, Problem
from clustersim.report.figures.layout import Layout
from clustersim.report.folded.whole import Kept
from clustersim.report.folded.windows import kept_requests, windows_of
from clustersim.report.metrics.latencies import Columns
from clustersim.units import format_seconds

MOST_BYTES: Final = 30_000_000
"""Of a page, where nobody says more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a page is asked to hold and to show first.

    Parameters
    ----------
    most_bytes : int
        How large it may be.
    at_ns : int or None
        An instant at which lanes begin; none: they show the whole run.
    request : int or None
        A request that is shown first.
    """

    most_bytes: int = MOST_BYTES
    at_ns: int | None = None
    request: int | None = None

    def view(self, end_ns: int) -> tuple[int, int] | None:
        """Return the second around the instant that is asked for, within the run."""
        if self.at_ns is None:
            return None
        return max(0, self.at_ns - NS_PER_S // 2), min(end_ns, self.at_ns + NS_PER_S // 2)


EVERYTHING: Final = Asked()


def unfolds(layout: Layout) -> bool:
    """Tell whether any figure of a page needs the folded timeline."""
    return any(layout.first(name) for name in ("device_lanes", "request_rows", "link_lanes", "topology"))


def kept_of(summary: Mapping[str, Any], requests: Columns, steps: Columns, wanted: Asked) -> Kept:
    """Return what a page holds that can't hold all."""
    return Kept(
        windows=windows_of(summary, requests, steps, wanted.at_ns, wanted.request),
        requests=kept_requests(requests, wanted.request),
    )


def refuse_impossible(wanted: Asked, layout: Layout, requests: Columns, end_ns: int) -> None:
    """Raise InputError where what is asked for is not in the run, or no figure shows it."""
    problems = []
    if wanted.at_ns is not None and not 0 <= wanted.at_ns <= end_ns:
        found = format_seconds(wanted.at_ns / NS_PER_S)
        message = f"{found} is outside the run; expected 0 s to {end_ns / NS_PER_S:.6g} s"
        problems.append(Problem(path="--at", message=message))
    if wanted.request is not None and wanted.request not in requests["request"]:
        last = int(max(requests["request"], default=-1))
        message = f"there is no request {wanted.request}" + (f"; expected 0 to {last}" if last >= 0 else "")
        problems.append(Problem(path="--request", message=message))
    for option, figure, asked in (
        ("--at", "device_lanes", wanted.at_ns), ("--request", "request_rows", wanted.request),
    ):  # fmt: skip
        if asked is not None and layout.first(figure) is None:
            problems.append(Problem(path=option, message=f"the layout has no {figure}, which would show it"))
    if problems:
        raise InputError(problems)


def refuse_large(html: str, wanted: Asked) -> None:
    """Raise InputError where a page is too large though it holds no more than it must."""
    if len(html) > wanted.most_bytes:
        least = f"{ceil(len(html) / 1e5) / 10:g} MB"
        message = f"{wanted.most_bytes / 1e6:g} MB are too few for steps and requests; expected {least} or more"
        raise InputError(Problem(path="--max-page", message=message))
