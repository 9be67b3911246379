"""Where a client's first token comes from with two pools: from the pool that prefills, with the K/V, or from decode.

A prompt of 10 tokens takes 7,150 ns (ends 2,000, layer 4,600, 55 pairs 550), its K/V 11,000 ns, and decode steps with
11, 12 and 13 known tokens 6,710, 6,720 and 6,730 ns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clustersim.cluster.fault import Fault
from clustersim.replay.input import ReplayInput
from clustersim.replay.replay import replay
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.scenario.parts import load_engine
from clustersim.serving.decision import RECEIVED
from clustersim.simulation.audit import audit_run
from clustersim.simulation.causes.labels import COLUMNS
from clustersim.simulation.first_tokens import delivery_of
from clustersim.simulation.simulate import RunResult, simulate
from clustersim.timeline.tokens import TokenInstants, TokenTimes, token_times, tokens_by_bucket
from tests.round_numbers import pools

SAMPLED, RECEIVED_NS = 7_150, 18_150
ONE = {
    "prefill": [SAMPLED, 24_860, 31_580],
    "transfer": [RECEIVED_NS, 24_860, 31_580],
    "decode": [24_860, 31_580, 38_310],
}


def both(given: ReplayInput, first_token: Any) -> tuple[TokenTimes, list[list[int]]]:
    """Replay in both ways, which are the same; return token times, and the instants of each request."""
    given = replace(given, first_token=first_token)
    folded, full = (replay(replace(given, mode=mode)).timeline for mode in ("folded", "full"))
    assert folded.digest == full.digest
    count = len(given.requests)
    delivery = delivery_of(folded, first_token, count)
    instants = TokenInstants(folded, delivery).of(range(count))
    return token_times(folded, count, delivery=delivery), [one.tolist() for one in instants]


@pytest.mark.parametrize(("first_token", "instants"), ONE.items())
def test_the_tokens_of_one_request_come_when_the_engine_says(first_token: str, instants: list[int]) -> None:
    times, found = both(pools([(0, 10, 3)]), first_token)
    assert found == [instants]
    assert (times.first_ns.tolist(), times.last_ns.tolist(), times.count.tolist()) == (
        [instants[0]],
        [instants[2]],
        [3],
    )
    assert times.gaps[0].tolist() == sorted(np.diff(instants).tolist())


@pytest.mark.parametrize(("first_token", "instants"), [("prefill", SAMPLED), ("transfer", SAMPLED), ("decode", 24_860)])
def test_who_asks_for_one_token_has_it_from_the_prefill_pool_unless_that_throws_it_away(
    first_token: str, instants: int
) -> None:
    assert both(pools([(0, 10, 1)]), first_token)[1] == [[instants]]


def test_an_answer_that_ends_in_the_prefill_pool_reaches_its_client() -> None:
    """The decode pool fails 20,000 ns in, before its step: 11 tokens are computed again, which takes 7,260 ns."""
    given = replace(pools([(0, 10, 1)]), faults=(Fault(at_ns=20_000, devices=(1,)),))
    assert both(given, "decode")[1] == [[27_260]]


@pytest.mark.parametrize("first_token", ONE)
def test_who_asks_for_nothing_gets_nothing(first_token: str) -> None:
    times, _ = both(pools([(0, 10, 0)]), first_token)
    assert (times.count.tolist(), times.first_ns.tolist()) == ([0], [-1])


@pytest.mark.parametrize(
    ("first_token", "made"), [("prefill", [1, 1, 1]), ("transfer", [0, 2, 1]), ("decode", [0, 1, 2])]
)
def test_tokens_are_counted_when_clients_get_them(first_token: str, made: list[int]) -> None:
    """In 18 µs, 28 µs and beyond."""
    timeline = replay(replace(pools([(0, 10, 3)]), first_token=first_token)).timeline
    counts = tokens_by_bucket(timeline, np.ones(1, bool), 0, 1_000, delivery_of(timeline, first_token, 1))
    assert [int(counts[:18].sum()), int(counts[18:28].sum()), int(counts[28:].sum())] == made


@pytest.mark.parametrize("first_token", ONE)
def test_an_output_that_fills_the_context_window_is_served(first_token: str) -> None:
    given = pools([(0, 10, 3)])
    for window, refused in ((13, {}), (12, {0: "is longer, with its output, than the context window of 12 tokens"})):
        windowed = [replace(one, serving=replace(one.serving, context_window=window)) for one in given.pools]
        found = replay(replace(given, pools=tuple(windowed), first_token=first_token))
        assert {request: why.removeprefix("to decode, it ") for request, why in found.reasons.items()} == refused


SCENARIO = """
name: t
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
plan: {prefill: {tp: 1}, decode: {tp: %s, pp: %s}}
serving: {scheduler: disaggregated, transfer: %s, engine: {name: vllm-0.19, first_token: %s}}
workload: {arrivals: {process: constant, rate: 40/s}, prompt_tokens: 900, output_tokens: 6, requests: 12, %s}
targets: {ttft: 60 ms}
"""


def ran(first_token: str, *, tp: int = 1, pp: int = 1, transfer: str = "whole", more: str = "seed: 1") -> RunResult:
    """Run twelve requests in both ways, which agree on all that is said of them, and audit them."""
    text = SCENARIO % (tp, pp, transfer, first_token, "" if more == "seed: 1" else more)
    folded, full = (
        simulate(build_scenario(parse_yaml(text + f"run: {{replay: {mode}}}\n", "t.yaml"), allow_code=False))
        for mode in ("folded", "full")
    )
    for name, values in folded.table.items():
        assert np.array_equal(np.ma.filled(values, -1), np.ma.filled(full.table[name], -1)), name
    assert audit_run(folded).violations == ()
    return folded


def instants_of(result: RunResult) -> dict[str, list[int]]:
    """Return what the timeline says of each request: when it was sampled, received, and decoded for the first time."""
    timeline, found = result.timeline, {"prefill": {}, "transfer": {}, "decode": {}}
    ends = {
        (r, s): e for r, s, e in zip(*(timeline.steps[c].tolist() for c in ("replica", "step", "end_ns")), strict=True)
    }
    for request, replica, step in zip(
        *(timeline.chunks[c].tolist() for c in ("request", "replica", "step")), strict=True
    ):
        found["prefill"][request] = ends[replica, step]
    facts = timeline.facts
    for row in np.flatnonzero(facts["kind"] == RECEIVED).tolist():
        found["transfer"][int(facts["request"][row])] = int(facts["time_ns"][row])
    for request, step in zip(
        timeline.decodes["request"].tolist(), timeline.decodes["first_step"].tolist(), strict=True
    ):
        found["decode"].setdefault(request, ends[1, step])
    return {name: [at for _, at in sorted(mine.items())] for name, mine in found.items()}


@pytest.mark.parametrize("transfer", ["whole", "layerwise"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("first_token", ONE)
def test_ttft_ends_where_the_engine_says_and_its_causes_add_up(
    first_token: str, tp: int, pp: int, transfer: str
) -> None:
    result = ran(first_token, tp=tp, pp=pp, transfer=transfer)
    columns, causes = result.requests, result.causes
    text = SCENARIO % (tp, pp, transfer, first_token, "")
    full = simulate(build_scenario(parse_yaml(text + "run: {replay: full}\n", "t.yaml"), allow_code=False))
    assert columns["first_token_ns"].tolist() == instants_of(full)[first_token]
    assert columns["generated_tokens"].tolist() == [6] * 12
    front_end = columns["front_end_ns"]
    ttft = columns["first_token_ns"] - columns["arrived_ns"] + front_end
    assert causes.to_first_ns.sum(axis=1).tolist() == ttft.tolist()
    assert causes.ns.sum(axis=1).tolist() == (columns["finished_ns"] - columns["arrived_ns"] + front_end).tolist()
    if transfer == "whole":  # else the last layer is there before the token is sampled
        at = causes.labels.index(COLUMNS["transfer_ns"])
        sides = (causes.to_first_ns[:, at] > 0).all(), (causes.after_ns[:, at] > 0).all()
        assert sides == (first_token != "prefill", first_token == "prefill")


def test_clients_that_give_up_before_the_decode_pool_answers_have_no_token() -> None:
    """They leave 50 us after their token was sampled, when their K/V is on its way."""
    plain = ran("prefill").requests
    sampled = int((plain["first_token_ns"] - plain["arrived_ns"]).max())
    for first_token, had in (("prefill", [True] * 12), ("transfer", [False] * 12), ("decode", [False] * 12)):
        result = ran(first_token, more=f"cancel_after: {sampled + 50_000} ns")
        assert (result.requests["generated_tokens"] > 0).tolist() == had, first_token


def test_engines_say_where_first_tokens_come_from() -> None:
    names = "distserve-2024", "vllm-0.6", "vllm-0.9", "vllm-0.19", "sglang-0.5", "trtllm-1.0", "ideal"
    told = ["prefill", "decode", "decode", "decode", "transfer", "transfer", "prefill"]
    assert [load_engine(name).first_token for name in names] == told
