"""``clustersim why``: on prepared runs the limit that binds is the first advice; what can't be lifted is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from clustersim.cli import main
from clustersim.report.why.lifted import METRICS
from clustersim.scenario.document import parse_yaml
from clustersim.scenario.load import build_scenario
from clustersim.search.lifts import lifts_of
from tests.laws.random_scenarios import LLAMA

TINY: dict[str, Any] = {
    "name": "tiny",
    "topology": {"name": "dgx-h100", "nodes": 1},
    "model": {"name": "tiny", "source": "a test", "config": LLAMA | {"num_hidden_layers": 2}},
    "plan": {"tp": 2},
    "serving": {"kv_block_tokens": 16, "max_batch_tokens": 8192, "engine": "vllm-0.19"},
    "workload": {"arrivals": "all_at_once", "prompt_tokens": 256, "output_tokens": 16, "requests": 12},
}


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


def test_blocks_that_would_do_are_those_that_are_held_where_there_are_plenty(tmp_path: Path) -> None:
    """Twelve requests of 256 + 16 tokens: each holds 17 blocks of 16 tokens as it ends."""
    found = asked(tmp_path, "--only", "memory", kv_blocks=20)
    (one,) = found["lifted"]
    assert one["suffices"].startswith("204 blocks of a replica would do (it has 20): ")
    assert one["suffices"].endswith(" more on each device, or about 11 replicas (22 devices) instead of 1")


def test_some_limits_only(tmp_path: Path) -> None:
    found = asked(tmp_path, "--only", "host, faults")
    assert [one["limit"] for one in found["lifted"] + found["not_lifted"]] == ["no host time", "no faults"]
    odd = called("why", "quickstart", "--only", "hots", "--out", str(tmp_path / "odd"))
    assert (odd.exit_code, "'hots' is no limit; expected some of faults, batch" in odd.stderr) == (2, True)
    assert "did you mean 'host'" in odd.stderr


@pytest.mark.parametrize("took_s", [1.0, 40.0])
def test_it_says_how_long_it_will_take_and_what_is_shorter(
    took_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("clustersim.cli.commands.why.time.monotonic", lambda: took_s * next(clock))
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY), encoding="utf-8")
    words = ("why", str(file), "--only", "host,tokens,batch", "--workers", "1", "--out", str(tmp_path / "why"))
    told = called(*words).stderr.splitlines()
    assert told[0].startswith("each run has 12 requests and about ")
    assert f"2 runs without one limit each: about {2 * took_s:g} s" in told[1]  # of the batch: as it is
    assert ("--set workload.requests=20" in told[1] and "--only faults,batch" in told[1]) == (took_s > 20)
    assert called(*words).stderr == ""  # all of it is there


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


def test_what_cannot_be_asked_about_is_refused(tmp_path: Path) -> None:
    illegal = called("why", "illegal-five-ways", "--out", str(tmp_path / "why"))
    assert (illegal.exit_code, "TP-1" in illegal.stderr) == (1, True)
    assert not (tmp_path / "why" / "why.html").exists()
    assert called("why", "no-such-scenario").exit_code == 2
    odd = called("why", "quickstart", "--layout", "sweep", "--out", str(tmp_path / "odd"))
    assert (odd.exit_code, "unknown figure 'curve'" in odd.stderr) == (2, True)


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
