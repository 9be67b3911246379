"""A golden timeline: its digest and its folded tables in a text file beside the test.

Equal digests mean equal timelines. Where they differ, the tables tell which span is the first that does. They are
stored as base64 of a packed folder that :mod:`clustersim.timeline.files` writes; above :data:`MOST_BYTES` only the
digest and the counts are.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import tarfile
import tempfile
import textwrap
from dataclasses import field
from pathlib import Path
from typing import Final

import pytest

from clustersim import inputs
from clustersim.errors import InputError
from clustersim.library.result import Result
from clustersim.pytest_plugin.difference import difference
from clustersim.scenario.document import shown
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.files import load_timeline, save_timeline
from clustersim.timeline.timeline import Timeline
from clustersim.values import dataclass

TITLE: Final = "clustersim golden timeline; pytest --update-golden rewrites it"
COUNTS: Final = ("spans", "steps", "end_ns")
MOST_BYTES: Final = 1 << 20
"""Largest text of packed tables that is stored: some million spans of a usual deployment."""
_WIDTH: Final = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenTimeline:
    """Compares timelines with the stored ones of a test: ``golden_timeline(result)``.

    ``test_serving.py::test_chat`` stores ``test_serving.timelines/test_chat.txt`` beside itself. A test that compares
    several gives each a name: ``golden_timeline(result, "tp4")`` stores ``test_chat-tp4.txt``.

    Parameters
    ----------
    test_file, test_name : Path, str
        Whose goldens these are.
    update : bool
        Whether to store what comes now; a test that stores something else than there was fails.
    """

    test_file: Path
    test_name: str
    update: bool
    _done: list[str] = field(default_factory=list)

    def __call__(self, result: Result | RunResult | Timeline, name: str = "") -> None:
        """Compare with the stored timeline, or store it.

        Raises
        ------
        AssertionError
            With the first differing span, expected and found, when the timeline is another one than was stored.
        pytest.fail.Exception
            When there is no stored one, or it was rewritten.
        """
        __tracebackhide__ = True
        path = self.path(name)
        if path.name in self._done:
            raise ValueError(f"this test compared {path.name} already; give each timeline a name")
        self._done.append(path.name)
        found = result if isinstance(result, Timeline) else result.timeline
        stored = read_golden(path) if path.exists() else None
        if stored is not None and stored.head.get("digest") == found.digest:
            return
        if self.update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(golden_text(found), encoding="utf-8")
            pytest.fail(f"stored {shown(path)} anew; look at what moved, and run again without --update-golden")
        if stored is None:
            pytest.fail(f"no timeline is stored at {shown(path)}; pytest --update-golden stores it")
        raise AssertionError(f"the timeline is not the one in {shown(path)}\n{_what_moved(stored, found)}")

    def path(self, name: str) -> Path:
        """Return the file of one golden."""
        words = (re.sub(r"[^A-Za-z0-9._=,+-]+", "-", word).strip("-") for word in (self.test_name, name) if word)
        stem = "-".join(words)
        return self.test_file.with_name(f"{self.test_file.stem}.timelines") / f"{stem}.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a golden file holds; ``timeline`` is None where only the counts were stored, or can't be read any more."""

    head: dict[str, str]
    timeline: Timeline | None
    why_not: str = ""


def golden_text(timeline: Timeline) -> str:
    """Return the text of a golden file."""
    head = {"digest": timeline.digest, **{name: str(value) for name, value in counts(timeline).items()}}
    lines = [TITLE, *(f"{name}: {value}" for name, value in head.items()), ""]
    packed = base64.b64encode(_packed(timeline)).decode("ascii")
    if len(packed) <= MOST_BYTES:
        lines += textwrap.wrap(packed, _WIDTH)
    return "\n".join([*lines, ""])


def counts(timeline: Timeline) -> dict[str, int]:
    """Return what is said of a timeline in plain numbers."""
    values = (timeline.num_spans, timeline.num_steps, timeline.end_ns)
    return dict(zip(COUNTS, values, strict=True))


def read_golden(path: Path) -> Stored:
    """Read a golden file; tables that this version can't read are none."""
    head_text, _, packed = inputs.read_text(path, most=inputs.RECORD_BYTES).partition("\n\n")
    head = dict(line.split(": ", 1) for line in head_text.splitlines()[1:] if ": " in line)
    if not packed.strip():
        return Stored(head=head, timeline=None, why_not="it was too large to be stored whole; give it fewer requests")
    try:
        return Stored(head=head, timeline=_unpacked(base64.b64decode(packed, validate=False)))
    except (InputError, binascii.Error, tarfile.TarError, EOFError, OSError) as error:
        return Stored(head=head, timeline=None, why_not=f"what is stored can't be read: {error}")


def _packed(timeline: Timeline) -> bytes:
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w:xz") as tar:
        save_timeline(timeline, Path(folder))
        for file in sorted(Path(folder).iterdir()):
            entry = tarfile.TarInfo(f"timeline/{file.name}")
            entry.size = file.stat().st_size
            with file.open("rb") as content:
                tar.addfile(entry, content)
    return packed.getvalue()


def _unpacked(packed: bytes) -> Timeline:
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            if content is not None:
                file = Path(folder, "timeline", Path(entry.name).name)
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content.read())
        return load_timeline(Path(folder))


def _what_moved(stored: Stored, found: Timeline) -> str:
    now = {"digest": found.digest, **counts(found)}
    table = [f"  {name}: expected {stored.head.get(name)}, found {value}" for name, value in now.items()]
    changed = [line for line, (name, value) in zip(table, now.items(), strict=True)
               if stored.head.get(name) != str(value)]  # fmt: skip
    if stored.timeline is None:
        words = f"no span can be shown: {stored.why_not}"
    else:
        words = difference(stored.timeline, found) or "nothing that is shown to users differs, only the digest"
    return "\n".join([words, *changed, "if it was meant to move: pytest --update-golden"])
