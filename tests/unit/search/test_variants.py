"""What variants of one scenario have in common is read and worked out once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from clustersim.graph.prices.pricer import Pricer
from clustersim.limits import Limits
from clustersim.replay import programs as compiling
from clustersim.scenario import document
from clustersim.scenario.build import topologies
from clustersim.scenario.load import load as load_scenario
from clustersim.scenario.parts import KeptParts
from clustersim.search.point import run_point
from clustersim.search.runs import Variants
from clustersim.simulation import priced
from clustersim.simulation import simulate as simulating
from clustersim.workload.traces import trace

OVERRIDES = ("plan={tp: 8}", "topology.nodes=1", "workload.trace.requests=40")


def variants() -> Variants:
    return Variants("quickstart", OVERRIDES, limits=Limits())


@contextmanager
def counted(**places: tuple[object, str]) -> Iterator[Counter[str]]:
    """Count calls of functions, each an attribute of a module or a class."""
    calls: Counter[str] = Counter()

    def counting(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return plain(*args, **named)

        return called

    with ExitStack() as stack:
        for name, (holder, attribute) in places.items():
            plain = getattr(holder, attribute)
            stack.enter_context(mock.patch.object(holder, attribute, counting(name, plain)))
        yield calls


def test_a_warm_candidate_parses_and_compiles_nothing_anew() -> None:
    many = variants()

    def point(*changes: str) -> dict[str, Any]:
        scenario = many.scenario(changes)
        return run_point(scenario, many.requests(scenario), False, None, None)

    for rate in (1.0, 1.1):
        point(f"workload.trace.rate_scale={rate}")
    with counted(
        files=(document, "read_text"),
        yaml=(document, "_parse_yaml"),
        topologies=(sys.modules["clustersim.scenario.load"], "build_cluster"),
        traces=(trace, "read_text"),
        blueprints=(priced, "step_blueprints"),
        programs=(compiling, "build_program"),
        prices=(Pricer, "price_groups"),
        replays=(simulating, "replay"),
    ) as calls:
        row = point("workload.trace.rate_scale=1.1", "serving.max_batch_requests=77")
    assert row["failed"] is None
    assert calls == {"replays": 1, "yaml": 2}  # the values of both changes, each a text of its own


def test_a_variant_is_what_loading_it_alone_gives() -> None:
    many = variants()
    for changes in (("plan.tp=4",), ("topology.nic_bandwidth=25 GB/s",), ("model=llama-3.1-8b",), ("plan.tp=4",)):
        found = many.scenario(changes)
        alone = load_scenario("quickstart", (*OVERRIDES, *changes, "expect={}"))
        assert found.digest == alone.digest
        assert found.document == alone.document
        assert found.model == alone.model
        assert found.topology.link_ends == alone.topology.link_ends
        assert np.array_equal(found.topology.link_capacity, alone.topology.link_capacity)


def test_requests_at_another_rate_are_those_of_the_trace_scaled() -> None:
    many = variants()
    for rate in (1.0, 0.7, 2.5, 1.0):
        scenario = many.scenario((f"workload.trace.rate_scale={rate}",))
        found, alone = many.requests(scenario), scenario.requests()
        assert np.array_equal(found.arrived_at_ns, alone.arrived_at_ns), rate
        assert np.array_equal(found.prompt_tokens, alone.prompt_tokens), rate


def test_parts_are_told_apart_by_what_is_written_and_from_where(tmp_path: Path) -> None:
    kept = KeptParts()
    made: list[str] = []

    def built(made_of: str, file: str, **written: Any) -> str:
        marks = {("topology",): document.Mark(file=file)}
        source = document.Document(file="a.yaml", data={"topology": written}, marks=marks, key_marks={})

        def build() -> str:
            made.append(made_of)
            return made_of

        return kept.built(source, ("topology",), build)

    assert built("one", "a.yaml", name="x") == "one"
    assert built("again", "a.yaml", name="x") == "one"
    assert built("other value", "a.yaml", name="y") == "other value"
    assert built("from the working directory", "--set #1", name="x") == "from the working directory"
    assert made == ["one", "other value", "from the working directory"]


def test_parts_that_cannot_be_built_are_not_kept() -> None:
    many = variants()
    for _ in range(2):
        row_problem = None
        try:
            many.scenario(("topology.nic_bandwidth=fast",))
        except Exception as error:
            row_problem = str(error)
        assert row_problem is not None
        assert "--vary topology.nic_bandwidth=fast" in row_problem
    assert many.scenario(()).topology.name == topologies.build_cluster(many.scenario(()).origin)[0].name
