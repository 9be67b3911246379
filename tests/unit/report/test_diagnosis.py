"""The line that says why a percentile is bad: three prepared runs, and runs of which there is nothing to say."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from checked_figure import checked

from clustersim.clock import NS_PER_S
from clustersim.report.figures.causes import causes_figure
from clustersim.report.figures.panels import by_faults
from clustersim.report.files.summary import ALSO, summary_of
from clustersim.report.metrics.steady import steady_rates
from clustersim.report.words.causes import cause_lines
from clustersim.report.words.diagnosis import LEFT_OUT, MEMORY, diagnoses
from clustersim.report.words.faults import and_then
from clustersim.report.words.run import remarks, share_words
from clustersim.report.words.terminal import print_summary
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.simulation.legality import check_scenario
from clustersim.simulation.simulate import simulate
from clustersim.units import format_seconds

PLAIN = """
name: prepared
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-8b
plan: {tp: 2}
serving: {engine: vllm-0.19, %s}
faults: [%s]
workload: {arrivals: {process: poisson, rate: %s/s}, prompt_tokens: 512, output_tokens: 16, requests: %s}
"""


def summary(
    serving: str = "", faults: str = "", rate: int = 4, requests: int = 120, plan: str = "{tp: 2}", more: str = ""
) -> dict[str, Any]:
    text = (PLAIN % (serving, faults, rate, requests)).replace("{tp: 2}", plan) + more
    ran = simulate(build_scenario(parse_yaml(text, "prepared.yaml"), allow_code=False))
    return summary_of(ran, also=ALSO)


def bars(found: dict[str, Any]) -> dict[str, Any]:
    """Return the bars of the figure of causes, by what they are called."""
    figure = checked(causes_figure(found["causes"], 400, by_faults(found)))
    return {one.name: one for one in figure.data}


@pytest.mark.parametrize(
    ("prepared", "begin", "end"),
    [
        (
            {"serving": "max_batch_requests: 4", "rate": 100},
            "p99 TTFT ",
            " ms) while K/V of a replica is 0.2% full at most",
        ),
        (
            {"serving": "kv_blocks: 100", "rate": 100},
            "p99 TTFT ",
            f"; {LEFT_OUT} 63,202)",
        ),
        (
            {"faults": "{link: [n0.g1, n0.nvswitch], factor: 0.02, at: 0 s}", "rate": 1, "requests": 6},
            "p99 TTFT ",
            "; from which follows: 51% exposed communication, 34% waiting for a step under way, 8.8% compute",
        ),
    ],
)
def test_diagnosis_names_what_a_prepared_run_lacks(prepared: dict[str, Any], begin: str, end: str) -> None:
    (found,) = diagnoses(summary(**prepared))
    assert (found[: len(begin)], found[-len(end) :]) == (begin, end)


@pytest.mark.parametrize(("without", "words"), [(95.0, "as a whole it is"), (40.0, "from which follows")])
def test_causes_follow_from_faults_only_where_these_are_much_of_it(without: float, words: str) -> None:
    told = {"ttft_ms": {"p99": 100.0}, "without_faults": {"ttft_ms": {"p99": without}}}
    assert and_then(told, "ttft") == words


WEAK = "{link: [n0.g1, n0.nvswitch], factor: 0.02, at: %s}"
TWO_POOLS = (
    "{prefill: {tp: 1}, decode: {tp: 1}}",
    "scheduler: disaggregated, prefill: {scheduler: chunked_prefill}, decode: {scheduler: continuous}",
)
ROOTS = {
    "a weak link from the start": (
        {"faults": WEAK % "0 s", "rate": 1, "requests": 6}, "ttft", "has 2% of its capacity (faults[0])",
    ),
    "a weak link from the middle on": (
        {"faults": WEAK % "4 s, until: 20 s", "rate": 4, "requests": 60}, "ttft",
        "n0.g1 to n0.nvswitch has 2% of its capacity (faults[0], from 4 s to 20 s)",
    ),
    "a slow device": (
        {"faults": "{device: 1, slowdown: 6, at: 0 s}", "rate": 1, "requests": 6}, "tpot",
        "device n0.g1 is 6 times as slow (faults[0])",
    ),
    "a dead replica": (
        {"faults": "{device: 0, at: 2 s, until: 12 s}", "rate": 40, "requests": 240, "plan": "{tp: 1, dp: 2}",
         "serving": "max_batch_requests: 16"},
        "ttft", "device n0.g0 is down (faults[0], from 2 s to 12 s)",
    ),
    "K/V handed over by a weak link": (
        {"faults": "{link: [n0.g1, n0.nvswitch], factor: 0.0005, at: 0 s}", "rate": 2, "requests": 12,
         "plan": TWO_POOLS[0], "serving": TWO_POOLS[1], "more": "targets: {ttft: 100 ms}\n"},
        "ttft", "n0.g1 to n0.nvswitch has 0.05% of its capacity (faults[0])",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "name", "words"), ROOTS.values(), ids=ROOTS)
def test_a_fault_leads_where_the_requests_without_it_are_better(given: dict[str, Any], name: str, words: str) -> None:
    found = summary(**given)
    first, without = diagnoses(found)[0], found["without_faults"][f"{name}_ms"]["p99"]
    assert first.startswith(f"p99 {name.upper()}")
    assert words in first
    assert f"without it {format_seconds(without / 1e3)}" in first
    assert first.index(words) < first.index("from which follows")
    share = 1 - without / found[f"{name}_ms"]["p99"]
    shown = dict(cause_lines(found))[f"{name.upper()} causes"]
    assert shown.startswith(f"{share_words(share)} of p99 by faults, from which follows")
    drawn = bars(found)["faults: gone without them"]
    assert dict(zip(drawn.y, drawn.x, strict=True))[f"{name.upper()}, p99"] == pytest.approx(share)


@pytest.mark.parametrize(
    "faults",
    ["{link: [n0.g1, n0.nvswitch], factor: 0.9, at: 0 s}", "{device: 0, slowdown: 2, at: 1 s, until: 1.01 s}"],
    ids=["a link that is a little weak", "a device that is slow for a moment"],
)
def test_a_fault_that_hardly_matters_does_not_lead(faults: str) -> None:
    found = summary(serving="max_batch_requests: 4", rate=100, faults=faults)
    (line,) = diagnoses(found)
    assert "waiting for a place in the batch (4 = serving.max_batch_requests" in line.split(";")[0]
    without = format_seconds(found["without_faults"]["ttft_ms"]["p99"] / 1e3)
    assert "faults: gone without them" not in bars(found)
    assert line.endswith(f"; faults hardly matter: {without} without them")


def test_blocks_that_are_said_to_be_enough_are() -> None:
    """A run with so many has the figures that are told, and nobody waits in it; with one tenth less somebody does."""
    found = summary(serving="kv_blocks: 100", rate=100)
    (blocks,) = found["enough_blocks"]["kv_blocks"]
    enough, less = (summary(serving=f"kv_blocks: {some}", rate=100) for some in (blocks, blocks * 9 // 10))
    assert enough["ttft_ms"] == found["enough_blocks"]["ttft_ms"]
    assert enough["causes"]["ttft"]["mean"]["blocks_wait"] == 0
    assert less["causes"]["ttft"]["mean"]["blocks_wait"] > 0
    p99 = [format_seconds(enough[f"{name}_ms"]["p99"] / 1e3) for name in ("ttft", "tpot")]
    words = f"nobody waits for them: p99 TTFT is {p99[0]}, p99 TPOT is {p99[1]}; {LEFT_OUT} "
    assert f"(100 = serving.kv_blocks; with serving.kv_blocks={blocks} {words}" in diagnoses(found)[0]
    (held,) = found["enough_blocks"]["memory_blocks"]
    assert diagnoses(found)[0].endswith(f"{LEFT_OUT} {held:,})")
    assert summary(rate=100)["kv_blocks"] == held > blocks
    assert summary(serving="kv_blocks: 100", rate=100, more="targets: {ttft: 1 h}\n")["enough_blocks"] is None
    assert summary(serving="max_batch_requests: 4", rate=100)["enough_blocks"] is None


def test_blocks_that_are_enough_may_be_more_than_memory_holds() -> None:
    """So few that memory decides: a run with as many as are enough is refused, and the cause says what is lacking."""
    found = summary(serving="memory_utilization: 0.126", rate=100)
    (blocks,), (held,) = (found["enough_blocks"][name] for name in ("kv_blocks", "memory_blocks"))
    assert blocks > held == found["kv_blocks"]
    assert diagnoses(found)[0].endswith(f"; {MEMORY} {held:,})")
    for some, legal in ((held, True), (blocks, False)):
        text = PLAIN % (f"memory_utilization: 0.126, kv_blocks: {some}", "", 100, 120)
        scenario = build_scenario(parse_yaml(text, "prepared.yaml"), allow_code=False)
        assert bool(check_scenario(scenario).violations) is not legal
    assert MEMORY not in diagnoses(summary(serving="kv_blocks: 100", rate=100))[0]


def test_places_that_are_said_to_be_enough_are() -> None:
    """A run with so many has the figures that are told, and nobody waits in it; with one less somebody does."""
    found = summary(serving="max_batch_requests: 4", rate=100)
    places = found["enough_batch"]["max_batch_requests"]
    enough, less = (summary(serving=f"max_batch_requests: {some}", rate=100) for some in (places, places - 1))
    assert enough["ttft_ms"] == found["enough_batch"]["ttft_ms"]
    assert enough["causes"]["ttft"]["mean"]["batch_wait"] == 0
    assert less["causes"]["ttft"]["mean"]["batch_wait"] > 0
    p99 = [format_seconds(enough[f"{name}_ms"]["p99"] / 1e3) for name in ("ttft", "tpot")]
    words = f"nobody waits for one: p99 TTFT is {p99[0]}, p99 TPOT is {p99[1]})"
    told = f"(4 = serving.max_batch_requests; with serving.max_batch_requests={places} {words}"
    assert told in diagnoses(found)[0]
    for other in ("kv_blocks: 100", "max_batch_requests: 4, scheduler: static"):
        assert summary(serving=other, rate=100)["enough_batch"] is None
    assert summary(serving="max_batch_requests: 4", rate=100, more="targets: {ttft: 1 h}\n")["enough_batch"] is None
    few = summary(serving="max_batch_requests: 4, max_batch_tokens: 6", rate=100)
    assert few["enough_batch"] is None  # more would be more than the token budget lets decode
    pools = summary(serving="prefill: {max_batch_requests: 1}, scheduler: disaggregated", rate=100,
                    plan="{prefill: {tp: 2}, decode: {tp: 2}}")  # fmt: skip
    assert "with serving.prefill.max_batch_requests=" in diagnoses(pools)[0]


def test_of_several_faults_those_that_took_most_are_named() -> None:
    found = summary(faults=f"{WEAK % '0 s'}, {{device: 0, slowdown: 1.1, at: 3 s, until: 3.01 s}}", rate=1, requests=6)
    (line,) = diagnoses(found)
    assert "since link n0.g1 to n0.nvswitch has 2% of its capacity (faults[0]) and 1 more fault; without them" in line
    assert [one["key"] for one in found["without_faults"]["faults"]] == ["faults[0]", "faults[1]"]


def test_what_a_fault_took_is_what_passes_lasted_above_their_cost() -> None:
    """One request on one rank that is twice as slow: half of a pass is above its cost, less its host's part."""
    found = summary(faults="{device: 0, slowdown: 2, at: 0 s}", plan="{tp: 1}", requests=1)
    (fault,) = found["without_faults"]["faults"]
    longer = found["e2e_ms"]["mean"] - found["without_faults"]["e2e_ms"]["mean"]
    assert fault["lost_s"] == pytest.approx(longer / 1e3)
    assert 0.4 < fault["share"] < 0.5


