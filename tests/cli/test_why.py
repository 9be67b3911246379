"""``clustersim why``: on prepared runs the limit that binds is the first advice; what can't be lifted is said."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.report.layouts import layout as read
from clustersim.report.why.lifted import METRICS, Lifted, ranked
from clustersim.report.why.page import shown, why_html
from clustersim.report.words.progress import RunsLeft
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.search.lifts import lifts_of
from clustersim.search.settings import setting_of
from clustersim.simulation.legality import pool_blocks, scenario_memory
from clustersim.units import format_seconds
from tests.laws.random_scenarios import LLAMA

TINY: dict[str, Any] = {
    "name": "tiny",
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
    "plan": {"tp": 2},
    "serving": {"kv_block_tokens": 16, "max_batch_tokens": 8192, "engine": "vllm-0.19"},
    "workload": {"arrivals": "all_at_once", "prompt_tokens": 256, "output_tokens": 16, "requests": 12},
}


def test_figures_of_why_have_no_digits_that_say_nothing():
    assert [shown(value) for value in (None, 480.0, 648.25, 21.57)] == ["–", "480", "648.2", "21.6"]


def called(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def asked(folder: Path, *words: str, **serving: Any) -> dict[str, Any]:
    """Ask why of the scenario with other values of serving, and return what is printed."""
    file = folder / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"serving": TINY["serving"] | serving}), encoding="utf-8")
    result = called("why", str(file), "--json", "--workers", "1", "--out", str(folder / "why"), *words)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(
    ("serving", "limit", "key"),
    [
        ({"max_batch_requests": 1}, "no cap on the batch", "serving.max_batch_requests"),
        ({"kv_blocks": 20}, "16 times the K/V memory", "serving.kv_blocks"),
    ],
)
def test_the_limit_that_binds_comes_first(serving: dict[str, int], limit: str, key: str, tmp_path: Path) -> None:
    found = asked(tmp_path, **serving)
    first = found["lifted"][0]
    assert (first["limit"], first["key"], first["binds"]) == (limit, key, True)
    assert first["metrics"]["ttft_ms.p99"] < found["baseline"]["ttft_ms.p99"]
    assert set(first["metrics"]) == set(found["baseline"]) == set(METRICS)
    assert {one["limit"] for one in found["not_lifted"]} == {"no faults", "no prompts of other requests in a step"}
    assert limit in (tmp_path / "why" / "why.html").read_text(encoding="utf-8")


def test_the_table_fits_80_columns(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"serving": TINY["serving"] | {"max_batch_requests": 1}}), encoding="utf-8")
    lines = called("why", str(file), "--workers", "1", "--out", str(tmp_path / "why")).stdout.splitlines()
    table = lines[: next(place for place, line in enumerate(lines) if line.startswith("no gain"))]
    assert any(line.startswith(" serving.max_batch_requests ") for line in table)
    assert max(map(len, table)) <= 80


def test_a_limit_that_keeps_requests_from_finishing_binds(tmp_path: Path) -> None:
    """Latencies of the few that finish are better with the limit, and of none there are none."""
    for blocks, finished in ((10, 0), (17, 12)):
        found = asked(tmp_path, "--only", "memory", kv_blocks=blocks)
        (one,) = found["lifted"]
        assert (found["baseline"]["requests.finished"], one["metrics"]["requests.finished"]) == (finished, 12)
        assert one["binds"]
    file = str(tmp_path / "tiny.yaml")
    words = ("--set", "serving.kv_blocks=10", "--only", "memory", "--workers", "1", "--out", str(tmp_path / "why"))
    table = called("why", file, *words).stdout.splitlines()
    assert any(line.endswith(" finished ") for line in table)
    assert max(map(len, table[:8])) <= 80


def test_a_slow_link_comes_first(tmp_path: Path) -> None:
    fault = "faults=[{link: [n0.g1, n0.nvswitch], factor: 0.01, at: 0 s}]"
    found = asked(tmp_path, "--set", fault, "--set", "workload.requests=2")
    assert [one["limit"] for one in found["lifted"][:2]] == ["no faults", "a free network"]


def test_a_target_that_is_missed_is_marked(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    serving = TINY["serving"] | {"max_batch_requests": 1}
    file.write_text(yaml.safe_dump(TINY | {"serving": serving, "targets": {"ttft": "60 ms"}}), encoding="utf-8")
    words = ("why", str(file), "--only", "batch", "--workers", "1", "--out", str(tmp_path / "why"))
    found = json.loads(called(*words, "--json").stdout)
    (one,) = found["lifted"]
    assert (found["missed"], one["missed"]) == (["ttft_ms.p99"], [])
    lines = called(*words).stdout.splitlines()
    assert "!" in next(line for line in lines if line.startswith(" as it is"))
    assert "! misses its target: p99 of TTFT 60 ms" in lines
    assert (tmp_path / "why" / "why.html").read_text(encoding="utf-8").count('<td class="missed">') == 1


def test_what_is_enough_was_replayed_and_what_is_smaller_is_not(tmp_path: Path) -> None:
    """A target between what one replica and many give: the table's one more is not enough, and what is said, is."""
    words = ("--only", "memory,replicas", "--set", "targets.ttft=30 ms", "--set", "topology.nodes=4")
    found = asked(tmp_path, *words, kv_blocks=20)
    enough = {one["name"]: one["enough"] for one in found["lifted"]}
    table = {one["name"]: one for one in found["lifted"]}
    assert found["missed"] == table["replicas"]["missed"] == ["ttft_ms.p99"]
    assert table["memory"]["missed"] == []
    (more,), (blocks,) = enough["replicas"]["set"], enough["memory"]["set"]
    assert (more[:8], blocks[:18]) == ("plan.dp=", "serving.kv_blocks=")
    assert int(more[8:]) > 2
    assert int(blocks[18:]) <= 204  # twelve requests of 17 blocks each
    for change, said in ((more, enough["replicas"]), (blocks, enough["memory"])):
        bare = ("--json", "--no-dashboard", "--no-audit", "--out", str(tmp_path / "run"))
        own = ("run", str(tmp_path / "tiny.yaml"), "--set", "targets.ttft=30 ms", "--set", "topology.nodes=4", *bare)
        least = json.loads(called(*own, "--set", change).stdout)
        assert least["ttft_ms"]["p99"] == said["metrics"]["ttft_ms.p99"] <= 30
        less = said["falls_short"].split()[1]
        short = json.loads(called(*own, "--set", less).stdout)
        assert short["ttft_ms"]["p99"] > 30
    shown = called("why", str(tmp_path / "tiny.yaml"), *words, "--workers", "1", "--out", str(tmp_path / "why")).stdout
    assert f"enough   --set {more} (" in shown
    assert f"enough   --set {blocks}: TTFT p99 " in shown
    assert "alone" not in shown


