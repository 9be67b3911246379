"""Golden timelines of the pytest plugin: stored beside the test, and the first span that is another one is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from clustersim.pytest_plugin import golden
from clustersim.pytest_plugin.difference import difference
from clustersim.pytest_plugin.golden import GoldenTimeline, golden_text, read_golden
from clustersim.pytest_plugin.simulated import simulated
from clustersim.timeline.spans import STREAMS

OVERRIDES = {"workload.trace.requests": 3, "run.horizon": "100 ms"}
SPAN = re.compile(
    r"first differing span: replica (\d+), stage (\d+), rank (\d+), stream (\w+), (\w+)(?: \(number (\d+) of that "
    r"name\))?, (?:layer (\d+)|outside the layers), step (\d+)\n  expected (.*)\n  found    (.*)"
)


@cache
def timeline(**overrides):
    return simulated("quickstart", OVERRIDES | overrides, beside=Path()).timeline


def goldens(tmp_path, *, update=False):
    return GoldenTimeline(test_file=tmp_path / "test_it.py", test_name="test_it[a b/c]", update=update)


def test_a_golden_is_stored_beside_the_test_and_holds_until_something_moves(tmp_path):
    first = timeline()
    with pytest.raises(pytest.fail.Exception, match="no timeline is stored at"):
        goldens(tmp_path)(first)
    with pytest.raises(pytest.fail.Exception, match="anew"):
        goldens(tmp_path, update=True)(first)
    assert [path.name for path in (tmp_path / "test_it.timelines").iterdir()] == ["test_it-a-b-c.txt"]
    goldens(tmp_path)(first)
    goldens(tmp_path)(timeline(**{"run.replay": "full"}))
    goldens(tmp_path, update=True)(first)  # nothing moved: nothing is stored, and the test passes
    with pytest.raises(AssertionError, match="first differing span"):
        goldens(tmp_path)(timeline(**{"serving.engine": "ideal"}))


def test_several_goldens_of_a_test_need_names(tmp_path):
    found, store = timeline(), goldens(tmp_path, update=True)
    for name in ("", "other"):
        with pytest.raises(pytest.fail.Exception):
            store(found, name)
    assert sorted(path.name for path in (tmp_path / "test_it.timelines").iterdir()) == [
        "test_it-a-b-c-other.txt",
        "test_it-a-b-c.txt",
    ]
    with pytest.raises(ValueError, match="give each timeline a name"):
        store(found, "other")


def test_the_first_differing_span_is_the_first_in_the_unfolded_timelines(tmp_path):
    one, other = timeline(), timeline(**{"serving.engine": "sglang-0.5"})
    found = SPAN.fullmatch(difference(one, other))
    assert found is not None
    replica, stage, rank, stream, name, number, layer, step, expected, seen = found.groups()
    assert number is None
    spans, others = one.unfold(), other.unfold()
    # By hand: walk both in order of start, rank and stream until a row is another one.
    at = next(i for i in range(len(spans)) if _row(spans, i) != _row(others, i))
    first = min(_row(spans, at), _row(others, at))
    assert (int(rank), STREAMS.index(stream), int(step), int(layer or -1), name) == (
        first[1], first[2], first[4], first[5], first[6],
    )  # fmt: skip
    assert (int(replica), int(stage)) == (0, first[1] // 8)
    assert expected != seen
    assert expected.endswith(" ns)")


def _row(spans, i):
    numbers = [int(getattr(spans, name)[i]) for name in ("start_ns", "rank", "stream", "end_ns", "step", "layer")]
    return (*numbers, spans.names[spans.name[i]])


def test_the_end_of_a_single_span_is_seen_wherever_it_lies(tmp_path, monkeypatch):
    monkeypatch.setattr("clustersim.pytest_plugin.difference.WINDOW_SPANS", 1000)
    whole = timeline(**{"plan.pp": 1, "plan.tp": 2})
    run = len(whole.passes["steps"]) - 1
    row = int(whole.passes["row"][run])
    values = whole.row_values.copy()
    values[int(whole.rows["at"][row])] += 7
    longer = replace(whole, row_values=values)
    found = SPAN.fullmatch(difference(whole, longer))
    assert found is not None
    lengths = [int(re.search(r"\(([\d,]+) ns\)", side)[1].replace(",", "")) for side in found.groups()[-2:]]
    assert lengths[1] - lengths[0] == 7
    assert int(found[8]) == int(whole.passes["first_step"][whole.passes["row"] == row].min())


def test_a_span_that_is_missing_is_said_to_be(tmp_path):
    long, short = timeline(), timeline(**{"run.horizon": "60 ms"})
    assert difference(long, short).endswith("found    no such span")
    assert "expected no such span" in difference(short, long)


def test_a_fact_is_shown_where_all_spans_are_equal(tmp_path):
    one = timeline()
    facts = dict(one.facts) | {"value": one.facts["value"] + np.eye(1, len(one.facts["value"]), 2, dtype=np.int32)[0]}
    text = difference(one, replace(one, facts=facts))
    assert re.search(r"all spans are equal; first differing row of facts:\n  expected replica 0, .*kind \w+", text)
    assert difference(one, one) is None


def test_a_golden_reads_back_as_the_same_timeline(tmp_path):
    one = timeline()
    path = tmp_path / "golden.txt"
    path.write_text(golden_text(one))
    stored = read_golden(path)
    assert stored.head == {
        "digest": one.digest, "spans": str(one.num_spans), "steps": str(one.num_steps), "end_ns": str(one.end_ns)
    }  # fmt: skip
    assert difference(stored.timeline, one) is None
    assert max(map(len, path.read_text().splitlines())) <= 110
    assert path.stat().st_size < 40_000


def test_a_golden_that_is_too_large_is_stored_as_digest_and_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(golden, "MOST_BYTES", 1000)
    with pytest.raises(pytest.fail.Exception):
        goldens(tmp_path, update=True)(timeline())
    assert goldens(tmp_path).path("").stat().st_size < 1000
    goldens(tmp_path)(timeline())
    with pytest.raises(AssertionError, match="too large to be stored whole") as caught:
        goldens(tmp_path)(timeline(seed=3, **{"plan.tp": 4}))
    assert re.search(r"spans: expected \d+, found \d+", str(caught.value))


@pytest.mark.parametrize("broken", ["AAAA", "%%%", "/Td6WFoAAATm1rRGBMA="])
def test_a_golden_that_cannot_be_read_still_compares_by_its_digest(tmp_path, broken):
    one, other = timeline(), timeline(**{"plan.tp": 4})
    path = goldens(tmp_path).path("")
    path.parent.mkdir()
    path.write_text(golden_text(one).partition("\n\n")[0] + f"\n\n{broken}\n")
    goldens(tmp_path)(one)
    with pytest.raises(AssertionError, match="what is stored can't be read"):
        goldens(tmp_path)(other)
