"""A window in pieces: every span of it once, in the piece in which it starts, and pieces as small as was asked."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from report_data import OnePiece

from clustersim.report.traces.trace import write_trace
from clustersim.scenario.load import load
from clustersim.simulation.simulate import simulate
from clustersim.timeline.spans import Spans, halves_named
from clustersim.timeline.timeline import Timeline
from clustersim.timeline.window import Window


@pytest.fixture(scope="module", params=["distserve-tp2-pp2", "mixtral-ep"])
def timeline(request: pytest.FixtureRequest) -> Timeline:
    name = str(request.param)
    return simulate(load(name, ("workload.requests=4", "expect={}"))).timeline


def counted(spans: Spans) -> Counter[tuple[object, ...]]:
    columns = (spans.start_ns, spans.end_ns, spans.rank, spans.stream, spans.layer, spans.step, spans.name)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return Counter((*row[:-1], spans.names[row[-1]]) for row in rows)


@pytest.mark.parametrize("share", [(0.0, 1.0), (0.3, 0.35)])
@pytest.mark.parametrize("ranks", [None, [1, 3]])
def test_pieces_hold_every_span_once(timeline: Timeline, share: tuple[float, float], ranks: list[int] | None):
    first, last = (int(one * timeline.end_ns) for one in share)
    last = min(last, first + timeline.end_ns // 8) + 1
    window = Window(timeline=timeline, start_ns=first, end_ns=last, ranks=ranks, piece_spans=2_000)
    pieces = list(window)
    found: Counter[tuple[object, ...]] = Counter()
    for piece in pieces:
        found += counted(piece)
    assert found == counted(halves_named(timeline.unfold(first, last, ranks)))
    for piece, following in pairwise(pieces):
        assert int(piece.start_ns.max()) < int(following.start_ns.min())


def test_pieces_are_about_as_large_as_was_asked():
    timeline = simulate(load("quickstart", ("workload.trace.requests=3", "expect={}"))).timeline
    window = Window(timeline=timeline, start_ns=0, end_ns=timeline.end_ns // 16, piece_spans=10_000)
    sizes = [len(piece) for piece in window]
    assert len(sizes) > 10
    assert max(sizes) < 20_000
    assert abs(window.num_spans - sum(sizes)) < 0.05 * sum(sizes)


def test_a_trace_in_pieces_says_what_one_of_a_piece_does(tmp_path: Path):
    timeline = simulate(load("distserve-tp2-pp2", ("workload.requests=3", "expect={}"))).timeline
    until = timeline.end_ns // 2
    devices = [f"g{rank}" for rank in range(8)]
    whole = halves_named(timeline.unfold(0, until))
    pieces = Window(timeline=timeline, start_ns=0, end_ns=until, piece_spans=3_000)
    assert len(list(pieces)) == 5
    assert write_trace(tmp_path / "whole.json", OnePiece(whole), devices) == len(whole)
    assert write_trace(tmp_path / "pieces.json", pieces, devices) == len(whole)
    assert events(tmp_path / "pieces.json") == events(tmp_path / "whole.json")


def events(path: Path) -> Counter[str]:
    """Count events, with the name of their thread in place of its number."""
    found = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    told = [{**e, "tid": names.get((e["pid"], e.get("tid")))} for e in found if e["ph"] in "Xsf"]
    numbers = {e["id"]: (e["pid"], e["ts"]) for e in told if e["ph"] == "s"}
    return Counter(json.dumps({**e, "id": numbers.get(e.get("id"))}, sort_keys=True) for e in told)
