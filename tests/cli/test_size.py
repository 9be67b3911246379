"""``clustersim size``: the fewest that do, one less that does not, and what no number does."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from clustersim.cli import main
from tests.effort import some

SCENARIO = """
name: small
topology: {name: dgx-h100, nodes: 1}
model: llama-3.1-70b
plan: {tp: 8}
workload: {arrivals: {process: constant, rate: 40/s}, prompt_tokens: 1000, output_tokens: 20, requests: 120}
targets: {ttft: 300 ms, tpot: 50 ms}
"""
POOLS = (
    "--set", "plan={prefill: {tp: 4}, decode: {tp: 4}}", "--set", "serving={scheduler: disaggregated}",
    "--set", "workload.requests=40", "--set", "workload.output_tokens=8",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


def size(*args: str) -> Result:
    return CliRunner().invoke(main, ["size", "small.yaml", "--workers", "1", *args], catch_exceptions=False)


@cache
def found(*args: str) -> dict[str, Any]:
    """Return what is found; no folder and no other test makes it different."""
    told = size("--json", *args)
    assert told.exit_code == 0, told.stderr
    plain: dict[str, Any] = json.loads(told.stdout)
    return plain


def test_the_size_does_and_one_replica_less_does_not():
    told = found()
    shares = {one["replicas"]: one["share"] for one in told["tried"]}
    assert told["share"] == shares[told["replicas"]] >= 0.9 > shares[told["replicas"] - 1]
    assert told["replicas"] + 1 in shares
    assert (told["devices"], told["nodes"]) == (8 * told["replicas"], told["replicas"])
    assert told["summary"]["goodput"]["share"] == told["share"]
    assert told["limited_by"] in ("ttft", "tpot")


def test_a_lost_node_takes_one_more_where_each_replica_has_one():
    plain, lost = found(), found("--survive", "node")
    assert lost["replicas"] == plain["replicas"] + 1
    assert found("--survive", "device")["replicas"] == lost["replicas"]
    assert found("--survive", "rack", "--rack-nodes", "2")["replicas"] == plain["replicas"] + 2


def test_figures_and_command_are_those_of_the_loss_that_the_headline_is_about():
    args = ("--survive", "node", "--targets", "ttft=10 s, tpot=1 s")  # met by all with the loss, too
    told = found(*args)
    assert told["share"] == 1.0
    assert "faults=" in told["command"]
    done = CliRunner().invoke(main, [*shlex.split(told["command"])[1:], "--json", "--no-dashboard"])
    again = json.loads(done.stdout)
    assert told["summary"]["ttft_ms"]["p99"] == again["ttft_ms"]["p99"]
    assert f"{again['ttft_ms']['p99']:,.1f}" in size(*args).stdout


def shares(told: dict[str, Any]) -> dict[tuple[int, int], float]:
    return {(one["pools"]["prefill"], one["pools"]["decode"]): one["share"] for one in told["tried"]}


def test_two_pools_take_the_fewest_devices_of_both_together():
    told = found(*POOLS)
    prefill, decode = told["pools"]["prefill"], told["pools"]["decode"]
    assert told["devices"] == 4 * told["replicas"] == 4 * (prefill + decode)
    tried = shares(told)
    assert tried[prefill, decode] >= 0.9
    assert all(tried[less] < 0.9 for less in ((prefill - 1, decode), (prefill, decode - 1)) if min(less) > 0)
    for one in range(1, prefill + decode - 1):  # nothing cheaper does, tried or not
        args = ("--set", f"plan.prefill.dp={one}", "--set", f"plan.decode.dp={prefill + decode - 1 - one}")
        nodes = ("--set", f"topology.nodes={told['nodes']}")
        done = CliRunner().invoke(
            main,
            ["run", "small.yaml", "--json", "--no-audit", "--no-dashboard", *POOLS, *nodes, *args],
            catch_exceptions=False,
        )
        assert json.loads(done.stdout)["goodput"]["share"] < 0.9, args


def test_two_pools_of_different_plans_may_be_in_any_ratio():
    uneven = ("--set", "plan={prefill: {tp: 8}, decode: {tp: 2, pp: 2}}", "--set", "serving={scheduler: disaggregated}")
    told = found(*uneven)
    assert told["devices"] == 8 * told["pools"]["prefill"] + 4 * told["pools"]["decode"]
    printed = size(*uneven).stdout
    assert printed.splitlines()[0].endswith(f" of decode ({told['plan']})")
    assert told["plan"] == f"prefill DP {told['pools']['prefill']} × TP 8, decode PP 2 × TP 2"
    assert "one replica less: of " in printed


@pytest.mark.parametrize("what", some(["device", "node"]))
def test_two_pools_survive_the_loss_of_what_either_is_on(what: str):
    plain, lost = found(*POOLS), found(*POOLS, "--survive", what)
    assert lost["pools"]["prefill"] > 1
    assert lost["pools"]["decode"] > 1
    assert lost["devices"] >= plain["devices"]
    both = (
        "--set",
        f"plan.prefill.dp={lost['pools']['prefill']}",
        "--set",
        f"plan.decode.dp={lost['pools']['decode']}",
    )
    first = 4 * lost["pools"]["prefill"]
    for number in (0, first if what == "device" else first // 8):
        fault = ("--set", f"faults=[{{{what}: {number}, at: 0 s}}]", "--set", f"topology.nodes={lost['nodes']}")
        done = CliRunner().invoke(
            main,
            ["run", "small.yaml", "--json", "--no-audit", "--no-dashboard", *POOLS, *both, *fault],
            catch_exceptions=False,
        )
        assert json.loads(done.stdout)["goodput"]["share"] >= 0.9, number


def test_what_one_replica_less_lacks_is_told_also_where_none_is_left():
    loose = ("--targets", "ttft=3 s, tpot=90 ms", "--set", "workload.arrivals.rate=4/s", "--set", "plan.tp=4")
    told = size(*loose, "--survive", "node").stdout
    assert "one replica less: with n0 lost no replica is left" in told
    told = found(*loose, "--survive", "node")
    assert (told["limited_by"], told["why"]) == (None, "with n0 lost no replica is left")
    assert size(*loose).stdout.startswith("4 devices on 1 node, 1 replica (TP 4)\n")
    assert "lost" not in size("--survive", "node", "--set", "plan.tp=4").stdout


def test_the_last_lines_name_the_folder_and_the_command(folder: Path):
    *told, kept, command = size("--vary", "plan.tp=4,8").stdout.splitlines()
    assert next(one for one in told if one.startswith("few: ")).endswith(" the answer; ask with more of them")
    assert (folder / kept.split()[1] / "finished.jsonl").is_file()
    assert command.startswith("command  clustersim run small.yaml --set plan.tp=")


def test_of_several_plans_the_least_is_chosen():
    each = [found("--set", f"plan.tp={tp}")["devices"] for tp in (4, 8)]
    assert found("--vary", "plan.tp=4,8")["devices"] == min(each)
    priced = found("--by", "usd", "--set", "topology.price=2 USD/h", "--vary", "plan.tp=4,8")
    assert priced["usd_per_hour"] == 2.0 * min(each)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["--targets", "ttft=1 ms"],
            "--targets: targets.ttft: 1 ms is met by 0.0% of requests even when they come one by one",
        ),
        (["--targets", "tpt=1 ms"], "--targets: tpt: unknown key 'tpt'; did you mean 'tpot'?"),
        (["--most", "1", "--set", "workload.arrivals.rate=1e7/s"], "1 replica on 8 devices doesn't meet the targets: "),
        (["--most", "1"], "1 replica on 8 devices doesn't meet the targets: "),
        (["--most", "1", "--survive", "node"], "and 90% should (with n0 lost no replica is left); raise --most, now 1"),
        (["--set", "serving.kv_blocks=1"], "serving: rejects all of 120 requests even when they come one by one"),
        (["--vary", "plan.dp=1,2"], "--vary: plan.dp: is what size finds; vary another key of the plan, such as"),
        (["--vary", "plan.tp=8,x"], "--vary plan.tp=x: plan.tp: expected a whole number such as 8, but found the text"),
        (["--vary", "topology.nodes=1,2"], "--vary: topology.nodes: is what size finds"),
        (["--survive", "rack"], "does not say how many nodes a rack has; add --rack-nodes"),
        (["--rack-nodes", "2"], "--rack-nodes says what --survive rack loses"),
        (["--by", "usd"], "h100-sxm-80gb has no price"),
        (["--survive", "nod"], "did you mean 'node'?"),
        (
            [*POOLS, "--set", "plan.prefill.placement=[n0.g0, n0.g1, n0.g2, n0.g3]"],
            "plan.prefill.placement: names devices; expected packed",
        ),
        ([*POOLS, "--most", "1"], "2 replicas on 8 devices don't meet the targets: "),
        (["--set", "targets={}"], "says no target"),
        (["--targets", "ttft=1 s, itl=50 ms"], "--targets: targets.itl: no request has an ITL of its own"),
    ],
)
def test_what_has_no_size_is_told(args, told):
    done = size(*args)
    is_unreached = (
        "doesn't meet" in told or "don't meet" in told or " is met by " in told or "no replica is left" in told
    )
    assert done.exit_code == (1 if is_unreached else 2)
    if is_unreached:
        told_too = json.loads(size(*args, "--json").stdout)
        assert told_too["devices"] is None
        assert told_too["left_out"]
    assert told in done.stderr


def test_an_illegal_plan_has_no_size_and_is_told_beside_those_that_have():
    told = "plan.tp: 3 does not divide 64 attention heads (llama-3.1-70b); use 2, 4, 8, 16, 32 or 64 [TP-1]"
    for args, place in ((("--set", "plan.tp=3"), "--set #1"), (("--vary", "plan.tp=3,5"), "--vary plan.tp=3")):
        done = size(*args)
        assert (done.exit_code, done.stderr.splitlines()[0]) == (1, f"illegal: {place}: {told}")
    assert f"left out: illegal: --vary plan.tp=3: {told}" in size("--vary", "plan.tp=3,8").stdout.splitlines()
    (left_out,) = found("--vary", "plan.tp=3,8")["left_out"]
    assert left_out == {"plan": "plan.tp=3", "why": f"illegal: --vary plan.tp=3: {told}"}