@pytest.mark.parametrize(
    "faults", ["{link: [n0.g1, n0.nvswitch], factor: 0.5, at: 0 s}", "{device: 0, slowdown: 2, at: 0 s}"]
)
def test_what_a_fault_took_of_replicas_in_lockstep_is_told_once(faults: str) -> None:
    text = (PLAIN % ("", faults, 40, 6)).replace("{tp: 2}", "{dp: 2, ep: {degree: 2, scope: global}}")
    text = text.replace("llama-3.1-8b", "{name: mixtral-8x7b, config: {num_hidden_layers: 2}}")
    found = summary_of(simulate(build_scenario(parse_yaml(text, "prepared.yaml"), allow_code=False)), also=ALSO)
    (fault,) = found["without_faults"]["faults"]
    assert 0 < fault["lost_s"] < found["makespan_s"]
    assert 0 < fault["share"] < 1


def test_faults_are_not_lifted_where_every_target_is_met() -> None:
    met = summary(faults=WEAK % "0 s", rate=1, requests=6, more="targets: {ttft: 1 h}\n")
    assert met["without_faults"] is None
    assert diagnoses(met) == []


def test_diagnosis_says_nothing_of_a_run_that_lacks_nothing() -> None:
    assert diagnoses(summary()) == []


def told(**more: Any) -> dict[str, Any]:
    """Return a summary of which nine tenths of TTFT and of TPOT went to a wait for the batch."""
    share = {"mean": {"batch_wait": 0.9, "compute": 0.1}, "slowest": {"batch_wait": 0.9, "compute": 0.1}}
    latency = {"p50": 100.0, "p99": 900.0, "mean": 200.0}
    causes = {"ttft": share, "tpot": {"mean": {"interference": 0.8}, "slowest": {"interference": 0.7}}}
    serving = {"max_batch_requests": 6, "max_batch_tokens": 2048}
    return {
        "causes": causes, "ttft_ms": latency, "tpot_ms": latency, "scenario": {"serving": serving},
        "utilisation": {"compute": 0.5, "exposed_communication": 0.2}, "links": {"busiest": []}, **more,
    }  # fmt: skip


