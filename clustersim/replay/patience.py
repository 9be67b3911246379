"""Why requests end by themselves: those that waited too long to be admitted, and those whose clients give them up."""

from __future__ import annotations

from typing import Final

WHY_GIVEN_UP: Final = (
    "its client gave it up while it waited to be taken up",
    "its client gave it up before its first token",
    "its client gave it up between its first token and its last",
)
"""How far a request had come when its client gave it up."""


def why_waited(ns: int) -> str:
    """Return in words that a request has waited too long."""
    return f"not admitted for {ns / 1e9:g} s, which is serving.queue_timeout"