def test_where_no_number_is_enough_none_is_said(tmp_path: Path) -> None:
    found = asked(tmp_path, "--only", "memory,replicas", "--set", "targets.ttft=1 ms", kv_blocks=20)
    enough = {one["name"]: one["enough"] for one in found["lifted"]}
    assert (enough["replicas"]["words"], enough["replicas"]["set"]) == (None, [])
    assert enough["replicas"]["falls_short"].startswith("--set plan.dp=16 ")
    assert enough["memory"]["set"] == ["serving.kv_blocks=204"]  # as good as sixteen times as many
    met = asked(tmp_path, "--only", "memory,replicas", "--set", "targets.ttft=1 h", kv_blocks=20)
    assert [one["enough"] for one in met["lifted"]] == [None, None]


def test_blocks_that_a_larger_share_of_the_memory_holds_are_told_by_that_share(tmp_path: Path) -> None:
    """Weights leave some hundred blocks at this share of the memory, and a larger share leaves enough."""
    share = TINY["serving"] | {"memory_utilization": 0.0314}
    file = tmp_path / "tiny.yaml"
    workload = TINY["workload"] | {"prompt_tokens": 4096, "requests": 60}
    file.write_text(yaml.safe_dump(TINY | {"serving": share, "workload": workload}), encoding="utf-8")
    result = called("why", str(file), "--only", "memory", "--json", "--workers", "1", "--out", str(tmp_path / "why"))
    (one,) = json.loads(result.stdout)["lifted"]
    (change,) = one["enough"]["set"]
    assert change.startswith("serving.memory_utilization=0.")
    assert one["enough"]["metrics"]["ttft_ms.p99"] == pytest.approx(one["metrics"]["ttft_ms.p99"], rel=0.006)


def test_blocks_that_no_share_of_the_memory_holds_are_told_with_what_devices_lack() -> None:
    scenario = build_scenario(parse_yaml(yaml.safe_dump(TINY), "tiny.yaml"), allow_code=False)
    (memory,) = [one for one in lifts_of(scenario, 12) if one.name == "memory"]
    held = pool_blocks(scenario, scenario_memory(scenario)) + 1000
    row = {"failed": None, "numbers": {"kv_held.all": 10.0 * held}}
    setting = setting_of(scenario, 12, memory, row)
    assert setting is not None
    assert setting.words(10 * held).startswith(f"{10 * held:,} K/V blocks of a replica, for which each device needs ")
    topology, *_, blocks = setting.changes(10 * held)
    assert (topology[:10], blocks) == ("topology={", f"serving.kv_blocks={10 * held}")
    assert setting.changes(held) == ("serving.memory_utilization=0.91",)  # … and a little more of it does