def test_how_full_the_cache_is_is_the_same_figure_wherever_it_is_told() -> None:
    """Of several replicas one is fuller: all of them together are less full than that one."""
    held = {"mean": 0.1, "max": 0.2, "replica_max": 0.25}
    found = summary(serving="max_batch_requests: 4", rate=100) | {"kv_occupancy": held}
    (line,) = diagnoses(found)
    assert "while K/V of a replica is 25% full at most" in line
    file = io.StringIO()
    print_summary(found, file=file)
    assert "K/V cache   25% of a replica's blocks at most" in file.getvalue()
    pools = [{"name": "prefill", "kv_peak": 0.03}, {"name": "decode", "kv_peak": 0.4}]
    assert "while K/V of a prefill replica is 3.0% full at most" in diagnoses(told(pools=pools))[0]


def test_each_target_that_is_missed_has_a_line_and_none_where_all_are_met() -> None:
    (alone,) = diagnoses(told())
    assert alone.startswith("p99 TTFT 900 ms: 90% waiting for a place in the batch (6 = serving.max_batch_requests)")
    both = diagnoses(told(targets={"ttft": "500 ms", "tpot": "50 ms"}))
    assert [line[:8] for line in both] == ["p99 TTFT", "p99 TPOT"]
    assert diagnoses(told(targets={"ttft": "1 s", "tpot": "1 s"})) == []


