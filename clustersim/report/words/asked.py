"""What a page was asked to show first, as a line at its top that leads there."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import fsum
from typing import Any, Final

import numpy as np

from clustersim.clock import NS_PER_S
from clustersim.report.folded.asked import Asked
from clustersim.report.metrics.latencies import Columns
from clustersim.report.words.diagnosis import LEAST, WORDS
from clustersim.report.words.run import share_words
from clustersim.units import format_seconds, plural

_NAMED: Final = 2
"""Causes of a request's time that are named."""


def asked_html(wanted: Asked, requests: Columns, places: Mapping[str, str]) -> str:
    """Return a line for the request, and one for the instant, that a page was asked for; nothing without.

    Parameters
    ----------
    wanted : Asked
    requests : Columns
    places : mapping
        Figure → the id of its section.
    """
    lines = []
    if wanted.request is not None:
        lines.append((f"Request {wanted.request}", places.get("request_rows"), request_words(requests, wanted.request)))
    if wanted.at_ns is not None:
        words = "devices, links and requests show the second around it first"
        if wanted.request is not None:
            words = "devices, links and requests show the time of the request first; drag to get there"
        lines.append((f"At {wanted.at_ns / NS_PER_S:,.10g} s", places.get("device_lanes"), words))
    shown = "".join(f"<li>{_link(name, place)}: {escape(words)}.</li>" for name, place, words in lines)
    return f'<ul class="remarks asked">{shown}</ul>' if shown else ""


def _link(name: str, place: str | None) -> str:
    return f'<a href="#{place}">{escape(name)}</a>' if place else escape(name)


def request_words(requests: Columns, request: int) -> str:
    """Return what became of a request, how long it took, and what most of that went to."""
    row = int(np.flatnonzero(np.asarray(requests["request"]) == request)[0])
    one: dict[str, Any] = {name: values[row] for name, values in requests.items()}
    tokens = f"{plural(int(one['prompt_tokens']), 'prompt token')}, {plural(int(one['output_tokens']), 'output token')}"
    words = [tokens, f"arrived at {format_seconds(float(one['arrived_ns']) / NS_PER_S)}", str(one["outcome"])]
    for what, column in (("first token", "first_token_ns"), ("all", "finished_ns")):
        if np.isfinite(instant := float(one[column])):
            took = instant - float(one["arrived_ns"]) + float(one["front_end_ns"])
            words.append(f"{what} after {format_seconds(took / NS_PER_S)}")
    spent = {cause: float(one[f"{cause}_ns"]) for cause in WORDS if np.isfinite(float(one.get(f"{cause}_ns", np.nan)))}
    total = fsum(spent.values())
    ranked = sorted(((ns / total, cause) for cause, ns in spent.items() if total and ns >= LEAST * total), reverse=True)
    words += [f"{share_words(share)} {WORDS[cause]}" for share, cause in ranked[:_NAMED]]
    return ", ".join(words)
