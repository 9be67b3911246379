"""What a page is asked for: how large it may be, and what it shows first; and what can't be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from clustersim.clock import NS_PER_S
from clustersim.errors import InputError, Problem
from clustersim.report.figures.layout import Layout
from clustersim.report.folded.whole import Kept
from clustersim.report.folded.windows import kept_requests, windows_of
from clustersim.report.metrics.latencies import Columns
from clustersim.report.page_files import with_script_beside
from clustersim.units import at_least, format_seconds
from clustersim.values import dataclass

UNFOLDING: Final = ("device_lanes", "request_rows", "link_lanes", "topology")
"""Figures that a page unfolds from the timeline, which it then holds."""
MOST_BYTES: Final = 30_000_000
"""Of a page, where nobody says more or less."""

_PASS_BYTES: Final = 10
"""Of a page that can't hold all, about, for each pass: 25 MB of two million."""
_TIMES: Final = 2


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
    is_beside : bool
        Whether plotly's script lies beside the page, and is none of its bytes.
    most : str
        ``most_bytes`` as it was written, whose unit messages keep.
    """

    most_bytes: int = MOST_BYTES
    at_ns: int | None = None
    request: int | None = None
    is_beside: bool = False
    most: str = "30 MB"

    def bytes_of(self, html: str) -> int:
        """Return how large a page becomes."""
        return len((with_script_beside(html) if self.is_beside else html).encode())

    def may_hold(self, passes: int) -> bool:
        """Return whether a page can hold so many passes, without operators, in some ``_TIMES`` of its size.

        Larger ones no browser opens, and to make one takes longer than all figures; who asks for an instant or a
        request gets it, or is told what size would do.
        """
        asks = self.at_ns is not None or self.request is not None
        return asks or passes * _PASS_BYTES <= _TIMES * self.most_bytes

    def view(self, end_ns: int) -> tuple[int, int] | None:
        """Return the second around the instant that is asked for, within the run."""
        if self.at_ns is None:
            return None
        return max(0, self.at_ns - NS_PER_S // 2), min(end_ns, self.at_ns + NS_PER_S // 2)


EVERYTHING: Final = Asked()


def unfolds(layout: Layout) -> bool:
    """Tell whether any figure of a page needs the folded timeline."""
    return any(layout.first(name) for name in UNFOLDING)


def without_unfolding(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parsed dashboard file without the figures that unfold the timeline; one remains."""
    kept = [panel for panel in layout["figures"] if panel["figure"] not in UNFOLDING]
    return {**layout, "figures": kept or [{"figure": "headline"}]}


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
        found, seconds = format_seconds(wanted.at_ns / NS_PER_S), f"{wanted.at_ns / NS_PER_S:,.10g} s"
        also = "" if found == seconds else f" ({seconds})"
        message = f"{found}{also} is outside the run; expected 0 s to {end_ns / NS_PER_S:,.6g} s"
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


def refuse_large(html: str, wanted: Asked, without: Callable[[], str], *, of_command: bool = True) -> None:
    """Raise InputError where a page is too large though it holds no more than it must, with the nearest that would do.

    Parameters
    ----------
    html : str
        The page, with plotly's script in it.
    wanted : Asked
    without : callable
        Returns the page without the figures that unfold the timeline.
    of_command : bool
        Whether options of the command would do, too; the library has only a parameter for the layout.
    """
    size = wanted.bytes_of(html)
    if size <= wanted.most_bytes:
        return
    beside = replace(wanted, is_beside=True)
    bare = f"a {'--' if of_command else ''}layout without {', '.join(UNFOLDING[:-1])} and {UNFOLDING[-1]}"
    holds_script = of_command and not wanted.is_beside
    choices = [("--script beside", beside.bytes_of(html))] if holds_script else []
    lean = without()
    choices.append((bare, wanted.bytes_of(lean)))
    choices += [(f"--script beside and {bare}", beside.bytes_of(lean))] if holds_script else []

    def told(count: int) -> str:
        return at_least(count, wanted.most, "bytes")

    how, least = next((one for one in choices if one[1] <= wanted.most_bytes), choices[-1])
    message = f"{wanted.most} is too little for steps and requests: expected {told(size)} or more"
    if least < size:
        message += f", or {how}: {told(least)}"
    raise InputError(Problem(path="--max-page", message=message))