def test_waits_name_the_links_where_these_make_steps_long() -> None:
    links = {"busiest": [{"link": "n0.nic0 → leaf0", "utilisation": 0.84}]}
    used = {"compute": 0.2, "exposed_communication": 0.74}
    (line,) = diagnoses(told(links=links, utilisation=used, targets={"tpot": "50 ms"}))
    assert line.endswith(
        "in the same steps (2048 = serving.max_batch_tokens); devices are 74% in exposed communication; "
        "the busiest link is n0.nic0 → leaf0, 84% used"
    )


def test_rates_that_a_drain_bends_are_told_beside_steady_ones() -> None:
    """A request a second for 100 s, each answered after 20 s: 100 in 119 s, and in the end one a second.

    One more comes with each, which failed where it was recorded.
    """
    arrived, failed = np.arange(200) // 2 * NS_PER_S, np.arange(200) % 2 == 1
    finished = np.where(failed, np.nan, arrived + 20 * NS_PER_S)
    tokens = np.where(failed, 0, 5)
    requests = {"arrived_ns": arrived, "finished_ns": finished, "generated_tokens": tokens, "output_tokens": tokens}
    found = steady_rates(requests)
    assert found == {
        "from_s": 20.0,
        "to_s": 99.0,
        "arrived_per_s": 1.0,
        "requests_per_s": 1.0,
        "output_tokens_per_s": 5.0,
    }
    counts = dict.fromkeys(("arrived", "finished"), 100) | {"unfinished": 0}
    said = {"requests": counts, "steady": found, "throughput": {"requests_per_s": 100 / 119}}
    (line,) = remarks(said)
    assert "from 20 s to 99 s" in line
    assert "1.000 requests/s and 5.000 output tokens/s" in line
    assert remarks(said | {"throughput": {"requests_per_s": 0.95}}) == []


def test_rates_are_not_steady_where_requests_arrive_at_once_or_are_few() -> None:
    for arrived in (np.zeros(100), np.arange(20.0)):
        finished = arrived + 1
        requests = {"arrived_ns": arrived, "finished_ns": finished, "generated_tokens": np.ones(len(arrived))}
        assert steady_rates(requests) is None