def test_some_limits_only(tmp_path: Path) -> None:
    found = asked(tmp_path, "--only", "host, faults")
    assert [one["limit"] for one in found["lifted"] + found["not_lifted"]] == ["no host time", "no faults"]
    none = called("why", "quickstart", "--only", ", ,", "--out", str(tmp_path / "odd"))
    assert (none.exit_code, "names no limit; expected some of faults" in none.stderr) == (2, True)
    odd = called("why", "quickstart", "--only", "hots", "--out", str(tmp_path / "odd"))
    assert (odd.exit_code, "'hots' is no limit; did you mean 'host'" in odd.stderr) == (2, True)


@pytest.mark.parametrize("took_s", [1.0, 40.0])
def test_it_says_how_much_cpu_it_takes_and_what_is_shorter(
    took_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU time of runs is told, whatever else the machine does meanwhile."""
    clock = iter(range(1000))
    monkeypatch.setattr("clustersim.search.point.time.process_time", lambda: took_s * next(clock))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"targets": {"ttft": "1 h"}}), encoding="utf-8")
    words = ("why", str(file), "--only", "host,tokens,batch", "--workers", "1", "--out", str(tmp_path / "why"))
    told = called(*words).stderr.splitlines()
    assert told[0].startswith("each run has 12 requests and, roughly estimated, ")
    cpu = f"about {format_seconds(3 * took_s)} of CPU, as it is took {format_seconds(took_s)}"
    assert f"3 runs without one limit each: {cpu}" in told[1]
    assert ("--set workload.requests=20" in told[1] and "--only faults,batch" in told[1]) == (took_s > 20)
    assert called(*words).stderr == ""  # all of it is there


def test_what_is_left_is_told_in_cpu_time_as_runs_end() -> None:
    file, clock, spent = io.StringIO(), iter(range(0, 1000, 100)), iter((0.0, 1.5, 9.0))
    told = RunsLeft(file=file, clock=lambda: next(clock), cpu=lambda: next(spent))
    for done in (0, 1, 3):
        told(done, 8)
    assert file.getvalue().splitlines()[1:] == [
        "1 of 8 runs, about 10 s of CPU left",
        "3 of 8 runs, about 15 s of CPU left",
    ]
    file, clock = io.StringIO(), iter(range(0, 1000, 100))
    work = iter(((20.0, 40.0), (60.0, 0.0), (60.0, 1e-9), (140.0, 60.0), (60.0, 12.0)))
    told = RunsLeft("plans", file, lambda: next(clock), work=lambda: next(work))
    for done in (1, 8, 7, 7, 7):
        told(done, 8)
    assert file.getvalue().splitlines() == [
        "1 of 8 plans, about 200 s left",  # 20 s of it took 100
        "8 of 8 plans",
        "7 of 8 plans, under a second left",
        "7 of 8 plans, about 75 s left",  # the last 80 took 100, however long the first ones did
        "7 of 8 plans, about 120 s left",  # what was under way took less than expected: 600 s for 60
    ]
    file, clock = io.StringIO(), iter(range(0, 1000, 100))
    work = iter(((0.5, 40.0), (4.0, 40.0), (8.0, math.inf), (80.0, 40.0)))
    told = RunsLeft("plans", file, lambda: next(clock), work=lambda: next(work), slowest=2.0)
    told.then = "the front"
    for done in (1, 2, 3):
        told(done, 8)
    told.then, told.most = "", "at most "
    told(4, 8)
    assert file.getvalue().splitlines() == [
        "1 of 8 plans",  # half a second of work tells nothing
        "2 of 8 plans, about 80 s left, then the front",  # 4 s of it took 200, which was not all for them
        "3 of 8 plans",
        "4 of 8 plans, at most about 56 s left",
    ]


def test_what_is_finished_is_told_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run without faults comes first; what is interrupted is the one behind it."""
    file = tmp_path / "tiny.yaml"
    fault = {"link": ["n0.g1", "n0.nvswitch"], "factor": 0.01, "at": "0 s"}
    file.write_text(yaml.safe_dump(TINY | {"faults": [fault]}), encoding="utf-8")
    simulated = []

    def outcomes(executors: Any, call: Any, calls: Any) -> Any:
        for number, arguments in calls:
            if len(simulated) == 2:
                raise KeyboardInterrupt
            simulated.append(arguments[0])
            yield number, call(*arguments)

    monkeypatch.setattr("clustersim.search.runs.outcomes", outcomes)
    result = called("why", str(file), "--workers", "1", "--out", str(tmp_path / "why"))
    assert result.exit_code == 130
    assert [len(one.faults) for one in simulated] == [1, 0]
    assert " no faults" in result.stdout
    assert "not tried: no host time: not finished" in result.stdout
    assert "interrupted, 6 runs not finished" in result.stderr
    monkeypatch.undo()
    again = called("why", str(file), "--workers", "1", "--out", str(tmp_path / "why"))
    assert (again.exit_code, "not finished" in again.stdout) == (0, False)


def test_limits_that_do_not_bind_are_no_advice(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    result = called("why", str(file), "--workers", "1", "--out", str(tmp_path / "why"))
    assert result.exit_code == 0, result.output
    table, _, rest = result.stdout.partition("no gain")
    assert "no cap on the batch" in rest
    assert "no cap on the batch" not in table
    assert "not tried: no faults: nothing fails" in rest
    assert "alone    the same with --only " in rest


def test_what_cannot_be_asked_about_is_refused(tmp_path: Path) -> None:
    illegal = called("why", "illegal-five-ways", "--out", str(tmp_path / "why"))
    assert (illegal.exit_code, "TP-1" in illegal.stderr) == (1, True)
    assert not (tmp_path / "why" / "why.html").exists()
    assert called("why", "no-such-scenario").exit_code == 2
    odd = called("why", "quickstart", "--layout", "sweep", "--out", str(tmp_path / "odd"))
    assert (odd.exit_code, len(odd.stderr.splitlines())) == (2, 1)
    assert "is of another page: this one has lifted, tornado, and it lists curve, " in odd.stderr
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("mine")
    full = called("why", "quickstart", "--out", str(tmp_path / "own"))
    assert (full.exit_code, "is not empty and holds no runs" in full.stderr) == (2, True)
    assert [one.name for one in (tmp_path / "own").iterdir()] == ["letter.txt"]


def test_a_replica_that_needs_nodes_says_so() -> None:
    wide = TINY | {"plan": {"tp": 8}}
    scenario = build_scenario(parse_yaml(yaml.safe_dump(wide), "tiny.yaml"), allow_code=False)
    (one,) = (one for one in lifts_of(scenario, 300) if one.name == "replicas")
    assert (one.limit, one.changes) == ("one more replica on 1 more node", ("plan.dp=2", "topology.nodes=2"))


@pytest.mark.usefixtures("checked_figures")
def test_the_page_says_what_it_has_on_top() -> None:
    """Faults stand before a limit that helps more; where none does, the first helps most."""

    def of(key: str, gain: float) -> Lifted:
        return Lifted(limit=f"no {key}", key=key, metrics={"ttft_ms.p99": 1.0}, gains={"ttft_ms.p99": gain})

    layout = read("why")
    for gain, words in ((0.7, "Faults are on top"), (0.4, "The limit that helps most is on top")):
        found = ranked([of("faults", 0.6), of("topology", gain)])
        assert found[0].key == "faults"
        assert words in why_html("x", {"ttft_ms.p99": 2.0}, found, layout, {})


def test_each_lift_changes_what_it_says_and_nothing_else() -> None:
    scenario = build_scenario(parse_yaml(yaml.safe_dump(TINY), "tiny.yaml"), allow_code=False)
    lifts = {one.limit: one.changes for one in lifts_of(scenario, 300)}
    assert lifts["no cap on the batch"] == (f"serving.max_batch_requests={max(300, 1024)}",)
    assert lifts["twice the token budget"] == ("serving.max_batch_tokens=16384",)
    assert lifts["one more replica"] == ("plan.dp=2",)
    own = scenario.portable["topology"]
    twice = json.loads(lifts["twice the bandwidth of every link"][0].removeprefix("topology="))
    assert twice["fabric"]["scaleup_bandwidth"] == "900.0 GB/s"
    assert twice["device"] == own["device"]
    roomy = json.loads(lifts["16 times the K/V memory"][0].removeprefix("topology="))
    assert roomy["fabric"] == own["fabric"]
    assert roomy["device"]["memory"]["capacity"] == "1280.0 GB"
    engine = json.loads(lifts["no host time"][0].removeprefix("serving.engine="))
    assert engine["schedule"] == engine["front_end"] == "0 s"
    assert engine["graph_max_tokens"] == scenario.portable["serving"]["engine"]["graph_max_tokens"]
