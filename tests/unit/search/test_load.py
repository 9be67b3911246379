"""How many requests there are at a rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clustersim.scenario.scenario import TraceWorkload
from clustersim.search.load import Load


def test_a_trace_is_played_again_where_more_requests_are_asked_for_than_it_has():
    trace = TraceWorkload(path=Path("some.csv"), requests=500)
    load = Load(workload=trace, first=2.0, requests=500, own=500, lasting_s=100.0)
    assert load.at(4.0) == replace(trace, rate_scale=2.0)
    long = replace(load, requests=1000)
    assert long.at(4.0) == replace(trace, rate_scale=2.0, requests=1000, repeat=True)
    assert "workload.trace.requests=1000" in long.changes(4.0)
