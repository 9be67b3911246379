"""Random traces: turns that wait, sessions, equal instants, requests without a token, too long ones, equal prefixes."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hypothesis import strategies as st

HASHED_TOKENS: Final = 16
"""Prompt tokens of a hash in ``sharegpt``."""
INSTANTS: Final = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 5, 5, 9, 14, 30))
PROMPTS: Final = st.sampled_from((0, 1, 2, 7, 16, 17, 31, 32, 33, 48, 64, 70, 200))
OUTPUTS: Final = st.sampled_from((0, 1, 1, 2, 3, 5, 8, 12, 30))


@cache
def _folder() -> TemporaryDirectory[str]:
    """Return a folder that is removed when Python ends."""
    return TemporaryDirectory(prefix="traces-")


def _written(text: str, suffix: str) -> str:
    """Write a text; return the path, which follows from it."""
    path = Path(_folder().name) / (hashlib.sha256(text.encode()).hexdigest()[:16] + suffix)
    path.write_text(text, encoding="utf-8")
    return str(path)


@st.composite
def _csv(draw: st.DrawFn, document: dict[str, Any], count: int) -> dict[str, Any]:
    """Draw a CSV file with whatever its columns may say."""
    columns: dict[str, st.SearchStrategy[Any]] = {
        "arrival_ms": INSTANTS, "prompt_tokens": PROMPTS, "output_tokens": OUTPUTS
    }  # fmt: skip
    if document["serving"].get("order", {}).get("by") == "priority":
        columns["priority"] = st.integers(0, 2)
    sessions = draw(st.booleans())
    if sessions:
        columns["session_id"] = st.sampled_from(("", "a", "b", "c"))
    if draw(st.integers(0, 2)) == 0:
        columns["cancel_after_ms"] = st.sampled_from(("", "", "0", "2", "9"))
    rows = [[draw(cell) for cell in columns.values()] for _ in range(count)]
    if sessions and all(row[list(columns).index("session_id")] == "" for row in rows):
        rows[0][list(columns).index("session_id")] = "a"
    text = "".join(",".join(map(str, row)) + "\n" for row in [list(columns), *rows])
    return {"path": _written(text, ".csv")} | (
        {"turns": draw(st.sampled_from(("wait", "as_recorded")))} if sessions else {}
    )


@st.composite
def _jsonl(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Draw a file that names the blocks of prompts, of which some begin with those of others."""
    lines = []
    for request in range(count):
        prompt, group, alike = draw(PROMPTS.filter(bool)), draw(st.integers(0, 1)), draw(st.integers(0, 4))
        hashes = [
            place + 100 * group if place < alike else 1000 * (request + 1) + place
            for place in range(prompt // HASHED_TOKENS)
        ]
        line = {"arrival_time_ns": 1_000_000 * draw(INSTANTS), "input_toks": prompt, "output_toks": draw(OUTPUTS)}
        lines.append(json.dumps(line | {"hash_ids_16": hashes}) + "\n")
    return {"path": _written("".join(lines), ".jsonl"), "format": "sharegpt"}


@st.composite
def traced(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw a trace in place of drawn requests, whole or a part of it, at another pace or repeated."""
    serving, count = document["serving"], draw(st.integers(1, 12))
    hashed = serving.get("prefix_caching") and serving.get("order", {}).get("by") != "priority"
    trace = draw(_jsonl(count) if hashed else _csv(document, count))
    trace |= draw(st.sampled_from(({}, {}, {"rate_scale": 0.5}, {"rate_scale": 3.0})))
    if draw(st.booleans()):
        trace["requests"] = draw(st.integers(1, count))
    elif draw(st.integers(0, 3)) == 0:
        trace |= {"requests": 2 * count + 1, "repeat": True}
    if not hashed:
        serving = {key: value for key, value in serving.items() if key not in ("router_options", "prefix_caching")}
        serving |= {"router": "least_outstanding"} if serving.get("router") == "prefix_aware" else {}
    return document | {"serving": serving, "workload": {"trace": trace}}
